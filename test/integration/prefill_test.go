package integration

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// longPrompt is one of so many small chunks.
func longPrompt(chunks int) client.Request {
	req := busRequest("s", 1, 1, 10)
	req.Prompt = strings.Repeat("once", chunks)
	return req
}

// smallChunks are of four tokens.
func smallChunks(_ *worker.Config, e *goengine.Config) { e.PrefillChunk, e.ContextTokens = 4, 2048 }

// ik_llama.cpp#1210: a prefill that takes long.
func TestPrefillThatTakesLongPausesNeitherBeatsNorLease(t *testing.T) {
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	b := newBus(t, server.ClientURL(), 1)
	gate := goengine.NewGate(goengine.OpPrefill)
	a := b.worker("a", held(gate), smallChunks)
	defer gate.Open()
	beats, err := b.conn.SubscribeSync(busPrefix.Capability(a.id))
	b.check(err)
	req := longPrompt(4)
	turn := b.generate(b.client(b.url), req)
	b.pass(gate, 1)
	<-gate.Arrived()
	for began := time.Now(); time.Since(began) < busPeriods.AckWait*3/2; {
		msg, err := beats.NextMsg(3 * time.Second) // three of their periods
		if err != nil {
			t.Fatalf("no beat: %v", err)
		}
		ad, err := schemas.Decode[schemas.Advertisement](msg.Data)
		b.check(err)
		if ad.State != schemas.NodeReady {
			t.Errorf("the worker is %s", ad.State)
		}
	}
	gate.Open()
	final := turn.whole()
	if lost := b.metric(a, "meshnet_leases_lost_total"); final.Attempt != 1 || lost != 0 {
		t.Errorf("attempt %d, %v leases lost", final.Attempt, lost)
	}
	b.settled(map[schemas.TurnID]schemas.Final{busID(req): final})
}

// llama.cpp#18237: whoever is told to end does not finish a prefill that takes long.
func TestWorkerThatStopsInALongPrefillLeavesItToAnother(t *testing.T) {
	const chunks = 400
	leakNothing(t)
	server := natsservertest.Start(t, natsserver.Options{})
	b := newBus(t, server.ClientURL(), 1)
	begun := make(chan struct{}, chunks)
	var prefilled atomic.Int64
	a := b.worker("a", smallChunks, func(c *worker.Config, e *goengine.Config) {
		c.DrainTimeout, c.Periods.AckWait = -1, 20*time.Second // so that it is handed over, not found
		e.OnCall = func(call goengine.Call) {
			if call.Op == goengine.OpPrefill {
				prefilled.Add(1)
				begun <- struct{}{}
				<-time.After(20 * time.Millisecond)
			}
		}
	})
	req := longPrompt(chunks)
	turn := b.generate(b.client(b.url), req)
	<-begun
	<-begun
	a.Stop()
	if n := prefilled.Load(); n >= chunks/2 {
		t.Errorf("%d chunks of %d were prefilled", n, chunks)
	}
	b.workers = nil
	other := b.worker("b", smallChunks, func(c *worker.Config, _ *goengine.Config) { c.Periods.AckWait = 20 * time.Second })
	<-turn.done
	if final := turn.result.Final; turn.err != nil || final.Node != other.id || final.Attempt != 2 || final.Count != 10 {
		t.Errorf("the final is %+v, %v", final, turn.err)
	}
}
