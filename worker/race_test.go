package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// A turn that finds the scheduler's queue full goes back to the stream, and that is no sign of poison.
func TestTurnThatFindsTheQueueFullIsRetried(t *testing.T) {
	m := newMesh(t)
	gate := goengine.NewGate(goengine.OpDecode)
	n := m.start("n1", gated(gate), func(c *worker.Config, e *goengine.Config) {
		e.Slots = 3
		engine, err := goengine.New(*e)
		m.check(err)
		c.Scheduler.Budget = scheduler.DefaultBudget(engine.Facts())
		c.Scheduler.Budget.MaxQueueDepth = 0
		c.Scheduler.Budget.KVBudgetBytes = engine.Facts().KVBytes(60) // one of the turns below
	})
	defer gate.Open()
	first, second := request("s1", 1, 20), request("s2", 1, 20)
	a, b := m.read(first.ID()), m.read(second.ID())
	m.submit(first, schemas.AnyLane)
	<-gate.Arrived()
	m.submit(second, schemas.AnyLane)
	m.poll("it was refused", func() bool { return m.counter(n, `meshnet_admissions_total{reason="rejected-queue-full"}`) >= 1 })
	gate.Open()
	a.whole(first)
	if final := b.whole(second); final.Attempt < 2 {
		t.Errorf("attempt %d", final.Attempt)
	}
	m.empty()
	m.onlyWork(second.ID())
}

// llama.cpp#27388: readers learn of an engine that hangs.
func TestTurnOnAHungEngineFailsAsStalled(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.Scheduler.StallAfter = 200 * time.Millisecond })
	begun, until := make(chan struct{}), make(chan struct{})
	n.engine.Inject(goengine.Fault{Kind: goengine.FaultHang, Slot: goengine.AnySlot, After: 3, Times: 1, In: goengine.OpDecode, Begun: begun, Until: until})
	req := request("s1", 1, 50)
	r := m.follow(req, schemas.AnyLane)
	<-begun
	final := r.final()
	close(until)
	m.wantOutcome(r, final, schemas.Failed, schemas.CauseStalled, 1)
	next := request("s2", 1, 5)
	nr := m.follow(next, schemas.AnyLane)
	nr.whole(next)
}

// publishMoved publishes a request as if it had been moved.
func (m *mesh) publishMoved(r *schemas.Request, lane schemas.Lane, route schemas.Route) {
	m.t.Helper()
	data, err := schemas.Encode(r)
	m.check(err)
	msg := &nats.Msg{Subject: prefix.Request(r.Model, lane, r.Tenant), Header: nats.Header{}, Data: data}
	route.Set(msg.Header)
	_, err = m.js.PublishMsg(m.ctx, msg)
	m.check(err)
}

func TestRequestThatWasMovedTooOftenIsRejected(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	req := request("s1", 1, 5)
	req.Model = schemas.Must(schemas.ParseModel("nobodys"))
	r := m.read(req.ID())
	m.publishMoved(req, schemas.NodeLane(n.id), schemas.Route{From: []uint64{1, 2, 3}, Hops: 3, Born: time.Now()})
	m.wantOutcome(r, r.final(), schemas.Rejected, "", 0)
}

// The deadline counts from the first copy, however often it was moved.
func TestMovedRequestKeepsItsDeadline(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 5)
	req.DeadlineMS = 1000
	r := m.read(req.ID())
	m.publishMoved(req, schemas.AnyLane, schemas.Route{From: []uint64{1}, Hops: 1, Born: time.Now().Add(-2 * time.Second)})
	m.wantOutcome(r, r.final(), schemas.Failed, schemas.CauseDeadline, 0)
}

// A move that finds its lane full keeps the original.
func TestMoveIntoAFullLaneLosesNothing(t *testing.T) {
	m := newMesh(t)
	gate := goengine.NewGate(goengine.OpDecode)
	one := func(c *worker.Config, e *goengine.Config) { c.TenantQuota, e.Slots = 1, 1 }
	n := m.start("n1", gated(gate), one, m.noGuests)
	defer gate.Open()
	running, waiting, own := request("s1", 1, 5), request("s2", 1, 5), request("s3", 1, 5)
	running.Tenant = schemas.Must(schemas.ParseTenant("other")) // of another quota
	a, b, c := m.read(running.ID()), m.read(waiting.ID()), m.read(own.ID())
	m.submit(running, schemas.AnyLane)
	<-gate.Arrived()
	m.submit(waiting, schemas.AnyLane) // fills the lane
	data, err := schemas.Encode(waiting)
	m.check(err)
	var refused *jetstream.APIError
	if _, err := m.js.Publish(m.ctx, prefix.Request(model, schemas.AnyLane, acme), data); !errors.As(err, &refused) {
		t.Fatalf("the quota does not hold: %v", err)
	}
	m.submit(own, schemas.NodeLane(n.id))
	m.poll("the move was refused", func() bool { return m.counter(n, `meshnet_publish_errors_total{kind="move"}`) >= 1 })
	gate.Open()
	a.whole(running)
	b.whole(waiting)
	c.whole(own)
	m.empty()
}
