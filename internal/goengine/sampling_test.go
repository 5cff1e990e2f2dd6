package goengine_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// TestOpenNamesTheSamplingFieldThatIsWrong: sglang#28153.
func TestOpenNamesTheSamplingFieldThatIsWrong(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	set := func(change func(s *scheduler.Sampling, v float64), values ...float64) []scheduler.Sampling {
		var out []scheduler.Sampling
		for _, v := range values {
			s := scheduler.DefaultSampling()
			change(&s, v)
			out = append(out, s)
		}
		return out
	}
	for field, cases := range map[string][]scheduler.Sampling{
		"temperature":       set(func(s *scheduler.Sampling, v float64) { s.Temperature = v }, nan, inf, -1, 2.1),
		"top_p":             set(func(s *scheduler.Sampling, v float64) { s.TopP = v }, nan, 0, 2),
		"min_p":             set(func(s *scheduler.Sampling, v float64) { s.MinP = v }, nan, -0.1, 1.1),
		"top_k":             set(func(s *scheduler.Sampling, v float64) { s.TopK = int(v) }, -5, 1<<20+1),
		"repeat_penalty":    set(func(s *scheduler.Sampling, v float64) { s.RepeatPenalty = v }, nan, 0, 10, -10),
		"presence_penalty":  set(func(s *scheduler.Sampling, v float64) { s.PresencePenalty = v }, nan, 10, -10),
		"frequency_penalty": set(func(s *scheduler.Sampling, v float64) { s.FrequencyPenalty = v }, nan, 10, -10),
		"penalty_last_n":    set(func(s *scheduler.Sampling, v float64) { s.PenaltyLastN = int(v) }, -1, 4097),
	} {
		for _, s := range cases {
			e := newEngine(t, goengine.Config{})
			if err := e.Open(0, s, nil); err == nil || !strings.Contains(err.Error(), field+" is") {
				t.Errorf("%s: %+v: error is %v", field, s, err)
			}
			if err := e.Open(0, scheduler.DefaultSampling(), nil); err != nil {
				t.Errorf("%s: the refused sampler stayed: %v", field, err)
			}
		}
	}
}

// TestIgnoreEOGNeverYieldsIt: llama.cpp#21203.
func TestIgnoreEOGNeverYieldsIt(t *testing.T) {
	for _, temperature := range []float64{0, 1} {
		s := scheduler.DefaultSampling()
		s.Temperature = temperature
		cfg := goengine.Config{EOGBias: 1000}
		first := alone(t, cfg, prompt(1, 10), 1, s)[0]
		if first.Token != 2 || !first.EOG {
			t.Errorf("temperature %v: the biased first token is %+v, want the EOG token 2", temperature, first)
		}
		s.IgnoreEOG = true
		for i, r := range alone(t, cfg, prompt(1, 10), 64, s) {
			if r.EOG || r.Token == 2 {
				t.Errorf("temperature %v: token %d ends the generation", temperature, i)
			}
		}
	}
}

func TestEOGBiasDecidesHowLikelyTheEndIs(t *testing.T) {
	s := scheduler.DefaultSampling()
	s.Temperature = 2
	for _, r := range alone(t, goengine.Config{EOGBias: -1000}, prompt(1, 10), 200, s) {
		if r.EOG {
			t.Fatal("an end that the bias forbids")
		}
	}
	e := newEngine(t, goengine.Config{EOG: 77, EOGBias: 1000})
	if r := start(t, e, 0, prompt(1, 10), greedy).all[0]; r.Token != 77 || !r.EOG || e.EOG() != 77 {
		t.Errorf("first token is %+v, want the EOG token 77", r)
	}
}

func TestSeedDecidesTheDraws(t *testing.T) {
	s := scheduler.DefaultSampling()
	s.Temperature, s.Seed = 1, 5
	once := text(alone(t, goengine.Config{}, prompt(1, 10), 30, s))
	if again := text(alone(t, goengine.Config{}, prompt(1, 10), 30, s)); !slices.Equal(once, again) {
		t.Errorf("one seed, two outputs: %v and %v", once, again)
	}
	s.Seed = 6
	if other := text(alone(t, goengine.Config{}, prompt(1, 10), 30, s)); slices.Equal(once, other) {
		t.Error("two seeds, one output")
	}
}

// TestDrawDependsOnItsIndexAlone forces other tokens into one of two sessions and draws at the same index from
// the same logits.
func TestDrawDependsOnItsIndexAlone(t *testing.T) {
	s := scheduler.DefaultSampling()
	s.Temperature, s.Seed = 1, 9
	p := prompt(1, 10)
	drawn := alone(t, goengine.Config{}, p, 8, s)
	e := newEngine(t, goengine.Config{})
	whole := append(slices.Clone(p), text(drawn[:7])...)
	start(t, e, 0, whole[:16], s) // which draws at index 0
	row := scheduler.Row{Pos: 16, Token: whole[16], Index: 7, Forced: scheduler.NoToken}
	if got := e.Decode([]scheduler.Row{row})[0]; got != drawn[7] {
		t.Errorf("index 7 is %+v, want %+v", got, drawn[7])
	}
}

func TestEachIndexHasItsOwnDraw(t *testing.T) {
	s := scheduler.DefaultSampling()
	s.Temperature, s.Seed = 1.5, 9
	e := newEngine(t, goengine.Config{})
	start(t, e, 0, prompt(1, 10), s)
	draws := map[token]bool{}
	for index := range 20 {
		row := scheduler.Row{Pos: 10, Token: 5, Index: index, Forced: scheduler.NoToken}
		draws[e.Decode([]scheduler.Row{row})[0].Token] = true
		if err := e.Trim(0, 10); err != nil {
			t.Fatal(err)
		}
	}
	if len(draws) < 10 {
		t.Errorf("%d different tokens of 20 draws from one logit row, want at least 10", len(draws))
	}
}

func TestTopKOfOneIsGreedy(t *testing.T) {
	s := scheduler.DefaultSampling()
	want := alone(t, goengine.Config{}, prompt(1, 10), 30, s)
	for name, change := range map[string]func(*scheduler.Sampling){
		"top-k 1":       func(s *scheduler.Sampling) { s.TopK = 1 },
		"tiny top-p":    func(s *scheduler.Sampling) { s.TopP = 1e-9 },
		"min-p 1":       func(s *scheduler.Sampling) { s.MinP = 1 },
		"nearly frozen": func(s *scheduler.Sampling) { s.Temperature = 1e-300 },
	} {
		s := scheduler.DefaultSampling()
		s.Temperature = 1
		change(&s)
		sameResults(t, name, alone(t, goengine.Config{}, prompt(1, 10), 30, s), want)
	}
}

func TestStrongPenaltyForbidsRepetition(t *testing.T) {
	s := scheduler.DefaultSampling()
	s.PresencePenalty, s.RepeatPenalty, s.PenaltyLastN = 2, 2, 200
	p := prompt(1, 60)
	weak := text(alone(t, goengine.Config{}, p, 60, scheduler.DefaultSampling()))
	strong := text(alone(t, goengine.Config{}, p, 60, s))
	distinct := func(list tokens) int {
		list = slices.Clone(list)
		slices.Sort(list)
		return len(slices.Compact(list))
	}
	if distinct(strong) <= distinct(weak) {
		t.Errorf("%d distinct tokens with penalties, %d without", distinct(strong), distinct(weak))
	}
}
