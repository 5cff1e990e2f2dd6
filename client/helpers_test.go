package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	mesh  schemas.Prefix
	quiet = slog.New(slog.DiscardHandler)
	node1 = schemas.Must(schemas.ParseNode("n1"))
	turn1 = schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant("acme")), Session: schemas.Must(schemas.ParseSession("s1")), Turn: 1}
)

var waitCtx = natsservertest.Context

// bed is a mesh without workers: stores on a server, and a connection for whoever plays the worker.
type bed struct {
	url  string
	conn *nats.Conn
	js   jetstream.JetStream
}

func newBed(t testing.TB) *bed {
	t.Helper()
	return bedOn(t, natsservertest.Start(t, natsserver.Options{}).ClientURL())
}

func bedOn(t testing.TB, url string, options ...nats.Option) *bed {
	t.Helper()
	b := &bed{url: url, conn: natsservertest.Connect(t, url, options...)}
	b.js = natsservertest.JetStream(t, b.conn)
	if err := makeStores(waitCtx(t), b.js); err != nil {
		t.Fatal(err)
	}
	return b
}

// makeStores makes what of the stores is not there, as a worker does; the quota is two requests.
func makeStores(ctx context.Context, js jetstream.JetStream) error {
	_, err1 := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: mesh.RequestStream(), Subjects: []string{mesh.Requests()}, Retention: jetstream.WorkQueuePolicy,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 2, MaxMsgSize: schemas.MaxRequestBytes, Duplicates: 10 * time.Minute})
	_, err2 := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: mesh.EventStream(), Subjects: []string{mesh.Events()}, Storage: jetstream.MemoryStorage, MaxAge: 15 * time.Minute, AllowDirect: true})
	_, err3 := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: mesh.NodeBucket(), History: 1, TTL: capability.Silence, Storage: jetstream.MemoryStorage})
	return errors.Join(err1, err2, err3)
}

// connect makes a client with a connection of its own.
func (b *bed) connect(t testing.TB, options ...client.Option) *client.Client {
	t.Helper()
	return clientOn(t, natsservertest.Connect(t, b.url, nats.ReconnectBufSize(-1)), options...)
}

func clientOn(t testing.TB, conn *nats.Conn, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(conn, append([]client.Option{client.WithLog(quiet)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// requests counts what waits in the stream of requests.
func (b *bed) requests(t testing.TB) uint64 {
	t.Helper()
	stream, err := b.js.Stream(waitCtx(t), mesh.RequestStream())
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// work plays a worker: it is given each request that is published, with its lane.
func (b *bed) work(t testing.TB, play func(*schemas.Request, schemas.Lane)) {
	t.Helper()
	_, err := b.conn.Subscribe(mesh.Requests(), func(msg *nats.Msg) {
		request, err := schemas.Decode[schemas.Request](msg.Data)
		if err != nil {
			t.Error(err)
			return
		}
		where, err := mesh.ParseRequest(msg.Subject)
		if err == nil {
			err = request.Agrees(where)
		}
		if err != nil {
			t.Error(err)
			return
		}
		play(request, where.Lane)
	})
	b.settle(t, err)
}

// answer plays the workers' turn service, which counts what it is asked.
func (b *bed) answer(t testing.TB, play func(*schemas.TurnRequest) *schemas.TurnReply) {
	t.Helper()
	_, err := b.conn.QueueSubscribe(mesh.Turns(), "turn", func(msg *nats.Msg) {
		question, err := schemas.Decode[schemas.TurnRequest](msg.Data)
		if err != nil {
			t.Error(err)
			return
		}
		reply := play(question)
		if reply == nil {
			return
		}
		reply.Op = question.Op
		payload, err := schemas.Encode(reply)
		if err != nil {
			t.Error(err)
			return
		}
		if err := msg.Respond(payload); err != nil {
			t.Error(err)
		}
	})
	b.settle(t, err)
}

// settle makes sure that the server knows of a subscription.
func (b *bed) settle(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		err = b.conn.FlushWithContext(waitCtx(t))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tell publishes events of a turn.
func (b *bed) tell(t testing.TB, id schemas.TurnID, events ...any) {
	t.Helper()
	for _, event := range events {
		if err := b.conn.Publish(mesh.Tokens(id), encode(t, event)); err != nil {
			t.Error(err)
		}
	}
}

// say publishes events of a turn, and returns once the server has them.
func (b *bed) say(t testing.TB, id schemas.TurnID, events ...any) {
	t.Helper()
	b.tell(t, id, events...)
	if err := b.conn.FlushWithContext(waitCtx(t)); err != nil {
		t.Error(err)
	}
}

func encode(t testing.TB, event any) []byte {
	t.Helper()
	var payload []byte
	var err error
	switch e := event.(type) {
	case *schemas.Started:
		payload, err = schemas.Encode(e)
	case *schemas.Tokens:
		payload, err = schemas.Encode(e)
	case *schemas.Keepalive:
		payload, err = schemas.Encode(e)
	case *schemas.Final:
		payload, err = schemas.Encode(e)
	case []byte:
		payload = e
	}
	if err != nil {
		t.Error(err)
	}
	return payload
}

func started(attempt, resume int) *schemas.Started {
	return &schemas.Started{Attempt: attempt, Node: node1, ResumeIndex: resume, PromptTokens: 3}
}

func tokens(attempt, index int, text string, ids ...int64) *schemas.Tokens {
	return &schemas.Tokens{Attempt: attempt, Index: index, TokenIDs: ids, Text: text}
}

func completed(attempt, count int) *schemas.Final {
	return &schemas.Final{Reason: schemas.Completed, Finish: schemas.FinishStop, Attempt: attempt, Node: node1, Count: count}
}

func done(final *schemas.Final) *schemas.TurnReply {
	payload, err := schemas.Encode(final)
	if err != nil {
		panic(err)
	}
	return &schemas.TurnReply{State: schemas.StateDone, Reason: final.Reason, Final: payload}
}

func request() client.Request {
	return client.Request{Tenant: "acme", Session: "s1", Turn: 1, Model: "stories", Prompt: "Once", MaxNewTokens: 8}
}

func generate(t testing.TB, c *client.Client, r client.Request) *client.Stream {
	t.Helper()
	s, err := c.Generate(waitCtx(t), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// record writes events as one line, such as `start1 "ab"@0 reset@1 "x"@1 final`.
func record(events ...client.Event) string {
	words := make([]string, len(events))
	for i, event := range events {
		switch e := event.(type) {
		case client.Started:
			words[i] = fmt.Sprintf("start%d", e.Attempt)
		case client.Text:
			words[i] = fmt.Sprintf("%q@%d", e.Text, e.Index)
		case client.Reset:
			words[i] = fmt.Sprintf("reset@%d", e.Index)
		case client.Final:
			words[i] = "final"
		}
	}
	return strings.Join(words, " ")
}

// read reads a stream to its end.
func read(s *client.Stream) (string, error) {
	var events []client.Event
	for event, err := range s.Events() {
		if err != nil {
			return record(events...), err
		}
		events = append(events, event)
	}
	return record(events...), nil
}

func next(t testing.TB, s *client.Stream) client.Event {
	t.Helper()
	event, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	return event
}

// counter is a count that a test can wait on.
type counter struct {
	mu sync.Mutex
	n  int
	c  chan struct{}
}

func newCounter() *counter { return &counter{c: make(chan struct{}, 1000)} }

func (c *counter) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	c.c <- struct{}{}
	return c.n
}

func (c *counter) await(t testing.TB) {
	t.Helper()
	select {
	case <-c.c:
	case <-waitCtx(t).Done():
		t.Fatal("it does not happen")
	}
}

// goOn moves a clock on whenever somebody waits for it, until stop is called.
func goOn(t testing.TB, clock *parttest.Clock) (stop func()) {
	ctx, cancel := context.WithCancel(waitCtx(t))
	var moving sync.WaitGroup
	moving.Go(func() {
		for clock.Await(ctx, 1) == nil && ctx.Err() == nil {
			clock.Advance(500 * time.Millisecond)
		}
	})
	return func() { cancel(); moving.Wait() }
}
