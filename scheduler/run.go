package scheduler

import (
	"context"
	"fmt"
)

// Run ticks while there is work and sleeps while there is none, until ctx is done, for which it returns
// nil. sink is called after every tick, on the same goroutine; it takes what it needs from the report, which the next
// tick reuses, and the endings with TakeResults. Turns that leave while nothing is active
// (a cancel in the queue) wake it too. The error is Tick's.
func (s *Scheduler) Run(ctx context.Context, sink func(*Report)) error {
	for {
		if !s.hasWork() {
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		report, err := s.Tick()
		sink(report)
		if err != nil {
			return err
		}
	}
}

// hasWork says whether a tick has something to do. What waits while nothing is active waits for Submit to return, which wakes Run,
// as the disk does where everything active waits for that.
func (s *Scheduler) hasWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.active) > 0 && !s.reads()
}

// awaitReads sleeps while a tick would find nothing but turns that wait for the disk.
func (s *Scheduler) awaitReads() {
	for {
		s.mu.Lock()
		wait := s.reads()
		s.mu.Unlock()
		if !wait {
			return
		}
		<-s.wake
	}
}

// tickSlack is how many times more ticks than a fully serialised run needs RunToCompletion allows.
const tickSlack = 8

// RunToCompletion ticks until every accepted turn has ended, and returns the endings not yet taken. After
// maxTicks it gives up with an error that names how many turns are pending; 0 is a generous limit that
// follows from what the pending turns ask for.
func (s *Scheduler) RunToCompletion(maxTicks int) ([]Ending, error) {
	limit := maxTicks
	if limit == 0 {
		limit = s.defaultTickLimit()
	}
	for range limit {
		if s.Pending() == 0 {
			break
		}
		s.awaitReads()
		if _, err := s.Tick(); err != nil {
			return s.TakeResults(nil), err
		}
	}
	var err error
	if pending := s.Pending(); pending > 0 {
		err = fmt.Errorf("scheduler: %d turns still pending after %d ticks; check budgets and token counts, or allow more ticks", pending, limit)
	}
	return s.TakeResults(nil), err
}

// defaultTickLimit counts every token and every prompt chunk of every live turn as a tick of its own, with slack.
func (s *Scheduler) defaultTickLimit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ticks := 1
	for _, turns := range s.sessions {
		for _, t := range turns {
			chunks := (len(t.req.Prompt)+s.facts.PrefillChunk-1)/s.facts.PrefillChunk + 1
			ticks += 1 + chunks + t.req.MaxNewTokens
		}
	}
	return tickSlack * ticks
}
