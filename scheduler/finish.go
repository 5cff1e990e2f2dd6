package scheduler

import (
	"math"

	"github.com/meshnet/node/hotkv"
)

// stop marks a turn. One that waits leaves at once, an active one at the next tick boundary.
func (s *Scheduler) stop(t *turn, v verdict) bool {
	if !t.mark(v) {
		return false
	}
	if t.waiting() {
		s.end(t)
	}
	return true
}

// reap ends every marked turn and makes its slot ready for the next.
func (s *Scheduler) reap() {
	for i := 0; i < len(s.active); {
		t := s.active[i]
		if !t.marked() {
			i++
			continue
		}
		if t.verdict.reason == Completed {
			s.report.Completed = append(s.report.Completed, t.key)
			s.park(t)
		}
		s.end(t)
	}
	s.cleanSlots()
}

// park keeps a completed turn's KV in its slot, if its client asked for that, the hot budget has room for it, and a later turn
// could go on from it. The last token was never evaluated, so it is no part of the KV.
func (s *Scheduler) park(t *turn) {
	if !t.req.Keep || !s.usable(t) {
		return
	}
	tokens := make([]Token, 0, t.pos)
	tokens = append(append(tokens, t.req.Prompt...), t.tokens[:len(t.tokens)-1]...)
	evicted, err := s.hot.Put(hotkv.Entry{
		Key: t.key.SessionKey(), Epoch: t.req.Epoch, Recipe: s.recipe(t),
		Tokens: tokens, ExactLen: min(t.exactLen, t.pos),
		Slot: t.slot, Bytes: max(1, s.facts.KVBytes(t.pos)), Used: s.clock(),
	})
	s.evict(evicted)
	if err != nil {
		return // beyond the budget, or of an epoch that is over: the slot is released instead
	}
	t.kept = true
	s.soil(t.slot, slotClosing)
	s.slots[t.slot].parked = t.key.SessionKey()
}

// usable says whether any turn could take something of the KV that the turn leaves. An exact engine's takes only what is as good as cold,
// of which a short prompt leaves nothing, nor one that was decoded on top of where the model cannot trim: kept, it would be in the way of
// other sessions' and then be a miss.
func (s *Scheduler) usable(t *turn) bool {
	if !s.facts.Exact {
		return true
	}
	exact := s.facts.exactUpTo(t.pos, min(t.exactLen, t.pos), math.MaxInt)
	return exact > 0 && (exact == t.pos || s.facts.Trim != TrimNone)
}

// end records a marked turn's ending and gives back all it held. If it was active, its slot is left for cleanSlots.
func (s *Scheduler) end(t *turn) {
	if t.waiting() {
		s.leaveQueue(t)
	} else {
		s.deactivate(t)
	}
	s.dropSaved(t)
	if t.tookHot && !t.kept {
		// What the session had kept went into this turn and is lost with it.
		s.dispose(s.hot.Invalidate(t.key.SessionKey()))
	}
	t.phase = phaseEnded
	s.unlink(t)
	s.results = append(s.results, t.ending(s.clock()))
	s.stats.ended(t.verdict)
}

// dispose rids the scheduler of KV that left the hot store. It may be called from any goroutine, so a
// parked entry's slot is left for the ticking one.
func (s *Scheduler) dispose(entries []hotkv.Entry) {
	for _, e := range entries {
		switch {
		case e.State != nil:
			e.State.Free()
		case e.Parked() && s.slots[e.Slot].state != slotActive:
			s.soil(e.Slot, slotDirty)
		}
	}
}
