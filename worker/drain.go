package worker

import (
	"sync"
	"time"

	"github.com/meshnet/node/scheduler"
)

// Drain stops taking work, or takes it again unless the service is stopping. What runs goes on.
func (s *Service) Drain(on bool) {
	if !on && s.stopping.Load() {
		return
	}
	s.draining.Store(on)
	s.places.shut(on)
	if on {
		s.log.Info("draining")
	} else {
		s.sched.Undrain()
		s.log.Info("taking work again")
	}
	if s.ads != nil {
		s.ads.Nudge()
	}
}

// shutdown ends the service without losing anything: no new requests, then the active turns' ends or
// hand-overs, then everything else. The order is the protocol's.
func (s *Service) shutdown(pulling *sync.WaitGroup) {
	s.stopping.Store(true)
	s.ready.Store(false)
	s.Drain(true)
	pulling.Wait() // the last fetch expires; what it brings is given back
	idle := make(chan struct{})
	s.background.Go(func() {
		s.tasks.Wait()
		close(idle)
	})
	if !s.awaitIdle(idle, s.cfg.DrainTimeout) {
		s.log.Info("drain timeout: what still runs is handed over", "turns", s.sched.Pending())
		s.interrupt()
		if !s.awaitIdle(idle, s.cfg.Periods.AckWait) {
			s.log.Error("turns did not end: they are left to their redelivery", "turns", len(s.turns.all()))
			s.endHard(nil)
		}
	}
}

// awaitIdle waits until no request and no turn is left.
func (s *Service) awaitIdle(idle <-chan struct{}, atMost time.Duration) bool {
	timer := time.NewTimer(max(0, atMost))
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
	case <-s.hard.Done():
	}
	select {
	case <-idle:
		return true
	default:
		return false
	}
}

// interrupt ends every turn for another worker to go on with: those on the scheduler at the next tick boundary, those
// that wait for it at once.
func (s *Service) interrupt() {
	s.sched.Interrupt()
	for _, t := range s.turns.all() {
		t.stop(scheduler.Interrupted, "", "the node is shutting down")
	}
}

// Abort ends the service as a crash would: nothing is handed over, told or acked. It is for whoever finds that the
// engine cannot be trusted any more. Stop has to follow.
func (s *Service) Abort() {
	s.stopping.Store(true)
	s.ready.Store(false)
	s.draining.Store(true)
	s.places.shut(true)
	s.endHard(errAborted)
}
