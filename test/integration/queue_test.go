package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
)

const (
	queuedPerTenant = 64        // a tenant's quota in a lane
	queuedGrowth    = 128 << 10 // bytes of heap; 10,000 of the requests below are more than forty times as much
)

// The queue is the stream's: what waits there costs a busy worker nothing, however much it is.
func TestTenThousandQueuedRequestsCostTheirWorkerNoMemory(t *testing.T) {
	server := natsservertest.StartProcess(t, natsserver.Options{})
	w, err := startToy(toyOptions{URL: server.URL(), Node: "a", Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	q := newQueue(t, server.URL())
	q.publish(0, toyHold)
	q.awaitClaim(0)
	idle, peak := w.memory(t)
	t.Logf("%6d queued: heap %8d bytes, peak of the resident set %9d bytes", 0, idle, peak)
	for _, n := range []int{1000, 10_000} {
		q.fill(n)
		waiting, bytes := q.lane()
		if waiting != n+1 { // and the one that runs
			t.Fatalf("the lane of all holds %d requests, not %d", waiting, n+1)
		}
		heap, peak := w.memory(t)
		t.Logf("%6d queued: heap %8d bytes, peak of the resident set %9d bytes; the stream holds %d bytes", n, heap, peak, bytes)
		if grown := heap - idle; grown > queuedGrowth {
			t.Errorf("%d queued requests cost %d bytes of heap, more than %d", n, grown, queuedGrowth)
		}
	}
	w.ask(t, toyRelease)
	q.awaitDone(1) // the queue goes on
}

// queue is requests in the lane of all, numbered from 0 on, of as many tenants as it takes.
type queue struct {
	t    testing.TB
	ctx  context.Context
	js   jetstream.JetStream
	next int
}

func newQueue(t testing.TB, url string) *queue {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	js, err := jetstream.New(natsservertest.Connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	return &queue{t: t, ctx: ctx, js: js, next: 1}
}

func (q *queue) request(n int, prompt string) *schemas.Request {
	return &schemas.Request{
		Tenant:  schemas.Must(schemas.ParseTenant(fmt.Sprint("tenant", n/queuedPerTenant))),
		Session: schemas.Must(schemas.ParseSession(fmt.Sprint("s", n))), Turn: 1, Model: schemas.Must(schemas.ParseModel("m")),
		Nonce: schemas.Must(schemas.ParseNonce("n")), Prompt: &prompt, MaxNewTokens: 1, DeadlineMS: time.Hour.Milliseconds(),
	}
}

func (q *queue) publish(n int, prompt string) jetstream.PubAckFuture {
	q.t.Helper()
	req := q.request(n, prompt)
	data, err := schemas.Encode(req)
	if err != nil {
		q.t.Fatal(err)
	}
	ack, err := q.js.PublishAsync(schemas.Prefix{}.Request(req.Model, schemas.AnyLane, req.Tenant), data, jetstream.WithMsgID(req.MsgID()))
	if err != nil {
		q.t.Fatal(err)
	}
	return ack
}

// fill publishes until so many requests wait.
func (q *queue) fill(most int) {
	q.t.Helper()
	prompt := strings.Repeat("x", 400)
	for q.next <= most {
		var acks []jetstream.PubAckFuture
		for ; q.next <= most && len(acks) < 256; q.next++ { // not more under way than the client library likes
			acks = append(acks, q.publish(q.next, prompt))
		}
		for _, ack := range acks {
			select {
			case <-ack.Ok():
			case err := <-ack.Err():
				q.t.Fatal(err)
			case <-q.ctx.Done():
				q.t.Fatal(q.ctx.Err())
			}
		}
	}
}

// lane is how many requests are in the lane of all, and the bytes of the stream.
func (q *queue) lane() (requests int, bytes uint64) {
	q.t.Helper()
	stream, err := q.js.Stream(q.ctx, schemas.Prefix{}.RequestStream())
	if err != nil {
		q.t.Fatal(err)
	}
	info, err := stream.Info(q.ctx, jetstream.WithSubjectFilter(schemas.Prefix{}.Shared(q.request(0, "").Model)))
	if err != nil {
		q.t.Fatal(err)
	}
	for _, n := range info.State.Subjects {
		requests += int(n)
	}
	return requests, info.State.Bytes
}

// awaitClaim waits until a worker has a request's turn, and awaitDone until it is done.
func (q *queue) awaitClaim(n int) {
	q.t.Helper()
	q.awaitRecord(q.request(n, "").ID().Key(), func(*schemas.LedgerRecord) bool { return true })
}

func (q *queue) awaitDone(n int) {
	q.t.Helper()
	q.awaitRecord(q.request(n, "").ID().Key(), func(rec *schemas.LedgerRecord) bool { return rec.Done != nil && rec.Done.Reason == schemas.Completed })
}

// awaitRecord waits until a turn's record is as wanted.
func (q *queue) awaitRecord(key string, came func(*schemas.LedgerRecord) bool) {
	q.t.Helper()
	turns, err := q.js.KeyValue(q.ctx, schemas.Prefix{}.TurnBucket())
	if err != nil {
		q.t.Fatal(err)
	}
	watch, err := turns.Watch(q.ctx, key)
	if err != nil {
		q.t.Fatal(err)
	}
	defer watch.Stop() //nolint:errcheck // the connection ends with the test
	for {
		select {
		case entry := <-watch.Updates():
			if entry == nil {
				continue // that is all there was
			}
			rec, err := schemas.Decode[schemas.LedgerRecord](entry.Value())
			if err != nil {
				q.t.Fatal(err)
			}
			if came(rec) {
				return
			}
		case <-q.ctx.Done():
			q.t.Fatal(q.ctx.Err())
		}
	}
}
