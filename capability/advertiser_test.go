package capability_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
)

func advertiser(t *testing.T, b *bed, clock part.Clock) *capability.Advertiser {
	t.Helper()
	a, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: b.conn, Log: quiet, Node: nodeName("n1"), Clock: clock,
		Source: func() *schemas.Advertisement { return ad("n1", "b1") }})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// beats hears what is published of n1.
func beats(t *testing.T, b *bed) func() *schemas.Advertisement {
	t.Helper()
	sub, err := b.conn.SubscribeSync(mesh.Capability(nodeName("n1")))
	if err != nil {
		t.Fatal(err)
	}
	return func() *schemas.Advertisement {
		t.Helper()
		msg, err := sub.NextMsgWithContext(waitCtx(t))
		if err != nil {
			t.Fatal(err)
		}
		a, err := schemas.Decode[schemas.Advertisement](msg.Data)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
}

// puts sees what is kept of n1; nil is its deletion.
func puts(t *testing.T, b *bed) func() *schemas.Advertisement {
	t.Helper()
	watcher, err := b.kv.Watch(waitCtx(t), "n1", jetstream.UpdatesOnly())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watcher.Stop() }) // its bucket may be gone
	return func() *schemas.Advertisement {
		t.Helper()
		select {
		case entry := <-watcher.Updates():
			if entry == nil || entry.Operation() != jetstream.KeyValuePut {
				return nil
			}
			a, err := schemas.Decode[schemas.Advertisement](entry.Value())
			if err != nil {
				t.Fatal(err)
			}
			return a
		case <-waitCtx(t).Done():
			t.Fatal("nothing is put")
			return nil
		}
	}
}

func TestAdvertiserConforms(t *testing.T) {
	b := apart(t)
	parttest.Conform(t, func() part.Part { return advertiser(t, b, nil) })
}

func TestNodeIsAdvertisedEachSecondAndKeptEachFive(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	beat, put := beats(t, b), puts(t, b)
	start(t, advertiser(t, b, clock))
	if first := put(); first.Generation != 1 {
		t.Fatalf("generation %d is kept first, want 1", first.Generation)
	}
	for n := uint64(1); n <= 6; n++ {
		if got := beat().Generation; got != n {
			t.Fatalf("beat %d has generation %d", n, got)
		}
		if err := clock.Await(waitCtx(t), 2); err != nil { // gap and next beat
			t.Fatal(err)
		}
		clock.Advance(100 * time.Millisecond)
		if err := clock.Await(waitCtx(t), 1); err != nil {
			t.Fatal(err)
		}
		clock.Advance(900 * time.Millisecond)
	}
	if second := put(); second.Generation != 6 {
		t.Errorf("generation %d is kept next, want 6, which is 5 s later", second.Generation)
	}
}

func TestManyChangesAreOneBeatAndOnePut(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	beat, put := beats(t, b), puts(t, b)
	a := advertiser(t, b, clock)
	start(t, a)
	beat()
	put()
	for range 100 {
		a.Nudge()
	}
	if err := clock.Await(waitCtx(t), 2); err != nil {
		t.Fatal(err)
	}
	clock.Advance(100 * time.Millisecond) // the gap; the next regular beat is not due
	if got := beat().Generation; got != 2 {
		t.Errorf("generation %d after the changes, want 2", got)
	}
	if got := put().Generation; got != 2 {
		t.Errorf("generation %d is kept after the changes, want 2", got)
	}
}

func TestStoppedNodeIsTakenOutOfTheBucket(t *testing.T) {
	b := newBed(t)
	put := puts(t, b)
	a := advertiser(t, b, nil)
	start(t, a)
	put()
	a.Stop()
	for put() != nil { // a regular put may come before
	}
	if _, err := b.kv.Get(waitCtx(t), "n1"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the key is still there: %v", err)
	}
}

// C7, ik_llama.cpp#1210: whatever keeps others from answering, beats go on.
func TestBeatsGoOnWithoutABucket(t *testing.T) {
	b := newBed(t)
	if err := b.js.DeleteKeyValue(waitCtx(t), mesh.NodeBucket()); err != nil {
		t.Fatal(err)
	}
	beat := beats(t, b)
	a, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: b.conn, Log: quiet, Node: nodeName("n1"), Beat: 5 * time.Millisecond, Gap: time.Millisecond,
		Put: 10 * time.Millisecond, Source: func() *schemas.Advertisement { return ad("n1", "b1") }})
	if err != nil {
		t.Fatal(err)
	}
	start(t, a)
	for range 20 {
		beat()
	}
	b.makeBucket(t)
	put := puts(t, b)
	if put() == nil {
		t.Error("the node was deleted, want it kept once there is a bucket")
	}
}

// signals is a log that tells a channel of what is worth an info.
type signals chan string

func (s signals) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (s signals) WithAttrs([]slog.Attr) slog.Handler               { return s }
func (s signals) WithGroup(string) slog.Handler                    { return s }
func (s signals) Handle(_ context.Context, r slog.Record) error {
	select {
	case s <- r.Message:
	default:
	}
	return nil
}

func TestPutThatFailedIsMadeGood(t *testing.T) {
	b := newBed(t)
	told := make(signals, 1)
	a, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: b.conn, Node: nodeName("n1"), Log: slog.New(told), Put: time.Hour,
		Source: func() *schemas.Advertisement { return ad("n1", "b1") }})
	if err != nil {
		t.Fatal(err)
	}
	put := puts(t, b)
	start(t, a)
	put()
	if err := b.js.DeleteKeyValue(waitCtx(t), mesh.NodeBucket()); err != nil {
		t.Fatal(err)
	}
	a.Nudge()
	select {
	case <-told: // it failed
	case <-waitCtx(t).Done():
		t.Fatal("nothing is told of a put that failed")
	}
	b.makeBucket(t)
	if _, err := b.kv.Get(waitCtx(t), "n1"); err == nil {
		return
	}
	if put := puts(t, b); put() == nil {
		t.Error("the node was deleted, want it kept")
	}
}

func TestAdvertiserSurvivesARestartOfTheServer(t *testing.T) {
	b := newBed(t)
	a, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: b.conn, Log: quiet, Node: nodeName("n1"), Beat: 5 * time.Millisecond, Gap: time.Millisecond,
		Put: 10 * time.Millisecond, Request: 200 * time.Millisecond, Source: func() *schemas.Advertisement { return ad("n1", "b1") }})
	if err != nil {
		t.Fatal(err)
	}
	beat := beats(t, b)
	start(t, a)
	before := beat().Generation
	b.restart(t)
	b.makeBucket(t)
	put := puts(t, b)
	if put() == nil {
		t.Error("the node was deleted, want it kept")
	}
	for beat().Generation <= before {
	}
}

func TestAdvertiserStopsWhileTheServerIsAway(t *testing.T) {
	b := newBed(t)
	a := advertiser(t, b, nil)
	start(t, a)
	if err := b.server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { a.Stop(); close(done) }()
	select {
	case <-done:
	case <-waitCtx(t).Done():
		t.Fatal("it waits for a server that is gone")
	}
	if err := a.Err(); err != nil {
		t.Errorf("Err = %v", err)
	}
}

func TestInvalidAdvertisementIsNotPublished(t *testing.T) {
	b := newBed(t)
	first := true
	a, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: b.conn, Log: quiet, Node: nodeName("n1"), Beat: 5 * time.Millisecond, Gap: time.Millisecond,
		Source: func() *schemas.Advertisement {
			good := ad("n1", "b1")
			if first {
				good.State, first = "asleep", false
			}
			return good
		}})
	if err != nil {
		t.Fatal(err)
	}
	beat := beats(t, b)
	start(t, a)
	if got := beat(); got.Generation != 2 || got.State != schemas.NodeReady {
		t.Errorf("generation %d in state %s comes first, want 2 and ready", got.Generation, got.State)
	}
}

func TestAdvertiserNeedsItsParts(t *testing.T) {
	if _, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: &nats.Conn{}}); err == nil {
		t.Error("an advertiser without node and source was made")
	}
}
