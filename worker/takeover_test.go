package worker_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func (m *mesh) consumerInfo() *jetstream.ConsumerInfo {
	m.t.Helper()
	consumer, err := m.js.Consumer(m.ctx, prefix.RequestStream(), schemas.SharedConsumer(model))
	m.check(err)
	return consumer.CachedInfo()
}

// starts are the attempts that began, with where they did.
func (r *reader) starts() (starts []*schemas.Started) {
	for _, e := range r.events {
		if s, ok := e.(*schemas.Started); ok {
			starts = append(starts, s)
		}
	}
	return starts
}

// A generation longer than AckWait is delivered once.
func TestLongGenerationIsNotDeliveredAgain(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1")
	req := request("s1", 1, 8)
	r := m.follow(req, schemas.AnyLane)
	<-gate.Arrived()
	began := time.Now()
	m.start("n2") // which would take it if it were delivered again
	m.poll("three times AckWait", func() bool { return time.Since(began) > 3*quick.AckWait })
	gate.Open()
	r.whole(req)
	m.empty()
	if starts := r.starts(); len(starts) != 1 {
		t.Errorf("%d attempts: %s", len(starts), r.story())
	}
	m.onlyWork(req.ID())
	keepalives := 0
	for _, e := range r.events {
		if e.EventKind() == schemas.KindKeepalive {
			keepalives++
		}
	}
	if keepalives == 0 {
		t.Errorf("no keepalive in a silence of %s", 3*quick.AckWait)
	}
}

// nats.go#1929: with a short AckWait, more requests than slots must wait in the stream, not in workers.
func TestWorkersNeverHoldMoreThanTheyCanRun(t *testing.T) {
	m := newMesh(t)
	short := func(c *worker.Config, e *goengine.Config) { c.Periods.AckWait, e.Slots = 2*time.Second, 2 }
	a, b := m.start("n1", short), m.start("n2", short)
	var readers []*reader
	var requests []*schemas.Request
	for i := range 10 {
		req := request(fmt.Sprintf("s%d", i), 1, 60)
		requests = append(requests, req)
		readers = append(readers, m.read(req.ID()))
		m.submit(req, schemas.AnyLane)
	}
	for i, r := range readers {
		r.whole(requests[i])
		if starts := r.starts(); len(starts) != 1 || starts[0].Attempt != 1 {
			t.Errorf("%s: %s", r.id, r.story())
		}
	}
	m.empty()
	if info := m.consumerInfo(); info.NumRedelivered != 0 {
		t.Errorf("%d redelivered", info.NumRedelivered)
	}
	for _, n := range []*node{a, b} {
		if seen := m.counter(n, "meshnet_redeliveries_total"); seen != 0 {
			t.Errorf("%s saw %v redeliveries", n.id, seen)
		}
		if peak := m.counter(n, "meshnet_batch_occupancy_sum") / max(1, m.counter(n, "meshnet_batch_occupancy_count")); peak > 2 {
			t.Errorf("%s ran %v sessions at once", n.id, peak)
		}
	}
}

func TestKilledWorkersTurnIsGoneOnWithByAnother(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1")
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	second := m.start("n2")
	final := r.whole(req)
	starts := r.starts()
	if len(starts) != 2 || starts[1].Attempt != 2 || starts[1].ResumeIndex < 6 || starts[1].Node != second.id || !starts[1].Exact {
		t.Errorf("attempts: %+v", starts[len(starts)-1])
	}
	if final.Attempt != 2 || final.Count != 20 || final.Usage.ReplayedTokens != starts[1].ResumeIndex {
		t.Errorf("final is %+v", final)
	}
	m.empty()
	if work := m.onlyWork(req.ID()); work.Node != second.id || work.Attempt != 2 {
		t.Errorf("work record is %+v", work)
	}
}

// What is too long to replay is prefilled, and the stream goes on where it was.
func TestTakeoverBeyondReplayMaxPrefillsTheTokensFound(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1")
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	m.start("n2", func(c *worker.Config, _ *goengine.Config) { c.ReplayMax = 3 })
	final := r.whole(req)
	starts := r.starts()
	if last := starts[len(starts)-1]; last.Exact || last.ResumeIndex < 6 || last.PromptTokens != len(*req.Prompt) {
		t.Errorf("started is %+v", last)
	}
	if final.Count != 20 || final.Usage.PromptTokens != len(*req.Prompt) {
		t.Errorf("final is %+v", final)
	}
}

func TestTakeoverOnAnotherModelStartsAtZero(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1")
	req := request("s1", 1, 12)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	m.start("n2", func(c *worker.Config, e *goengine.Config) { c.ModelFingerprint, e.Seed = "other", 2 })
	final := r.final()
	starts := r.starts()
	if last := starts[len(starts)-1]; last.Attempt != 2 || last.ResumeIndex != 0 {
		t.Errorf("started is %+v", last)
	}
	if final.Count != 12 || r.fold.Len() != 12 || slices.Equal(r.fold.Tokens(), undisturbed(t, req)) {
		t.Errorf("%d tokens, the reader has %d", final.Count, r.fold.Len())
	}
}

func TestTakeoverWithoutTheEventsStartsAtZero(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1")
	req := request("s1", 1, 12)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	stream, err := m.js.Stream(m.ctx, prefix.EventStream())
	m.check(err)
	m.check(stream.Purge(m.ctx))
	m.start("n2")
	r.whole(req)
	starts := r.starts()
	if last := starts[len(starts)-1]; last.Attempt != 2 || last.ResumeIndex != 0 || !last.Exact {
		t.Errorf("started is %+v", last)
	}
}

// A turn that kills its worker each time ends, and the mesh lives.
func TestTurnThatKillsItsWorkersFailsAfterThree(t *testing.T) {
	m := newMesh(t)
	req := request("killer", 1, 20)
	r := m.read(req.ID())
	for i := range 3 {
		gate := goengine.NewGate(goengine.OpPrefill)
		n := m.start(fmt.Sprintf("n%d", i), gated(gate))
		if i == 0 {
			m.submit(req, schemas.AnyLane)
		}
		select {
		case <-gate.Arrived():
		case <-m.ctx.Done():
			t.Fatalf("attempt %d did not come; %s", i+1, r.story())
		}
		n.Abort()
		gate.Open()
	}
	m.start("last")
	final := r.final()
	m.wantOutcome(r, final, schemas.Failed, schemas.CauseWorkerLost, 1)
	healthy := request("healthy", 1, 5)
	h := m.follow(healthy, schemas.AnyLane)
	h.whole(healthy)
}

func TestDrainedWorkerHandsItsTurnOver(t *testing.T) {
	m := newMesh(t)
	gate := goengine.NewGate(goengine.OpDecode)
	first := m.start("n1", gated(gate), func(c *worker.Config, _ *goengine.Config) { c.DrainTimeout = -1 })
	defer gate.Open()
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	m.start("n2")
	stopped := make(chan struct{})
	go func() {
		first.Stop()
		close(stopped)
	}()
	m.poll("it drains", func() bool { return first.State() == schemas.NodeDraining })
	gate.Open()
	r.whole(req)
	<-stopped
	starts := r.starts()
	if len(starts) > 2 || len(starts) == 2 && (starts[1].Attempt != 2 || starts[1].ResumeIndex < 6) {
		t.Errorf("attempts: %s", r.story())
	}
	m.empty()
	m.onlyWork(req.ID())
}

// A turn that is running from the node's own lane, which nobody else reads, is moved.
func TestDrainedWorkersOwnLaneIsHandedOverToo(t *testing.T) {
	m := newMesh(t)
	gate := goengine.NewGate(goengine.OpDecode)
	unhurried := func(c *worker.Config, _ *goengine.Config) { c.DrainTimeout, c.Periods.AckWait = -1, 20*time.Second }
	first := m.start("n1", gated(gate), unhurried)
	defer gate.Open()
	req := request("s1", 1, 400)
	r := m.follow(req, schemas.NodeLane(first.id))
	m.step(gate, 5)
	r.untilTokens(6)
	stopped := make(chan struct{})
	go func() {
		first.Stop()
		close(stopped)
	}()
	m.poll("it drains", func() bool { return first.State() == schemas.NodeDraining })
	m.poll("it is interrupted", func() bool {
		select {
		case <-gate.Arrived():
			gate.Pass()
		default:
		}
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	gate.Open()
	m.start("n2", unhurried)
	if final := r.whole(req); final.Attempt != 2 {
		t.Errorf("attempts: %s", r.story())
	}
	m.empty()
	m.onlyWork(req.ID())
}

// nats.go#2103: nothing is stranded by a worker that stops, without waiting for AckWait.
func TestStoppedAndStartedWorkerStrandsNothing(t *testing.T) {
	m := newMesh(t)
	slow := func(c *worker.Config, _ *goengine.Config) { c.Periods.AckWait = 30 * time.Second }
	var requests []*schemas.Request
	var readers []*reader
	for i := range 8 {
		cfg, _ := m.config("n1", slow)
		service, err := worker.New(cfg)
		m.check(err)
		m.check(service.Start(context.Background()))
		<-service.Started()
		for j := range 5 {
			req := request(fmt.Sprintf("s%d-%d", i, j), 1, 30)
			requests = append(requests, req)
			readers = append(readers, m.read(req.ID()))
			m.submit(req, schemas.AnyLane)
		}
		service.Stop()
	}
	m.start("n1", slow)
	for i, r := range readers {
		r.whole(requests[i])
	}
	m.empty()
	if info := m.consumerInfo(); info.NumAckPending != 0 {
		t.Errorf("%d acks are pending", info.NumAckPending)
	}
}

// A redelivery of a request whose session is well here changes nothing.
func TestLiveSessionAdoptsARedeliveryOfItsRequest(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1")
	req := request("s1", 1, 12)
	r := m.read(req.ID())
	seq := m.submit(req, schemas.AnyLane)
	<-gate.Arrived()
	nak := fmt.Sprintf("$JS.ACK.%s.%s.1.%d.1.%d.0", prefix.RequestStream(), schemas.SharedConsumer(model), seq, time.Now().UnixNano())
	m.check(m.conn.Publish(nak, []byte("-NAK")))
	m.poll("the redelivery is adopted", func() bool { return m.counter(n, "meshnet_redeliveries_total") > 0 })
	gate.Open()
	r.whole(req)
	m.empty()
	if len(r.starts()) != 1 {
		t.Errorf("attempts: %s", r.story())
	}
}

func TestServerRestartUnderATurnLosesNothing(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1")
	req := request("s1", 1, 12)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	m.check(m.server.Restart())
	m.poll("client and worker are back", func() bool { return m.conn.IsConnected() && n.Ready() })
	gate.Open()
	if final := r.final(); final.Reason != schemas.Completed || final.Count != 12 {
		t.Errorf("final is %+v", final)
	}
	m.empty()
	m.onlyWork(req.ID())
	next := request("s1", 2, 5)
	nr := m.follow(next, schemas.AnyLane)
	nr.whole(next)
}

// The cancel that won before the owner died binds whoever takes the turn over.
func TestCancelledTurnOfADeadWorkerEndsAtItsTakeover(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1")
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	m.start("n2")
	if reply := m.ask(schemas.OpCancel, req.ID()); reply.Outcome != schemas.CancelMarked {
		t.Errorf("reply is %+v", reply)
	}
	final := r.final()
	gate.Open()
	m.wantOutcome(r, final, schemas.Cancelled, "", 1)
	if final.Count != r.fold.Len() || len(r.starts()) != 1 {
		t.Errorf("final counts %d, the reader has %d; %s", final.Count, r.fold.Len(), r.story())
	}
}

// A request that a dead node was running in its own lane is rescued too, and goes on.
func TestTurnOfADeadNodesLaneIsRescuedAndGoneOnWith(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1")
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.NodeLane(first.id))
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	m.start("n2", func(c *worker.Config, _ *goengine.Config) {
		c.Periods.Rescue, c.Periods.DeadAfter = 200*time.Millisecond, 300*time.Millisecond
	})
	final := r.whole(req)
	if final.Attempt != 2 || len(r.starts()) != 2 {
		t.Errorf("attempts: %s", r.story())
	}
	m.empty()
	m.onlyWork(req.ID())
}

func TestTokensLostWithTheConnectionAreSentAgain(t *testing.T) {
	m := newMesh(t)
	proxy := natsservertest.StartProxy(t, m.server.ClientURL())
	gate := goengine.NewGate(goengine.OpDecode)
	n := m.start("n1", gated(gate), func(c *worker.Config, _ *goengine.Config) { c.URL, c.Periods.AckWait = proxy.URL(), 20*time.Second })
	defer gate.Open()
	req := request("s1", 1, 30)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 3)
	r.untilTokens(4)
	proxy.Stall(natsservertest.ToServer) // what is sent now is lost
	m.step(gate, 10)
	proxy.Cut()
	m.poll("the worker notices", func() bool { return !n.Ready() })
	m.step(gate, 5)
	proxy.Heal()
	m.poll("the worker is back", n.Ready)
	gate.Open()
	r.whole(req)
	m.empty()
	for _, started := range r.starts() {
		if started.Attempt != 1 {
			t.Errorf("attempts: %s", r.story())
		}
	}
}

func TestSecondTurnInTheNodesLaneIsHot(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	first := request("s1", 1, 5)
	first.Keep = true
	r := m.follow(first, schemas.AnyLane)
	if final := r.whole(first); !final.Kept || final.Node != n.id {
		t.Fatalf("final is %+v", final)
	}
	second := request("s1", 2, 5)
	longer := *first.Prompt + " and so on"
	second.Prompt, second.RequireHot = &longer, true
	r = m.read(second.ID())
	m.submit(second, schemas.NodeLane(n.id))
	final := r.final()
	started := r.starts()[0]
	if final.Reason != schemas.Completed || started.CachedTokens == 0 || started.Miss != "" || final.Usage.CachedTokens != started.CachedTokens {
		t.Errorf("started is %+v, final %+v", started, final)
	}
	cold := request("s2", 1, 5)
	cold.RequireHot = true
	r = m.read(cold.ID())
	m.submit(cold, schemas.AnyLane)
	if final := r.final(); final.Reason != schemas.CacheMiss || final.Error == nil || final.Error.Miss != schemas.MissNever {
		t.Errorf("final is %+v", final)
	}
}
