package sampling_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/meshnet/node/sampling"
)

func TestDefaultsAreValidAndGreedy(t *testing.T) {
	p := sampling.Default()
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if p.Temperature != 0 || p.DRY() || p.XTC() || p.Penalises() || p.Probs != 0 {
		t.Errorf("%+v is not greedy with all off", p)
	}
}

// setters put a number into the parameters.
var setters = map[string]func(*sampling.Params, float64){
	"temperature":        func(p *sampling.Params, v float64) { p.Temperature = v },
	"top_k":              func(p *sampling.Params, v float64) { p.TopK = int(v) },
	"top_p":              func(p *sampling.Params, v float64) { p.TopP = v },
	"min_p":              func(p *sampling.Params, v float64) { p.MinP = v },
	"typical_p":          func(p *sampling.Params, v float64) { p.TypicalP = v },
	"repeat_penalty":     func(p *sampling.Params, v float64) { p.RepeatPenalty = v },
	"presence_penalty":   func(p *sampling.Params, v float64) { p.PresencePenalty = v },
	"frequency_penalty":  func(p *sampling.Params, v float64) { p.FrequencyPenalty = v },
	"penalty_last_n":     func(p *sampling.Params, v float64) { p.PenaltyLastN = int(v) },
	"dry_multiplier":     func(p *sampling.Params, v float64) { p.DRYMultiplier = v },
	"dry_base":           func(p *sampling.Params, v float64) { p.DRYBase = v },
	"dry_allowed_length": func(p *sampling.Params, v float64) { p.DRYAllowedLength = int(v) },
	"dry_penalty_last_n": func(p *sampling.Params, v float64) { p.DRYPenaltyLastN = int(v) },
	"xtc_probability":    func(p *sampling.Params, v float64) { p.XTCProbability = v },
	"xtc_threshold":      func(p *sampling.Params, v float64) { p.XTCThreshold = v },
	"n_probs":            func(p *sampling.Params, v float64) { p.Probs = int(v) },
}

func TestEveryNumberIsCheckedAgainstItsOwnRange(t *testing.T) {
	if got, want := len(sampling.Numbers()), len(setters); got != want {
		t.Fatalf("%d options, and %d setters", got, want)
	}
	for _, n := range sampling.Numbers() {
		try := func(v float64, valid bool) {
			t.Helper()
			p := sampling.Default()
			setters[n.Name](&p, v)
			err := p.Validate()
			var out *sampling.Error
			switch {
			case valid && err != nil:
				t.Errorf("%s %v: %v", n.Name, v, err)
			case !valid && (!errors.As(err, &out) || out.Field != n.Name || !strings.Contains(out.Limit, n.Range())):
				t.Errorf("%s %v: %v, want a refusal that names it and %s", n.Name, v, err, n.Range())
			}
		}
		step := 1e-9
		if n.Integer {
			step = 1
		}
		try(n.Min, !n.Above)
		try(n.Min+step, true)
		try(n.Min-step, false)
		try(n.Max, true)
		try(n.Max+step, false)
		if !n.Integer {
			for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				try(v, false)
			}
		}
	}
}

func TestAnIntegerThatIsOutOfRangeIsToldWithAllItsDigits(t *testing.T) {
	p := sampling.Default()
	p.TopK = 1<<20 + 1
	if err, want := p.Validate(), "top_k is 1048577; it must be in [0, 1048576]"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestListsAreCheckedWithTheElementThatIsWrong(t *testing.T) {
	many := make([]sampling.Bias, sampling.MaxLogitBias+1)
	for i := range many {
		many[i].Token = int32(i)
	}
	for name, c := range map[string]struct {
		field  string // "" is valid
		change func(*sampling.Params)
	}{
		"512 biases":            {"", func(p *sampling.Params) { p.LogitBias = many[1:] }},
		"513 biases":            {"logit_bias", func(p *sampling.Params) { p.LogitBias = many }},
		"a ban":                 {"", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Bias: math.Inf(-1)}} }},
		"bias 100":              {"", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Bias: 100}, {Token: 1, Bias: -100}} }},
		"bias 100.1":            {"logit_bias[1]", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Bias: 100}, {Token: 1, Bias: 100.1}} }},
		"bias +Inf":             {"logit_bias[0]", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Bias: math.Inf(1)}} }},
		"bias NaN":              {"logit_bias[0]", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Bias: math.NaN()}} }},
		"token -1":              {"logit_bias[0]", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Token: -1}} }},
		"a token twice":         {"logit_bias", func(p *sampling.Params) { p.LogitBias = []sampling.Bias{{Token: 9}, {Token: 3}, {Token: 9}} }},
		"no breakers":           {"", func(p *sampling.Params) { p.DRYBreakers = nil }},
		"17 breakers":           {"dry_sequence_breakers", func(p *sampling.Params) { p.DRYBreakers = strings.Split(strings.Repeat("x", 17), "") }},
		"a breaker of 41 bytes": {"dry_sequence_breakers[0]", func(p *sampling.Params) { p.DRYBreakers = []string{strings.Repeat("x", 41)} }},
		"a breaker with NUL":    {"dry_sequence_breakers[1]", func(p *sampling.Params) { p.DRYBreakers = []string{"x", "\x00"} }},
	} {
		p := sampling.Default()
		c.change(&p)
		var out *sampling.Error
		if err := p.Validate(); (err == nil) != (c.field == "") || err != nil && (!errors.As(err, &out) || out.Field != c.field) {
			t.Errorf("%s: %v, want a refusal of %q", name, err, c.field)
		}
	}
	for field, stops := range map[string][]string{"stop": make([]string, 17), "stop[0]": {""}, "stop[1]": {"a", "\xff"}, "": {"a", strings.Repeat("é", 128)}} {
		if err := sampling.CheckStops(stops); (err == nil) != (field == "") || err != nil && err.Field != field {
			t.Errorf("stop strings %q: %v, want a refusal of %q", stops, err, field)
		}
	}
}
