package scheduler_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// of makes a request another tenant's.
func of(tenant string, req scheduler.Request) scheduler.Request {
	req.Tenant = tenant
	return req
}

const (
	chunkTime = 30 * time.Millisecond
	stepTime  = 5 * time.Millisecond
	saveTime  = time.Millisecond
)

// timed lets the engine's calls take their time by the test's clock, and calls then at the start of each.
func (r *rig) timed(then func(goengine.Call)) {
	r.onCall = func(call goengine.Call) {
		switch call.Op {
		case goengine.OpPrefill:
			r.clock.Advance(chunkTime)
		case goengine.OpDecode:
			r.clock.Advance(stepTime)
		case goengine.OpSave, goengine.OpRestore:
			r.clock.Advance(saveTime)
		}
		if then != nil {
			then(call)
		}
	}
}

// quietBesideFlood is how long a quiet tenant's turns took to their first token, and its gaps after that, beside a tenant that
// always has a hundred prompts of four chunks waiting.
func quietBesideFlood(t *testing.T) (first, gaps []time.Duration) {
	const turns = 60
	r := newRig(t, withSlots(8), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 100 }))
	rnd := rand.New(rand.NewPCG(1, 2))
	flood, quiet, until := 0, 0, 40
	var sent, last time.Time
	r.timed(func(goengine.Call) {
		if until--; until == 0 { // in the middle of a tick
			quiet++
			req := of("quiet", request("q", quiet, 32, 12))
			req.Turn = uint64(quiet)
			if d := r.submit(req); !d.Accepted() {
				t.Error(d)
			}
			sent, last = r.clock.Now(), time.Time{}
		}
	})
	for len(first) < turns {
		for r.sched.Telemetry().QueueDepth < 100 {
			flood++
			if d := r.submit(of("flood", request(fmt.Sprintf("f%d", flood), flood, 64, 8))); !d.Accepted() {
				break
			}
		}
		for _, token := range r.tick().Tokens {
			if token.Key.Tenant != "quiet" {
				continue
			}
			now := r.clock.Now()
			if last.IsZero() {
				first = append(first, now.Sub(sent))
			} else {
				gaps = append(gaps, now.Sub(last))
			}
			if last = now; token.Index == 11 {
				until = 5 + rnd.IntN(60)
			}
		}
	}
	if r.sched.Telemetry().SuspensionsTotal == 0 {
		t.Error("nothing was suspended: the quiet tenant was not alone in having to wait")
	}
	r.onCall = nil
	r.finish()
	for k := range r.started {
		r.wantEnd(k, scheduler.Completed, "length")
	}
	return first, gaps
}

// A prompt of two chunks takes two chunks alone.
func TestQuietTenantHardlyNoticesAFlood(t *testing.T) {
	first, gaps := quietBesideFlood(t)
	slices.Sort(first)
	slices.Sort(gaps)
	if median, most := first[len(first)/2], 2*chunkTime+2*chunkTime+2*stepTime; median > most {
		t.Errorf("the median first token came after %s, want at most %s", median, most)
	}
	if worst, most := first[len(first)-1], 2*chunkTime+2*chunkTime+4*stepTime+2*saveTime; worst > most {
		t.Errorf("the slowest first token came after %s, want at most %s", worst, most)
	}
	if p99 := gaps[len(gaps)*99/100]; p99 > 2*chunkTime {
		t.Errorf("the p99 gap is %s, want at most two chunks", p99)
	}
}

// The tokens of tenants that always have work are in proportion to their weights at all times, but for what one may run ahead: a quantum, the
// chunk that ends it, and a step.
func TestSharesAreTheWeights(t *testing.T) {
	for _, weights := range []map[string]float64{{}, {"a": 3}, {"a": 2, "b": 0.5}, {"c": 4}} {
		t.Run(fmt.Sprint(weights), func(t *testing.T) {
			r := newRig(t, withSlots(9), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth, b.MaxPrefillTokensPerTick = 40, 16 }),
				func(c *scheduler.Config) { c.Weights = weights })
			served, live := map[string]int{}, map[string]int{}
			tenants, n := []string{"a", "b", "c"}, 0
			for range 2000 {
				for _, tenant := range tenants {
					for ; live[tenant] < 12; live[tenant]++ {
						n++
						r.accept(of(tenant, request(fmt.Sprintf("%s%d", tenant, n), n, 64, 2)))
					}
				}
				report := r.tick()
				for _, k := range report.Prefilled { // one chunk a tick
					served[k.Tenant] += report.PrefillTokens
				}
				for _, k := range report.Decoded {
					served[k.Tenant]++
				}
				for _, k := range report.Completed {
					live[k.Tenant]--
				}
				wantShares(t, tenants, weights, served)
			}
			r.finish()
		})
	}
}

// wantShares is for a grid of 16 and steps of up to 9 rows.
func wantShares(t *testing.T, tenants []string, weights map[string]float64, served map[string]int) {
	t.Helper()
	weight := func(tenant string) float64 { return cmp.Or(weights[tenant], 1) }
	share := func(tenant string) float64 { return float64(served[tenant]) / weight(tenant) }
	for _, a := range tenants {
		for _, b := range tenants {
			if ahead := share(a) - share(b); ahead > 2*16+(16+9)/weight(a) {
				t.Fatalf("tenant %s is %.0f tokens ahead of %s: served %v", a, ahead, b, served)
			}
		}
	}
}

// turnOrder is in which order turns got their slots.
func (r *rig) turnOrder() (order []string) {
	r.tickUntil(func() bool {
		for k := range r.started {
			if !slices.Contains(order, k.Session) {
				order = append(order, k.Session)
			}
		}
		return r.sched.Pending() == 0
	})
	return order
}

func TestPriorityThenDeadlineThenArrivalOrdersATenantsTurns(t *testing.T) {
	r := newRig(t, withSlots(1))
	at := func(name string, priority int, deadline time.Duration) scheduler.Request {
		req := request(name, 1, 4, 3)
		req.Priority = priority
		if deadline > 0 {
			req.Deadline = r.clock.Now().Add(deadline)
		}
		return req
	}
	r.accept(at("running", 0, 0), at("none", 0, 0), at("later", 0, time.Hour), at("low", -8, time.Minute),
		at("soon", 0, time.Minute), at("high", 8, 0), at("none2", 0, 0))
	if got := fmt.Sprint(r.turnOrder()); got != "[running high soon later none none2 low]" {
		t.Errorf("turns ran in the order %s", got)
	}
}

// Priorities are among a tenant's own turns: they move no other tenant.
func TestPriorityGivesATenantNoMoreOfTheNode(t *testing.T) {
	r := newRig(t, withSlots(1), budget(func(b *scheduler.NodeBudget) { b.SuspendBudgetBytes = 0 }))
	for i := range 3 {
		high := of("pushy", request(fmt.Sprintf("p%d", i), i, 4, 3))
		high.Priority = scheduler.MaxPriority
		r.accept(high)
	}
	r.accept(of("meek", request("m", 9, 4, 3)))
	if got := fmt.Sprint(r.turnOrder()); got != "[p0 m p1 p2]" {
		t.Errorf("turns ran in the order %s", got)
	}
}

func TestPriorityOutOfRangeIsInvalid(t *testing.T) {
	r := newRig(t, small())
	for _, priority := range []int{-9, 9, 1 << 40} {
		req := request("s", 1, 4, 4)
		req.Priority = priority
		if d := r.submit(req); d.Reason != scheduler.RejectedInvalid || d.Detail.Field != "priority" {
			t.Errorf("priority %d: %s (%s), want rejected-invalid about priority", priority, d, d.Detail.Field)
		}
	}
}

func TestWeightOutOfRangeIsRefused(t *testing.T) {
	nan := 0.0
	nan /= nan
	for _, weight := range []float64{0, -1, 0.009, 101, nan, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64} {
		engine, err := goengine.New(small())
		if err != nil {
			t.Fatal(err)
		}
		_, err = scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts()), Weights: map[string]float64{"acme": weight}})
		if err == nil {
			t.Errorf("weight %g was taken", weight)
		}
	}
}

// A tenant that comes back within a round has what it left of it, and is no newcomer: it cannot have one quantum after the other.
func TestTenantThatComesBackAtOnceIsNoNewcomer(t *testing.T) {
	r := newRig(t, withSlots(2), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 60 }))
	prefilled := map[string]int{}
	n := 0
	for i := range 400 {
		for r.sched.Telemetry().QueueDepth < 10 {
			n++
			if d := r.submit(of("flood", request(fmt.Sprintf("f%d", n), n, 64, 1))); !d.Accepted() {
				break
			}
		}
		req := of("again", request("a", 1, 32, 1)) // a quantum, over and over
		req.Turn = uint64(i + 1)
		r.submit(req)
		for _, k := range r.tick().Prefilled {
			prefilled[k.Tenant]++
		}
	}
	if flood, again := prefilled["flood"], prefilled["again"]; flood < 100 || again > 2*flood {
		t.Errorf("%d ticks had chunks of the flood, %d of the tenant that came back", flood, again)
	}
	r.finish()
}

// Names cost nothing: a hundred thousand of them, each with a turn that is cancelled, leave nothing behind, also while a round lasts.
func TestTenantsThatAskedForNothingAreForgotten(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.accept(of("runs", request("runs", 1, 4, 60)))
	r.accept(of("waits", request("waits", 1, 4, 4)))
	r.tick()
	for i := range 100_000 {
		// Whatever JSON, a path or a subject could make of it: to the scheduler a name is bytes.
		req := of(fmt.Sprintf("%d.*>/\x00\xff \u202e\"'%%s", i), request("s", 1, 4, 4))
		if d := r.sched.Submit(req); !d.Accepted() {
			t.Fatal(d)
		}
		if found, err := r.sched.Cancel(req.Key(), scheduler.Cancelled, "", ""); !found || err != nil {
			t.Fatal(found, err)
		}
		r.sched.TakeResults(nil)
	}
	if n := r.sched.Tenants(); n != 2 {
		t.Errorf("%d tenants are remembered, want those two that have turns", n)
	}
	r.finish()
	if n := r.sched.Tenants(); n != 0 {
		t.Errorf("%d tenants are remembered by an idle scheduler", n)
	}
}

// However many new tenants come, each ahead of the others, one that waits gets its chunk after a bounded number of them.
func TestStreamOfNewTenantsStarvesNobody(t *testing.T) {
	r := newRig(t, withSlots(4), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth, b.MaxOvertakings = 100, 4 }))
	r.accept(of("old", request("old", 1, 200, 1)))
	r.tick()
	for i := range 2000 {
		if _, ended := r.ends[scheduler.TurnKey{Tenant: "old", Session: "old", Turn: 1}]; ended {
			if i > 200 {
				t.Errorf("it ended after %d ticks", i)
			}
			r.finish()
			return
		}
		for j := range 2 {
			r.submit(of(fmt.Sprintf("new%d-%d", i, j), request("s", i, 16, 1)))
		}
		r.tick()
	}
	t.Error("the old tenant's prompt was never done")
}
