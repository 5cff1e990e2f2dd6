package worker_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// counter is a metric without labels, or with them spelled out.
func (m *mesh) counter(n *node, series string) float64 {
	m.t.Helper()
	answer := httptest.NewRecorder()
	n.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			m.check(err)
			return f
		}
	}
	m.t.Fatalf("no metric %s", series)
	return 0
}

func TestRequestInANodesOwnLaneRunsThere(t *testing.T) {
	m := newMesh(t)
	a := m.start("n1")
	m.start("n2")
	for i := range 4 {
		req := request("s1", schemas.Turn(i), 5)
		r := m.follow(req, schemas.NodeLane(a.id))
		if final := r.whole(req); final.Node != a.id {
			t.Errorf("it ran on %s", final.Node)
		}
	}
	m.empty()
}

func TestFullWorkerMovesWhatWaitsInItsOwnLane(t *testing.T) {
	m := newMesh(t)
	full, gate := m.startGated("n1", slots(1))
	first := request("s1", 1, 5)
	m.submit(first, schemas.NodeLane(full.id))
	<-gate.Arrived()
	free := m.start("n2")
	second := request("s2", 1, 5)
	r := m.follow(second, schemas.NodeLane(full.id))
	if final := r.whole(second); final.Node != free.id {
		t.Errorf("it ran on %s", final.Node)
	}
	m.poll("the move is counted", func() bool { return m.counter(full, `meshnet_moves_total{cause="full"}`) == 1 })
}

// endless fetches wait longer than any test. Whoever has them has to be aborted.
func endless(c *worker.Config, _ *goengine.Config) {
	c.Periods.FetchExpiry, c.Periods.AckWait = 2*patience, 4*patience
}

func TestRequestInTheOwnLaneDoesNotWaitForAFetchFromTheLaneOfAll(t *testing.T) {
	t.Parallel() // an endless fetch notices late that its connection was closed
	m := newMesh(t)
	gate := goengine.NewGate(goengine.OpDecode)
	only := m.start("n1", gated(gate), slots(1), endless)
	defer only.Abort()
	defer gate.Open()
	m.poll("its one place waits for the lane of all", func() bool { return m.consumerInfo().NumWaiting == 1 })
	own, shared := request("s1", 1, 5), request("s2", 1, 5)
	ownReader, sharedReader := m.read(own.ID()), m.read(shared.ID())
	m.submit(own, schemas.NodeLane(only.id))
	<-gate.Arrived()
	// What the fetch brings now that its place is taken goes to another node.
	m.submit(shared, schemas.AnyLane)
	other := m.start("n2", endless)
	defer other.Abort()
	if final := sharedReader.whole(shared); final.Node != other.id {
		t.Errorf("it ran on %s", final.Node)
	}
	gate.Open()
	if final := ownReader.whole(own); final.Node != only.id || final.Attempt != 1 {
		t.Errorf("it ran on %s, attempt %d", final.Node, final.Attempt)
	}
	m.empty()
}

func TestRequestsThatComeTogetherInTheOwnLaneAllRunAtOnce(t *testing.T) {
	t.Parallel() // an endless fetch notices late that its connection was closed
	m := newMesh(t)
	n := m.start("n1", slots(4), endless, func(c *worker.Config, _ *goengine.Config) { c.Periods.LaneSweep = 2 * patience })
	defer n.Abort()
	var readers []*reader
	var requests []*schemas.Request
	for i := range 4 {
		req := request("s"+strconv.Itoa(i), 1, 5)
		requests, readers = append(requests, req), append(readers, m.read(req.ID()))
	}
	for _, req := range requests {
		m.submit(req, schemas.NodeLane(n.id))
	}
	for i, r := range readers {
		r.whole(requests[i])
	}
	m.empty()
}

// fixedPeers know one other node.
type fixedPeers struct{ other schemas.Node }

func (p fixedPeers) Fitting(schemas.Model, schemas.Adapter, int, schemas.Node) (schemas.Node, bool) {
	return p.other, true
}
func (p fixedPeers) Live(schemas.Node, time.Duration) bool { return true }
func (p fixedPeers) Sighted(time.Duration) bool            { return false }

func TestRequestTooLargeHereGoesToANodeWhereItFits(t *testing.T) {
	m := newMesh(t)
	large := m.start("large")
	small := m.start("small", func(c *worker.Config, e *goengine.Config) { c.Peers, e.ContextTokens = fixedPeers{large.id}, 64 })
	req := request("s1", 1, 100)
	r := m.read(req.ID())
	m.submit(req, schemas.NodeLane(small.id)) // the small one has it first
	if final := r.whole(req); final.Node != large.id {
		t.Errorf("it ran on %s", final.Node)
	}
	m.empty()
	m.poll("the move is counted", func() bool { return m.counter(small, `meshnet_moves_total{cause="fit"}`) == 1 })
}

func TestRequestForAnotherModelLeavesTheNodesLane(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	other := schemas.Must(schemas.ParseModel("other"))
	m.start("n2", func(c *worker.Config, _ *goengine.Config) { c.Model = other })
	req := request("s1", 1, 5)
	req.Model = other
	r := m.follow(req, schemas.NodeLane(n.id))
	if final := r.whole(req); final.Node.String() != "n2" {
		t.Errorf("it ran on %s", final.Node)
	}
	m.empty()
}

func TestLaneOfADeadNodeIsRescued(t *testing.T) {
	m := newMesh(t)
	m.start("n1", func(c *worker.Config, _ *goengine.Config) {
		c.Periods.Rescue, c.Periods.DeadAfter = 200*time.Millisecond, 300*time.Millisecond
	})
	dead := schemas.Must(schemas.ParseNode("dead"))
	req := request("s1", 1, 5)
	r := m.follow(req, schemas.NodeLane(dead))
	r.whole(req)
	m.empty()
}

func TestDrainedNodeTakesNothingAndAnUndrainedOneDoes(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	ask := func(verb schemas.NodeVerb) *schemas.NodeReply {
		msg, err := m.conn.RequestWithContext(m.ctx, prefix.Node(n.id, verb), nil)
		m.check(err)
		reply, err := schemas.Decode[schemas.NodeReply](msg.Data)
		m.check(err)
		return reply
	}
	if reply := ask(schemas.VerbDrain); reply.State != schemas.NodeDraining || n.Ready() {
		t.Errorf("drain is answered %+v", reply)
	}
	req := request("s1", 1, 5)
	r := m.follow(req, schemas.AnyLane)
	if reply := m.ask(schemas.OpStatus, req.ID()); reply.State != schemas.StateAbsent {
		t.Errorf("status is %+v", reply)
	}
	if reply := ask(schemas.VerbUndrain); reply.State != schemas.NodeReady {
		t.Errorf("undrain is answered %+v", reply)
	}
	r.whole(req)
	if reply := ask(schemas.VerbStatus); reply.Advertisement == nil || reply.Advertisement.Telemetry.CompletedSessions != 1 {
		t.Errorf("status is %+v", reply.Advertisement)
	}
	m.poll("the session is over", func() bool { return len(ask(schemas.VerbSessions).Sessions) == 0 })
}

// centrifugo#1166: a consumer or stream that is deleted under a worker is made again, and it serves.
func TestDeletedConsumerAndStreamAreMadeAgain(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	for turn, remove := range []func() error{
		func() error {
			return m.js.DeleteConsumer(m.ctx, prefix.RequestStream(), schemas.SharedConsumer(model))
		},
		func() error { return m.js.DeleteStream(m.ctx, prefix.RequestStream()) },
		func() error { return m.js.DeleteStream(m.ctx, prefix.EventStream()) },
	} {
		m.check(remove())
		m.poll("the streams are back", func() bool {
			_, err := m.js.Consumer(m.ctx, prefix.RequestStream(), schemas.SharedConsumer(model))
			_, eventsErr := m.js.Stream(m.ctx, prefix.EventStream())
			return err == nil && eventsErr == nil
		})
		req := request("s1", schemas.Turn(turn), 5)
		r := m.follow(req, schemas.AnyLane)
		r.whole(req)
	}
}
