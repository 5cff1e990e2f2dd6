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

// crowd is a scheduler under everyone's hands at once.
type crowd struct {
	*testing.T
	sched           *scheduler.Scheduler
	hotBudget       int64
	accepted, ended atomic.Int64
}

func (c *crowd) take() {
	for _, end := range c.sched.TakeResults(nil) {
		c.ended.Add(1)
		if end.Reason == scheduler.Failed && end.Cause == scheduler.FailEngine {
			c.Errorf("turn %s: %s", end.Key, end.Detail)
		}
	}
}

// client submits turns of a few sessions, raises their epoch now and then, and cancels some.
func (c *crowd) client(id int) {
	rnd := rand.New(rand.NewPCG(uint64(id), 1))
	epoch := uint64(0)
	for i := range 150 {
		req := kept(request(fmt.Sprintf("s%d", rnd.IntN(3)), rnd.IntN(3), 1+rnd.IntN(60), 1+rnd.IntN(8)))
		req.Tenant = fmt.Sprintf("t%d", id)
		req.Turn = uint64(i + 1)
		if rnd.IntN(8) == 0 {
			epoch++
		}
		req.Epoch = epoch
		if i%2 == 0 {
			tokens := req.Prompt
			req = lazily(req, func() ([]scheduler.Token, error) { return tokens, nil })
		}
		if c.sched.Submit(req).Accepted() {
			c.accepted.Add(1)
		}
		if rnd.IntN(4) == 0 {
			if _, err := c.sched.Cancel(req.Key(), scheduler.Failed, scheduler.FailHeartbeatLost, ""); err != nil {
				c.Error(err)
			}
		}
	}
}

// observer reads telemetry, and now and then gives up on an engine that is merely busy.
func (c *crowd) observer(ctx context.Context) {
	for ctx.Err() == nil {
		tele := c.sched.Telemetry()
		if tele.ActiveSessions < 0 || tele.QueueDepth < 0 || tele.KVReservedBytes < 0 || tele.HotBytes > c.hotBudget {
			c.Errorf("telemetry %+v", tele)
		}
		if tele.Ticks%64 == 0 {
			c.sched.FailStalled(time.Now())
		}
		c.take()
	}
}

// Every accepted turn ends once, and nothing is left behind.
func TestConcurrentUseLosesNothing(t *testing.T) {
	engine, err := goengine.New(withSlots(3))
	if err != nil {
		t.Fatal(err)
	}
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth, budget.HotBudgetBytes = 6, budget.HotBudgetBytes/2
	sched, err := scheduler.New(engine, scheduler.Config{Budget: budget, StallAfter: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{T: t, sched: sched, hotBudget: budget.HotBudgetBytes}
	ctx, stop := context.WithCancel(t.Context())
	var loop, clients sync.WaitGroup
	loop.Go(func() {
		if err := sched.Run(ctx, func(*scheduler.Report) { c.take() }); err != nil {
			t.Error(err)
		}
	})
	loop.Go(func() { c.observer(ctx) })
	for id := range 4 {
		clients.Go(func() { c.client(id) })
	}
	clients.Wait()
	for sched.Pending() > 0 { // the loop is at it
		c.take()
	}
	stop()
	loop.Wait()
	sched.Close()
	c.take()
	if c.accepted.Load() != c.ended.Load() || c.accepted.Load() == 0 {
		t.Errorf("%d turns accepted, %d ended", c.accepted.Load(), c.ended.Load())
	}
	if kv, states := engine.KVBytes(), engine.LiveStates(); kv != 0 || states != 0 {
		t.Errorf("%d KV bytes and %d saved states left", kv, states)
	}
}
