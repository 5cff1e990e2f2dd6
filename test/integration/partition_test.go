package integration

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// Another worker has taken over when the one that was cut off returns: it may neither act on the turn nor be of no
// more use.
func TestWorkerThatReturnsFromAPartitionSaysNoMoreOfItsTurnAndServesOthers(t *testing.T) {
	for name, c := range map[string]struct {
		sever  func(*natsservertest.Proxy)
		finish bool // the turn is generated to its end meanwhile
		quiet  bool // nothing can have been kept on the way for later
	}{
		"connections cut":                 {sever: (*natsservertest.Proxy).Cut, quiet: true},
		"connections cut, turn generated": {sever: (*natsservertest.Proxy).Cut, quiet: true, finish: true},
		"connections stalled":             {sever: func(p *natsservertest.Proxy) { p.Stall(natsservertest.BothWays) }},
		"connections stalled, turn generated": {sever: func(p *natsservertest.Proxy) { p.Stall(natsservertest.BothWays) },
			finish: true},
	} {
		t.Run(name, func(t *testing.T) {
			leakNothing(t)
			server := natsservertest.Start(t, natsserver.Options{})
			proxy := natsservertest.StartProxy(t, server.ClientURL())
			b := newBus(t, server.ClientURL(), 1)
			gate := decodes(t)
			a := b.worker("a", held(gate), through("control", proxy), through("tokens", proxy))
			defer gate.Open()
			req := busRequest("s", 1, 1, 20)
			heard := b.listen(req)
			turn := b.generate(b.client(b.url), req)
			b.pass(gate, 5)
			heard.until(6)
			c.sever(proxy)
			if c.finish {
				gate.Open()
			}
			other := b.worker("b")
			final := turn.whole()
			if final.Attempt != 2 || final.Node != other.id {
				t.Errorf("the final is %+v", final)
			}
			b.poll("the lease is lost", func() bool { return b.metric(a, "meshnet_leases_lost_total") == 1 })
			proxy.Heal()
			gate.Open()
			next := busRequest("s2", 1, 2, 20)
			nextFinal := b.inLane(a.id, next)
			if nextFinal.Node != a.id || nextFinal.Reason != schemas.Completed {
				t.Errorf("the next turn's final is %+v", nextFinal)
			}
			b.settled(map[schemas.TurnID]schemas.Final{busID(req): final, busID(next): nextFinal})
			attempts, finals := heard.all()
			if c.quiet && !slices.IsSorted(attempts) || finals != 1 {
				t.Errorf("%d finals; attempts of the events in order: %v", finals, attempts)
			}
		})
	}
}

// jam is a dialer of connections to which nothing can be written for a while, as with a peer that hangs and whose buffers are full.
type jam struct {
	on, off chan struct{} // closed by the test
	begun   sync.Once
	writes  chan struct{} // closed when a write waits
}

func newJam() *jam {
	return &jam{on: make(chan struct{}), off: make(chan struct{}), writes: make(chan struct{})}
}

func (j *jam) Dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	return &jammed{conn, j}, err
}

type jammed struct {
	net.Conn
	by *jam
}

func (c *jammed) Write(data []byte) (int, error) {
	select {
	case <-c.by.off:
		return c.Conn.Write(data)
	default:
	}
	select {
	case <-c.by.on:
	default:
		return c.Conn.Write(data)
	}
	c.by.begun.Do(func() { close(c.by.writes) })
	<-c.by.off
	return 0, errors.Join(net.ErrClosed, c.Close()) // it is lost with its connection
}

// dialed makes one of a worker's two connections use a dialer.
func dialed(purpose string, dialer nats.CustomDialer) busSetup {
	return func(c *worker.Config, _ *goengine.Config) {
		c.Options = append(c.Options, func(o *nats.Options) error {
			if strings.HasSuffix(o.Name, " "+purpose) {
				o.CustomDialer = dialer
			}
			return nil
		})
	}
}

// Tokens have a connection of their own, so that nothing but tokens waits for it.
func TestHangingTokenConnectionHoldsUpNeitherTheEngineNorTheLease(t *testing.T) {
	const newTokens = 200
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	b := newBus(t, server.ClientURL(), 1)
	gate, jam := decodes(t), newJam()
	a := b.worker("a", held(gate), dialed("tokens", jam))
	release := sync.OnceFunc(func() { close(jam.off) })
	defer gate.Open()
	defer release()
	req := busRequest("s", 1, 1, newTokens)
	heard := b.listen(req)
	turn := b.generate(b.client(b.url), req)
	b.pass(gate, 5)
	heard.until(6)
	close(jam.on)
	began := time.Now()
	b.pass(gate, 1)
	<-jam.writes
	b.pass(gate, newTokens-20)
	b.poll("AckWait is over", func() bool { return time.Since(began) > busPeriods.AckWait*3/2 })
	b.pass(gate, 2)
	if b.idle(a) {
		t.Error("the worker answers that it has nothing to do")
	}
	release()
	gate.Open()
	final := turn.whole()
	if lost := b.metric(a, "meshnet_leases_lost_total"); final.Attempt != 1 || lost != 0 {
		t.Errorf("attempt %d, %v leases lost", final.Attempt, lost)
	}
	b.settled(map[schemas.TurnID]schemas.Final{busID(req): final})
}

// What a worker has not brought into the stream yet when it dies is generated again: the outcome is not written before.
func TestLastTokensOfATurnAreNotLostWithTheirWorker(t *testing.T) {
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	b := newBus(t, server.ClientURL(), 1)
	gate, jam := decodes(t), newJam()
	a := b.worker("a", held(gate), dialed("tokens", jam))
	release := sync.OnceFunc(func() { close(jam.off) })
	defer release()
	req := busRequest("s", 1, 1, 20)
	heard := b.listen(req)
	turn := b.generate(b.client(b.url), req)
	b.pass(gate, 5)
	heard.until(6)
	close(jam.on)
	gate.Open()
	<-jam.writes
	b.poll("all is generated", func() bool { return a.engine.KVBytes() == 0 })
	if r := b.record(busID(req)); r == nil || r.Done != nil {
		t.Errorf("the ledger says %+v", r)
	}
	a.Abort()
	release()
	other := b.worker("b")
	if final := turn.whole(); final.Attempt != 2 || final.Node != other.id {
		t.Errorf("the final is %+v", final)
	}
}

// A peer that is gone without a word (a power cut, a forgotten NAT entry) leaves a connection that looks well.
func TestWorkerLeavesAConnectionThatIsSilentForAnother(t *testing.T) {
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	first, second := natsservertest.StartProxy(t, server.ClientURL()), natsservertest.StartProxy(t, server.ClientURL())
	b := newBus(t, server.ClientURL(), 1)
	gate := decodes(t)
	b.worker("a", held(gate), through("control", first, second), through("tokens", first, second),
		func(c *worker.Config, _ *goengine.Config) { c.Periods.Ping = 100 * time.Millisecond })
	defer gate.Open()
	req := busRequest("s", 1, 1, 30)
	heard := b.listen(req)
	turn := b.generate(b.client(b.url), req)
	b.pass(gate, 5)
	heard.until(6)
	first.Stall(natsservertest.BothWays)
	b.pass(gate, 5)
	b.poll("both connections go another way", func() bool { return second.Connections() == 2 })
	gate.Open()
	final := turn.whole()
	if final.Attempt != 1 {
		t.Errorf("attempt %d", final.Attempt)
	}
	b.settled(map[schemas.TurnID]schemas.Final{busID(req): final})
}

func TestClientThatIsCutOffInMidStreamFillsTheGap(t *testing.T) {
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	proxy := natsservertest.StartProxy(t, server.ClientURL())
	b := newBus(t, server.ClientURL(), 1)
	gate := decodes(t)
	b.worker("a", held(gate))
	defer gate.Open()
	req := busRequest("s", 1, 1, 40)
	heard := b.listen(req)
	turn := b.generate(b.client(proxy.URL(), nats.IgnoreDiscoveredServers()), req)
	b.pass(gate, 5)
	heard.until(6)
	proxy.Cut()
	b.pass(gate, 10)
	heard.until(16)
	proxy.Heal()
	b.poll("the client is back", func() bool { return proxy.Connections() == 1 })
	gate.Open()
	b.settled(map[schemas.TurnID]schemas.Final{busID(req): turn.whole()})
}

// The server did what it was asked to do, and the answer is lost: only reading again tells.
func TestSwapWhoseAnswerIsLostIsReadAgain(t *testing.T) {
	const newTokens = 10
	running := func(r *schemas.LedgerRecord) bool { return r != nil && r.Running != nil }
	done := func(r *schemas.LedgerRecord) bool { return r != nil && r.Done != nil }
	for name, c := range map[string]struct {
		steps  int                              // let through before answers are lost; 0: when the turn is claimed
		stands func(*schemas.LedgerRecord) bool // once the swap has arrived
	}{
		"of the claim": {stands: running},
		"of the end":   {steps: newTokens - 2, stands: done},
	} {
		t.Run(name, func(t *testing.T) {
			leakNothing(t)
			server := natsservertest.Start(t, natsserver.Options{})
			proxy := natsservertest.StartProxy(t, server.ClientURL())
			b := newBus(t, server.ClientURL(), 1)
			gate := decodes(t)
			lose := func() { proxy.Stall(natsservertest.ToClient) }
			a := b.worker("a", held(gate), through("control", proxy), func(w *worker.Config, _ *goengine.Config) {
				w.Periods.AckWait = 20 * time.Second // so that nobody else repairs it
				if c.steps == 0 {
					w.Text.Tokenize = func(limit int, text string, special bool) ([]int32, error) {
						lose() // the request is here, and its turn not claimed yet
						return busTokens(limit, text, special)
					}
				}
			})
			defer gate.Open()
			req := busRequest("s", 1, 1, newTokens)
			heard := b.listen(req)
			turn := b.generate(b.client(b.url), req)
			if c.steps > 0 {
				b.pass(gate, c.steps)
				<-gate.Arrived()
				lose()
			}
			gate.Open()
			b.poll("the swap has arrived", func() bool { return c.stands(b.record(busID(req))) })
			proxy.Cut()
			proxy.Heal()
			final := turn.whole()
			if redeliveries := b.metric(a, "meshnet_redeliveries_total"); final.Attempt != 1 || redeliveries != 0 {
				t.Errorf("attempt %d, %v redeliveries", final.Attempt, redeliveries)
			}
			b.settled(map[schemas.TurnID]schemas.Final{busID(req): final})
			if attempts, finals := heard.all(); finals != 1 || slices.Max(attempts) != 1 {
				t.Errorf("%d finals, attempts %v", finals, attempts)
			}
		})
	}
}

// record is what the ledger says of a turn; nil: nothing.
func (b *bus) record(id schemas.TurnID) *schemas.LedgerRecord {
	b.t.Helper()
	turns, err := b.js.KeyValue(b.ctx, busPrefix.TurnBucket())
	b.check(err)
	entry, err := turns.Get(b.ctx, id.Key())
	if err != nil {
		return nil
	}
	record, err := schemas.Decode[schemas.LedgerRecord](entry.Value())
	b.check(err)
	return record
}

// fat makes each token so much text that a few hundred fill every buffer on the way to a subscriber.
func fat(c *worker.Config, _ *goengine.Config) {
	c.Text.Piece = func(dst []byte, token int32) ([]byte, error) {
		dst, err := busWord(dst, token)
		return append(dst, bytes.Repeat([]byte(" "), 24<<10)...), err
	}
}

// Whoever does not read what was asked for is cut off by the server, and only that one.
func TestSubscriberThatDoesNotReadDisturbsNobody(t *testing.T) {
	leakNothing(t)
	config := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(config, []byte("max_pending: 1MB\nwrite_deadline: \"1s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := natsservertest.Start(t, natsserver.Options{ConfigFile: config})
	b := newBus(t, server.ClientURL(), 1)
	b.worker("a", fat)
	slow := subscribeAndSleep(b, server.ClientURL())
	finals := map[schemas.TurnID]schemas.Final{}
	for i := range 2 {
		var turns []*pending
		for j := range 2 {
			turns = append(turns, b.generate(b.client(b.url), busRequest(fmt.Sprint("s", j), i+1, i+j, 100)))
		}
		for _, turn := range turns {
			finals[busID(turn.req)] = turn.whole()
		}
	}
	b.settled(finals)
	for _, final := range finals {
		if final.Attempt != 1 {
			t.Errorf("attempt %d", final.Attempt)
		}
	}
	b.check(slow.SetReadDeadline(time.Now().Add(busPatience / 4)))
	buffer := make([]byte, 1<<20)
	for {
		if _, err := slow.Read(buffer); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the slow subscriber was not cut off")
			}
			return
		}
	}
}

// subscribeAndSleep opens a connection that asks for all tokens and then reads nothing any more.
func subscribeAndSleep(b *bus, url string) net.Conn {
	b.t.Helper()
	conn, err := new(net.Dialer).DialContext(b.ctx, "tcp", strings.TrimPrefix(url, "nats://"))
	b.check(err)
	b.t.Cleanup(func() { _ = conn.Close() })
	b.check(conn.(*net.TCPConn).SetReadBuffer(64 << 10))
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false}\r\nSUB %s 1\r\nPING\r\n", busPrefix.Events())
	b.check(err)
	var said string
	for buffer := make([]byte, 4096); !strings.Contains(said, "PONG"); { // then the subscription counts
		n, err := conn.Read(buffer)
		b.check(err)
		said += string(buffer[:n])
	}
	return conn
}
