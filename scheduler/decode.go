package scheduler

import (
	"fmt"

	"github.com/meshnet/node/hotkv"
)

// decode runs one batch: a row for each decoding session, in slot order, one call for each adapter among them. More
// sessions than MaxBatchSize take turns by windows of adjacent ones.
func (s *Scheduler) decode() {
	s.gatherDecoders()
	batch := s.window(s.batch)
	s.report.Occupancy = len(batch)
	s.stats.occupied(len(batch))
	s.groups(batch, s.decodeGroup)
	s.askHooks()
}

// decodeGroup is one call of the engine.
func (s *Scheduler) decodeGroup(batch []*turn) {
	s.rows = s.rows[:0]
	changed := s.turnTo(batch[0].adapter)
	for _, t := range batch {
		index := len(t.tokens)
		s.rows = append(s.rows, Row{Slot: t.slot, Pos: t.pos, Token: t.tokens[index-1], Index: index, Forced: t.forced(index)})
	}
	s.callEngine()
	results := s.engine.Decode(s.rows)
	if changed {
		s.engineReturned()
	} else {
		s.engineStepped(&s.paces.steps[len(batch)])
	}
	if len(results) != len(batch) {
		detail := fmt.Sprintf("engine returned %d results for a batch of %d", len(results), len(batch))
		for _, t := range batch {
			t.mark(failed(FailEngine, detail))
		}
		return
	}
	for i, t := range batch {
		t.ran++
		s.charge(t.account, 1)
		if s.evaluated(t, &results[i], OutcomeToken) {
			t.pos++
			s.yield(t, &results[i])
			s.report.Decoded = append(s.report.Decoded, t.key)
		}
	}
}

// gatherDecoders collects the decoding sessions in slot order into s.batch.
func (s *Scheduler) gatherDecoders() {
	s.batch = s.batch[:0]
	for i := range s.slots {
		if t := s.slots[i].turn; t != nil && t.phase == phaseDecode && !t.marked() {
			s.batch = append(s.batch, t)
		}
	}
}

// window is the part of the decoders whose turn it is. The fewest windows that hold them all are made about equally
// large, and follow each other by slot, so that every decoder gets as many rows as the others.
func (s *Scheduler) window(decoders []*turn) []*turn {
	n, limit := len(decoders), s.budget.MaxBatchSize
	if n <= limit {
		s.windowFrom = 0
		return decoders
	}
	windows := (n + limit - 1) / limit
	size := (n + windows - 1) / windows
	from := 0
	for from < n && decoders[from].slot < s.windowFrom {
		from++
	}
	if from == n {
		from = 0
	}
	to := min(from+size, n)
	s.windowFrom = decoders[to-1].slot + 1
	return decoders[from:to]
}

// evaluated says whether a call of the engine did for the turn what was wanted of it. Else the turn is marked; a turn that
// was marked during the call drops what the call yielded.
func (s *Scheduler) evaluated(t *turn, r *Result, want Outcome) bool {
	switch {
	case t.phase == phaseEnded || t.marked():
	case r.Outcome == OutcomeMiss:
		t.mark(verdict{reason: CacheMiss, miss: hotkv.MissInvalidated, detail: "the slot does not hold the session's KV"})
	case r.Outcome == OutcomeError && r.Err != nil:
		t.mark(failed(FailEngine, r.Err.Error()))
	case r.Outcome == OutcomeError:
		t.mark(failed(FailEngine, "engine gave no reason"))
	case r.Outcome != want:
		t.mark(failed(FailEngine, fmt.Sprintf("engine returned outcome %d instead of %d", r.Outcome, want)))
	case want == OutcomeToken && !(r.Token >= 0 && int(r.Token) < s.facts.VocabTokens):
		t.mark(failed(FailEngine, fmt.Sprintf("engine returned token %d, the vocabulary has %d", r.Token, s.facts.VocabTokens)))
	default:
		return true
	}
	return false
}

// yield appends a token to the turn, and marks the turn completed if it was the last one.
func (s *Scheduler) yield(t *turn, r *Result) {
	index := len(t.tokens)
	t.tokens = append(t.tokens, r.Token)
	replayed := index < len(t.req.Replay)
	if !replayed {
		if t.firstNew.IsZero() {
			t.firstNew = s.clock()
		}
		if index > 0 {
			s.report.DecodeTokens++
		}
		s.report.Tokens = append(s.report.Tokens, NewToken{
			Key: t.key, Index: index, Token: r.Token, EOG: r.EOG, LogitHash: r.LogitHash, Gap: r.Gap, Probs: r.Probs,
		})
	}
	switch {
	case r.EOG:
		t.mark(completed(FinishStop))
	case t.req.Stop != nil:
		s.hooks = append(s.hooks, t)
	case t.full():
		t.mark(completed(FinishLength))
	}
}

// askHooks shows tokens to the turns that have a Stop hook, without the lock.
func (s *Scheduler) askHooks() {
	if len(s.hooks) == 0 {
		return
	}
	s.verdicts = s.verdicts[:0]
	s.mu.Unlock()
	for _, t := range s.hooks {
		s.verdicts = append(s.verdicts, t.req.Stop(t.tokens[len(t.tokens)-1]))
	}
	s.mu.Lock()
	for i, t := range s.hooks {
		switch {
		case s.verdicts[i]:
			t.mark(completed(FinishStopString))
		case t.full():
			t.mark(completed(FinishLength))
		}
	}
	clear(s.hooks)
	s.hooks = s.hooks[:0]
}
