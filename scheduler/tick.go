package scheduler

import "time"

// Tick runs one scheduling step. This is the whole policy: who has to leave leaves, who fits comes in,
// a tenant without a place gets one,
// running sessions decode first, prompts are prefilled within a bound, and who is done makes room.
//
// The error, if any, is that the engine's recipe changed: the node must not go on with it. The report is
// valid until the next Tick. A second Tick at the same time panics.
func (s *Scheduler) Tick() (*Report, error) {
	s.beginTick()

	s.markOverdue()
	s.reap()
	s.promote()
	s.makeRoom()

	err := s.openTurns()
	s.closeGap()
	s.report.Open = s.lap()

	s.decode()
	s.report.Decode = s.lap()

	s.prefill()
	s.report.Prefill = s.lap()

	s.reap()
	s.promote()

	s.endTick()
	return &s.report, err
}

func (s *Scheduler) beginTick() {
	if !s.ticking.CompareAndSwap(false, true) {
		panic("scheduler: Tick called while another one runs; one goroutine owns it")
	}
	s.mu.Lock()
	s.stats.ticks++
	s.stats.tickSince = s.clock()
	s.stats.lapSince = s.stats.tickSince
	s.report.reset(s.stats.ticks)
}

func (s *Scheduler) endTick() {
	s.report.Promoted = append(s.report.Promoted, s.promoted...)
	s.promoted = s.promoted[:0]
	s.endRound()
	s.stats.endTick(s.clock(), &s.report)
	s.mu.Unlock()
	s.ticking.Store(false)
}

// lap is the time since the last lap.
func (s *Scheduler) lap() time.Duration {
	now := s.clock()
	d := now.Sub(s.stats.lapSince)
	s.stats.lapSince = now
	return d
}

// markOverdue marks what is past its deadline.
func (s *Scheduler) markOverdue() {
	now := s.clock()
	overdue := func(t *turn) bool { return !t.req.Deadline.IsZero() && !now.Before(t.req.Deadline) }
	for _, t := range s.active {
		if overdue(t) {
			t.mark(failed(FailDeadline, ""))
		}
	}
	if s.earliest.IsZero() || now.Before(s.earliest) {
		return
	}
	s.earliest = time.Time{}
	for at := len(s.ring) - 1; at >= 0; at-- { // who leaves leaves the queue, and maybe the ring
		a := s.ring[at]
		for i := len(a.queue) - 1; i >= 0; i-- {
			if t := a.queue[i]; overdue(t) {
				s.stop(t, failed(FailDeadline, ""))
			} else {
				s.expect(t.req.Deadline)
			}
		}
	}
}

// expect notes the deadline of a turn that waits.
func (s *Scheduler) expect(deadline time.Time) {
	if s.earliest.IsZero() || !deadline.IsZero() && deadline.Before(s.earliest) {
		s.earliest = deadline
	}
}
