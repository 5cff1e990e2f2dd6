package scheduler_test

import (
	"context"
	"fmt"
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

// Whatever the engine was at when it was given up on, its slots come back clean.
func TestSlotsAreCleanAfterAStallInAnyCall(t *testing.T) {
	for _, op := range []goengine.Op{
		goengine.OpFingerprints, goengine.OpSave, goengine.OpRestore, goengine.OpTrim, goengine.OpOpen, goengine.OpPrefill,
		goengine.OpDecode, goengine.OpMove, goengine.OpClose, goengine.OpRelease,
	} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t, withSlots(6), stallAfter(time.Second))
			// s0 to s5 are kept; s1 and s4 come back changed, beside longer ones, so that every call occurs.
			for i, name := range names(6) {
				r.accept(kept(request(name, i, 40, 3)))
			}
			r.finish()
			stalled := 0
			r.onCall = func(call goengine.Call) {
				if call.Op == op && stalled == 0 && r.sched.Pending() > 0 {
					r.clock.Advance(2 * time.Second)
					stalled = r.sched.FailStalled(r.clock.Now())
				}
			}
			for i := range 6 {
				r.accept(request(fmt.Sprintf("new%d", i), 20+i, 10, []int{40, 3, 3, 3, 40, 40}[i]))
			}
			r.finish()
			for i, name := range names(6) {
				again := turn(kept(request(name, i, 40, 3)), nil, 4, 3)
				again.Prompt[30] ^= 1
				r.accept(again, request("beside"+name, 30+i, 4, 12))
				r.finish()
			}
			if stalled == 0 {
				t.Fatal("the call never occurred")
			}
			failed := 0
			for _, end := range r.ends {
				if end.Cause == scheduler.FailStalled {
					failed++
				}
			}
			if failed != stalled {
				t.Errorf("%d turns failed as stalled, want %d", failed, stalled)
			}
			r.onCall = nil
			after := request("after", 9, 40, 10)
			r.run(after)
			r.wantTokens(after.Key(), baseline(t, small(), after))
			r.wantIdle()
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
