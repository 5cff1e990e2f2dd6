package scheduler

import (
	"cmp"
	"container/heap"
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

	live   int     // accepted turns that have not ended
	active int     // of those, the ones that hold a place
	queue  []*turn // of those, the ones that wait, in the order of before
	passed int     // how often newcomers went ahead of it since it was last served

	// Of a pass over the turns; valid within one call.
	wants   bool    // has a turn that the pass looks for
	pending int     // prompt tokens that its active turns have still to evaluate
	left    float64 // its share
	at      int     // its place on the ring
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

// charge counts tokens that were evaluated for a tenant. Who has used up its round goes to the end of the ring.
func (s *Scheduler) charge(a *account, tokens int) {
	had := a.credit > 0
	a.credit = max(a.credit-float64(tokens), -maxDebtQuanta*a.quantum)
	if had && a.credit <= 0 && len(s.ring) > 1 {
		i := slices.Index(s.ring, a)
		copy(s.ring[i:], s.ring[i+1:])
		s.ring[len(s.ring)-1] = a
	}
}

// unused says whether nothing was evaluated for the tenant in this round. It may then come back as the newcomer that it was.
func (a *account) unused() bool { return a.credit == a.quantum }

// forget closes an account, however long the round still lasts: names cost whoever sends them nothing, and must not gather here.
func (s *Scheduler) forget(a *account) {
	delete(s.tenants, a.tenant)
	i := slices.Index(s.ring, a)
	s.ring = slices.Delete(s.ring, i, i+1)
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
	for _, a := range s.ring {
		a.wants = len(a.queue) > 0
	}
	for _, t := range s.active {
		t.account.wants = t.account.wants || t.phase < phaseDecode && !t.marked()
	}
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

// promotionOrder are the tenants that wait for a place, who is next first: those that hold none, then those that have most left of
// their share. Of equals it is the order of the ring. It is valid until the next call, and while nothing else changes.
func (s *Scheduler) promotionOrder() *byShare {
	for _, a := range s.ring {
		a.pending = 0
	}
	for _, t := range s.active {
		t.account.pending += max(0, len(t.req.Prompt)-t.pos)
	}
	s.order = s.order[:0]
	for i, a := range s.ring {
		if slices.ContainsFunc(a.queue, s.startable) {
			a.left, a.at = a.share(), i
			s.order = append(s.order, a)
		}
	}
	heap.Init(&s.order)
	return &s.order
}

// byShare is a heap of accounts: of a thousand tenants that wait, the first few are all that is asked for.
type byShare []*account

// next takes the next tenant; nil where there is none.
func (b *byShare) next() *account {
	if len(*b) == 0 {
		return nil
	}
	return heap.Pop(b).(*account)
}

func (b byShare) Len() int      { return len(b) }
func (b byShare) Swap(i, j int) { b[i], b[j] = b[j], b[i] }

func (b byShare) Less(i, j int) bool {
	x, y := b[i], b[j]
	if (x.active == 0) != (y.active == 0) {
		return x.active == 0
	}
	if x.left != y.left {
		return x.left > y.left
	}
	return x.at < y.at
}

// Push implements heap.Interface.
func (b *byShare) Push(a any) { *b = append(*b, a.(*account)) }

// Pop implements heap.Interface.
func (b *byShare) Pop() any {
	last := len(*b) - 1
	a := (*b)[last]
	*b = (*b)[:last]
	return a
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
