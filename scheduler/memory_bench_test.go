package scheduler_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/meshnet/node/scheduler"
)

// savingStub is a stub whose sessions can be saved, in states that take no memory.
type savingStub struct{ *stubEngine }

func (e savingStub) Save(slot, exactLen int) (scheduler.State, error) {
	return noBytes{tokens: e.held[slot], exactLen: exactLen}, nil
}

type noBytes struct{ tokens, exactLen int }

func (s noBytes) Bytes() int64  { return 1 }
func (s noBytes) Tokens() int   { return s.tokens }
func (s noBytes) ExactLen() int { return s.exactLen }
func (s noBytes) Blob() []byte  { return nil }
func (s noBytes) Free()         {}

// heap is the memory in use after a collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkIdleSession is what a session of 512 tokens takes that is kept hot, beside its KV: an operation is a thousand of them.
func BenchmarkIdleSession(b *testing.B) {
	const sessions, tokens = 1000, 512
	var grown int64
	for b.Loop() {
		engine := savingStub{newStub(8, 1024, 256)}
		budget := scheduler.DefaultBudget(engine.Facts())
		budget.HotBudgetBytes = 1 << 40
		sched, err := scheduler.New(engine, scheduler.Config{Budget: budget})
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		var ends []scheduler.Ending
		for i := range sessions {
			req := request(fmt.Sprintf("s%d", i), i, tokens, 1)
			req.Keep = true
			sched.Submit(req)
			if ends, err = sched.RunToCompletion(0); err != nil || len(ends) != 1 || !ends[0].Kept {
				b.Fatal(ends, err)
			}
		}
		if hot := sched.Telemetry().HotSessions; hot != sessions {
			b.Fatalf("%d sessions are hot", hot)
		}
		grown += heap() - before
		runtime.KeepAlive(sched)
	}
	b.ReportMetric(float64(grown)/float64(b.N)/sessions, "B/session")
	b.ReportMetric(tokens*4, "B-of-tokens")
}

// BenchmarkQueuedTurn is what a turn takes that waits in the scheduler, beside its prompt: an operation is a thousand of them.
func BenchmarkQueuedTurn(b *testing.B) {
	const turns = 1000
	var grown int64
	waiting := names(turns)
	shared := prompt(1, 512)
	for b.Loop() {
		engine := newStub(1, 1024, 256)
		budget := scheduler.DefaultBudget(engine.Facts())
		budget.MaxQueueDepth = turns
		sched, err := scheduler.New(engine, scheduler.Config{Budget: budget})
		if err != nil {
			b.Fatal(err)
		}
		sched.Submit(request("running", 1, 10, 10))
		before := heap()
		for _, name := range waiting {
			req := request(name, 0, 0, 16)
			req.Prompt = shared
			if d := sched.Submit(req); d.Reason != scheduler.Queued {
				b.Fatal(d)
			}
		}
		grown += heap() - before
		runtime.KeepAlive(sched)
	}
	b.ReportMetric(float64(grown)/float64(b.N)/turns, "B/turn")
}
