package scheduler

// makeRoom suspends a session where a tenant that holds no place waits for one: the longest-running of the tenant that holds
// most. Its KV is saved, it is queued ahead of its tenant's other turns, and goes on with the same tokens once it gets a place
// again. That is at most one session in a tick; while anyone decodes, saving lengthens the gap by no more than a step.
func (s *Scheduler) makeRoom() {
	if s.report.Tick < s.noSuspend || s.waiting == 0 || s.victim(s.smallest) == nil {
		return
	}
	var passed []*turn
	order := s.promotionOrder()
	for a := order.next(); a != nil; a = order.next() {
		t := s.headOf(a)
		if a.active > 0 || s.freePlaces() > 0 && s.fits(t) {
			break // nobody has to give way: so it is for those behind it, or it waits for one that was overtaken too often
		}
		if victim := s.victim(t.reserved); victim != nil {
			s.displace(victim, t, passed)
			break // others may have changed the order meanwhile
		}
		if s.patienceSpent(t) {
			break
		}
		passed = append(passed, t)
	}
}

// displace gives one turn's place to another, which overtakes those that were passed.
func (s *Scheduler) displace(victim, t *turn, passed []*turn) {
	if !s.suspend(victim) {
		return
	}
	if t.phase == phaseQueued && s.freePlaces() > 0 && s.fits(t) {
		for _, b := range passed {
			b.overtaken++
		}
		s.activate(t) // before anyone else takes the place
	}
	s.cleanSlots()
}

// headOf is the first turn that waits for nothing but room; the tenant has one.
func (s *Scheduler) headOf(a *account) *turn {
	for _, t := range a.queue {
		if s.startable(t) {
			return t
		}
	}
	return nil
}

// victim is the session to suspend so that a turn of a tenant without a place, with so many bytes of KV, can run; nil where there is none. It is one of the
// tenant that holds most places for its weight, has run for a quantum at least, was suspended no more often than others, and is of those the
// longest-running. Failing that it is one that has not begun, of which nothing has to be saved.
func (s *Scheduler) victim(reserved int64) *turn {
	if s.budget.SuspendBudgetBytes == 0 {
		return nil
	}
	most := 0.0
	for _, t := range s.active {
		most = max(most, t.account.holds())
	}
	var begun, fresh *turn
	for _, v := range s.active {
		if v.account.holds() < most || v.marked() || s.reserved-v.reserved+reserved > s.budget.KVBudgetBytes {
			continue
		}
		switch {
		case s.mayGiveWay(v) && (begun == nil || v.suspensions < begun.suspensions):
			begun = v
		case v.ran == 0 && v.pos == 0 && v.account.active > 1 && (fresh == nil || before(fresh, v)):
			fresh = v
		}
	}
	if begun != nil {
		return begun
	}
	return fresh
}

// mayGiveWay says whether a session has run long enough to be worth saving, and whether there is room for its KV.
func (s *Scheduler) mayGiveWay(v *turn) bool {
	return float64(v.ran) >= max(float64(s.quantumTokens()), v.account.quantum) &&
		s.suspendedBytes+s.facts.KVBytes(v.pos) <= s.budget.SuspendBudgetBytes
}

// suspend takes a session's place away, and leaves its slot for cleanSlots. It is false where that has to wait for another tick.
func (s *Scheduler) suspend(t *turn) bool {
	if t.pos > 0 && !s.save(t) {
		return false
	}
	s.deactivate(t)
	t.slot, t.phase = -1, phaseQueued
	t.suspensions++
	s.suspended++
	s.stats.suspensions++
	s.enqueue(t)
	s.report.Suspended = append(s.report.Suspended, t.key)
	return true
}

// save copies the KV of a turn that is to be suspended. It fails where the engine cannot, where the state turns out to be larger than
// the budget, and where the turn was marked meanwhile.
func (s *Scheduler) save(t *turn) bool {
	if s.report.Saves > 0 && s.decoding() {
		return false
	}
	s.report.Saves++
	s.callEngine()
	state, err := s.engine.Save(t.slot, min(t.exactLen, t.pos))
	s.engineReturned()
	if err != nil {
		s.noSuspend = s.report.Tick + moveBackoff
		return false
	}
	tooLarge := s.suspendedBytes+state.Bytes() > s.budget.SuspendBudgetBytes
	if tooLarge {
		s.noSuspend = s.report.Tick + moveBackoff
	}
	if tooLarge || t.phase == phaseEnded || t.marked() {
		state.Free()
		return false
	}
	t.saved = state
	s.suspendedBytes += state.Bytes()
	return true
}

// dropSaved frees what was saved of a suspended turn.
func (s *Scheduler) dropSaved(t *turn) {
	if t.saved != nil {
		s.suspendedBytes -= t.saved.Bytes()
		t.saved.Free()
		t.saved = nil
	}
}

// resume gives a turn that was suspended a slot with its KV as it was. It stays in phaseOpening while there is no slot that
// may be reclaimed now. KV that does not come back ends the turn as an interruption: whoever goes on with it evaluates it anew.
func (s *Scheduler) resume(t *turn) {
	if !s.freeSlot() || t.marked() {
		return
	}
	t.slot = s.slotFor(t)
	s.slots[t.slot] = slot{state: slotActive, turn: t}
	saved := t.saved
	t.saved = nil // no one else frees it now
	s.callEngine()
	s.bind(t)
	var err error
	if saved != nil {
		err = s.engine.Restore(t.slot, saved)
	}
	lost := err != nil
	if !lost {
		err = s.open(t, t.tokens)
	}
	s.engineReturned()
	if saved != nil {
		s.report.Restores++
		s.suspendedBytes -= saved.Bytes()
		saved.Free()
	}
	switch {
	case t.phase == phaseEnded:
	case lost:
		t.mark(verdict{reason: Interrupted, detail: "the saved KV of the suspended session is lost: " + err.Error()})
	case err != nil:
		t.mark(failed(FailEngine, err.Error()))
	default:
		t.phase = phasePrefill
		if len(t.tokens) > 0 {
			t.phase = phaseDecode
		}
		s.report.Resumed = append(s.report.Resumed, t.key)
	}
}
