package worker_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vmihailenco/msgpack/v5"

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
	if e := final.Error; final.Reason != schemas.Rejected || e == nil || e.Reason != schemas.RejectedDeadline || e.Field != "deadline_ms" ||
		e.Needed <= e.Available || !(e.Available > 0 && e.Available <= 5000) {
		t.Errorf("final is %+v, error %+v", final, final.Error)
	}
	m.empty()
}

// Of a node that has measured nothing yet: it refuses what no node could do, and nothing else.
func TestAbsurdDeadlinesOnANodeThatHasJustStarted(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	for i, c := range []struct {
		ms, born int64 // born: before now, in ms
		reason   schemas.EndReason
		cause    schemas.Cause
		refusal  schemas.Reason
	}{
		{ms: -1, reason: schemas.Rejected, refusal: schemas.RejectedInvalid},
		{ms: math.MinInt64, reason: schemas.Rejected, refusal: schemas.RejectedInvalid},
		{ms: 3_600_001, reason: schemas.Rejected, refusal: schemas.RejectedInvalid},
		{ms: math.MaxInt64, reason: schemas.Rejected, refusal: schemas.RejectedInvalid},
		{ms: 253402300799999, reason: schemas.Rejected, refusal: schemas.RejectedInvalid}, // the year 9999, for who takes it for a date
		{ms: 1, born: 1000, reason: schemas.Failed, cause: schemas.CauseDeadline},
		{ms: 3_600_000, born: 3_600_001, reason: schemas.Failed, cause: schemas.CauseDeadline},
		{ms: 0, reason: schemas.Completed},
		{ms: 3_600_000, reason: schemas.Completed},
		{ms: 3_600_000, born: -1 << 40, reason: schemas.Completed}, // no request is younger than it is
	} {
		req := request(fmt.Sprint("s", i), 1, 4)
		req.DeadlineMS = c.ms
		r := m.read(req.ID())
		route := schemas.Route{}
		if c.born != 0 {
			route.Born = time.Now().Add(-time.Duration(c.born) * time.Millisecond)
		}
		m.publishUnchecked(req, route)
		final := r.final()
		var refusal schemas.Reason
		if final.Error != nil {
			refusal = final.Error.Reason
		}
		if final.Reason != c.reason || final.Cause != c.cause || refusal != c.refusal {
			t.Errorf("deadline_ms %d, born %d ms ago: %s %s %s, want %s %s %s", c.ms, c.born, final.Reason, final.Cause, refusal, c.reason, c.cause, c.refusal)
		}
	}
	m.empty()
}

// publishUnchecked publishes a request that need not be valid into the lane of all.
func (m *mesh) publishUnchecked(r *schemas.Request, route schemas.Route) {
	m.t.Helper()
	r.V = 1
	data, err := msgpack.Marshal(r)
	m.check(err)
	msg := &nats.Msg{Subject: prefix.Request(r.Model, schemas.AnyLane, r.Tenant), Header: nats.Header{}, Data: data}
	route.Set(msg.Header)
	_, err = m.js.PublishMsg(m.ctx, msg)
	m.check(err)
}

// Three turns of one tenant, and KV for one at a time.
func TestPriorityOrdersATenantsTurnsAtANode(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", func(c *worker.Config, e *goengine.Config) {
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

// The request of a tenant that has nothing here comes before those of a tenant that floods the lane, and is given the slot of a session
// that has run long enough; that goes on afterwards, and its readers notice nothing.
func TestTenantWithoutATurnPassesAFlood(t *testing.T) {
	m := newMesh(t)
	decoded, held, goOn := 0, make(chan struct{}), make(chan struct{})
	n := m.start("n1", slots(1), func(c *worker.Config, e *goengine.Config) {
		c.Periods.Guests = 20 * time.Millisecond
		e.OnCall = func(call goengine.Call) {
			if call.Op != goengine.OpDecode {
				return
			}
			if decoded++; decoded == 100 { // more than a quantum
				close(held)
				<-goOn
			}
		}
	})
	long := request("long", 1, 300)
	l := m.read(long.ID())
	m.submit(long, schemas.AnyLane)
	<-held
	var flood []*schemas.Request
	for i := range 20 {
		req := request(fmt.Sprint("flood", i), 1, 4)
		flood = append(flood, req)
		m.submit(req, schemas.AnyLane)
	}
	guest := request("guest", 1, 8)
	guest.Tenant = schemas.Must(schemas.ParseTenant("quiet"))
	g := m.read(guest.ID())
	m.submit(guest, schemas.AnyLane)
	m.poll("the guest is in the scheduler's queue", func() bool { return m.counter(n, `meshnet_admissions_total{reason="queued"}`) == 1 })
	for _, req := range flood {
		if rec := m.ledger(req.ID()); rec != nil {
			t.Errorf("turn %s was claimed before the guest", req.ID())
		}
	}
	close(goOn)
	g.whole(guest)
	if final := l.whole(long); final.Attempt != 1 {
		t.Errorf("the session that gave way ended in attempt %d", final.Attempt)
	}
	m.empty()
	for _, req := range flood {
		if work := m.onlyWork(req.ID()); work.Reason != schemas.Completed {
			t.Errorf("turn %s ended %s", req.ID(), work.Reason)
		}
	}
	if guests, suspensions := m.counter(n, "meshnet_guests_total"), m.counter(n, "meshnet_suspensions_total"); guests != 1 || suspensions != 1 {
		t.Errorf("%v guests, %v suspensions, want 1 each", guests, suspensions)
	}
}

// Its saved KV does not come back: the turn is taken over like any whose worker was lost, and its readers get every token once.
func TestTurnWhoseSavedKVIsLostIsTakenOver(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", slots(1), func(c *worker.Config, _ *goengine.Config) { c.Periods.Guests = 10 * time.Millisecond })
	n.engine.Inject(goengine.Fault{Kind: goengine.FaultRestore, Slot: goengine.AnySlot, Times: 1})
	long, guest := request("long", 1, 300), request("guest", 1, 8)
	guest.Tenant = schemas.Must(schemas.ParseTenant("quiet"))
	l, g := m.read(long.ID()), m.read(guest.ID())
	m.submit(long, schemas.AnyLane)
	m.arrived(gate)
	m.submit(guest, schemas.AnyLane)
	m.poll("the guest waits", func() bool { return m.counter(n, `meshnet_admissions_total{reason="queued"}`) == 1 })
	gate.Open()
	g.whole(guest)
	if final := l.whole(long); final.Attempt != 2 {
		t.Errorf("it ended in attempt %d, want 2", final.Attempt)
	}
	m.empty()
	m.onlyWork(long.ID())
}

// One tenant alone is never looked past: nothing is delivered twice.
func TestFloodOfOneTenantIsDeliveredOnce(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", slots(1), func(c *worker.Config, _ *goengine.Config) { c.Periods.Guests = time.Millisecond })
	var flood []*schemas.Request
	for i := range 10 {
		req := request(fmt.Sprint("flood", i), 1, 20)
		flood = append(flood, req)
		m.submit(req, schemas.AnyLane)
	}
	m.arrived(gate)
	gate.Open()
	m.empty()
	if n := m.counter(n, "meshnet_redeliveries_total"); n != 0 {
		t.Errorf("%v redeliveries", n)
	}
	for _, req := range flood {
		m.onlyWork(req.ID())
	}
}

// stepUntilSuspended lets the engine decode until so many sessions are suspended.
func (m *mesh) stepUntilSuspended(n *node, gate *goengine.Gate, sessions float64) {
	m.t.Helper()
	for m.counter(n, "meshnet_suspended_sessions") != sessions {
		m.arrived(gate)
		gate.Pass()
	}
}

// A second request of a guest's tenant, passed over while the first one ran, is found again once that has ended.
func TestGuestsOfATenantComeOneAfterTheOther(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", slots(1), func(c *worker.Config, _ *goengine.Config) { c.Periods.Guests = 10 * time.Millisecond })
	long := request("long", 1, 400)
	m.submit(long, schemas.AnyLane)
	m.arrived(gate)
	gate.Pass()
	flood := []*schemas.Request{request("flood1", 1, 4), request("flood2", 1, 4)}
	for _, req := range flood {
		m.submit(req, schemas.AnyLane)
	}
	var readers []*reader
	var guests []*schemas.Request
	for i := range 3 {
		req := request(fmt.Sprint("guest", i), 1, 4)
		req.Tenant = schemas.Must(schemas.ParseTenant("quiet"))
		guests, readers = append(guests, req), append(readers, m.read(req.ID()))
		m.submit(req, schemas.AnyLane)
	}
	for i := range guests {
		m.poll("a guest waits", func() bool { return m.counter(n, `meshnet_admissions_total{reason="queued"}`) == float64(i+1) })
		m.stepUntilSuspended(n, gate, 1)
		m.stepUntilSuspended(n, gate, 0)
	}
	for _, req := range flood {
		if rec := m.ledger(req.ID()); rec != nil {
			t.Errorf("turn %s was claimed before all guests", req.ID())
		}
	}
	gate.Open()
	for i, r := range readers {
		r.whole(guests[i])
	}
	m.empty()
}
