package bench

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

func options() Options {
	return Options{
		Concurrency: []int{2}, Requests: 40, Rounds: 1, Seed: 7, Output: Lengths{4, 9}, IgnoreEOS: true,
		Timeout: time.Minute, Stall: 10 * time.Second,
	}
}

func TestArrivalsAreReproducibleAndHaveTheirRate(t *testing.T) {
	const rate, n = 5.0, 20_000
	first, again := arrivals(stream(1, 0, 0, forArrivals), rate, n), arrivals(stream(1, 0, 0, forArrivals), rate, n)
	if !slices.Equal(first, again) {
		t.Error("the same seed makes other arrivals")
	}
	if slices.Equal(first, arrivals(stream(2, 0, 0, forArrivals), rate, n)) {
		t.Error("another seed makes the same arrivals")
	}
	if !slices.IsSorted(first) {
		t.Error("the arrivals are not in order")
	}
	// Gaps of a Poisson process are exponential: mean and standard deviation are both 1/rate. With 20,000 of them the
	// mean is within 3 % but for one seed of 20,000.
	sum, squares, last := 0.0, 0.0, time.Duration(0)
	for _, at := range first {
		gap := (at - last).Seconds()
		sum, squares, last = sum+gap, squares+gap*gap, at
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean*rate-1) > 0.03 || math.Abs(deviation*rate-1) > 0.05 {
		t.Errorf("gaps have mean %g and deviation %g, want %g", mean, deviation, 1/rate)
	}
}

func TestEqualSeedsMakeEqualJobsAndEachRoundHasItsOwn(t *testing.T) {
	o := options()
	plan := func(round, index int) []Job {
		return o.plan(RandomIDs(Lengths{5, 20}, 3, 100, o.Seed), round, index, o.phases()[0], 10)
	}
	jobs := plan(0, 0)
	if !reflect.DeepEqual(jobs, plan(0, 0)) {
		t.Error("the same seed makes other jobs")
	}
	if reflect.DeepEqual(jobs[0].Prompt, plan(1, 0)[0].Prompt) || reflect.DeepEqual(jobs[0].Prompt, plan(0, 1)[0].Prompt) {
		t.Error("another round or phase has the same prompts, which are cached by then")
	}
	shortest, longest := math.MaxInt, 0
	for i, job := range jobs {
		n := len(job.Prompt.TokenIDs)
		shortest, longest = min(shortest, n), max(longest, n)
		if n < 8 || n > 23 || job.MaxTokens < 4 || job.MaxTokens > 9 || job.Number != 10+i || job.Seed >= 1<<31 {
			t.Errorf("job %d: %+v", i, job)
		}
		if !slices.Equal(job.Prompt.TokenIDs[:3], jobs[0].Prompt.TokenIDs[:3]) {
			t.Errorf("job %d does not begin as the others", i)
		}
		if slices.Min(job.Prompt.TokenIDs) < 0 || slices.Max(job.Prompt.TokenIDs) > 99 {
			t.Errorf("job %d has ids outside the vocabulary", i)
		}
	}
	if shortest == longest {
		t.Errorf("all prompts have %d ids", longest)
	}
}

func TestAChangeOfOneDistributionLeavesTheOthers(t *testing.T) {
	o := options()
	before := o.plan(RandomIDs(Lengths{5, 20}, 0, 100, o.Seed), 0, 0, o.phases()[0], 0)
	o.Output = Lengths{100, 200}
	after := o.plan(RandomIDs(Lengths{5, 20}, 0, 100, o.Seed), 0, 0, o.phases()[0], 0)
	for i := range before {
		if !reflect.DeepEqual(before[i].Prompt, after[i].Prompt) || before[i].Seed != after[i].Seed {
			t.Fatalf("job %d: other lengths of answers changed its prompt or seed", i)
		}
	}
}

func TestPromptsOfWordsHaveAsManyAsTheirLengthAndShareTheFirst(t *testing.T) {
	p := RandomWords(Lengths{6, 6}, 4, 1)
	random := stream(1, 0, 0, forPrompts)
	first, _ := p.make(random, 0)
	second, _ := p.make(random, 1)
	if first.TokenIDs != nil || first.Text == second.Text {
		t.Errorf("prompts %+v and %+v", first, second)
	}
	a, b := splitWords(first.Text), splitWords(second.Text)
	if len(a) != 10 || len(b) != 10 || !slices.Equal(a[:4], b[:4]) {
		t.Errorf("%q and %q", a, b)
	}
}
