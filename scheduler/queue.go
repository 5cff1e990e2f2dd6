package scheduler

import "slices"

// promote makes queued turns active while there is room: tenants in the order of promotionOrder, the turns of each in the order of
// before. A turn whose KV does not fit yet may be overtaken by later ones that fit, but only MaxOvertakings times: then
// everything behind it waits, and the room it needs gathers.
func (s *Scheduler) promote() {
	for s.freePlaces() > 0 && len(s.queue) > 0 {
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
	for _, a := range s.promotionOrder() {
		for _, t := range s.queue {
			switch {
			case t.account != a || !s.startable(t):
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
	return nil
}

// mayRunNow says whether promote would find room for a turn that joined the queue, if not for one ahead of it. Before
// its prompt is tokenised, a turn's KV counts as what it needs at least.
func (s *Scheduler) mayRunNow(t *turn) bool {
	if s.freePlaces() <= 0 || !s.first(t) || !s.fits(t) {
		return false
	}
	for _, ahead := range s.queue {
		if ahead.seq < t.seq && s.startable(ahead) && s.patienceSpent(ahead) {
			return false
		}
	}
	return true
}

// hasPlaceInQueue says whether a turn may wait. Suspended turns were let in before and count no more. A full queue has room for
// the first turn of a tenant that holds no place, where a session can be suspended for it; for no more of these than may be active.
func (s *Scheduler) hasPlaceInQueue(t *turn) bool {
	waiting, depth := len(s.queue)-s.suspended, s.budget.MaxQueueDepth
	if waiting < depth {
		return true
	}
	if waiting >= depth+s.activeCap || !s.first(t) || s.activeOf(t.key.Tenant) > 0 || s.victimFor(t) == nil {
		return false
	}
	return !slices.ContainsFunc(s.queue, func(other *turn) bool { return other.key.Tenant == t.key.Tenant })
}

func (s *Scheduler) enqueue(t *turn) {
	i, _ := slices.BinarySearchFunc(s.queue, t, order)
	s.queue = slices.Insert(s.queue, i, t)
}

// freePlaces is how many more turns may be active.
func (s *Scheduler) freePlaces() int { return s.activeCap - len(s.active) - s.pledged }

// fits says whether the turn's whole generation fits beside those of the active ones.
func (s *Scheduler) fits(t *turn) bool { return s.reserved+t.reserved <= s.budget.KVBudgetBytes }

// startable says whether only room keeps a queued turn from running.
func (s *Scheduler) startable(t *turn) bool { return t.phase == phaseQueued && s.first(t) }

// first says whether no earlier turn of the session is live.
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
	if i := slices.Index(s.queue, t); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
		if t.suspensions > 0 {
			s.suspended--
		}
	}
}
