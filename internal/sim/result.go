package sim

import (
	"maps"
	"slices"
	"time"
)

// stats are what a simulation counts.
type stats struct {
	turns, done int
	reasons     map[string]int
	firsts      []time.Duration // to the first token, as they came
	quiet       []time.Duration // of those, the ones of tenants beside a flood
	flooded     bool

	returns, hits int // turns after a session's first, and those that found it hot
	cached        int64

	deaths, takeovers, handovers, moves, guests, suspensions, quota int

	evaluated, useful, steps, rows int64
	busy                           time.Duration

	// Shares of the tenants while half of the turns have not ended.
	demand, served []float64 // tokens
	closed         bool
	end            time.Duration
}

func (s *stats) init(cfg *Scenario) {
	s.turns, s.reasons, s.flooded = cfg.Sessions*cfg.Turns, map[string]int{}, cfg.Flood > 0
	s.demand, s.served = make([]float64, cfg.Tenants), make([]float64, cfg.Tenants)
}

func (s *stats) asked(t *turn) {
	if !s.closed {
		s.demand[t.tenant] += float64(t.prompt + t.newTokens)
	}
}

func (s *stats) serve(t *turn, tokens int) {
	if !s.closed {
		s.served[t.tenant] += float64(tokens)
	}
}

func (s *stats) first(t *turn, took time.Duration) {
	s.firsts = append(s.firsts, took)
	if s.flooded && t.tenant > 0 {
		s.quiet = append(s.quiet, took)
	}
}

func (s *stats) ended(now time.Duration, _ *turn, reason, cause string) {
	if cause != "" {
		reason += "/" + cause
	}
	s.reasons[reason]++
	s.done++
	s.closed = 2*s.done >= s.turns
	s.end = now
}

// Result is what a scenario came to.
type Result struct {
	Scenario string
	Workers  int
	Turns    int
	Outcomes map[string]int // by reason, and cause where there is one

	Virtual      time.Duration // until the last turn ended
	TurnsPerSec  float64
	TokensPerSec float64 // evaluated ones

	FirstP50, FirstP99 time.Duration // from a turn's first submission to its first token at the client
	QuietP50, QuietP99 time.Duration // of tenants beside a flood

	Busy      float64 // part of the time in which the engines were in a call, on average
	Occupancy float64 // rows of a decode step, on average
	HotHits   float64 // part of the returning turns that found their session hot
	Fairness  float64 // Jain's index over what tenants got of their fair shares, until half of the turns had ended

	Deaths, Takeovers, HandOvers, Moves, Guests, Suspensions int
	Refusals                                                 int     // of a request for its tenant's quota; clients try again
	Lost                                                     float64 // part of the evaluated tokens that came to nothing

	Messages       map[string]int64 // on the bus, by kind
	MessagesPerSec float64          // on average, without those of Registry
	PeakPerSec     int64
	WritesPerSec   float64 // into file stores
	SwapsPerSec    float64 // of them, in the ledger
	RegistryPerSec float64 // messages for advertisements, if every worker listens
}

func (w *world) result() *Result {
	s, t := &w.stats, &w.traffic
	seconds := max(s.end.Seconds(), 1e-9)
	r := &Result{
		Scenario: w.cfg.Name, Workers: w.cfg.Workers, Turns: s.turns, Outcomes: maps.Clone(s.reasons),
		Virtual: s.end, TurnsPerSec: float64(s.done) / seconds, TokensPerSec: float64(s.evaluated) / seconds,
		Busy:      s.busy.Seconds() / seconds / float64(w.cfg.Workers),
		Occupancy: ratio(s.rows, s.steps), HotHits: ratio(s.hits, s.returns), Fairness: jain(s.served, fairShares(s.demand, sum(s.served))),
		Deaths: s.deaths, Takeovers: s.takeovers, HandOvers: s.handovers, Moves: s.moves, Guests: s.guests, Suspensions: s.suspensions,
		Refusals: s.quota, Lost: ratio(s.evaluated-s.useful, s.evaluated), Messages: map[string]int64{},
		MessagesPerSec: float64(t.total()) / seconds, PeakPerSec: t.peak(),
		WritesPerSec: float64(t.writes) / seconds, SwapsPerSec: float64(t.swaps) / seconds,
		RegistryPerSec: registryRate(w.cfg.Workers),
	}
	r.FirstP50, r.FirstP99 = quantiles(s.firsts)
	r.QuietP50, r.QuietP99 = quantiles(s.quiet)
	for kind := range kinds {
		r.Messages[kind.String()] = t.by[kind]
	}
	return r
}

// registryRate is how many messages a second advertisements are, where each of so many workers listens to all: a beat a second, and
// every five seconds one into the bucket, which is watched and confirms it.
func registryRate(workers int) float64 {
	n := float64(workers)
	return n + n*n + (2*n+n*n)/5
}

func ratio[N int | int64](part, of N) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// quantiles are the median and the 99th percentile.
func quantiles(of []time.Duration) (p50, p99 time.Duration) {
	if len(of) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2], sorted[len(sorted)*99/100]
}

func sum(of []float64) (total float64) {
	for _, x := range of {
		total += x
	}
	return total
}

// fairShares divides so much among tenants: all get the same, but nobody more than it asked for, and what is left goes to the others.
func fairShares(demand []float64, total float64) []float64 {
	shares := make([]float64, len(demand))
	order := make([]int, len(demand))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case demand[a] < demand[b]:
			return -1
		case demand[a] > demand[b]:
			return 1
		}
		return 0
	})
	for i, tenant := range order {
		shares[tenant] = min(demand[tenant], total/float64(len(order)-i))
		total -= shares[tenant]
	}
	return shares
}

// jain is Jain's index of what each got of its share: 1 where all got as much of it, 1/n where one got everything.
func jain(got, shares []float64) float64 {
	var n, all, squares float64
	for i, share := range shares {
		if share > 0 {
			x := got[i] / share
			n, all, squares = n+1, all+x, squares+x*x
		}
	}
	if squares == 0 {
		return 1
	}
	return all * all / (n * squares)
}
