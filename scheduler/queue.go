package scheduler

import "slices"

// promote makes queued turns active while there is room, oldest first. A turn whose KV does not fit yet
// may be overtaken by later ones that fit, but only MaxOvertakings times: then everything behind it waits,
// and the room it needs gathers.
func (s *Scheduler) promote() {
	blocked := s.blocked[:0]
	for i := 0; i < len(s.queue) && s.freePlaces() > 0; {
		t := s.queue[i]
		switch {
		case !s.startable(t):
			i++
		case s.fits(t):
			s.queue = slices.Delete(s.queue, i, i+1)
			for _, b := range blocked {
				b.overtaken++
			}
			s.activate(t)
		default:
			blocked = append(blocked, t)
			i++
		}
		if slices.ContainsFunc(blocked, s.patienceSpent) {
			break
		}
	}
	clear(blocked)
	s.blocked = blocked[:0]
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

// enqueue keeps the queue in the order of arrival: a turn that was tokenised beside it goes before later ones.
func (s *Scheduler) enqueue(t *turn) {
	i := len(s.queue)
	for i > 0 && s.queue[i-1].seq > t.seq {
		i--
	}
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

// activate gives a turn its place and its KV reservation; the next tick gives it a slot.
func (s *Scheduler) activate(t *turn) {
	t.phase = phaseOpening
	s.reserved += t.reserved
	s.active = append(s.active, t)
	s.promoted = append(s.promoted, t.key)
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
	}
}
