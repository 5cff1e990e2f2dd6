package scheduler

import "slices"

// idlePrefillChunks is how many chunks a tick prefills while nobody decodes.
const idlePrefillChunks = 4

// prefill evaluates chunks of prompts, tenants by their rounds and the turns of each in the order of before, within the tick's
// bound; one chunk is always allowed.
func (s *Scheduler) prefill() {
	for chunks, tokens := 0, 0; ; {
		by := s.nextToPrefill()
		if by == nil {
			return
		}
		t := by.evaluates()
		if !s.keepPrefix(t) {
			return
		}
		if by.evaluates() != t { // its KV was saved for others, which may be all that was wanted, and it may have been given up on
			continue
		}
		chunk := s.nextChunk(t)
		tokens += len(chunk.Tokens)
		if chunks > 0 && !s.mayPrefill(chunks+1, tokens) {
			return
		}
		s.prefillChunk(t, by.account, chunk)
		chunks++
	}
}

// mayPrefill bounds a tick's prefill. Without a budget in tokens it counts chunks, since each is a call of the
// engine that costs at least a decode step, however short it is.
func (s *Scheduler) mayPrefill(chunks, tokens int) bool {
	switch {
	case s.newcomer():
		return false
	case s.budget.MaxPrefillTokensPerTick > 0:
		return tokens <= s.budget.MaxPrefillTokensPerTick
	case s.report.Occupancy > 0:
		return chunks <= 1
	}
	return chunks <= idlePrefillChunks
}

// newcomer says whether someone waits for the next tick, which gives out slots: a turn that has a place and needs nothing else first, or
// one for which a session can be suspended.
func (s *Scheduler) newcomer() bool {
	for _, t := range s.active {
		if t.phase == phaseOpening && !t.marked() && t.reading != readRunning && t.evaluates() == nil {
			return true
		}
	}
	if s.waiting == 0 || s.victim(s.smallest) == nil {
		return false
	}
	for _, a := range s.ring {
		if a.active > 0 {
			continue
		}
		for _, t := range a.queue {
			if s.startable(t) && s.victim(t.reserved) != nil {
				return true
			}
		}
	}
	return false
}

// evaluates is the turn whose prompt goes on when it is this one's turn: its own, or that of the one it waits for, which else might
// wait behind whoever this one goes ahead of. It is nil where nothing is to be evaluated for it.
func (t *turn) evaluates() *turn {
	switch {
	case t.marked():
	case t.phase == phasePrefill:
		return t
	case t.phase == phaseOpening && t.leader.willSave(t.awaited):
		return t.leader
	}
	return nil
}

// nextToPrefill is the turn for which the next chunk is evaluated; nil if there is none.
func (s *Scheduler) nextToPrefill() (next *turn) {
	for _, a := range s.ring {
		a.wants = false
	}
	for _, t := range s.active {
		t.account.wants = t.account.wants || t.evaluates() != nil
	}
	a := s.next()
	if a == nil {
		return nil
	}
	for _, t := range s.active {
		if t.account == a && t.evaluates() != nil && (next == nil || before(t, next)) {
			next = t
		}
	}
	return next
}

// nextChunk is the prompt's next part.
func (s *Scheduler) nextChunk(t *turn) Chunk {
	prompt := t.req.Prompt
	end := s.facts.cut(t.pos, t.nextSave())
	chunk := Chunk{Slot: t.slot, Pos: t.pos, Tokens: prompt[t.pos:end], Last: end == len(prompt), Forced: NoToken}
	if chunk.Last {
		chunk.Forced = t.forced(0)
	}
	return chunk
}

// prefillChunk evaluates a chunk, on the account of the tenant for which it is.
func (s *Scheduler) prefillChunk(t *turn, by *account, chunk Chunk) {
	changed := s.turnTo(t.adapter)
	s.callEngine()
	result := s.engine.Prefill(chunk)
	n := len(chunk.Tokens)
	if n == s.facts.PrefillChunk && !changed {
		s.engineStepped(&s.paces.chunk)
	} else {
		s.engineReturned()
	}
	if result.Outcome == OutcomeNone || result.Outcome == OutcomeToken {
		s.report.PrefillTokens += n
		t.prefilled += n
		t.ran += n
		by.passed = 0
		s.charge(by, n)
	}
	want := OutcomeNone
	if chunk.Last {
		want = OutcomeToken
	}
	if !s.evaluated(t, &result, want) {
		return
	}
	t.pos += n
	if !slices.Contains(s.report.Prefilled, t.key) {
		s.report.Prefilled = append(s.report.Prefilled, t.key)
	}
	if chunk.Last {
		t.phase = phaseDecode
		s.yield(t, &result)
		s.askHooks()
	}
}
