package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test. None waits for it when all is well.
const patience = 30 * time.Second

// quick are periods that let a test see leases run out.
var quick = worker.Periods{
	AckWait: 1500 * time.Millisecond, FetchExpiry: 200 * time.Millisecond, Keepalive: 500 * time.Millisecond,
	LaneSweep: 200 * time.Millisecond, Watchdog: 200 * time.Millisecond, Confirm: 50 * time.Millisecond, ReconnectMax: 200 * time.Millisecond,
}

var (
	prefix schemas.Prefix
	model  = schemas.Must(schemas.ParseModel("toy"))
	acme   = schemas.Must(schemas.ParseTenant("acme"))
)

// mesh is a server, and a client's connection to it.
type mesh struct {
	t      testing.TB
	ctx    context.Context
	server *natsserver.Server
	conn   *nats.Conn
	js     jetstream.JetStream
}

func newMesh(t testing.TB) *mesh {
	t.Helper()
	return newMeshOf(t, natsserver.Options{})
}

// newMeshOf is a mesh on a server with options, and the client's own.
func newMeshOf(t testing.TB, server natsserver.Options, client ...nats.Option) *mesh {
	t.Helper()
	m := &mesh{t: t, ctx: natsservertest.Context(t), server: natsservertest.Start(t, server)}
	m.conn = natsservertest.Connect(t, m.server.ClientURL(), client...)
	m.js = natsservertest.JetStream(t, m.conn)
	return m
}

func (m *mesh) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// node is a worker under test and its engine.
type node struct {
	*worker.Service
	engine *goengine.Engine
	id     schemas.Node
}

// setup is what a test changes of a worker.
type setup func(*worker.Config, *goengine.Config)

func (m *mesh) config(name string, changes ...setup) (worker.Config, *goengine.Engine) {
	m.t.Helper()
	engineConfig := goengine.Config{EOGBias: -1000, Seed: 1}
	cfg := worker.Config{
		Node: schemas.Must(schemas.ParseNode(name)), Model: model, Periods: quick,
		Text: worker.Text{Tokenize: tokenize, Piece: toyPiece},
		Log:  slog.New(slog.DiscardHandler),
	}
	if os.Getenv("WORKER_TEST_LOG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if m.server != nil {
		cfg.URL = m.server.ClientURL()
	}
	for _, change := range changes {
		change(&cfg, &engineConfig)
	}
	engine, err := goengine.New(engineConfig)
	m.check(err)
	cfg.Engine = engine
	return cfg, engine
}

// start runs a worker until the test ends.
func (m *mesh) start(name string, changes ...setup) *node {
	m.t.Helper()
	cfg, engine := m.config(name, changes...)
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	m.t.Cleanup(service.Stop)
	m.check(part.Ready(m.ctx, service))
	return &node{service, engine, cfg.Node}
}

// startGated runs a worker that holds its decode steps until its gate is opened, at the latest when the test ends.
func (m *mesh) startGated(name string, changes ...setup) (*node, *goengine.Gate) {
	m.t.Helper()
	return m.startGatedAt(goengine.OpDecode, name, changes...)
}

// startGatedAt is startGated for calls of any kind.
func (m *mesh) startGatedAt(op goengine.Op, name string, changes ...setup) (*node, *goengine.Gate) {
	m.t.Helper()
	gate := goengine.NewGate(op)
	n := m.start(name, append(changes, gated(gate))...)
	m.t.Cleanup(gate.Open) // before the worker is stopped, which waits for its engine
	return n, gate
}

// gated holds the decode steps of a worker's engine.
func gated(gate *goengine.Gate) setup {
	return func(_ *worker.Config, e *goengine.Config) { e.OnCall = gate.Hold }
}

// noGuests is that no session gives way to another.
func (m *mesh) noGuests(c *worker.Config, e *goengine.Config) {
	engine, err := goengine.New(*e)
	m.check(err)
	c.Scheduler.Budget = scheduler.DefaultBudget(engine.Facts())
	c.Scheduler.Budget.SuspendBudgetBytes = 0
}

func slots(n int) setup { return func(_ *worker.Config, e *goengine.Config) { e.Slots = n } }

func tokenize(limit int, text string, _ bool) ([]int32, error) {
	if len(text) > 4*limit {
		return nil, fmt.Errorf("text of %d bytes is too long", len(text))
	}
	tokens := make([]int32, len(text))
	for i := range len(text) {
		tokens[i] = 3 + int32(text[i])
	}
	return tokens, nil
}

// toyPiece spells each token as a word.
func toyPiece(dst []byte, token int32) ([]byte, error) { return fmt.Appendf(dst, "<%d>", token), nil }

func spell(tokens []int64) string {
	var b strings.Builder
	for _, token := range tokens {
		fmt.Fprintf(&b, "<%d>", token)
	}
	return b.String()
}

// request is a valid one.
func request(session string, turn schemas.Turn, newTokens int) *schemas.Request {
	prompt := "once upon a time in " + session
	return &schemas.Request{
		Tenant: acme, Session: schemas.Must(schemas.ParseSession(session)), Turn: turn, Model: model,
		Nonce: schemas.Must(schemas.ParseNonce("n1")), Prompt: &prompt, MaxNewTokens: newTokens,
	}
}

// undisturbed are the tokens that a request yields when it runs alone, without a bus.
func undisturbed(t testing.TB, r *schemas.Request) []int64 {
	t.Helper()
	cfg := goengine.Config{EOGBias: -1000, Seed: 1}
	if !r.Adapter.IsZero() {
		cfg.Adapters = []string{r.Adapter.String()}
	}
	engine, err := goengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	prompt, _ := tokenize(1000, *r.Prompt, false)
	sampling := r.EffectiveSampling()
	d := sched.Submit(scheduler.Request{Tenant: "a", Session: "b", Turn: 1, Prompt: prompt, Adapter: r.Adapter.String(), MaxNewTokens: r.MaxNewTokens, Sampling: sampling.Params()})
	if d.Rejected() {
		t.Fatal(d)
	}
	endings, err := sched.RunToCompletion(0)
	if err != nil {
		t.Fatal(err)
	}
	var tokens []int64
	for _, token := range endings[0].Tokens {
		tokens = append(tokens, int64(token))
	}
	return tokens
}

func (m *mesh) submit(r *schemas.Request, lane schemas.Lane) uint64 {
	m.t.Helper()
	data, err := schemas.Encode(r)
	m.check(err)
	ack, err := m.js.Publish(m.ctx, prefix.Request(r.Model, lane, r.Tenant), data, jetstream.WithMsgID(r.MsgID()+lane.String()))
	m.check(err)
	return ack.Sequence
}

// reader follows the events of a turn as they are published.
type reader struct {
	m      *mesh
	id     schemas.TurnID
	sub    *nats.Subscription
	fold   fold.Fold
	events []schemas.Event
}

func (m *mesh) read(id schemas.TurnID) *reader {
	m.t.Helper()
	sub, err := m.conn.SubscribeSync(prefix.Tokens(id))
	m.check(err)
	m.check(m.conn.Flush())
	return &reader{m: m, id: id, sub: sub}
}

// follow submits a request and reads what becomes of its turn.
func (m *mesh) follow(req *schemas.Request, lane schemas.Lane) *reader {
	m.t.Helper()
	r := m.read(req.ID())
	m.submit(req, lane)
	return r
}

func (r *reader) next() schemas.Event {
	r.m.t.Helper()
	msg, err := r.sub.NextMsgWithContext(r.m.ctx)
	if err != nil {
		r.m.t.Fatalf("waiting for an event of %s: %v; so far %s", r.id, err, r.story())
	}
	event, err := schemas.DecodeEvent(msg.Data)
	r.m.check(err)
	r.events = append(r.events, event)
	r.fold.ApplyLive(event)
	return event
}

func (r *reader) story() string {
	var kinds []string
	for _, e := range r.events {
		kinds = append(kinds, fmt.Sprintf("%s/%d", e.EventKind(), e.EventAttempt()))
	}
	return strings.Join(kinds, " ")
}

// until reads events until one is as wanted.
func (r *reader) until(wanted func(schemas.Event) bool) schemas.Event {
	r.m.t.Helper()
	for {
		if event := r.next(); wanted(event) {
			return event
		}
	}
}

func (r *reader) final() *schemas.Final {
	r.m.t.Helper()
	return r.until(func(e schemas.Event) bool { return e.EventKind() == schemas.KindFinal }).(*schemas.Final)
}

// untilTokens reads until the reader has n tokens.
func (r *reader) untilTokens(n int) {
	r.m.t.Helper()
	r.until(func(schemas.Event) bool { return r.fold.Len() >= n })
}

// whole reads to the end of a completed turn and compares its tokens with those of an undisturbed one.
func (r *reader) whole(req *schemas.Request) *schemas.Final {
	r.m.t.Helper()
	final := r.final()
	if final.Reason != schemas.Completed {
		r.m.t.Fatalf("%s ended %s %s (%v), not completed", r.id, final.Reason, final.Cause, final.Error)
	}
	want := undisturbed(r.m.t, req)
	if !slices.Equal(r.fold.Tokens(), want) {
		r.m.t.Fatalf("%s yielded %v, not %v; events %s", r.id, r.fold.Tokens(), want, r.story())
	}
	if got := r.fold.Text(); got != spell(want) {
		r.m.t.Fatalf("%s: text %q, not %q", r.id, got, spell(want))
	}
	return final
}

// poll waits for what nobody tells.
func (m *mesh) poll(what string, came func() bool) {
	m.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !came() {
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			m.t.Fatalf("not in time: %s", what)
		}
	}
}

// empty waits until no request is left.
func (m *mesh) empty() {
	m.t.Helper()
	m.poll("the request stream is empty", func() bool { return m.waiting() == 0 })
}

func (m *mesh) waiting() uint64 {
	m.t.Helper()
	stream, err := m.js.Stream(m.ctx, prefix.RequestStream())
	m.check(err)
	return stream.CachedInfo().State.Msgs
}

// works are the work records of a turn.
func (m *mesh) works(id schemas.TurnID) (works []*schemas.WorkRecord) {
	m.t.Helper()
	stream, err := m.js.Stream(m.ctx, prefix.WorkStream())
	m.check(err)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(m.ctx, seq)
		m.check(err)
		work, err := schemas.Decode[schemas.WorkRecord](msg.Data)
		m.check(err)
		if work.ID() == id {
			works = append(works, work)
		}
	}
	return works
}

func (m *mesh) onlyWork(id schemas.TurnID) *schemas.WorkRecord {
	m.t.Helper()
	works := m.works(id)
	if len(works) != 1 {
		m.t.Fatalf("%s has %d work records, not 1", id, len(works))
	}
	return works[0]
}

func (m *mesh) bucket() jetstream.KeyValue {
	m.t.Helper()
	kv, err := m.js.KeyValue(m.ctx, prefix.TurnBucket())
	m.check(err)
	return kv
}

// ledger is a turn's record, nil where there is none.
func (m *mesh) ledger(id schemas.TurnID) *schemas.LedgerRecord {
	m.t.Helper()
	entry, err := m.bucket().Get(m.ctx, id.Key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil
	}
	m.check(err)
	rec, err := schemas.Decode[schemas.LedgerRecord](entry.Value())
	m.check(err)
	return rec
}

// ask asks any worker about a turn.
func (m *mesh) ask(op schemas.TurnOp, id schemas.TurnID) *schemas.TurnReply {
	m.t.Helper()
	data, err := schemas.Encode(&schemas.TurnRequest{Op: op, Tenant: id.Tenant, Session: id.Session, Turn: id.Turn})
	m.check(err)
	msg, err := m.conn.RequestWithContext(m.ctx, prefix.Turn(id.Tenant), data)
	m.check(err)
	reply, err := schemas.Decode[schemas.TurnReply](msg.Data)
	m.check(err)
	return reply
}
