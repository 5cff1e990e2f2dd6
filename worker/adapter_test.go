package worker_test

import (
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

var bard = schemas.Must(schemas.ParseAdapter("bard"))

// adapters gives a node's engine adapters.
func adapters(names ...string) setup {
	return func(_ *worker.Config, e *goengine.Config) { e.Adapters = names }
}

func withBard(session string, newTokens int) *schemas.Request {
	req := request(session, 1, newTokens)
	req.Adapter = bard
	return req
}

func TestKilledWorkersTurnIsGoneOnWithUnderItsAdapter(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1", adapters("bard"))
	req := withBard("s1", 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	second := m.start("n2", adapters("clerk", "bard")) // where it is loaded in another place
	r.whole(req)
	starts := r.starts()
	if len(starts) != 2 || starts[1].Node != second.id || starts[1].ResumeIndex < 6 || !starts[1].Exact {
		t.Errorf("attempts: %+v", starts[len(starts)-1])
	}
	_, engine := m.config("n3")
	want := engine.Fingerprints().Restore + "+shift-bard"
	for _, s := range starts {
		if s.ModelFingerprint != want {
			t.Errorf("attempt %d is of %q, want the model with its adapter, %q", s.Attempt, s.ModelFingerprint, want)
		}
	}
	m.empty()
}

func TestSessionsOfMixedAdaptersGetTheTokensTheyGetAlone(t *testing.T) {
	m := newMesh(t)
	m.start("n1", adapters("bard", "clerk"))
	var requests []*schemas.Request
	var readers []*reader
	for i, name := range []string{"", "bard", "clerk", "bard", ""} {
		req := request("s"+string(rune('1'+i)), 1, 12)
		if name != "" {
			req.Adapter = schemas.Must(schemas.ParseAdapter(name))
		}
		requests, readers = append(requests, req), append(readers, m.read(req.ID()))
	}
	for _, req := range requests {
		m.submit(req, schemas.AnyLane)
	}
	for i, r := range readers {
		r.whole(requests[i])
	}
	m.empty()
}

func TestRequestWhoseAdapterIsNotHereGoesToANodeThatHasIt(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1", func(c *worker.Config, _ *goengine.Config) {
		c.Peers = fixedPeers{schemas.Must(schemas.ParseNode("n2"))}
	})
	m.start("n2", adapters("bard"))
	req := withBard("s1", 10)
	r := m.follow(req, schemas.NodeLane(n.id)) // which has it first
	if final := r.whole(req); final.Node.String() != "n2" {
		t.Errorf("it ran on %s", final.Node)
	}
	m.empty()
}

func TestTurnOfADeadNodeGoesToTheNodeThatHasItsAdapter(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1", adapters("bard"))
	req := withBard("s1", 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	third := schemas.Must(schemas.ParseNode("n3"))
	second := m.start("n2", adapters("clerk"), func(c *worker.Config, _ *goengine.Config) { c.Peers = fixedPeers{third} }) // gets it first
	m.poll("the node without the adapter hands it on", func() bool { return m.counter(second, `meshnet_moves_total{cause="fit"}`) == 1 })
	m.start("n3", adapters("bard"))
	if final := r.whole(req); final.Node != third {
		t.Errorf("it ended on %s, want %s", final.Node, third)
	}
	starts := r.starts()
	if last := starts[len(starts)-1]; len(starts) != 2 || last.Node != third || last.ResumeIndex < 6 || !last.Exact {
		t.Errorf("%d attempts, the last %+v; want two, of which the second goes on", len(starts), last)
	}
	m.empty()
}

func TestTurnOfADeadNodeWhoseAdapterIsNowhereElseIsRefused(t *testing.T) {
	m := newMesh(t)
	first, gate := m.startGated("n1", adapters("bard"))
	req := withBard("s1", 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	first.Abort()
	gate.Open()
	m.start("n2", adapters("clerk"))
	final := r.final()
	const want = `adapter is "bard"; it must be absent or one of those loaded: clerk`
	if e := final.Error; e == nil || e.Reason != schemas.RejectedInvalid || e.Field != "adapter" || e.Message != want {
		t.Errorf("final is %+v with error %+v, want %s of adapter: %s", final, final.Error, schemas.RejectedInvalid, want)
	}
	m.empty()
}

func TestRequestWhoseAdapterIsNowhereIsRefusedWithThoseThereAre(t *testing.T) {
	m := newMesh(t)
	m.start("n1", adapters("clerk", "poet"))
	req := withBard("s1", 10)
	r := m.follow(req, schemas.AnyLane)
	final := r.final()
	const want = `adapter is "bard"; it must be absent or one of those loaded: clerk, poet`
	if e := final.Error; e == nil || e.Reason != schemas.RejectedInvalid || e.Field != "adapter" || e.Message != want {
		t.Errorf("final is %+v with error %+v, want %s of adapter: %s", final, final.Error, schemas.RejectedInvalid, want)
	}
	m.empty()
}

func TestNodeAdvertisesItsAdapters(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1", adapters("clerk", "bard"))
	msg, err := m.conn.RequestWithContext(m.ctx, prefix.Node(n.id, schemas.VerbStatus), nil)
	m.check(err)
	reply, err := schemas.Decode[schemas.NodeReply](msg.Data)
	m.check(err)
	infos := reply.Advertisement.Model.Adapters
	if len(infos) != 2 || infos[0].Name.String() != "clerk" || infos[1] != (schemas.AdapterInfo{Name: bard, Fingerprint: "shift-bard"}) {
		t.Errorf("advertised are %+v", infos)
	}
}

func TestAdapterThatNoRequestCouldNameIsRefusedAtStart(t *testing.T) {
	m := newMesh(t)
	cfg, _ := m.config("n1", adapters("a bard"))
	_, err := worker.New(cfg)
	const want = `worker: adapter is "a bard"; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}
