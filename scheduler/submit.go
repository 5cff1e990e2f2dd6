package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// Submit admits, queues or refuses a turn. The checks are, in this order: identity, shape, deadline passed,
// feasibility, deadline out of reach, drain and stall, capacity. With Request.Tokenize the place is reserved first; if the prompt
// then turns out not to fit, the place is given back and the decision is a rejection.
//
// An accepted turn of a higher route epoch ends the session's live turns of lower ones (FailSuperseded)
// and makes its older hot KV stale.
func (s *Scheduler) Submit(req Request) Decision {
	shape := req.Validate(s.facts.VocabTokens)
	if _, err := s.facts.Adapter(req.Adapter); shape == nil {
		shape = err
	}
	t := &turn{key: req.Key(), req: req, adapter: s.adapterIndex(req.Adapter), slot: -1, phase: phaseQueued}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.submitted = s.clock()
	s.arrivals++
	t.seq = s.arrivals
	s.promote()
	refusal := s.check(t, shape)
	if refusal == nil && req.Tokenize != nil {
		return s.submitTokenizing(t)
	}
	if refusal == nil {
		refusal = s.place(t)
	}
	if refusal != nil {
		return s.refuse(t, refusal)
	}
	s.link(t)
	s.commit(t)
	return s.accepted(t)
}

// check makes every check but that for room.
func (s *Scheduler) check(t *turn, shape error) *Decision {
	if d := s.checkIdentity(t); d != nil {
		return d
	}
	if shape != nil {
		return &Decision{Reason: RejectedInvalid, Detail: Detail{Field: fieldOf(shape), Message: shape.Error()}}
	}
	if d := s.checkOrder(t); d != nil {
		return d
	}
	if late := t.submitted.Sub(t.req.Deadline); !t.req.Deadline.IsZero() && late >= 0 {
		return &Decision{Reason: RejectedDeadline, Detail: Detail{Field: "deadline_ms",
			Message: fmt.Sprintf("the deadline passed %s ago; submit a new turn with a later one", late)}}
	}
	if d := s.checkFeasible(t); d != nil {
		return d
	}
	if d := s.checkPace(t); d != nil {
		return d
	}
	return s.checkOpen()
}

func (s *Scheduler) checkIdentity(t *turn) *Decision {
	key := t.key.SessionKey()
	fence, _ := s.hot.Epoch(key)
	for _, other := range s.sessions[key] {
		if other.key.Turn == t.key.Turn {
			return &Decision{Reason: RejectedDuplicate, Detail: Detail{Field: "turn", Message: "this turn is live already; wait for its end"}}
		}
		fence = max(fence, other.req.Epoch)
	}
	if t.req.Epoch < fence {
		return &Decision{Reason: RejectedStaleEpoch, Detail: Detail{Field: "epoch", Needed: clampInt64(fence), Available: clampInt64(t.req.Epoch),
			Message: fmt.Sprintf("route epoch %d is below the session's, %d; ask for the session's route again", t.req.Epoch, fence)}}
	}
	return nil
}

// checkOrder refuses a turn that comes before a live one of its session.
func (s *Scheduler) checkOrder(t *turn) *Decision {
	for _, other := range s.sessions[t.key.SessionKey()] {
		if other.req.Epoch == t.req.Epoch && other.key.Turn > t.key.Turn {
			err := fieldError("turn", t.key.Turn, "above %d, which is live; turns of a session run in order", other.key.Turn)
			return &Decision{Reason: RejectedInvalid, Detail: Detail{Field: err.Field, Message: err.Error()}}
		}
	}
	return nil
}

// checkFeasible refuses what could never run, however idle the node. Before the prompt is tokenised it counts as one token.
func (s *Scheduler) checkFeasible(t *turn) *Decision {
	need, have := t.finalLen(), int64(s.facts.ContextTokens)
	if need > have {
		return &Decision{Reason: RejectedContext, Detail: Detail{Field: "max_new_tokens", Needed: need, Available: have,
			Message: fmt.Sprintf("prompt of %d tokens + %d new ones - 1 = %d positions, the context has %d; shorten the prompt or ask for fewer tokens",
				len(t.req.Prompt), t.req.MaxNewTokens, need, have)}}
	}
	t.reserved = s.facts.KVBytes(int(need))
	if t.reserved > s.budget.KVBudgetBytes {
		return &Decision{Reason: RejectedKVBudget, Detail: Detail{Field: "kv_budget_bytes", Needed: t.reserved, Available: s.budget.KVBudgetBytes,
			Message: fmt.Sprintf("needs %d KV bytes for %d positions, the budget is %d; shorten the prompt, ask for fewer tokens or raise the budget",
				t.reserved, need, s.budget.KVBudgetBytes)}}
	}
	if per, all := s.budget.ScratchBytesPerSession, s.budget.ScratchBudgetBytes; per > all {
		return &Decision{Reason: RejectedScratchBudget, Detail: Detail{Field: "scratch_budget_bytes", Needed: per, Available: all,
			Message: fmt.Sprintf("one session needs %d scratch bytes, the budget is %d; raise the budget", per, all)}}
	}
	return nil
}

// checkOpen refuses while the node takes nothing.
func (s *Scheduler) checkOpen() *Decision {
	if s.draining {
		return &Decision{Reason: RejectedDraining, Detail: Detail{Message: "the node is draining; use another"}}
	}
	if s.stalled {
		return &Decision{Reason: RejectedQueueFull, RetryAfter: s.cfg.StallAfter, Detail: Detail{Field: "engine",
			Message: fmt.Sprintf("the engine has not answered for over %s; use another node or retry later", s.cfg.StallAfter)}}
	}
	if held := s.live + len(s.results); held >= s.cfg.MaxResults {
		return s.full(Detail{Field: "max_results", Needed: int64(held) + 1, Available: int64(s.cfg.MaxResults),
			Message: fmt.Sprintf("%d turns live and %d results not taken, the bound is %d; retry later", s.live, len(s.results), s.cfg.MaxResults)})
	}
	return nil
}

func (s *Scheduler) full(detail Detail) *Decision {
	return &Decision{Reason: RejectedQueueFull, RetryAfter: s.retryHint(), Detail: detail}
}

func (s *Scheduler) queueFull() *Decision {
	depth := s.budget.MaxQueueDepth
	return s.full(Detail{Field: "max_queue_depth", Needed: int64(depth) + 1, Available: int64(depth),
		Message: fmt.Sprintf("%d sessions active and the queue full at depth %d; retry later", len(s.active)+s.pledged, depth)})
}

// place finds room for a turn whose prompt is known: in the queue, from where promote takes it at once if it
// may run now.
func (s *Scheduler) place(t *turn) *Decision {
	if !s.hasPlaceInQueue(t) && !s.mayRunNow(t) {
		return s.queueFull()
	}
	s.enqueue(t)
	return nil
}

// submitTokenizing holds a place for t while its prompt is tokenised without the lock.
func (s *Scheduler) submitTokenizing(t *turn) Decision {
	t.phase = phaseTokenizing
	switch {
	case s.mayRunNow(t):
		t.pledge = true
		s.pledged++
	case s.hasPlaceInQueue(t):
		s.enqueue(t)
	default:
		return s.refuse(t, s.queueFull())
	}
	s.link(t)
	refusal := s.tokenize(t)
	if t.phase == phaseEnded { // cancelled meanwhile: its ending is recorded
		return s.accepted(t)
	}
	if refusal == nil && t.pledge {
		// Its KV is known only now. If it does not fit it has to queue like everyone else.
		s.leaveQueue(t)
		refusal = s.place(t)
	}
	if refusal != nil {
		s.giveBack(t)
		return s.refuse(t, refusal)
	}
	t.phase = phaseQueued
	s.commit(t)
	return s.accepted(t)
}

// tokenize fills in the prompt and makes the checks that need it.
func (s *Scheduler) tokenize(t *turn) *Decision {
	prompt, err := s.promptOf(t)
	if err != nil {
		field := fieldOf(err)
		if field == "" {
			field = "prompt"
		}
		return &Decision{Reason: RejectedInvalid, Detail: Detail{Field: field, Message: err.Error()}}
	}
	t.req.Prompt = prompt
	if d := s.checkFeasible(t); d != nil {
		return d
	}
	return s.checkPace(t)
}

// promptOf calls the request's hook without the lock. Should it panic, the place is given back.
func (s *Scheduler) promptOf(t *turn) (prompt []Token, err error) {
	returned := false
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if !returned && t.phase != phaseEnded {
			s.giveBack(t)
		}
	}()
	prompt, err = t.req.Tokenize()
	if err == nil {
		err = validatePrompt(prompt, s.facts.VocabTokens)
	}
	returned = true
	return prompt, err
}

// giveBack undoes the acceptance of a turn that is being tokenised.
func (s *Scheduler) giveBack(t *turn) {
	s.leaveQueue(t)
	s.unlink(t)
	t.phase = phaseEnded
	s.promote()
	s.nudge()
}

// commit makes an accepted turn's route epoch the session's, and the turn active if there is room.
func (s *Scheduler) commit(t *turn) {
	key := t.key.SessionKey()
	for _, other := range slices.Clone(s.sessions[key]) {
		if other.req.Epoch < t.req.Epoch {
			s.stop(other, failed(FailSuperseded, fmt.Sprintf("route epoch %d took over", t.req.Epoch)))
		}
	}
	s.fence(key, t.req.Epoch)
	s.promote()
	s.nudge()
}

func (s *Scheduler) accepted(t *turn) Decision {
	d := Decision{Key: t.key, Reason: Queued}
	if t.active() || t.pledge {
		d.Reason = Admitted
	}
	s.stats.admissions[d.Reason]++
	return d
}

func (s *Scheduler) refuse(t *turn, d *Decision) Decision {
	d.Key = t.key
	s.stats.admissions[d.Reason]++
	s.stats.rejected++
	return *d
}

const (
	minRetryHint     = 50 * time.Millisecond
	maxRetryHint     = 30 * time.Second
	defaultRetryHint = time.Second
)

// retryHint estimates when the next active session ends.
func (s *Scheduler) retryHint() time.Duration {
	least := -1
	for _, t := range s.active {
		if left := t.req.MaxNewTokens - len(t.tokens); least < 0 || left < least {
			least = left
		}
	}
	if least < 0 || s.stats.tickMean == 0 {
		return defaultRetryHint
	}
	return min(max(time.Duration(least)*s.stats.tickMean, minRetryHint), maxRetryHint)
}

func clampInt64(n uint64) int64 { return int64(min(n, 1<<63-1)) }
