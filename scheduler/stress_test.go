package scheduler_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// Everyone at once: clients that submit, cancel and raise epochs, an observer, and a watchdog that now and then gives
// up on an engine that is merely busy. Every accepted turn ends once, and nothing is left behind.
func TestConcurrentUseLosesNothing(t *testing.T) {
	cfg := withSlots(3)
	engine, err := goengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth, budget.HotBudgetBytes = 6, budget.HotBudgetBytes/2
	sched, err := scheduler.New(engine, scheduler.Config{Budget: budget, StallAfter: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	var accepted, ended atomic.Int64
	take := func() {
		for _, end := range sched.TakeResults(nil) {
			ended.Add(1)
			if end.Reason == scheduler.Failed && end.Cause == scheduler.FailEngine {
				t.Errorf("turn %s: %s", end.Key, end.Detail)
			}
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var loop, clients, helpers sync.WaitGroup
	loop.Go(func() {
		if err := sched.Run(ctx, func(*scheduler.Report) { take() }); err != nil {
			t.Error(err)
		}
	})
	helpers.Go(func() {
		for ctx.Err() == nil {
			tele := sched.Telemetry()
			if tele.ActiveSessions < 0 || tele.QueueDepth < 0 || tele.KVReservedBytes < 0 || tele.HotBytes > budget.HotBudgetBytes {
				t.Errorf("telemetry %+v", tele)
			}
			if tele.Ticks%64 == 0 {
				sched.FailStalled(time.Now())
			}
			take()
		}
	})
	for client := range 4 {
		clients.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(client), 1))
			epoch := uint64(0)
			for i := range 150 {
				req := kept(request(fmt.Sprintf("s%d", rnd.IntN(3)), rnd.IntN(3), 1+rnd.IntN(60), 1+rnd.IntN(8)))
				req.Tenant = fmt.Sprintf("t%d", client)
				req.Turn = uint64(i + 1)
				if rnd.IntN(8) == 0 {
					epoch++
				}
				req.Epoch = epoch
				if i%2 == 0 {
					tokens := req.Prompt
					req = lazily(req, func() ([]scheduler.Token, error) { return tokens, nil })
				}
				if sched.Submit(req).Accepted() {
					accepted.Add(1)
				}
				if rnd.IntN(4) == 0 {
					if _, err := sched.Cancel(req.Key(), scheduler.Failed, scheduler.FailHeartbeatLost, ""); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	clients.Wait()
	for sched.Pending() > 0 { // the loop is at it
		take()
	}
	stop()
	helpers.Wait()
	loop.Wait()
	sched.Close()
	take()
	if accepted.Load() != ended.Load() || accepted.Load() == 0 {
		t.Errorf("%d turns accepted, %d ended", accepted.Load(), ended.Load())
	}
	if kv, states := engine.KVBytes(), engine.LiveStates(); kv != 0 || states != 0 {
		t.Errorf("%d KV bytes and %d saved states left", kv, states)
	}
}
