package sampling

import (
	"math"
	"strconv"
)

// Number is an option whose value is a number.
type Number struct {
	Name    string // on the wire; its flag has hyphens for underscores
	Default float64
	Min     float64
	Max     float64
	Above   bool // Min itself is not valid
	Integer bool
	Help    string // one sentence, for --help and the documents
}

// Holds says whether a value is in the range; NaN never is.
func (n *Number) Holds(v float64) bool {
	return v >= n.Min && v <= n.Max && (!n.Above || v != n.Min)
}

// text is a value as it was given: an integer has all its digits.
func (n *Number) text(v float64) string {
	if n.Integer {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// Range is the range in words, such as "(0, 1]".
func (n *Number) Range() string {
	bracket := "["
	if n.Above {
		bracket = "("
	}
	return bracket + Text(n.Min) + ", " + Text(n.Max) + "]"
}

// Text is how a bound or a default reads.
func Text(v float64) string {
	if v == math.Trunc(v) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// The options that are numbers.
var (
	Temperature = Number{Name: "temperature", Min: 0, Max: 2,
		Help: "Randomness; 0 always takes the likeliest token."}
	TopK = Number{Name: "top_k", Min: 0, Max: 1 << 20, Integer: true,
		Help: "Draw from so many of the likeliest tokens; 0 is off."}
	TopP = Number{Name: "top_p", Default: 1, Min: 0, Max: 1, Above: true,
		Help: "Draw from the likeliest tokens that add up to this probability; 1 is off."}
	MinP = Number{Name: "min_p", Min: 0, Max: 1,
		Help: "Draw from tokens at least so many times as likely as the likeliest; 0 is off."}
	TypicalP = Number{Name: "typical_p", Default: 1, Min: 0, Max: 1, Above: true,
		Help: "Draw from the tokens closest to the expected surprise that add up to this probability; 1 is off."}
	RepeatPenalty = Number{Name: "repeat_penalty", Default: 1, Min: 0, Max: 2, Above: true,
		Help: "Divide the logits of recent tokens, where positive, and multiply them where negative; 1 is off."}
	PresencePenalty = Number{Name: "presence_penalty", Min: -2, Max: 2,
		Help: "Lower the logits of recent tokens once; 0 is off."}
	FrequencyPenalty = Number{Name: "frequency_penalty", Min: -2, Max: 2,
		Help: "Lower the logits of recent tokens each time they occur; 0 is off."}
	PenaltyLastN = Number{Name: "penalty_last_n", Default: 64, Min: 0, Max: 4096, Integer: true,
		Help: "How many tokens these three penalties look back, the prompt included; 0 is off."}
	DRYMultiplier = Number{Name: "dry_multiplier", Min: 0, Max: 5,
		Help: "Lower the logits of tokens that would go on repeating a sequence (DRY), by this times a power of the base; 0 is off."}
	DRYBase = Number{Name: "dry_base", Default: 1.75, Min: 1, Max: 4,
		Help: "By what DRY's penalty grows with each token of the repetition."}
	DRYAllowedLength = Number{Name: "dry_allowed_length", Default: 2, Min: 1, Max: 4096, Integer: true,
		Help: "Tokens that DRY lets repeat without a penalty."}
	DRYPenaltyLastN = Number{Name: "dry_penalty_last_n", Default: 64, Min: 0, Max: 4096, Integer: true,
		Help: "How many tokens DRY looks back, the prompt included; 0 is off."}
	XTCProbability = Number{Name: "xtc_probability", Min: 0, Max: 1,
		Help: "How often the likeliest tokens are excluded (XTC); 0 is off."}
	XTCThreshold = Number{Name: "xtc_threshold", Default: 0.1, Min: 0, Max: 1,
		Help: "XTC excludes all tokens with at least this probability but the least likely of them; above 0.5 it is off."}
	NProbs = Number{Name: "n_probs", Min: 0, Max: 20, Integer: true,
		Help: "Tell the log-probability of each token, and of so many of the likeliest; 0 is off."}
)

// numbers are in the order of Params.values.
var numbers = [...]Number{Temperature, TopK, TopP, MinP, TypicalP, RepeatPenalty, PresencePenalty, FrequencyPenalty, PenaltyLastN,
	DRYMultiplier, DRYBase, DRYAllowedLength, DRYPenaltyLastN, XTCProbability, XTCThreshold, NProbs}

// Numbers lists the options that are numbers. The slice is the caller's.
func Numbers() []Number { return append([]Number(nil), numbers[:]...) }

func (p *Params) values() [len(numbers)]float64 {
	return [...]float64{p.Temperature, float64(p.TopK), p.TopP, p.MinP, p.TypicalP, p.RepeatPenalty, p.PresencePenalty,
		p.FrequencyPenalty, float64(p.PenaltyLastN), p.DRYMultiplier, p.DRYBase, float64(p.DRYAllowedLength),
		float64(p.DRYPenaltyLastN), p.XTCProbability, p.XTCThreshold, float64(p.Probs)}
}
