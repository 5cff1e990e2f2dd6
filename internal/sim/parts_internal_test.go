package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestFairSharesGiveNobodyMoreThanItAskedFor(t *testing.T) {
	for _, c := range []struct{ demand, want []float64 }{
		{[]float64{100, 1, 2}, []float64{57, 1, 2}},
		{[]float64{100, 100, 2}, []float64{29, 29, 2}},
		{[]float64{100, 100, 100}, []float64{20, 20, 20}},
		{[]float64{10, 0, 20}, []float64{10, 0, 20}},
	} {
		if got := fairShares(c.demand, 60); !slices.Equal(got, c.want) {
			t.Errorf("of 60, with demand %v: %v, want %v", c.demand, got, c.want)
		}
	}
}

func TestJainsIndex(t *testing.T) {
	for _, c := range []struct {
		got, shares []float64
		want        float64
	}{
		{[]float64{1, 2, 3}, []float64{2, 4, 6}, 1},
		{[]float64{8, 0, 0, 0}, []float64{2, 2, 2, 2}, 0.25},
		{[]float64{1, 9}, []float64{1, 0}, 1}, // who asked for nothing counts for nothing
		{nil, nil, 1},
	} {
		if got := jain(c.got, c.shares); got != c.want {
			t.Errorf("jain(%v, %v) = %v, want %v", c.got, c.shares, got, c.want)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var of []time.Duration
	for i := range 100 {
		of = append(of, time.Duration(99-i))
	}
	if p50, p99 := quantiles(of); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}

func TestAgendaGoesByTimeThenByPlan(t *testing.T) {
	var a agenda
	rng := rand.New(rand.NewPCG(1, 1))
	type planned struct {
		at time.Duration
		n  int
	}
	var want, got []planned
	for n := range 1000 {
		p := planned{time.Duration(rng.IntN(50)), n}
		want = append(want, p)
		a.at(p.at, func() { got = append(got, planned{a.now, n}) })
	}
	slices.SortStableFunc(want, func(x, y planned) int { return int(x.at - y.at) })
	for a.next() {
	}
	if !slices.Equal(got, want) {
		t.Error("events came in another order")
	}
	late := a.now
	a.at(0, func() {})
	if a.next(); a.now != late {
		t.Errorf("the clock went back from %d to %d", late, a.now)
	}
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	var q queue[int]
	next := 0
	for i := range 1000 {
		q.push(i)
		if i%3 > 0 {
			if got := q.pop(); got != next {
				t.Fatalf("%d came, want %d", got, next)
			}
			next++
		}
	}
	if q.len() != 1000-next {
		t.Errorf("%d left, want %d", q.len(), 1000-next)
	}
}

func TestStepsBetweenMeasuredOnesAreInProportion(t *testing.T) {
	s := &Speeds{Steps: []Step{{1, 10}, {2, 12}, {4, 20}}}
	for rows, want := range map[int]time.Duration{1: 10, 2: 12, 3: 16, 4: 20, 8: 40} {
		if got := s.step(rows); got != want*time.Millisecond {
			t.Errorf("%d rows take %s, want %d ms", rows, got, want)
		}
	}
}

// What fetches get goes round, as the server has it, and the own lane takes a place that a fetch does not use.
func TestFetchesAreServedInTurns(t *testing.T) {
	cfg := Scenario{Workers: 2, Sessions: 1, Tenants: 1, Slots: 4, Quota: 100}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	w := newWorld(&cfg, Measured())
	publish := func(l *lane, n int) {
		for range n {
			if !w.bus.publish(l, &turn{s: &session{}}, nil) {
				t.Fatal("the quota is used up")
			}
		}
	}
	held := func() string { return fmt.Sprint(w.nodes[0].held, w.nodes[1].held) }
	publish(w.bus.all, 3)
	if got := held(); got != "2 1" {
		t.Errorf("places held: %s, want 2 1", got)
	}
	n := w.nodes[0]
	n.own.fresh.push(&message{t: &turn{s: &session{}}, lane: n.own})
	n.own.stored[0]++
	n.fill()
	if got := held(); got != "3 1" || n.fetch.left != 2 || n.fetch.lent != 1 || n.pledged != 1 {
		t.Errorf("places held: %s, want 3 1; of the fetch %d left and %d lent, want 2 and 1", got, n.fetch.left, n.fetch.lent)
	}
	publish(w.bus.all, 5) // three for the other, two for this one, of which one finds its place lent
	if got := held(); got != "4 4" || w.bus.all.waiting() != 0 {
		t.Errorf("places held: %s, want 4 4; %d wait", got, w.bus.all.waiting())
	}
}

func TestTurnOfADeadNodeIsTakenOverWhenItsLeaseRunsOut(t *testing.T) {
	cfg := Scenario{Workers: 2, Sessions: 1, Tenants: 1, Slots: 1, Back: time.Hour, Prompt: Range{100, 100}, NewTokens: Range{1000, 1000}}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	w := newWorld(&cfg, &Speeds{Steps: []Step{{1, 10}}, PrefillMS: 1, BytesPerToken: 1})
	w.ask(&session{name: "s", hot: -1})
	for w.now < 5*time.Second {
		w.next()
	}
	w.die(0)
	for w.stats.done == 0 && w.next() {
	}
	// The lease began at 0 and was not renewed by then. The other node gets the turn at 30 s, claims it within 0.9 ms, and
	// evaluates all of it again: 100 ms of prompt, 999 steps.
	if want := 30*time.Second + 900*time.Microsecond + 10_090*time.Millisecond; w.stats.end != want {
		t.Errorf("it ended at %s, want %s", w.stats.end, want)
	}
	w.audit()
	r := w.result()
	// What the first one evaluated is lost: 100 tokens of prompt, and the steps of 5 s.
	if lost := int64(100 + 490); r.Takeovers != 1 || w.stats.evaluated-w.stats.useful != lost {
		t.Errorf("%d takeovers, %d tokens lost, want 1 and %d", r.Takeovers, w.stats.evaluated-w.stats.useful, lost)
	}
	if len(w.errs) > 0 {
		t.Error(w.errs)
	}
}
