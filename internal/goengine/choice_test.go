package goengine

import (
	"math"
	"testing"

	"github.com/meshnet/node/scheduler"
)

func TestGreedyTakesTheLowestOfEqualTokens(t *testing.T) {
	if token, ok := greedy([]float32{1, 3, 2, 3}); token != 1 || !ok {
		t.Errorf("token %d, %t; want 1", token, ok)
	}
	never := float32(math.Inf(-1))
	if _, ok := greedy([]float32{never, never}); ok {
		t.Error("a token of none that is possible")
	}
}

func TestPenaltiesCountRecentTokens(t *testing.T) {
	e := &Engine{seen: make([]int32, 6)}
	var s sampler
	s.reset(scheduler.Sampling{
		TypicalP:      1,
		RepeatPenalty: 2, PresencePenalty: 0.5, FrequencyPenalty: 0.25, PenaltyLastN: 4,
	}, []scheduler.Token{5, 4, 1, 2}) // all four are looked back on
	s.accept(5) // pushes the 5 out
	s.accept(2) // and the 4
	row := []float32{8, 8, 8, -8, -8, -8}
	e.penalise(&s, row)
	// Tokens 1 and 5 once, token 2 twice; 8/2 − 0.5 − 0.25 for the first, −8·2 − 0.5 − 0.25 for the last.
	want := []float32{8, 3.25, 3, -8, -8, -16.75}
	for i := range want {
		if row[i] != want[i] {
			t.Errorf("token %d: logit %v, want %v", i, row[i], want[i])
		}
	}
	for token, count := range e.seen {
		if count != 0 {
			t.Errorf("token %d is still counted %d times", token, count)
		}
	}
}

func TestFiltersKeepTheRightHead(t *testing.T) {
	ln := func(p float64) float32 { return float32(math.Log(p)) }
	ranked := []candidate{{0, ln(0.5)}, {1, ln(0.25)}, {2, ln(0.15)}, {3, ln(0.1)}}
	for name, c := range map[string]struct {
		s    scheduler.Sampling
		want int
	}{
		"all off":                         {scheduler.Sampling{TypicalP: 1, TopP: 1}, 4},
		"top-k":                           {scheduler.Sampling{TypicalP: 1, TopP: 1, TopK: 3}, 3},
		"top-k above the vocabulary":      {scheduler.Sampling{TypicalP: 1, TopP: 1, TopK: 1 << 20}, 4},
		"top-p takes the one that passes": {scheduler.Sampling{TypicalP: 1, TopP: 0.7}, 2},
		"top-p after top-k is relative":   {scheduler.Sampling{TypicalP: 1, TopP: 0.6, TopK: 2}, 1},
		"min-p is relative to the best":   {scheduler.Sampling{TypicalP: 1, TopP: 1, MinP: 0.25}, 3},
		"one is always left":              {scheduler.Sampling{TypicalP: 1, TopP: 1e-9, MinP: 1}, 1},
	} {
		s := sampler{Sampling: c.s}
		if got := len(s.filter(ranked)); got != c.want {
			t.Errorf("%s: %d candidates, want %d", name, got, c.want)
		}
	}
}

func TestPickFollowsTheProbabilities(t *testing.T) {
	ranked := []candidate{{7, float32(math.Log(3))}, {9, 0}} // 3 to 1; at temperature 0.5, 9 to 1
	for _, c := range []struct {
		temperature, u float64
		want           scheduler.Token
	}{
		{1, 0, 7}, {1, 0.74, 7}, {1, 0.76, 9}, {0.5, 0.76, 7}, {0.5, 0.89, 7}, {0.5, 0.91, 9}, {1, 1 - 1e-16, 9},
	} {
		if got := pick(ranked, c.temperature, c.u); got != c.want {
			t.Errorf("temperature %v, u %v: token %d, want %d", c.temperature, c.u, got, c.want)
		}
	}
}

func TestUniformCoversItsRangeForAnyArgument(t *testing.T) {
	const n = 20000
	for name, draw := range map[string]func(i uint64) float64{
		"seeds":    func(i uint64) float64 { return uniform(i, 0, purposeToken) },
		"indices":  func(i uint64) float64 { return uniform(0, i, purposeToken) },
		"purposes": func(i uint64) float64 { return uniform(0, 0, i) },
	} {
		var buckets [10]int
		for i := range uint64(n) {
			u := draw(i)
			if !(u >= 0 && u < 1) {
				t.Fatalf("%s: %v is outside [0, 1)", name, u)
			}
			buckets[int(u*10)]++
		}
		for i, count := range buckets {
			if count < n/10-250 || count > n/10+250 { // about six standard deviations
				t.Errorf("%s: %d of %d in tenth %d", name, count, n, i)
			}
		}
	}
}

func TestGapIsBetweenTheTwoLargestLogits(t *testing.T) {
	if _, gap := audit([]float32{1, -3, 4.5, 4}); gap != 0.5 {
		t.Errorf("gap %v, want 0.5", gap)
	}
	if _, gap := audit([]float32{4, 1, 4}); gap != 0 {
		t.Errorf("gap of equal logits %v, want 0", gap)
	}
	a, _ := audit([]float32{0, 1})
	b, _ := audit([]float32{float32(math.Copysign(0, -1)), 1})
	if a == b {
		t.Error("the hash does not tell 0 from −0")
	}
}
