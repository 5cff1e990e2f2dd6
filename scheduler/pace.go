package scheduler

import (
	"fmt"
	"time"
)

// pace is a moving average of how long something takes. A few samples are not believed, nor are old ones: what was slow once, and
// is refused since, would never be measured again.
type pace struct {
	mean    time.Duration
	samples int
	last    time.Time
}

const (
	believable = 4 // samples
	paceWeight = 8 // a sample counts for one in so many
	paceAge    = time.Minute
)

func (p *pace) add(took time.Duration, now time.Time) {
	if now.Sub(p.last) > paceAge {
		p.samples = 0
	}
	p.samples++
	p.mean += (took - p.mean) / time.Duration(min(p.samples, paceWeight))
	p.last = now
}

func (p *pace) known(now time.Time) bool {
	return p.samples >= believable && now.Sub(p.last) <= paceAge
}

// paces are the measured speeds of the engine, guarded by Scheduler.mu.
type paces struct {
	chunk pace   // one whole prompt chunk
	steps []pace // one decode step, by the sessions in it
}

// least is how long a generation takes at best: as the only one, at the speeds measured so far. What was not measured counts as no time.
func (p *paces) least(now time.Time, promptTokens, steps, grid int) time.Duration {
	var least time.Duration
	if p.chunk.known(now) {
		least = time.Duration(float64(p.chunk.mean) * float64(promptTokens) / float64(grid))
	}
	step, known := time.Duration(0), false
	for i := range p.steps {
		if s := &p.steps[i]; s.known(now) && (!known || s.mean < step) {
			step, known = s.mean, true
		}
	}
	return least + time.Duration(steps)*step
}

// checkPace refuses a turn whose whole generation cannot be over by its deadline even if it ran alone from now on. What an earlier
// attempt began is gone on with.
func (s *Scheduler) checkPace(t *turn) *Decision {
	if t.req.Deadline.IsZero() || t.req.Continued || len(t.req.Replay) > 0 {
		return nil
	}
	prompt := s.coldTokens(t)
	need := s.paces.least(t.submitted, prompt, t.req.MaxNewTokens-1, s.facts.PrefillChunk)
	left := t.req.Deadline.Sub(t.submitted)
	if need <= left {
		return nil
	}
	return &Decision{Reason: RejectedDeadline, Detail: Detail{Field: "deadline_ms",
		Needed: int64((need + time.Millisecond - 1) / time.Millisecond), Available: left.Milliseconds(),
		Message: fmt.Sprintf("%d prompt tokens and %d new ones take this node %s at best, the deadline is in %s; allow more time or ask for fewer tokens",
			prompt, t.req.MaxNewTokens, need.Round(time.Millisecond), left.Round(time.Millisecond))}}
}

// coldTokens is how many of the prompt's tokens have to be evaluated at least: what is hot, is shared, or was evaluated by a turn that will
// share it, takes no time. Where that cannot be known yet, it is all but one.
func (s *Scheduler) coldTokens(t *turn) int {
	prompt, key := len(t.req.Prompt), t.key.SessionKey()
	if prompt == 0 {
		return 0
	}
	if !s.first(t) || s.leaves(key) || s.cfg.Spill.Holds(key, t.req.Epoch) {
		return 1 // an earlier turn may leave it, or it is on disk
	}
	hot := 0
	if entry, found := s.hot.Peek(key); found && entry.Recipe == s.recipe(t) {
		hot = reusable(s.facts, entry, t.req.Prompt)
	}
	if s.shares(t) {
		hot = max(hot, s.stored(t))
		for _, other := range s.active {
			if other.phase == phasePrefill && !other.marked() {
				hot = max(hot, min(other.pos, s.common(t, other)))
			}
		}
	}
	return prompt - hot
}
