package worker_test

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// secondElsewhere dials every connection but the first at another address: a worker's second one is that of its tokens.
type secondElsewhere struct {
	address string
	dialed  atomic.Int32
}

func (d *secondElsewhere) Dial(network, address string) (net.Conn, error) {
	if d.dialed.Add(1) > 1 {
		address = d.address
	}
	return net.Dial(network, address)
}

// A worker that dies with its last tokens unsent has not ended the turn: nobody would generate them again.
func TestTurnIsNotDoneBeforeItsTokensAreOut(t *testing.T) {
	m := newMesh(t)
	proxy := natsservertest.StartProxy(t, m.server.ClientURL())
	gate := goengine.NewGate(goengine.OpDecode)
	first := m.start("n1", gated(gate), func(c *worker.Config, _ *goengine.Config) {
		c.Options = []nats.Option{nats.SetCustomDialer(&secondElsewhere{address: proxy.URL()[len("nats://"):]})}
	})
	t.Cleanup(gate.Open)
	req := request("s1", 1, 20)
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	proxy.Stall(natsservertest.ToServer)
	gate.Open()
	m.poll("all is generated", func() bool { return m.counter(first, `meshnet_tokens_total{phase="decode"}`) == 19 })
	first.Abort()
	m.start("n2")
	final := r.whole(req)
	if final.Attempt != 2 {
		t.Errorf("final is %+v", final)
	}
	m.empty()
	m.onlyWork(req.ID())
}
