package scheduler_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/node/scheduler"
)

// decoding is a scheduler in the steady state: every session of one tenant decodes, and none ends soon.
func decoding(tb testing.TB, sessions int) *scheduler.Scheduler {
	tb.Helper()
	return decodingFor(tb, sessions, 1, false)
}

func tenantOf(i, tenants int) string { return fmt.Sprintf("t%d", i%tenants) }

// decodingFor is decoding of several tenants, with room for one more session where that is wanted.
func decodingFor(tb testing.TB, sessions, tenants int, room bool) *scheduler.Scheduler {
	tb.Helper()
	slots := sessions
	if room {
		slots++
	}
	engine := newStub(slots, 1<<30, 256)
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		tb.Fatal(err)
	}
	for i, name := range names(sessions) {
		req := request(name, i, 10, scheduler.MaxNewTokensLimit)
		req.Tenant = tenantOf(i, tenants)
		req.Deadline = time.Now().Add(time.Hour)
		if d := sched.Submit(req); !d.Running() {
			tb.Fatal(d)
		}
	}
	for occupied := 0; occupied < sessions; {
		report, err := sched.Tick()
		if err != nil {
			tb.Fatal(err)
		}
		occupied = report.Occupancy
	}
	return sched
}

func TestSteadyTickDoesNotAllocate(t *testing.T) {
	sched := decoding(t, 256)
	allocs := testing.AllocsPerRun(100, func() {
		if report, err := sched.Tick(); err != nil || report.Occupancy != 256 || len(report.Tokens) != 256 {
			t.Fatalf("occupancy %d, %v", report.Occupancy, err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations in a tick, want none", allocs)
	}
}

// BenchmarkTick is the scheduler's own share of a tick: of decoding sessions alone, beside a prompt of which each tick evaluates a chunk, and with a
// full queue of the same tenants behind them.
func BenchmarkTick(b *testing.B) {
	for _, load := range []string{"decode", "prefill", "queue"} {
		for _, sessions := range []int{8, 64, 256} {
			for _, tenants := range []int{1, 10, 100} {
				if tenants <= sessions {
					b.Run(fmt.Sprintf("%s/sessions=%d/tenants=%d", load, sessions, tenants), func(b *testing.B) {
						benchmarkTick(b, load, sessions, tenants)
					})
				}
			}
		}
	}
}

// longPrompt is so long that its turn's beginning and end do not count.
var longPrompt = sync.OnceValue(func() []scheduler.Token { return prompt(1, 1<<20) })

func benchmarkTick(b *testing.B, load string, sessions, tenants int) {
	sched := decodingFor(b, sessions, tenants, load == "prefill")
	if load == "queue" {
		for i := range scheduler.DefaultBudget(scheduler.Facts{Slots: 1}).MaxQueueDepth {
			req := request(fmt.Sprintf("queued%d", i), i, 10, 10)
			req.Tenant = tenantOf(i, tenants)
			if d := sched.Submit(req); d.Reason != scheduler.Queued {
				b.Fatal(d)
			}
		}
	}
	turn := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		if load == "prefill" && sched.Pending() == sessions {
			turn++
			long := scheduler.Request{Tenant: "t0", Session: "long", Turn: turn, Prompt: longPrompt(), MaxNewTokens: 1, Sampling: scheduler.DefaultSampling()}
			if d := sched.Submit(long); !d.Running() {
				b.Fatal(d)
			}
			sched.TakeResults(nil)
		}
		if _, err := sched.Tick(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSubmitAndCancelQueued is a turn's way through admission and out, behind a full node.
func BenchmarkSubmitAndCancelQueued(b *testing.B) {
	sched := decoding(b, 8)
	req := request("queued", 1, 512, 16)
	b.ReportAllocs()
	var ends []scheduler.Ending
	for b.Loop() {
		if d := sched.Submit(req); d.Reason != scheduler.Queued {
			b.Fatal(d)
		}
		if found, err := sched.Cancel(req.Key(), scheduler.Cancelled, "", ""); !found || err != nil {
			b.Fatal(found, err)
		}
		ends = sched.TakeResults(ends[:0])
	}
}

// BenchmarkRefusal is what an overloaded node pays for a request it cannot take.
func BenchmarkRefusal(b *testing.B) {
	engine := newStub(1, 1000, 256)
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth = 0
	sched, err := scheduler.New(engine, scheduler.Config{Budget: budget})
	if err != nil {
		b.Fatal(err)
	}
	sched.Submit(request("running", 1, 10, 10))
	req := request("refused", 1, 1, 10)
	req.Prompt, req.Tokenize = nil, func() ([]scheduler.Token, error) { panic("tokenised") }
	b.ReportAllocs()
	for b.Loop() {
		if d := sched.Submit(req); d.Reason != scheduler.RejectedQueueFull {
			b.Fatal(d)
		}
	}
}

// S2 (tt-inference-server#4335): a new prompt every 50 ms for 30 s beside one decoder. A chunk of 256 tokens takes
// 30 ms here, a decode step 5 ms.
func TestSteadyStreamOfPromptsStarvesNobody(t *testing.T) {
	const chunk, chunkTime, stepTime = 256, 30 * time.Millisecond, 5 * time.Millisecond
	clock := newClock()
	engine := newStub(8, 20_000, chunk)
	engine.onStep = func(prefillTokens int) {
		if prefillTokens > 0 {
			clock.Advance(chunkTime)
		} else {
			clock.Advance(stepTime)
		}
	}
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts()), Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	decoder := request("decoder", 0, 10, 15_000)
	sched.Submit(decoder)
	start := clock.Now()
	last := start
	var gaps, waits []time.Duration
	for submitted := 0; clock.Now().Sub(start) < 30*time.Second; {
		for ; time.Duration(submitted)*50*time.Millisecond <= clock.Now().Sub(start) && submitted < 600; submitted++ {
			if d := sched.Submit(request(fmt.Sprintf("s%d", submitted), submitted, 256, 4)); d.Rejected() {
				t.Fatal(d)
			}
		}
		report, err := sched.Tick()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(report.Tokens, func(n scheduler.NewToken) bool { return n.Key == decoder.Key() }) {
			gaps = append(gaps, clock.Now().Sub(last))
			last = clock.Now()
		}
		for _, end := range sched.TakeResults(nil) {
			waits = append(waits, end.Timings.FirstToken)
		}
	}
	slices.Sort(gaps)
	if p99 := gaps[len(gaps)*99/100]; p99 > 2*chunkTime {
		t.Errorf("the decoder's p99 gap is %s, want under two chunks", p99)
	}
	if len(waits) < 590 || slices.Max(waits) > time.Second {
		t.Errorf("%d prompts served, the slowest first token after %s", len(waits), slices.Max(waits))
	}
}

// crowded is a scheduler with eight places, all of them taken, behind which ten turns of each of a thousand tenants wait.
func crowded(tb testing.TB, newTokens int, kvBytes int64) *scheduler.Scheduler {
	tb.Helper()
	const tenants, each = 1000, 10
	engine := newStub(8, 1<<20, 256)
	engine.saves = true
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth, budget.SuspendBudgetBytes, budget.KVBudgetBytes = tenants*each, 1<<40, kvBytes
	sched, err := scheduler.New(engine, scheduler.Config{Budget: budget})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range tenants * each {
		req := of(fmt.Sprintf("tenant%d", i%tenants), request(fmt.Sprintf("s%d", i), i, 10, newTokens))
		req.Deadline = time.Now().Add(time.Hour)
		if d := sched.Submit(req); d.Rejected() {
			tb.Fatal(d)
		}
	}
	return sched
}

// BenchmarkTickCrowded is the scheduler's own share of a tick while 10,000 turns of 1,000 tenants wait: where turns of ten tokens end and
// others come in their place, where long ones give way to others, and where there are places but no KV for anyone.
func BenchmarkTickCrowded(b *testing.B) {
	for _, c := range []struct {
		name      string
		newTokens int
		kvBytes   int64
	}{{"ending", 10, 1 << 40}, {"suspending", 100_000, 1 << 40}, {"no KV left", 100_000, 64 * 150_000}} {
		b.Run(c.name, func(b *testing.B) {
			newTokens := c.newTokens
			sched := crowded(b, newTokens, c.kvBytes)
			turn := 10_000
			var ends []scheduler.Ending
			b.ReportAllocs()
			for b.Loop() {
				if _, err := sched.Tick(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				ends = sched.TakeResults(ends[:0])
				for _, end := range ends {
					turn++
					if d := sched.Submit(of(end.Key.Tenant, request(fmt.Sprintf("s%d", turn), turn, 10, newTokens))); d.Rejected() {
						b.Fatal(d)
					}
				}
				b.StartTimer()
			}
		})
	}
}
