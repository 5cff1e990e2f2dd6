package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// A loop that has nothing to do sleeps; one that waits for KV works on what holds it.
func TestRunTicksOnlyWhileThereIsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := goengine.New(small())
		if err != nil {
			t.Fatal(err)
		}
		b := scheduler.DefaultBudget(engine.Facts())
		b.KVBudgetBytes /= 4 // one long session fills it
		sched, err := scheduler.New(engine, scheduler.Config{Budget: b})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		idle, ends := 0, 0
		done := make(chan error)
		go func() {
			done <- sched.Run(ctx, func(r *scheduler.Report) {
				if !r.DidWork() {
					idle++
				}
				ends += len(sched.TakeResults(nil))
			})
		}()
		for i, name := range names(3) {
			if d := sched.Submit(request(name, i, 200, 40)); d.Rejected() {
				t.Fatal(d)
			}
		}
		synctest.Wait() // until Run sleeps
		if ends != 3 || idle > 3 {
			t.Errorf("%d turns ended with %d idle ticks, want 3 and at most one for each submission", ends, idle)
		}
		before := sched.Telemetry().Ticks
		<-time.After(time.Hour) // of the bubble's clock
		synctest.Wait()
		if after := sched.Telemetry(); after.Ticks != before || after.LastTickAgeMS != 0 {
			t.Errorf("%d ticks in an idle hour, tick age %d ms; want none and 0", after.Ticks-before, after.LastTickAgeMS)
		}
		sched.Submit(request("late", 9, 10, 3))
		synctest.Wait()
		if ends != 4 {
			t.Errorf("a submission did not wake Run")
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil at the end of its context", err)
		}
		sched.Close()
	})
}

func TestRunReturnsTheTicksError(t *testing.T) {
	r := newRig(t, small())
	r.engine.Inject(goengine.Fault{Kind: goengine.FaultFingerprint, Slot: goengine.AnySlot})
	r.accept(request("s", 1, 10, 5))
	reports := 0
	if err := r.sched.Run(t.Context(), func(*scheduler.Report) { reports++ }); err == nil || reports != 1 {
		t.Errorf("Run = %v after %d reports, want the changed recipe after 1", err, reports)
	}
}

func TestRunToCompletionNamesThePendingCountAtItsLimit(t *testing.T) {
	r := newRig(t, withSlots(2))
	for i, name := range names(5) {
		r.accept(request(name, i, 10, 20))
	}
	ends, err := r.sched.RunToCompletion(25)
	if err == nil || !strings.Contains(err.Error(), "3 turns still pending after 25 ticks") || len(ends) != 2 {
		t.Errorf("%d endings, %v; want 2, and 3 pending", len(ends), err)
	}
	if ends, err = r.sched.RunToCompletion(0); err != nil || len(ends) != 3 {
		t.Errorf("%d endings, %v; want the other 3", len(ends), err)
	}
	if ends, err = r.sched.RunToCompletion(0); err != nil || len(ends) != 0 {
		t.Errorf("%d endings, %v; want none from an idle scheduler", len(ends), err)
	}
}

func TestDefaultTickLimitAllowsForChunksReplayAndWindows(t *testing.T) {
	cfg := withSlots(8)
	cfg.PrefillChunk = 1
	r := newRig(t, cfg, budget(func(b *scheduler.NodeBudget) { b.MaxBatchSize, b.MaxPrefillTokensPerTick = 1, 1 }))
	for i, name := range names(8) {
		req := request(name, i, 200, 30)
		req.Replay = prompt(i, 29)
		r.accept(req)
	}
	if ends, err := r.sched.RunToCompletion(0); err != nil || len(ends) != 8 {
		t.Errorf("%d endings, %v", len(ends), err)
	}
}
