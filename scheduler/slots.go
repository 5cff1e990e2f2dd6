package scheduler

import "github.com/meshnet/node/hotkv"

// slotState is what one of the engine's KV streams is used for.
type slotState uint8

const (
	slotFree    slotState = iota // empty
	slotActive                   // held by slot.turn
	slotParked                   // holds the KV of an entry of the hot store
	slotClosing                  // as slotParked, but the engine's sampler is still attached
	slotLeaving                  // holds the KV of slot.leaving, which left the hot store and is to be saved for the spill
	slotDirty                    // holds what nobody wants; Engine.Release makes it free
)

// unclean says whether cleanSlots has something to do.
func (state slotState) unclean() bool {
	return state == slotClosing || state == slotLeaving || state == slotDirty
}

// slot is guarded by Scheduler.mu. Only the ticking goroutine gives it to a turn.
type slot struct {
	state   slotState
	turn    *turn
	parked  SessionKey  // whose KV it holds in slotParked and slotClosing
	leaving hotkv.Entry // of slotLeaving
}

// soil leaves a slot for cleanSlots.
func (s *Scheduler) soil(i int, state slotState) {
	if !s.slots[i].state.unclean() {
		s.unclean++
	}
	s.slots[i] = slot{state: state}
}

// cleanSlots makes dirty and leaving slots free and closing ones parked. What leaves and may not be saved in this tick stays for the next,
// which begins with it.
func (s *Scheduler) cleanSlots() {
	for again := s.unclean > 0; again; {
		again = false
		s.dirty = s.dirty[:0]
		for i := range s.slots {
			if s.slots[i].state.unclean() {
				s.dirty = append(s.dirty, i)
			}
		}
		for _, i := range s.dirty {
			if s.cleanSlot(i) {
				again = true
			}
		}
	}
}

// cleanSlot takes a slot one step further. It is false where that has to wait for the next tick.
func (s *Scheduler) cleanSlot(i int) bool {
	was := s.slots[i].state
	if was == slotLeaving {
		return s.spillSlot(i)
	}
	s.callEngine()
	if was == slotClosing {
		s.engine.Close(i)
	} else {
		s.engine.Release(i)
	}
	s.engineReturned()
	if s.slots[i].state != was {
		return true // what was closing was fenced meanwhile, and is dirty now
	}
	s.unclean--
	if was == slotClosing {
		s.slots[i].state = slotParked
	} else {
		s.slots[i] = slot{}
	}
	return true
}

func (s *Scheduler) lowestFree() int {
	for i := range s.slots {
		if s.slots[i].state == slotFree {
			return i
		}
	}
	return -1
}

// freeSlot sees to it that there is a free slot. It is false where that has to wait for the next tick.
func (s *Scheduler) freeSlot() bool {
	for s.lowestFree() < 0 {
		if s.cleanSlots(); s.lowestFree() >= 0 {
			break
		}
		oldest, ok := s.hot.OldestParked()
		if !ok || !s.reclaim(oldest.Key) {
			return false
		}
	}
	return true
}

// reclaim saves a parked session's KV and frees its slot. While anyone decodes only one session is saved
// in a tick, so that saving never lengthens a decoder's gap by more than one step; false says so.
func (s *Scheduler) reclaim(key SessionKey) bool {
	entry, ok := s.hot.Peek(key)
	if !ok || !entry.Parked() || (s.report.Saves > 0 && s.decoding()) {
		return false
	}
	s.report.Saves++
	s.callEngine()
	state, err := s.engine.Save(entry.Slot, entry.ExactLen)
	s.engineReturned()
	switch {
	case s.slots[entry.Slot].state != slotParked: // fenced meanwhile
		if err == nil {
			state.Free()
		}
	case err != nil:
		s.dispose(s.hot.Invalidate(key))
	default:
		if evicted, saved := s.hot.Saved(key, entry.Slot, state); saved {
			s.evict(evicted)
		} else {
			state.Free()
			s.dispose(s.hot.Invalidate(key))
		}
		s.soil(entry.Slot, slotDirty)
	}
	s.cleanSlots()
	return true
}

// saveParked moves all parked KV into the hot store, as a lack of slots would. It belongs to the ticking goroutine.
func (s *Scheduler) saveParked() {
	s.beginTick()
	for {
		oldest, ok := s.hot.OldestParked()
		if !ok || !s.reclaim(oldest.Key) {
			break
		}
	}
	s.endTick()
}

func (s *Scheduler) decoding() bool {
	for _, t := range s.active {
		if t.phase == phaseDecode && !t.marked() {
			return true
		}
	}
	return false
}

// moveBackoff is how many ticks no session is moved after the engine failed to.
const moveBackoff = 64

// closeGap moves the session of an adapter's highest decoding slot into a gap between its decoding slots, where the
// engine would have to fill more gaps with padding rows than are worth it. Sessions of other adapters that lie between are no gaps: they are
// not moved. It makes at most one move a tick. A move that fails leaves the session where it is.
func (s *Scheduler) closeGap() {
	if s.report.Tick < s.noMove {
		return
	}
	s.gatherDecoders()
	for adapter := range len(s.facts.Adapters) + 1 {
		if t, to := s.gapOf(s.groupOf(s.batch, adapter)); to >= 0 {
			s.move(t, to)
			return
		}
	}
}

// gapOf is the last of a group of decoders, and the slot to which it is to be moved; −1 if it stays.
func (s *Scheduler) gapOf(group []*turn) (last *turn, to int) {
	rows := len(group)
	if rows < 2 {
		return nil, -1
	}
	last = group[rows-1]
	lowest, highest := group[0].slot, last.slot
	gaps := highest - lowest + 1
	for _, t := range s.batch {
		if t.slot >= lowest && t.slot <= highest {
			gaps--
		}
	}
	allowed := 0
	if s.facts.CanPad {
		allowed = max(1, rows/4)
	}
	if gaps <= allowed {
		return last, -1
	}
	return last, s.gapBetween(lowest, highest)
}

// gapBetween is the lowest free slot between two, else the lowest parked one after it was reclaimed;
// −1 if there is none. Sessions in prefill stay where they are.
func (s *Scheduler) gapBetween(lowest, highest int) int {
	parked := -1
	for i := lowest + 1; i < highest; i++ {
		switch s.slots[i].state {
		case slotFree:
			return i
		case slotParked:
			if parked < 0 {
				parked = i
			}
		}
	}
	if parked < 0 {
		return -1
	}
	if !s.reclaim(s.slots[parked].parked) || s.slots[parked].state != slotFree {
		return -1
	}
	return parked
}

func (s *Scheduler) move(t *turn, to int) {
	if t.phase == phaseEnded {
		return // given up on while the gap was being freed
	}
	from := t.slot
	s.callEngine()
	err := s.engine.Move(from, to)
	s.engineReturned()
	if err != nil {
		s.noMove = s.report.Tick + moveBackoff
		return
	}
	s.report.Moves++
	if t.phase == phaseEnded { // given up on during the call; what was its slot is dirty already
		s.soil(to, slotDirty)
		return
	}
	s.slots[from] = slot{}
	s.slots[to] = slot{state: slotActive, turn: t}
	t.slot = to
}
