package scheduler

import (
	"math"
	"slices"
)

// promote makes queued turns active while there is room: tenants in the order of promotionOrder, the turns of each in the order of
// before. A turn whose KV does not fit yet may be overtaken by later ones that fit, but only MaxOvertakings times: then
// everything behind it waits, and the room it needs gathers.
func (s *Scheduler) promote() {
	for s.freePlaces() > 0 && s.waiting > 0 {
		t := s.nextToPromote()
		if t == nil {
			break
		}
		s.activate(t)
	}
	clear(s.blocked)
	s.blocked = s.blocked[:0]
}

// nextToPromote is the first turn that fits, nil if there is none. It counts for those before it that they were overtaken.
func (s *Scheduler) nextToPromote() *turn {
	s.blocked = s.blocked[:0]
	if s.reserved+s.smallest > s.budget.KVBudgetBytes {
		return nil
	}
	order := s.promotionOrder()
	for a := order.next(); a != nil; a = order.next() {
		for _, t := range a.queue {
			switch {
			case !s.startable(t):
			case s.fits(t):
				for _, b := range s.blocked {
					b.overtaken++
				}
				return t
			case s.patienceSpent(t):
				return nil
			default:
				s.blocked = append(s.blocked, t)
			}
		}
	}
	s.weigh()
	return nil
}

// weigh finds out how little KV the least of the waiting turns needs: those that left may have needed less.
func (s *Scheduler) weigh() {
	s.smallest = math.MaxInt64 - s.budget.KVBudgetBytes
	for _, a := range s.ring {
		for _, t := range a.queue {
			s.smallest = min(s.smallest, t.reserved)
		}
	}
}

// mayRunNow says whether promote would find room for a turn that joined the queue, if not for one ahead of it. Before
// its prompt is tokenised, a turn's KV counts as what it needs at least.
func (s *Scheduler) mayRunNow(t *turn) bool {
	if s.freePlaces() <= 0 || !s.first(t) || !s.fits(t) {
		return false
	}
	for _, a := range s.ring {
		for _, ahead := range a.queue {
			if ahead.seq < t.seq && s.startable(ahead) && s.patienceSpent(ahead) {
				return false
			}
		}
	}
	return true
}

// hasPlaceInQueue says whether a turn may wait. Suspended turns were let in before and count no more. A full queue has room for
// the first turn of a tenant that holds no place, where a session can be suspended for it; for no more of these than may be active.
func (s *Scheduler) hasPlaceInQueue(t *turn) bool {
	waiting, depth := s.waiting-s.suspended, s.budget.MaxQueueDepth
	if waiting < depth {
		return true
	}
	if waiting >= depth+s.activeCap || !s.first(t) || s.victim(t.reserved) == nil {
		return false
	}
	a := s.tenants[t.key.Tenant]
	return a == nil || a.active == 0 && len(a.queue) == 0
}

func (s *Scheduler) enqueue(t *turn) {
	a := s.account(t.key.Tenant)
	i, _ := slices.BinarySearchFunc(a.queue, t, order)
	a.queue = slices.Insert(a.queue, i, t)
	if s.waiting == 0 || t.reserved < s.smallest {
		s.smallest = t.reserved
	}
	s.waiting++
	s.expect(t.req.Deadline)
}

// freePlaces is how many more turns may be active.
func (s *Scheduler) freePlaces() int { return s.activeCap - len(s.active) - s.pledged }

// fits says whether the turn's whole generation fits beside those of the active ones.
func (s *Scheduler) fits(t *turn) bool { return s.reserved+t.reserved <= s.budget.KVBudgetBytes }

// startable says whether only room keeps a queued turn from running.
func (s *Scheduler) startable(t *turn) bool { return t.phase == phaseQueued && !t.follows }

// first is whether no earlier turn of the session is live, for one that may not be so yet.
func (s *Scheduler) first(t *turn) bool {
	turns := s.sessions[t.key.SessionKey()]
	return len(turns) == 0 || turns[0] == t
}

func (s *Scheduler) patienceSpent(t *turn) bool { return t.overtaken >= s.budget.MaxOvertakings }

// activate gives a queued turn its place and its KV reservation; the next tick gives it a slot.
func (s *Scheduler) activate(t *turn) {
	s.leaveQueue(t)
	t.phase = phaseOpening
	t.ran = 0
	t.account.active++
	s.reserved += t.reserved
	s.active = append(s.active, t)
	s.promoted = append(s.promoted, t.key)
}

// deactivate takes an active turn's place and its KV reservation back. Its slot is left for cleanSlots.
func (s *Scheduler) deactivate(t *turn) {
	i := slices.Index(s.active, t)
	s.active = slices.Delete(s.active, i, i+1)
	s.reserved -= t.reserved
	t.account.active--
	if t.slot >= 0 && !t.kept {
		s.soil(t.slot, slotDirty)
	}
}

// leaveQueue gives back the place of a waiting turn.
func (s *Scheduler) leaveQueue(t *turn) {
	if t.pledge {
		t.pledge = false
		s.pledged--
		return
	}
	a := t.account
	if i := slices.Index(a.queue, t); i >= 0 {
		a.queue = slices.Delete(a.queue, i, i+1)
		s.waiting--
		if t.suspensions > 0 {
			s.suspended--
		}
	}
}
