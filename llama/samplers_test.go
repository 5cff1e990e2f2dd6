package llama_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// fixed is a drawer whose row is known: biases give the five tokens that were its likeliest these probabilities, and
// put every other far below.
type fixed struct {
	*drawer
	tokens []scheduler.Token
	biases []scheduler.Bias
}

var fixedProbs = []float64{0.4, 0.3, 0.15, 0.1, 0.05}

func newFixed(t *testing.T) *fixed {
	t.Helper()
	f := &fixed{drawer: newDrawer(t)}
	look := greedy()
	look.Probs = 20
	const above = 60
	for i, top := range f.draw(look, 0).Probs.Top[:len(fixedProbs)] {
		f.tokens = append(f.tokens, top.Token)
		f.biases = append(f.biases, scheduler.Bias{Token: top.Token, Bias: math.Log(fixedProbs[i]) - top.LogProb + above})
	}
	return f
}

// sampling is warm, on the known row.
func (f *fixed) sampling(change func(*scheduler.Sampling)) scheduler.Sampling {
	s := warm(0)
	s.Temperature, s.LogitBias = 1, slices.Clone(f.biases)
	change(&s)
	return s
}

// shares is how often each of the five tokens comes, in many draws.
func (f *fixed) shares(change func(*scheduler.Sampling)) []float64 {
	f.t.Helper()
	const draws = 1000
	s := f.sampling(change)
	counts := make([]float64, len(f.tokens))
	for seed := range draws {
		s.Seed = uint64(seed)
		at := slices.Index(f.tokens, f.draw(s, 0).Token)
		if at < 0 {
			f.t.Fatal("a token came that the biases put far below")
		}
		counts[at]++
	}
	for i := range counts {
		counts[i] /= draws
	}
	return counts
}

func TestSamplersLeaveWhatTheirDefinitionsSay(t *testing.T) {
	f := newFixed(t)
	for name, c := range map[string]struct {
		change func(*scheduler.Sampling)
		want   []float64 // what the definition gives each token
	}{
		"biases":                         {func(*scheduler.Sampling) {}, fixedProbs},
		"typical-p 0.29":                 {func(s *scheduler.Sampling) { s.TypicalP = 0.29 }, []float64{0, 1, 0, 0, 0}},
		"typical-p 0.6":                  {func(s *scheduler.Sampling) { s.TypicalP = 0.6 }, []float64{4. / 7, 3. / 7, 0, 0, 0}},
		"typical-p 0.8":                  {func(s *scheduler.Sampling) { s.TypicalP = 0.8 }, []float64{0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0}},
		"xtc always":                     {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.12 }, []float64{0, 0, 0.5, 1. / 3, 1. / 6}},
		"xtc in a quarter":               {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 0.25, 0.12 }, []float64{0.3, 0.225, 0.75*0.15 + 0.125, 0.75*0.1 + 0.25/3, 0.75*0.05 + 0.25/6}},
		"xtc, one reaches the threshold": {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.35 }, fixedProbs},
		"xtc above a half":               {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.51 }, fixedProbs},
		"a ban":                          {func(s *scheduler.Sampling) { s.LogitBias[0].Bias = math.Inf(-1) }, []float64{0, 0.5, 0.25, 1. / 6, 1. / 12}},
		"top-k, then xtc":                {func(s *scheduler.Sampling) { s.TopK, s.XTCProbability, s.XTCThreshold = 3, 1, 0.3 }, []float64{0, 2. / 3, 1. / 3, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, got := range f.shares(c.change) {
				switch want := c.want[i]; {
				case want == 0 && got > 0:
					t.Errorf("token %d comes in %.3f of the draws, and should never", i, got)
				case want > 0:
					if off := math.Abs(got-want) / math.Sqrt(want*(1-want)/1000+1e-12); off > 4 {
						t.Errorf("token %d comes in %.3f of the draws, want %.3f", i, got, want)
					}
				}
			}
		})
	}
}

func TestXTCNeverLeavesOnlyWhatIsBanned(t *testing.T) {
	f := newFixed(t)
	leastLikely := func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0 }
	want := f.draw(f.sampling(leastLikely), 0).Token
	got := f.draw(f.sampling(func(s *scheduler.Sampling) {
		leastLikely(s)
		s.LogitBias[1].Bias = math.Inf(-1)
	}), 0).Token
	if got != want || want == f.tokens[0] {
		t.Errorf("beside a ban token %d is drawn, without it %d; want the same, not the likeliest", got, want)
	}
}

// With nothing masked out, llama.cpp's typical sampler would take the logarithm of a probability of zero, and filter nothing.
func TestTypicalWorksBesideImpossibleTokens(t *testing.T) {
	f := newFixed(t)
	shares := f.shares(func(s *scheduler.Sampling) { s.TypicalP, s.IgnoreEOG = 0.29, true })
	if shares[1] != 1 {
		t.Errorf("shares %v, want the second token always", shares)
	}
}

// The best token of the known row is ahead by ln(4/3) = 0.2877: a penalty of more makes the second one win.
func TestDRYPenaltyIsMultiplierTimesAPowerOfTheBase(t *testing.T) {
	f := newFixed(t)
	best, second := f.tokens[0], f.tokens[1]
	a, b, c, other := f.tokens[2], f.tokens[3], f.tokens[4], scheduler.Token(300)
	two := []scheduler.Token{a, b, best, other, a, b}         // a b was followed by best
	three := []scheduler.Token{c, a, b, best, other, c, a, b} // so was c a b
	piece, err := f.model.Piece(b, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		multiplier float64
		history    []scheduler.Token
		change     func(*scheduler.Sampling)
		want       scheduler.Token
	}{
		"off":                          {0, two, nil, best},
		"two repeat, 0.287":            {0.287, two, nil, best},
		"two repeat, 0.289":            {0.289, two, nil, second},
		"three repeat, 0.143 · 2":      {0.143, three, nil, best},
		"three repeat, 0.145 · 2":      {0.145, three, nil, second},
		"three are allowed":            {5, two, func(s *scheduler.Sampling) { s.DRYAllowedLength = 3 }, best},
		"a breaker in the repetition":  {5, two, func(s *scheduler.Sampling) { s.DRYBreakers = []string{strings.TrimSpace(string(piece))} }, best},
		"too far back":                 {5, two, func(s *scheduler.Sampling) { s.DRYPenaltyLastN = 5 }, best},
		"just within what it looks at": {5, two, func(s *scheduler.Sampling) { s.DRYPenaltyLastN = 6 }, second},
	} {
		for range 2 { // the second is a copy
			s := f.sampling(func(s *scheduler.Sampling) {
				s.Temperature, s.DRYMultiplier, s.DRYBase, s.DRYBreakers = 0, test.multiplier, 2, []string{}
				if test.change != nil {
					test.change(s)
				}
			})
			if got := f.draw(s, 0, test.history...).Token; got != test.want {
				t.Errorf("%s: token %d, want %d", name, got, test.want)
			}
		}
	}
}

// More sets of breakers than an engine keeps, and each of them again.
func TestBreakersAreThoseOfTheTurnHoweverManyOthersThereWere(t *testing.T) {
	f := newFixed(t)
	best, second := f.tokens[0], f.tokens[1]
	history := []scheduler.Token{f.tokens[2], f.tokens[3], best, 300, f.tokens[2], f.tokens[3]}
	piece, err := f.model.Piece(f.tokens[3], false)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		for i := range 20 {
			for breaker, want := range map[string]scheduler.Token{fmt.Sprint("never ", i): second, strings.TrimSpace(string(piece)): best} {
				s := f.sampling(func(s *scheduler.Sampling) { s.Temperature, s.DRYMultiplier, s.DRYBreakers = 0, 1, []string{breaker} })
				if got := f.draw(s, 0, history...).Token; got != want {
					t.Errorf("round %d, breaker %q: token %d, want %d", round, breaker, got, want)
				}
			}
		}
	}
}

func TestPenaltiesThatLeaveNothingLeaveTheLikeliest(t *testing.T) {
	f := newFixed(t)
	only := f.tokens[0]
	for _, temperature := range []float64{0, 1} {
		s := f.sampling(func(s *scheduler.Sampling) {
			s.Temperature, s.TopK, s.DRYMultiplier, s.DRYBase, s.DRYAllowedLength = temperature, 1, 5, 4, 1
			s.DRYPenaltyLastN, s.DRYBreakers = 400, []string{}
			s.LogitBias = []scheduler.Bias{{Token: only, Bias: 100}}
		})
		if got := f.draw(s, 0, slices.Repeat([]scheduler.Token{only}, 400)...); got.Outcome != scheduler.OutcomeToken {
			t.Errorf("temperature %g: %+v", temperature, got)
		}
	}
}

func TestTheEndIsNotChosenBeforeTheLeastTokens(t *testing.T) {
	f := newFixed(t)
	var end scheduler.Token
	for !f.model.IsEOG(end) {
		end++
	}
	for _, temperature := range []float64{0, 1} {
		s := f.sampling(func(s *scheduler.Sampling) {
			s.Temperature, s.MinNewTokens = temperature, 5
			s.LogitBias = append(s.LogitBias, scheduler.Bias{Token: end, Bias: 100})
		})
		if res := f.draw(s, 4); res.Token == end || res.EOG {
			t.Errorf("temperature %g: the end came at index 4", temperature)
		}
		if res := f.draw(s, 5); res.Token != end || !res.EOG {
			t.Errorf("temperature %g: token %d at index 5, want the end, %d", temperature, res.Token, end)
		}
	}
}

func TestIndicesCountFromTheFirst(t *testing.T) {
	d := newDrawer(t)
	for seed := range uint64(50) {
		whole, rest := warm(seed), warm(seed)
		rest.FirstIndex = 7
		if a, b := d.draw(whole, 12).Token, d.draw(rest, 5).Token; a != b {
			t.Errorf("seed %d: token %d at index 12, %d at 7 + 5", seed, a, b)
		}
	}
}

func TestLogProbabilitiesAreTheModels(t *testing.T) {
	f := newFixed(t)
	plain := greedy()
	plain.Probs = 20
	want := f.draw(plain, 0).Probs
	if gap := want.Top[0].LogProb - want.Top[1].LogProb; math.Abs(gap-f.gap) > 1e-4 || want.Top[0].Token != f.best || want.Chosen != want.Top[0].LogProb {
		t.Errorf("best %+v, then %+v, chosen %g; the audit says %d, by %g", want.Top[0], want.Top[1], want.Chosen, f.best, f.gap)
	}
	sum := 0.0
	for i, top := range want.Top {
		sum += math.Exp(top.LogProb)
		if i > 0 && top.LogProb > want.Top[i-1].LogProb {
			t.Errorf("%+v comes after %+v", top, want.Top[i-1])
		}
	}
	if sum > 1+1e-6 || sum < 0.5 {
		t.Errorf("the 20 likeliest add up to %g", sum)
	}
	shaped := f.sampling(func(s *scheduler.Sampling) {
		s.Probs, s.RepeatPenalty, s.TopK, s.Temperature, s.IgnoreEOG = 20, 1.5, 3, 0.3, true
		s.LogitBias = []scheduler.Bias{{Token: f.tokens[4], Bias: 100}}
	})
	got := f.draw(shaped, 0, f.tokens...)
	if !slices.Equal(got.Probs.Top, want.Top) {
		t.Errorf("with other options %v, want %v", got.Probs.Top, want.Top)
	}
	if got.Token != f.tokens[4] || got.Probs.Chosen != want.Top[4].LogProb {
		t.Errorf("chosen is %d with %g, want %d with %g", got.Token, got.Probs.Chosen, f.tokens[4], want.Top[4].LogProb)
	}
	if res := f.draw(greedy(), 0); res.Probs != nil {
		t.Errorf("not asked for, and got %+v", res.Probs)
	}
}

func TestOpenNamesTheSamplingFieldThatIsWrong(t *testing.T) {
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	for field, change := range map[string]func(*scheduler.Sampling){
		"top_p":                    func(s *scheduler.Sampling) { s.TopP = math.NaN() },
		"typical_p":                func(s *scheduler.Sampling) { s.TypicalP = 1.1 },
		"dry_sequence_breakers[1]": func(s *scheduler.Sampling) { s.DRYBreakers = []string{"a", "b\x00c"} },
		"logit_bias[0]":            func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: 1024}} },
	} {
		s := greedy()
		change(&s)
		if err := r.Open(0, s, nil); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
