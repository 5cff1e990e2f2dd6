package scheduler

import (
	"errors"
	"fmt"

	"github.com/meshnet/node/hotkv"
)

// tokensAhead is for how many tokens of a turn room is made beforehand, so that ticks allocate nothing.
const tokensAhead = 4096

// openTurns gives slots to the turns that became active: first to those whose KV is parked, so that no
// one else's need for a slot drives it out. The error is that the engine's recipe changed.
func (s *Scheduler) openTurns() error {
	s.opening = s.opening[:0]
	for _, parked := range []bool{true, false} {
		for _, t := range s.active {
			if t.phase == phaseOpening && s.isParked(t.key.SessionKey()) == parked {
				s.opening = append(s.opening, t)
			}
		}
	}
	var errs error
	for _, t := range s.opening {
		errs = errors.Join(errs, s.openTurn(t))
	}
	clear(s.opening)
	return errs
}

func (s *Scheduler) isParked(key SessionKey) bool {
	entry, ok := s.hot.Peek(key)
	return ok && entry.Parked()
}

// openTurn gives one turn its slot with what is hot of its prompt. It stays in phaseOpening, for the next
// tick, while there is no slot that may be reclaimed now.
func (s *Scheduler) openTurn(t *turn) error {
	if err := s.checkRecipe(t); err != nil {
		return err
	}
	if t.marked() {
		return nil
	}
	if !t.opened.IsZero() {
		s.resume(t)
		return nil
	}
	entry, miss, ok := s.claim(t)
	if !ok {
		return nil
	}
	t.tookHot = miss == hotkv.Hit
	cached, exactLen, miss := s.fill(t, entry, miss)
	var openErr error
	if t.phase != phaseEnded && (cached > 0 || !t.req.RequireHot) {
		s.callEngine()
		openErr = s.open(t, nil)
		s.engineReturned()
	}
	if t.phase == phaseEnded {
		return nil
	}
	t.miss, t.cached, t.pos = miss, cached, cached
	t.exactLen = s.facts.exactAfter(len(t.req.Prompt), cached, exactLen)
	s.notePrompt(t)
	switch {
	case cached == 0 && t.req.RequireHot:
		t.mark(verdict{reason: CacheMiss, miss: miss})
		return nil
	case openErr != nil:
		t.mark(failed(FailEngine, openErr.Error()))
		return nil
	}
	t.tokens = make([]Token, 0, min(t.req.MaxNewTokens, tokensAhead))
	t.phase = phasePrefill
	t.opened = s.clock()
	s.report.Started = append(s.report.Started, Started{
		Key: t.key, Slot: t.slot, PromptTokens: len(t.req.Prompt), CachedTokens: cached, Miss: miss,
		ResumeIndex: len(t.req.Replay), Queued: t.opened.Sub(t.submitted),
	})
	return nil
}

// checkRecipe fails a turn's activation where the engine's recipe is no longer that of New. No KV kept so far can be trusted then.
func (s *Scheduler) checkRecipe(t *turn) error {
	s.callEngine()
	now := s.engine.Fingerprints()
	s.engineReturned()
	if now == s.prints {
		return nil
	}
	err := fmt.Errorf("scheduler: the engine's recipe changed from %v to %v while it was in use; restart the node", s.prints, now)
	t.mark(failed(FailEngine, err.Error()))
	s.dispose(s.hot.InvalidateAll())
	s.dropLeaving()
	s.cfg.Spill.RemoveAll()
	return err
}

// claim takes what the hot store has for the turn's session and gives the turn a slot: the very one in which
// its KV is parked, else that of slotFor. It is false where no slot may be had in this tick, or its KV is not at hand yet.
func (s *Scheduler) claim(t *turn) (entry hotkv.Entry, miss hotkv.Miss, ok bool) {
	if s.awaitsSpill(t) || s.awaitsPrefix(t) {
		return entry, miss, false
	}
	key := t.key.SessionKey()
	if kept, found := s.hot.Peek(key); t.req.RequireHot && !(found && kept.Recipe == s.recipe(t)) {
		entry, miss = s.hot.Take(key, t.req.Epoch, s.recipe(t))
		s.dispose([]hotkv.Entry{entry})
		s.stats.lookup(0, miss)
		t.mark(verdict{reason: CacheMiss, miss: miss})
		return hotkv.Entry{}, miss, false // and no one else's slot is reclaimed for it
	}
	if !s.isParked(key) && !s.freeSlot() {
		return entry, miss, false
	}
	if t.marked() { // while a slot was being freed
		return entry, miss, false
	}
	entry, miss = s.hot.Take(key, t.req.Epoch, s.recipe(t))
	i := entry.Slot
	if !entry.Parked() {
		i = s.slotFor(t)
	}
	if i < 0 {
		return entry, miss, false
	}
	s.slots[i] = slot{state: slotActive, turn: t}
	t.slot = i
	return entry, miss, true
}

// fill brings the turn's slot to hold what is hot of the prompt: of its session's KV, else of what it shares with others. It returns
// how many tokens that is, how far they are as good as cold, and what the look-up of the session's own KV came to.
func (s *Scheduler) fill(t *turn, entry hotkv.Entry, miss hotkv.Miss) (cached, exactLen int, _ hotkv.Miss) {
	s.callEngine()
	s.bind(t)
	cached, miss = s.reuse(t, entry, miss)
	s.engineReturned()
	if t.phase == phaseEnded {
		return 0, 0, miss
	}
	s.stats.lookup(cached, miss)
	if cached > 0 || t.req.RequireHot {
		return cached, entry.ExactLen, miss
	}
	cached = s.restorePrefix(t)
	return cached, cached, miss
}

// reuse brings the turn's slot to hold the part of the prompt that is hot, and nothing else. It disposes
// of the entry. Called without the lock.
func (s *Scheduler) reuse(t *turn, entry hotkv.Entry, miss hotkv.Miss) (cached int, _ hotkv.Miss) {
	holdsKV := entry.Parked()
	if miss == hotkv.Hit {
		cached = reusable(s.facts, entry, t.req.Prompt)
		if cached == 0 {
			miss = hotkv.MissInvalidated
		}
	}
	if entry.State != nil {
		if cached > 0 {
			if err := s.engine.Restore(t.slot, entry.State); err != nil {
				cached, miss = 0, restoreMiss(err)
			} else {
				holdsKV = true
				s.report.Restores++
			}
		}
		entry.State.Free()
	}
	if cached > 0 && cached < len(entry.Tokens) {
		if err := s.engine.Trim(t.slot, cached); err != nil {
			cached, miss = 0, hotkv.MissInvalidated
		}
	}
	if cached == 0 && holdsKV {
		s.engine.Release(t.slot)
	}
	return cached, miss
}

func restoreMiss(err error) hotkv.Miss {
	if errors.Is(err, ErrStateRecipe) {
		return hotkv.MissRecipe
	}
	return hotkv.MissInvalidated
}

// reusable is how many of the prompt's tokens need not be evaluated: the longest prefix that is hot, short of the
// prompt's last token, whose logits are needed. An exact engine takes only what is as good as cold.
// A model that cannot trim takes all that is hot or nothing.
func reusable(f Facts, entry hotkv.Entry, prompt []Token) int {
	n := min(commonPrefix(entry.Tokens, prompt), len(prompt)-1)
	if f.Exact {
		n = f.exactUpTo(n, entry.ExactLen, len(prompt))
	}
	if f.Trim == TrimNone && n < len(entry.Tokens) {
		return 0
	}
	return n
}

func commonPrefix(a, b []Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
