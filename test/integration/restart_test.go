package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// The only server dies under load, with all that it kept in memory.
func TestTurnsEndOnceThoughTheOnlyServerIsKilledAndStartedAgain(t *testing.T) {
	leakNothing(t)
	server := natsservertest.StartProcess(t, natsserver.Options{})
	b := newBus(t, server.URL(), 1)
	b.worker("a", pace(loadStep))
	b.worker("b", pace(loadStep))
	watcher := b.client(server.URL())
	if _, err := watcher.Nodes(b.ctx); err != nil { // begins the watch
		t.Fatal(err)
	}
	turns, kills := loadSize()
	l := b.load(turns)
	for range kills {
		l.await(10)
		before := b.made(busPrefix.EventStream())
		server.Kill()
		server.Restart()
		l.await(10)
		if !b.made(busPrefix.EventStream()).After(before) {
			t.Error("the stream of events is the one that was lost")
		}
	}
	l.finish()
	t.Logf("%d turns", len(l.finals))
	b.settled(l.finals)
	b.poll("the nodes are kept again", func() bool { return b.keepsNodes() })
	for _, w := range b.workers {
		if !w.Ready() {
			t.Errorf("worker %s is not ready", w.id)
		}
	}
	b.poll("the nodes are seen again", func() bool {
		nodes, err := watcher.Nodes(b.ctx)
		if err != nil || len(nodes) != len(b.workers) {
			return false
		}
		for _, node := range nodes {
			if time.Since(node.Seen) > 5*time.Second {
				return false
			}
		}
		return true
	})
}

// made is when a stream was.
func (b *bus) made(stream string) time.Time {
	b.t.Helper()
	var at time.Time
	b.poll("stream "+stream+" is there", func() bool {
		s, err := b.js.Stream(b.ctx, stream)
		if err == nil {
			at = s.CachedInfo().Created
		}
		return err == nil
	})
	return at
}

// keepsNodes says whether each worker is in the bucket of live nodes.
func (b *bus) keepsNodes() bool {
	b.t.Helper()
	nodes, err := b.js.KeyValue(b.ctx, busPrefix.NodeBucket())
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return false
	}
	b.check(err)
	for _, w := range b.workers {
		_, err := nodes.Get(b.ctx, w.id.String())
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return false
		}
		b.check(err)
	}
	return true
}

// centrifugo#1166: a worker whose consumer is gone says so, and goes on when it is there again.
func TestWorkerIsNotReadyWhileItsConsumerIsGone(t *testing.T) {
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	b := newBus(t, server.ClientURL(), 1)
	b.worker("a").Stop() // makes what the next one only verifies
	b.workers = nil
	a := b.worker("a", func(c *worker.Config, _ *goengine.Config) { c.Provision = worker.ProvisionVerify })
	for _, name := range []string{schemas.SharedConsumer(busModel), schemas.OwnConsumer(a.id)} {
		consumer, err := b.js.Consumer(b.ctx, busPrefix.RequestStream(), name)
		b.check(err)
		b.check(b.js.DeleteConsumer(b.ctx, busPrefix.RequestStream(), name))
		b.poll("the worker is not ready without "+name, func() bool { return !a.Ready() })
		_, err = b.js.CreateConsumer(b.ctx, busPrefix.RequestStream(), consumer.CachedInfo().Config)
		b.check(err)
		b.poll("the worker is ready again", a.Ready)
	}
	req := busRequest("s", 1, 1, 20)
	b.settled(map[schemas.TurnID]schemas.Final{busID(req): b.generate(b.client(b.url), req).whole()})
}

// What is kept in memory can be lost under turns that go on; readers who come later find the whole text all the same.
func TestEventsLostWithTheirStreamAreSaidAgain(t *testing.T) {
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	b := newBus(t, server.ClientURL(), 1)
	gate := decodes(t)
	b.worker("a", held(gate))
	defer gate.Open()
	req := busRequest("s", 1, 1, 20)
	heard := b.listen(req)
	turn := b.generate(b.client(b.url), req)
	b.pass(gate, 5)
	heard.until(6)
	made := b.made(busPrefix.EventStream())
	b.check(b.js.DeleteStream(b.ctx, busPrefix.EventStream()))
	b.poll("the stream is made again", func() bool { return b.made(busPrefix.EventStream()).After(made) })
	late, err := b.client(b.url).Attach(b.ctx, req.Tenant, req.Session, req.Turn, 0)
	b.check(err)
	for event, err := range late.Events() {
		b.check(err)
		if _, ok := event.(client.Text); ok {
			break // tokens that are said again; nothing else is, while the gate is closed
		}
	}
	gate.Open()
	final := turn.whole()
	stored, err := b.client(b.url).Attach(b.ctx, req.Tenant, req.Session, req.Turn, 0)
	b.check(err)
	result, err := stored.Wait()
	if err != nil || result.Text != turn.result.Text {
		t.Errorf("whoever comes later reads %q, %v", result.Text, err)
	}
	b.settled(map[schemas.TurnID]schemas.Final{busID(req): final})
}
