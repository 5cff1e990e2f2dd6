package llama

import (
	"testing"
	"time"
)

// clocked feeds a watch with steps, one right after the other.
type clocked struct {
	threadWatch
	now time.Time
}

func newClocked() *clocked {
	return &clocked{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// steps feeds n steps and returns the last advice; the others must be to stay.
func (c *clocked) steps(t *testing.T, n, rows int, took time.Duration) advice {
	t.Helper()
	last := adviceStay
	for i := range n {
		if last != adviceStay {
			t.Fatalf("advice %d after %d of %d steps", last, i, n)
		}
		c.now = c.now.Add(took)
		last = c.step(c.now, rows, took)
	}
	return last
}

func (c *clocked) want(t *testing.T, what string, got, want advice) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: advice %d, want %d", what, got, want)
	}
}

const (
	usually = 10 * time.Millisecond
	slow    = 51 * time.Millisecond
)

func TestContentionTripsAfterSixSlowSteps(t *testing.T) {
	w := newClocked()
	w.want(t, "learning", w.steps(t, watchLearnSteps, 1, usually), adviceStay)
	w.want(t, "five slow ones", w.steps(t, 5, 1, slow), adviceStay)
	w.want(t, "one that is not", w.steps(t, 1, 1, usually), adviceStay)
	w.want(t, "five slow ones again", w.steps(t, 5, 1, slow), adviceStay)
	w.want(t, "the sixth", w.steps(t, 1, 1, slow), adviceFallBack)
}

func TestNothingIsJudgedBeforeTheWatchHasLearnt(t *testing.T) {
	w := newClocked()
	w.steps(t, 1, 1, usually)
	w.want(t, "slow ones while learning", w.steps(t, watchLearnSteps-1, 1, 10*usually), adviceStay)
}

func TestExpectedStepTimeNeedsNoLearning(t *testing.T) {
	w := newClocked()
	w.expect(1, usually)
	w.want(t, "slow from the first step on", w.steps(t, 6, 1, slow), adviceFallBack)
}

func TestGrowthOfContextsIsNotContention(t *testing.T) {
	w := newClocked()
	w.steps(t, watchLearnSteps, 1, usually)
	took := usually
	for range 400 { // to about 50 times the first steps
		took += took / 100
		w.want(t, "growth", w.steps(t, 1, 1, took), adviceStay)
	}
}

func TestMoreRowsAreNotContention(t *testing.T) {
	w := newClocked()
	w.steps(t, watchLearnSteps, 1, usually)
	w.want(t, "64 rows at the cost of 19", w.steps(t, 50, 64, 19*usually), adviceStay)
}

// trip makes a watch that has learnt fall back, and returns how long it rests.
func (c *clocked) trip(t *testing.T) time.Duration {
	t.Helper()
	c.want(t, "contention", c.steps(t, watchSlowSteps, 1, slow), adviceFallBack)
	began := c.now
	c.now = c.until.Add(-time.Nanosecond)
	c.want(t, "before the rest is over", c.step(c.now, 1, slow), adviceStay)
	c.now = c.until
	c.want(t, "after the rest", c.step(c.now, 1, slow), adviceRecover)
	return c.now.Sub(began)
}

func TestRestDoublesWhileContentionGoesOn(t *testing.T) {
	w := newClocked()
	w.steps(t, watchLearnSteps, 1, usually)
	for i, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		if got := w.trip(t); got != want {
			t.Errorf("rest %d lasts %v, want %v", i, got, want)
		}
	}
	w.now = w.now.Add(watchLongRest + time.Second) // a healthy spell
	if got := w.trip(t); got != watchFirstRest {
		t.Errorf("after a healthy spell the rest lasts %v, want %v", got, watchFirstRest)
	}
}
