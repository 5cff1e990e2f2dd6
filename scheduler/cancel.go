package scheduler

import (
	"cmp"
	"fmt"
	"slices"
)

// Cancel ends a live turn with Cancelled, or with Failed and a cause. It says whether it found one that was
// live and not about to end: of several calls for a turn only the first does. A waiting turn
// leaves at once, an active one at the next tick boundary; a token in flight is dropped.
//
// Another reason, a cause with Cancelled, or an unknown cause is an error and changes nothing.
func (s *Scheduler) Cancel(key TurnKey, reason EndReason, cause FailCause, detail string) (bool, error) {
	switch {
	case reason != Cancelled && reason != Failed:
		return false, fmt.Errorf("scheduler: cancel turn %s: %w", key, fieldError("reason", reason, "%s or %s", Cancelled, Failed))
	case reason == Cancelled && cause != "":
		return false, fmt.Errorf("scheduler: cancel turn %s: %w", key, fieldError("cause", cause, "empty with %s", Cancelled))
	case reason == Failed && !cause.valid():
		return false, fmt.Errorf("scheduler: cancel turn %s: %w", key, fieldError("cause", fmt.Sprintf("%q", cause), "one of %v", FailCauses()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.find(key)
	if t == nil || !s.stop(t, verdict{reason: reason, cause: cause, detail: detail}) {
		return false, nil
	}
	s.promote()
	s.nudge()
	return true, nil
}

// Drain refuses submissions from now on; what is live goes on.
func (s *Scheduler) Drain() { s.setDraining(true) }

// Undrain takes submissions again.
func (s *Scheduler) Undrain() { s.setDraining(false) }

func (s *Scheduler) setDraining(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = on
}

// Interrupt drains, and ends everything live with Interrupted and the tokens so far: what waits at once,
// what is active at the next tick boundary. It returns how many turns that are.
func (s *Scheduler) Interrupt() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	n := s.stopAll(verdict{reason: Interrupted, detail: "the node is shutting down"})
	s.nudge()
	return n
}

// stopAll marks whatever is live and not marked yet, and says how many turns that are.
func (s *Scheduler) stopAll(v verdict) (stopped int) {
	for _, t := range s.liveTurns() {
		if s.stop(t, v) {
			stopped++
		}
	}
	return stopped
}

// liveTurns is a new slice of the accepted turns that have not ended, in the order of arrival.
func (s *Scheduler) liveTurns() []*turn {
	all := make([]*turn, 0, s.live)
	for _, turns := range s.sessions {
		all = append(all, turns...)
	}
	slices.SortFunc(all, func(a, b *turn) int { return cmp.Compare(a.seq, b.seq) })
	return all
}
