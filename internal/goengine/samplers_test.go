package goengine

import (
	"math"
	"slices"
	"testing"

	"github.com/meshnet/node/scheduler"
)

// A fixed row, by its probabilities, and every option's effect on it.

var rowProbs = []float64{0.4, 0.3, 0.15, 0.1, 0.05}

func fixedRow() []float32 {
	row := make([]float32, len(rowProbs))
	for i, p := range rowProbs {
		row[i] = float32(math.Log(p))
	}
	return row
}

// support are the tokens that many seeds draw from the fixed row, and how often.
func support(t *testing.T, change func(*scheduler.Sampling), history ...scheduler.Token) (tokens []scheduler.Token, share map[scheduler.Token]float64) {
	t.Helper()
	const draws = 4000
	e := &Engine{seen: make([]int32, len(rowProbs)), cfg: Config{EOG: 4}}
	sampling := scheduler.DefaultSampling()
	sampling.Temperature = 1
	change(&sampling)
	if err := sampling.Validate(); err != nil {
		t.Fatal(err)
	}
	share = map[scheduler.Token]float64{}
	for seed := range draws {
		var s slot
		sampling.Seed = uint64(seed)
		s.sampler.reset(sampling, history)
		token, ok := e.sample(&s, fixedRow(), 0)
		if !ok {
			t.Fatal("no token")
		}
		share[token] += 1.0 / draws
	}
	for token := range share {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	return tokens, share
}

func TestSamplersLeaveWhatTheirDefinitionsSay(t *testing.T) {
	entropy := 0.0
	for _, p := range rowProbs {
		entropy -= p * math.Log(p)
	}
	// By how far the surprise −ln p is from the entropy.
	order := []int{0, 1, 2, 3, 4}
	slices.SortFunc(order, func(a, b int) int {
		off := func(i int) float64 { return math.Abs(-math.Log(rowProbs[i]) - entropy) }
		if off(a) < off(b) {
			return -1
		}
		return 1
	})
	if !slices.Equal(order, []int{1, 0, 2, 3, 4}) {
		t.Fatalf("the tokens are typical in the order %v (entropy %g): the cases below are for another", order, entropy)
	}
	for name, c := range map[string]struct {
		change func(*scheduler.Sampling)
		want   []scheduler.Token
	}{
		"all off":                        {func(*scheduler.Sampling) {}, []scheduler.Token{0, 1, 2, 3, 4}},
		"typical-p 0.29":                 {func(s *scheduler.Sampling) { s.TypicalP = 0.29 }, []scheduler.Token{1}},
		"typical-p 0.6":                  {func(s *scheduler.Sampling) { s.TypicalP = 0.6 }, []scheduler.Token{0, 1}},
		"typical-p 0.8":                  {func(s *scheduler.Sampling) { s.TypicalP = 0.8 }, []scheduler.Token{0, 1, 2}},
		"xtc always":                     {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.12 }, []scheduler.Token{2, 3, 4}},
		"xtc, one reaches the threshold": {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.35 }, []scheduler.Token{0, 1, 2, 3, 4}},
		"xtc above a half":               {func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 1, 0.51 }, []scheduler.Token{0, 1, 2, 3, 4}},
		"xtc beside a ban": {func(s *scheduler.Sampling) {
			s.XTCProbability, s.XTCThreshold, s.LogitBias = 1, 0, []scheduler.Bias{{Token: 4, Bias: math.Inf(-1)}}
		}, []scheduler.Token{3}},
		"a ban":           {func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: 0, Bias: math.Inf(-1)}} }, []scheduler.Token{1, 2, 3, 4}},
		"a bias of 100":   {func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: 3, Bias: 100}} }, []scheduler.Token{3}},
		"no end at first": {func(s *scheduler.Sampling) { s.MinNewTokens = 1 }, []scheduler.Token{0, 1, 2, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := support(t, c.change); !slices.Equal(got, c.want) {
				t.Errorf("drawn were %v, want %v", got, c.want)
			}
		})
	}
}

func TestXTCStrikesAsOftenAsItsProbability(t *testing.T) {
	_, share := support(t, func(s *scheduler.Sampling) { s.XTCProbability, s.XTCThreshold = 0.25, 0.12 })
	// Where it strikes, the first two tokens cannot come.
	if got := share[0] + share[1]; math.Abs(got-0.75*0.7) > 4*math.Sqrt(0.525*0.475/4000) {
		t.Errorf("the excluded tokens came in %.3f of the draws, want 0.525", got)
	}
}

func TestDRYLowersTheTokenThatGoesOnWithARepetition(t *testing.T) {
	penalty := func(history []scheduler.Token, change func(*scheduler.Sampling)) []float32 {
		sampling := scheduler.DefaultSampling()
		sampling.DRYMultiplier, sampling.DRYBase, sampling.DRYAllowedLength = 0.5, 2, 2
		if change != nil {
			change(&sampling)
		}
		var s sampler
		s.reset(sampling, history)
		row := make([]float32, 6)
		s.penaliseRepetition(row)
		return row
	}
	for name, c := range map[string]struct {
		history []scheduler.Token
		change  func(*scheduler.Sampling)
		want    []float32
	}{
		"nothing repeats":                {[]scheduler.Token{1, 2, 3, 4}, nil, make([]float32, 6)},
		"one token repeats":              {[]scheduler.Token{1, 2, 3, 1}, nil, make([]float32, 6)},
		"two repeat: 0.5·2^0":            {[]scheduler.Token{1, 2, 3, 1, 2}, nil, []float32{0, 0, 0, -0.5, 0, 0}},
		"three repeat: 0.5·2^1":          {[]scheduler.Token{1, 2, 3, 4, 1, 2, 3}, nil, []float32{0, 0, 0, 0, -1, 0}},
		"the longest of two counts":      {[]scheduler.Token{2, 3, 4, 1, 2, 3, 4, 5, 1, 2, 3}, nil, []float32{0, 0, 0, 0, -1, 0}},
		"two ways to go on":              {[]scheduler.Token{1, 2, 3, 1, 2, 4, 1, 2}, nil, []float32{0, 0, 0, -0.5, -0.5, 0}},
		"all further back than it looks": {[]scheduler.Token{1, 2, 3, 4, 1, 2}, func(s *scheduler.Sampling) { s.DRYPenaltyLastN = 4 }, make([]float32, 6)},
		"a longer one is allowed":        {[]scheduler.Token{1, 2, 3, 1, 2}, func(s *scheduler.Sampling) { s.DRYAllowedLength = 3 }, make([]float32, 6)},
	} {
		if got := penalty(c.history, c.change); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestGreedyObeysBiasAndDRYButNoFilter(t *testing.T) {
	cold := func(change func(*scheduler.Sampling)) func(*scheduler.Sampling) {
		return func(s *scheduler.Sampling) { s.Temperature = 0; change(s) }
	}
	for name, c := range map[string]struct {
		change  func(*scheduler.Sampling)
		history []scheduler.Token
		want    scheduler.Token
	}{
		"a bias":        {cold(func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: 2, Bias: 1}} }), nil, 2},
		"DRY":           {cold(func(s *scheduler.Sampling) { s.DRYMultiplier, s.DRYAllowedLength = 5, 1 }), []scheduler.Token{3, 0, 3}, 1},
		"XTC":           {cold(func(s *scheduler.Sampling) { s.XTCProbability = 1 }), nil, 0},
		"typical-p":     {cold(func(s *scheduler.Sampling) { s.TypicalP = 0.29 }), nil, 0},
		"least tokens":  {cold(func(s *scheduler.Sampling) { s.MinNewTokens, s.LogitBias = 1, []scheduler.Bias{{Token: 4, Bias: 50}} }), nil, 0},
		"and then none": {cold(func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: 4, Bias: 50}} }), nil, 4},
	} {
		if got, _ := support(t, c.change, c.history...); !slices.Equal(got, []scheduler.Token{c.want}) {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}

func TestLogProbabilitiesAreTheModels(t *testing.T) {
	e := &Engine{seen: make([]int32, len(rowProbs)), cfg: Config{EOG: 4}}
	sampling := scheduler.DefaultSampling()
	sampling.Probs, sampling.LogitBias = 2, []scheduler.Bias{{Token: 3, Bias: 100}, {Token: 0, Bias: math.Inf(-1)}}
	var s slot
	s.sampler.reset(sampling, nil)
	r := e.choose(&s, fixedRow(), 0, scheduler.NoToken)
	if r.Token != 3 || len(r.Probs.Top) != 2 || r.Probs.Top[0].Token != 0 || r.Probs.Top[1].Token != 1 {
		t.Fatalf("token %d, %+v; want 3, with 0 and 1 as the likeliest", r.Token, r.Probs)
	}
	for i, got := range []float64{r.Probs.Top[0].LogProb, r.Probs.Top[1].LogProb, r.Probs.Chosen} {
		if want := math.Log([]float64{0.4, 0.3, 0.1}[i]); math.Abs(got-want) > 1e-6 {
			t.Errorf("log-probability %d is %g, want %g", i, got, want)
		}
	}
	if r := e.choose(&s, fixedRow(), 1, 2); r.Probs != nil {
		t.Errorf("a replayed token has %+v", r.Probs)
	}
}
