package scheduler

import (
	"cmp"
	"fmt"
	"slices"
)

// Limits of a tenant's weight.
const (
	MinWeight = 0.01
	MaxWeight = 100
)

const (
	// quantumChunks is how many prompt chunks a tenant of weight 1 has for each round.
	quantumChunks = 2
	// maxDebtQuanta bounds for how many rounds a tenant can have had too much, and so how long it waits for the others.
	maxDebtQuanta = 8
)

// account is one tenant's share of the node, guarded by Scheduler.mu. Tenants share by deficit round robin over tokens: a
// round gives each its quantum, every token that is evaluated for it, of a prompt or of a decode step, takes one
// away, and who has credit goes first. What is evaluated all the same (a decode step has a row for everyone) is owed to the
// next rounds.
type account struct {
	tenant  string
	quantum float64 // tokens that a round gives it: its weight in tokens
	credit  float64 // tokens left of its rounds; never above quantum, negative where it owes

	live   int // accepted turns that have not ended
	active int // of those, the ones that hold a place
	passed int // how often newcomers went ahead of it since it was last served

	// Of a pass over the turns; valid within one call.
	wants   bool // has a turn that the pass looks for
	pending int  // prompt tokens that its active turns have still to evaluate
}

// share is what the account has left beside what was promised to its active turns, in rounds.
func (a *account) share() float64 { return (a.credit - float64(a.pending)) / a.quantum }

// holds is how many places it has for its weight.
func (a *account) holds() float64 { return float64(a.active) / a.quantum }

// quantumTokens is what a round gives to a tenant of weight 1.
func (s *Scheduler) quantumTokens() int { return quantumChunks * s.facts.PrefillChunk }

// account returns the tenant's account, and opens one if there is none. A newcomer goes ahead of everyone but those who were passed
// too often, so that a tenant that asks for little need not wait for the end of a round.
func (s *Scheduler) account(tenant string) *account {
	if a := s.tenants[tenant]; a != nil {
		return a
	}
	weight, given := s.cfg.Weights[tenant]
	if !given {
		weight = 1
	}
	a := &account{tenant: tenant, quantum: weight * float64(s.quantumTokens())}
	a.credit = a.quantum
	at := 0
	for i, other := range s.ring {
		if s.passedOften(other) {
			at = i + 1
		}
	}
	for _, other := range s.ring[at:] {
		if other.live > 0 {
			other.passed++
		}
	}
	s.tenants[tenant] = a
	s.ring = slices.Insert(s.ring, at, a)
	return a
}

func (s *Scheduler) passedOften(a *account) bool { return a.passed >= max(1, s.budget.MaxOvertakings) }

// activeOf is how many places a tenant holds.
func (s *Scheduler) activeOf(tenant string) int {
	if a := s.tenants[tenant]; a != nil {
		return a.active
	}
	return 0
}

// charge counts tokens that were evaluated for a turn. Who has used up its round goes to the end of the ring.
func (s *Scheduler) charge(t *turn, tokens int) {
	a := t.account
	t.ran += tokens
	had := a.credit > 0
	a.credit = max(a.credit-float64(tokens), -maxDebtQuanta*a.quantum)
	if had && a.credit <= 0 && len(s.ring) > 1 {
		i := slices.Index(s.ring, a)
		copy(s.ring[i:], s.ring[i+1:])
		s.ring[len(s.ring)-1] = a
	}
}

// round gives every tenant its quantum. A tenant without turns is remembered until it owes nothing: it cannot come back as a
// newcomer in the same round.
func (s *Scheduler) round() {
	s.ring = slices.DeleteFunc(s.ring, func(a *account) bool {
		a.credit = min(a.credit+a.quantum, a.quantum)
		if a.live > 0 || a.credit <= 0 {
			return false
		}
		delete(s.tenants, a.tenant)
		return true
	})
}

// next is the first tenant on the ring that wants something and has credit. Rounds pass until there is one; nil where none
// wants anything.
func (s *Scheduler) next() *account {
	if !slices.ContainsFunc(s.ring, func(a *account) bool { return a.wants }) {
		return nil
	}
	for {
		for _, a := range s.ring {
			if a.wants && (a.credit > 0 || s.passedOften(a)) {
				return a
			}
		}
		s.round()
	}
}

// endRound lets rounds pass that no one waits in: with everyone served, nobody owes anything, and while only decode steps run, whoever
// waits gets on.
func (s *Scheduler) endRound() {
	s.markWanting(func(t *turn) bool { return t.phase < phaseDecode })
	waits := func(a *account) bool { return a.wants }
	if !slices.ContainsFunc(s.ring, waits) {
		for _, a := range s.ring {
			a.credit = 0
		}
		s.round()
		return
	}
	for !slices.ContainsFunc(s.ring, func(a *account) bool { return a.wants && a.credit > 0 }) {
		s.round()
	}
}

// markWanting notes whose live turns, in the queue or active, are such.
func (s *Scheduler) markWanting(such func(*turn) bool) {
	for _, a := range s.ring {
		a.wants = false
	}
	for _, t := range s.queue {
		t.account.wants = t.account.wants || such(t)
	}
	for _, t := range s.active {
		t.account.wants = t.account.wants || such(t) && !t.marked()
	}
}

// promotionOrder lists the tenants that wait for a place, who is next first: those that hold none, then those that have most left of
// their share. Of equals it is the order of the ring. The slice is valid until the next call.
func (s *Scheduler) promotionOrder() []*account {
	for _, a := range s.ring {
		a.pending, a.wants = 0, false
	}
	for _, t := range s.active {
		t.account.pending += max(0, len(t.req.Prompt)-t.pos)
	}
	for _, t := range s.queue {
		t.account.wants = t.account.wants || s.startable(t)
	}
	s.order = s.order[:0]
	for _, a := range s.ring {
		if a.wants {
			s.order = append(s.order, a)
		}
	}
	slices.SortStableFunc(s.order, func(a, b *account) int {
		if (a.active == 0) != (b.active == 0) {
			return cmp.Compare(min(a.active, 1), min(b.active, 1))
		}
		return cmp.Compare(b.share(), a.share())
	})
	return s.order
}

// before says which of two turns of a tenant goes first: one that had begun, then the higher priority, then the earlier
// deadline, then the older.
func before(a, b *turn) bool { return order(a, b) < 0 }

func order(a, b *turn) int {
	if begun := (a.suspensions > 0) != (b.suspensions > 0); begun {
		return cmp.Compare(min(b.suspensions, 1), min(a.suspensions, 1))
	}
	if a.req.Priority != b.req.Priority {
		return cmp.Compare(b.req.Priority, a.req.Priority)
	}
	if ad, bd := a.req.Deadline, b.req.Deadline; !ad.Equal(bd) {
		switch {
		case ad.IsZero():
			return 1
		case bd.IsZero():
			return -1
		}
		return ad.Compare(bd)
	}
	return cmp.Compare(a.seq, b.seq)
}

// validateWeights says which tenant's weight is out of its range.
func validateWeights(weights map[string]float64) error {
	for tenant, weight := range weights {
		if n := len(tenant); n < 1 || n > MaxNameBytes {
			return fieldError("weights", fmt.Sprintf("%q", tenant), "by tenant names of 1 to %d bytes", MaxNameBytes)
		}
		if !(weight >= MinWeight && weight <= MaxWeight) {
			return fieldError(fmt.Sprintf("weights[%s]", tenant), weight, "in [%g, %d]", MinWeight, MaxWeight)
		}
	}
	return nil
}
