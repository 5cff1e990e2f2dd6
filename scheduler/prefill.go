package scheduler

// idlePrefillChunks is how many chunks a tick prefills while nobody decodes.
const idlePrefillChunks = 4

// prefill evaluates chunks of prompts, oldest session first, within the tick's bound; one chunk is always allowed.
func (s *Scheduler) prefill() {
	for chunks, tokens := 0, 0; ; chunks++ {
		t := s.nextToPrefill()
		if t == nil {
			return
		}
		chunk := s.nextChunk(t)
		tokens += len(chunk.Tokens)
		if chunks > 0 && !s.mayPrefill(chunks+1, tokens) {
			return
		}
		s.prefillChunk(t, chunk)
	}
}

// mayPrefill bounds a tick's prefill. Without a budget in tokens it counts chunks, since each is a call of the
// engine that costs at least a decode step, however short it is.
func (s *Scheduler) mayPrefill(chunks, tokens int) bool {
	switch {
	case s.budget.MaxPrefillTokensPerTick > 0:
		return tokens <= s.budget.MaxPrefillTokensPerTick
	case s.report.Occupancy > 0:
		return chunks <= 1
	}
	return chunks <= idlePrefillChunks
}

func (s *Scheduler) nextToPrefill() *turn {
	for _, t := range s.active {
		if t.phase == phasePrefill && !t.marked() {
			return t
		}
	}
	return nil
}

// nextChunk is the prompt's next part, up to the next position on the grid whatever else goes on.
func (s *Scheduler) nextChunk(t *turn) Chunk {
	prompt, grid := t.req.Prompt, s.facts.PrefillChunk
	end := min(floorGrid(t.pos, grid)+grid, len(prompt))
	chunk := Chunk{Slot: t.slot, Pos: t.pos, Tokens: prompt[t.pos:end], Last: end == len(prompt), Forced: NoToken}
	if chunk.Last {
		chunk.Forced = t.forced(0)
	}
	return chunk
}

func (s *Scheduler) prefillChunk(t *turn, chunk Chunk) {
	s.lastAdapter = t.adapter
	s.callEngine()
	result := s.engine.Prefill(chunk)
	s.engineReturned()
	n := len(chunk.Tokens)
	if result.Outcome == OutcomeNone || result.Outcome == OutcomeToken {
		s.report.PrefillTokens += n
		t.prefilled += n
	}
	want := OutcomeNone
	if chunk.Last {
		want = OutcomeToken
	}
	if !s.evaluated(t, &result, want) {
		return
	}
	t.pos += n
	if last := len(s.report.Prefilled) - 1; last < 0 || s.report.Prefilled[last] != t.key { // a session's chunks of one tick are adjacent
		s.report.Prefilled = append(s.report.Prefilled, t.key)
	}
	if chunk.Last {
		t.phase = phaseDecode
		s.yield(t, &result)
		s.askHooks()
	}
}
