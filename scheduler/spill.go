package scheduler

import (
	"fmt"
	"slices"

	"github.com/meshnet/node/hotkv"
)

// reading is whether a turn's KV is looked for on disk.
type reading uint8

const (
	readNone    reading = iota // not looked for yet
	readRunning                // the turn waits, without a slot
	readDone                   // it is hot now, or not to be had
)

// A session's KV is in one place: in the hot store, on disk, or with the turn that took it. So what a turn loses is lost on disk too.

// checkSpill says whether the spill takes what the engine saves.
func (s *Scheduler) checkSpill() error {
	for _, recipe := range s.recipes {
		if s.cfg.Spill != nil && !s.cfg.Spill.Takes(recipe) {
			return fmt.Errorf("scheduler: the spill is not open for recipe %s, which is one of the engine's; open it for this engine", recipe)
		}
	}
	return nil
}

// awaitsSpill says whether the turn waits for its session's KV to be read from disk. The read begins here, on a goroutine of the
// spill's; meanwhile the turn keeps its place and its reservation, and others go on. KV that is still to be saved for the disk is waited
// for too.
func (s *Scheduler) awaitsSpill(t *turn) bool {
	if t.reading == readNone {
		key := t.key.SessionKey()
		if s.leaves(key) {
			return true
		}
		t.reading = readDone
		if _, hot := s.hot.Peek(key); hot {
			return false
		}
		if s.cfg.Spill.Fetch(key, t.req.Epoch, func(e hotkv.Entry, ok bool) { s.spillRead(t, e, ok) }) {
			t.reading = readRunning
		}
	}
	return t.reading == readRunning
}

// spillRead makes KV that was read from disk hot, for the turn that waits for it. It is called without the lock, on any goroutine.
func (s *Scheduler) spillRead(t *turn, e hotkv.Entry, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := t.key.SessionKey()
	t.reading = readDone
	_, newer := s.hot.Peek(key) // the turn did not wait to the end, and a later one left KV
	switch {
	case ok && newer:
		e.State.Free()
	case ok:
		evicted, err := s.hot.Put(e)
		s.evict(evicted)
		if err != nil { // beyond the budget, or of an epoch that is over
			e.State.Free()
		}
	case !newer:
		s.dispose(s.hot.Invalidate(key))
	}
	s.nudge()
}

// evict hands KV that made room for other KV to the spill. What is parked has to be saved first, which is left for cleanSlots.
// Like dispose, it may be called from any goroutine.
func (s *Scheduler) evict(entries []hotkv.Entry) {
	if s.cfg.Spill == nil {
		s.dispose(entries)
		return
	}
	for _, e := range entries {
		switch {
		case e.Key.Prefix != digest{}:
			e.State.Free() // cheap to have again: many want it
		case e.State != nil:
			s.cfg.Spill.Offer(e)
		case e.Parked():
			s.soil(e.Slot, slotLeaving)
			s.slots[e.Slot].leaving = e
		}
	}
}

// leaves says whether the session's KV has left the hot store and is yet to be saved.
func (s *Scheduler) leaves(key SessionKey) bool {
	return slices.ContainsFunc(s.slots, func(sl slot) bool { return sl.state == slotLeaving && sl.leaving.Key == key })
}

// dropLeaving gives up what is yet to be saved.
func (s *Scheduler) dropLeaving() {
	for i := range s.slots {
		if s.slots[i].state == slotLeaving {
			s.slots[i] = slot{state: slotDirty}
		}
	}
}

// spillSlot saves the KV of a slot that is to be given up, and leaves the slot dirty. While anyone decodes only one session is
// saved in a tick: false says that this one waits, in its slot.
func (s *Scheduler) spillSlot(i int) bool {
	if s.report.Saves > 0 && s.decoding() {
		return false
	}
	if e, ok := s.saveLeaving(s.slots[i].leaving); ok {
		s.cfg.Spill.Offer(e)
	}
	s.slots[i] = slot{state: slotDirty}
	return true
}

// saveLeaving turns a parked entry that is no longer in the hot store into a saved one. It is false where that failed, which is counted, or
// the entry became stale meanwhile.
func (s *Scheduler) saveLeaving(e hotkv.Entry) (hotkv.Entry, bool) {
	s.report.Saves++
	s.callEngine()
	state, err := s.engine.Save(e.Slot, e.ExactLen)
	s.engineReturned()
	if err != nil {
		s.cfg.Spill.Lose()
		return e, false
	}
	e.Slot, e.State, e.Bytes = hotkv.NoSlot, state, state.Bytes()
	if fence, known := s.hot.Epoch(e.Key); known && e.Epoch < fence {
		state.Free()
		return e, false
	}
	return e, true
}

// retire hands everything that leaves the closed hot store to the spill, if there is one: what was used last first, since there may
// be no time to write it all.
func (s *Scheduler) retire(entries []hotkv.Entry) {
	if s.cfg.Spill == nil {
		s.dispose(entries)
		return
	}
	for _, e := range slices.Backward(entries) {
		switch {
		case e.Key.Prefix != digest{}:
			e.State.Free()
		case e.State != nil:
			s.cfg.Spill.Keep(e)
		default:
			if saved, ok := s.saveLeaving(e); ok {
				s.cfg.Spill.Keep(saved)
			}
			s.soil(e.Slot, slotDirty)
		}
	}
}

// fence makes the session's KV of lower route epochs stale, wherever it is.
func (s *Scheduler) fence(key SessionKey, epoch uint64) {
	s.dispose(s.hot.Fence(key, epoch))
	s.cfg.Spill.Fence(key, epoch)
}

// reads says whether all that is active waits for the disk: a tick would find nothing to do.
func (s *Scheduler) reads() bool {
	waits := func(t *turn) bool { return t.reading == readRunning && !t.marked() }
	return len(s.active) > 0 && !slices.ContainsFunc(s.active, func(t *turn) bool { return !waits(t) })
}
