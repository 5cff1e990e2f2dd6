package worker_test

import (
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// A million tokens take any engine longer than five seconds.
func TestDeadlineOutOfReachIsRejectedAtOnce(t *testing.T) {
	m := newMesh(t)
	m.start("n1", func(_ *worker.Config, e *goengine.Config) { e.Mode, e.ContextTokens = goengine.Recurrent, 1<<20 })
	warm := request("warm", 1, 12)
	r := m.read(warm.ID())
	m.submit(warm, schemas.AnyLane)
	r.final()
	req := request("late", 1, 1_000_000)
	req.DeadlineMS = 5000
	r = m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	final := r.final()
	if e := final.Error; final.Reason != schemas.Rejected || e == nil || e.Reason != schemas.RejectedDeadline || e.Field != "deadline" ||
		e.Needed <= e.Available || !(e.Available > 0 && e.Available <= 5000) {
		t.Errorf("final is %+v, error %+v", final, final.Error)
	}
	m.empty()
}

// Three turns of one tenant, and KV for one at a time.
func TestPriorityOrdersATenantsTurnsAtANode(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", goengine.OpDecode, func(c *worker.Config, e *goengine.Config) {
		engine, err := goengine.New(*e)
		m.check(err)
		c.Scheduler.Budget = scheduler.DefaultBudget(engine.Facts())
		c.Scheduler.Budget.KVBudgetBytes = engine.Facts().KVBytes(40)
	})
	queued := func(turns float64) func() bool {
		return func() bool { return m.counter(n, `meshnet_admissions_total{reason="queued"}`) == turns }
	}
	first, low, high := request("first", 1, 8), request("low", 1, 8), request("high", 1, 8)
	low.Priority, high.Priority = -1, 1
	f, l, h := m.read(first.ID()), m.read(low.ID()), m.read(high.ID())
	m.submit(first, schemas.AnyLane)
	m.arrived(gate)
	m.submit(low, schemas.AnyLane)
	m.poll("the low one waits", queued(1))
	m.submit(high, schemas.AnyLane)
	m.poll("the high one waits", queued(2))
	gate.Open()
	f.whole(first)
	// The low one came first, so it waited less unless the high one went ahead.
	if low, high := l.whole(low), h.whole(high); low.Timings.QueuedMS <= high.Timings.QueuedMS {
		t.Errorf("the low one waited %v ms, the high one %v", low.Timings.QueuedMS, high.Timings.QueuedMS)
	}
}
