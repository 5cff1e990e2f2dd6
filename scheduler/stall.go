package scheduler

import (
	"context"
	"fmt"
	"time"
)

// minStallPoll bounds how often Watch looks.
const minStallPoll = 10 * time.Millisecond

// FailStalled gives up on an engine call that has taken longer than Config.StallAfter: every live turn
// fails as stalled at once, without waiting for the engine, and submissions are refused until the call returns. What it then
// yields is dropped, and its slots are released. It returns how many turns ended.
func (s *Scheduler) FailStalled(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.StallAfter == 0 || s.engineSince.IsZero() || now.Sub(s.engineSince) <= s.cfg.StallAfter {
		return 0
	}
	s.stalled = true
	v := failed(FailStalled, fmt.Sprintf("the engine has not answered for over %s", s.cfg.StallAfter))
	turns := s.liveTurns()
	for _, t := range turns {
		s.stop(t, v)
		if t.active() { // whether marked now or before, it cannot wait for the tick boundary
			s.end(t)
		}
	}
	return len(turns)
}

// Watch calls FailStalled often enough, until ctx is done, and calls ended after each time turns ended by
// it, so that their owner takes the results. It returns at once where Config.StallAfter is 0.
func (s *Scheduler) Watch(ctx context.Context, ended func()) {
	if s.cfg.StallAfter == 0 {
		return
	}
	ticker := time.NewTicker(max(s.cfg.StallAfter/4, minStallPoll))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if s.FailStalled(s.clock()) > 0 {
				ended()
			}
		}
	}
}
