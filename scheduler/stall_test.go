package scheduler_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func stallAfter(d time.Duration) func(*scheduler.Config) {
	return func(c *scheduler.Config) { c.StallAfter = d }
}

// C6 (llama.cpp#27388): the engine hangs; everyone hears of it within a bound.
func TestHangingEngineFailsEveryTurnWithoutWaitingForIt(t *testing.T) {
	for _, op := range []goengine.Op{goengine.OpDecode, goengine.OpPrefill, goengine.OpOpen, goengine.OpSave} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t, withSlots(2), stallAfter(30*time.Second))
			r.run(kept(request("hot", 1, 20, 3)))
			r.run(kept(request("hot2", 8, 20, 3)))
			begun, until := make(chan struct{}), make(chan struct{})
			r.engine.Inject(goengine.Fault{Kind: goengine.FaultHang, Slot: goengine.AnySlot, In: op, Times: 1, Begun: begun, Until: until})
			r.accept(request("a", 1, 40, 10), request("b", 2, 40, 10), request("c", 3, 40, 10))
			ticked := make(chan struct{})
			go func() {
				defer close(ticked)
				for len(r.ends) < 5 { // the two hot ones, and these
					r.tick()
				}
			}()
			<-begun
			r.clock.Advance(30 * time.Second)
			if n := r.sched.FailStalled(r.clock.Now()); n != 0 {
				t.Errorf("%d turns failed at the bound, want none before it is passed", n)
			}
			r.clock.Advance(time.Millisecond)
			if got := r.sched.Telemetry().LastTickAgeMS; got != 30001 {
				t.Errorf("last tick age %d ms, want 30001", got)
			}
			if n := r.sched.FailStalled(r.clock.Now()); n != 3 {
				t.Errorf("%d turns failed, want 3", n)
			}
			ends := r.sched.TakeResults(nil) // the tick is still in the engine
			for _, end := range ends {
				if end.Reason != scheduler.Failed || end.Cause != scheduler.FailStalled {
					t.Errorf("%s ended %s %s", end.Key, end.Reason, end.Cause)
				}
			}
			if len(ends) != 3 || r.sched.Pending() != 0 {
				t.Errorf("%d endings, %d pending", len(ends), r.sched.Pending())
			}
			if d := r.submit(request("d", 4, 4, 2)); d.Reason != scheduler.RejectedQueueFull || d.Detail.Field != "engine" || d.RetryAfter != 30*time.Second {
				t.Errorf("%s, want a refusal while the engine hangs", d)
			}
			if n := r.sched.FailStalled(r.clock.Now()); n != 0 {
				t.Errorf("%d turns failed twice", n)
			}
			close(until)
			for r.sched.Submit(request("d", 4, 4, 2)).Rejected() {
				// until the call has returned; the ticking goroutine is on its way
			}
			r.accept(request("e", 5, 40, 10), request("f", 6, 40, 10))
			<-ticked
			r.finish()
			for i, name := range []string{"e", "f"} {
				r.wantTokens(key(name, 1), baseline(t, small(), request(name, 5+i, 40, 10)))
			}
			r.tick()
			r.wantIdle()
			for _, name := range []string{"a", "b", "c"} {
				if _, late := r.ends[key(name, 1)]; late {
					t.Errorf("%s ended again after the stall", name)
				}
			}
		})
	}
}

func TestWatchFindsAStallByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, err := goengine.New(small())
		if err != nil {
			t.Fatal(err)
		}
		sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts()), StallAfter: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		begun, until := make(chan struct{}), make(chan struct{})
		engine.Inject(goengine.Fault{Kind: goengine.FaultHang, Slot: goengine.AnySlot, In: goengine.OpPrefill, Times: 1, Begun: begun, Until: until})
		sched.Submit(request("s", 1, 10, 5))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan []scheduler.Ending)
		go sched.Watch(ctx, func() { ended <- sched.TakeResults(nil) })
		ticked := make(chan error)
		go func() {
			_, err := sched.Tick()
			ticked <- err
		}()
		<-begun
		start := time.Now()
		ends := <-ended
		if took := time.Since(start); took > 1500*time.Millisecond || len(ends) != 1 || ends[0].Cause != scheduler.FailStalled {
			t.Errorf("after %s: %+v, want the one turn stalled within 1.5 s", took, ends)
		}
		close(until)
		if err := <-ticked; err != nil {
			t.Error(err)
		}
		stop()
		sched.Close()
	})
}

func TestWatchReturnsWhereNoStallIsToBeFound(t *testing.T) {
	r := newRig(t, small())
	r.sched.Watch(t.Context(), func() { t.Error("ended called") })
}
