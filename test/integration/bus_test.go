package integration

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// What the tests of the bus share: the real service on the pure-Go engine, in this process, clients of it, and what must
// hold when everything is over.

// busPatience bounds every wait of a test of the bus. None waits for it when all is well.
const busPatience = 2 * time.Minute

var (
	busModel  = schemas.Must(schemas.ParseModel("m"))
	busPrefix schemas.Prefix

	// busPeriods let leases run out within a test.
	busPeriods = worker.Periods{AckWait: 3 * time.Second, FetchExpiry: 300 * time.Millisecond, Keepalive: time.Second,
		LaneSweep: 500 * time.Millisecond, Watchdog: 500 * time.Millisecond, Confirm: 50 * time.Millisecond, ReconnectMax: 200 * time.Millisecond}
)

// bus is one or more NATS servers, and what a test runs on them.
type bus struct {
	t        *testing.T
	ctx      context.Context
	url      string
	replicas int
	js       jetstream.JetStream // through a connection of the test's own
	conn     *nats.Conn
	workers  []*busWorker
}

// leakNothing checks at the end of the test that no goroutine is left which it began. It is called first, so that
// it looks last.
func leakNothing(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func newBus(t *testing.T, url string, replicas int) *bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), busPatience)
	t.Cleanup(cancel)
	b := &bus{t: t, ctx: ctx, url: url, replicas: replicas, conn: natsservertest.Connect(t, url)}
	var err error
	b.js, err = jetstream.New(b.conn)
	b.check(err)
	return b
}

func (b *bus) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// poll waits for what nobody tells.
func (b *bus) poll(what string, came func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !came() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.t.Fatalf("not in time: %s", what)
		}
	}
}

// busWorker is a worker and its engine.
type busWorker struct {
	*worker.Service
	id     schemas.Node
	engine *goengine.Engine
}

// busSetup is what a test changes of a worker.
type busSetup func(*worker.Config, *goengine.Config)

// worker runs one until the test ends.
func (b *bus) worker(name string, changes ...busSetup) *busWorker {
	b.t.Helper()
	log := &bytes.Buffer{}
	engineConfig := goengine.Config{EOGBias: -1000, Seed: 1, Exact: true}
	cfg := worker.Config{
		URL: b.url, Node: schemas.Must(schemas.ParseNode(name)), Model: busModel, Periods: busPeriods, Replicas: b.replicas,
		Text: worker.Text{Tokenize: busTokens, Piece: busWord},
		Log:  slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, change := range changes {
		change(&cfg, &engineConfig)
	}
	engine, err := goengine.New(engineConfig)
	b.check(err)
	cfg.Engine = engine
	service, err := worker.New(cfg)
	b.check(err)
	b.check(service.Start(b.ctx))
	b.t.Cleanup(func() {
		service.Stop()
		if b.t.Failed() {
			b.t.Logf("log of worker %s:\n%s", name, log)
		}
	})
	b.check(part.Ready(b.ctx, service))
	w := &busWorker{service, cfg.Node, engine}
	b.workers = append(b.workers, w)
	return w
}

// pace lets a decode step take as long as that of a real model, so that turns are under way when something happens.
func pace(step time.Duration) busSetup {
	return func(_ *worker.Config, e *goengine.Config) {
		e.OnCall = func(call goengine.Call) {
			if call.Op == goengine.OpDecode {
				<-time.After(step)
			}
		}
	}
}

// held lets engine calls through one by one, as a test says.
func held(gate *goengine.Gate) busSetup {
	return func(_ *worker.Config, e *goengine.Config) { e.OnCall = gate.Hold }
}

// through makes one of a worker's two connections, "control" or "tokens", go through the first proxy that lets it.
func through(purpose string, proxies ...*natsservertest.Proxy) busSetup {
	return func(c *worker.Config, _ *goengine.Config) {
		c.Options = append(c.Options, func(o *nats.Options) error {
			if !strings.HasSuffix(o.Name, " "+purpose) {
				return nil
			}
			o.Servers, o.NoRandomize, o.IgnoreDiscoveredServers = nil, true, true
			for _, proxy := range proxies {
				o.Servers = append(o.Servers, proxy.URL())
			}
			return nil
		})
	}
}

func busTokens(_ int, text string, _ bool) ([]int32, error) {
	tokens := make([]int32, len(text))
	for i := range len(text) {
		tokens[i] = 3 + int32(text[i])
	}
	return tokens, nil
}

// busWord spells a token.
func busWord(dst []byte, token int32) ([]byte, error) { return fmt.Appendf(dst, "<%d>", token), nil }

func busRequest(session string, turn, prompt, newTokens int) client.Request {
	return client.Request{Tenant: "t", Session: session, Turn: uint64(turn), Model: busModel.String(), Prompt: fmt.Sprintf("once upon a time %d", prompt*prompt),
		MaxNewTokens: newTokens, Deadline: time.Minute, RetryQuota: true}
}

func busID(r client.Request) schemas.TurnID {
	return schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant(r.Tenant)), Session: schemas.Must(schemas.ParseSession(r.Session)), Turn: schemas.Turn(r.Turn)}
}

// undisturbed is the text that a request yields when it runs alone, without a bus.
func undisturbed(t *testing.T, r client.Request) string {
	t.Helper()
	engine, err := goengine.New(goengine.Config{EOGBias: -1000, Seed: 1, Exact: true})
	if err != nil {
		t.Fatal(err)
	}
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	prompt, _ := busTokens(0, r.Prompt, false) // it has no errors
	if d := sched.Submit(scheduler.Request{Tenant: "t", Session: "s", Turn: 1, Prompt: prompt, MaxNewTokens: r.MaxNewTokens, Sampling: scheduler.DefaultSampling()}); d.Rejected() {
		t.Fatal(d)
	}
	endings, err := sched.RunToCompletion(0)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, token := range endings[0].Tokens {
		fmt.Fprintf(&text, "<%d>", token)
	}
	return text.String()
}

// client connects one for as long as the test runs.
func (b *bus) client(url string, options ...nats.Option) *client.Client {
	b.t.Helper()
	log := &bytes.Buffer{}
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("log of a client:\n%s", log)
		}
	})
	conn := natsservertest.Connect(b.t, url, append([]nats.Option{nats.ReconnectBufSize(-1)}, options...)...)
	c, err := client.New(conn, client.WithLog(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	b.check(err)
	b.t.Cleanup(c.Close)
	return c
}

// load is many turns by several clients at once.
type load struct {
	b     *bus
	ended chan struct{} // has a value for each turn that ended
	done  chan struct{} // closed when no client submits any more

	mu     sync.Mutex // guards what follows
	least  int        // turns
	asked  int
	closed bool // no turns beyond least
	finals map[schemas.TurnID]schemas.Final
}

const (
	loadClients = 6
	loadPrompts = 10 // different ones
	loadTokens  = 100
	loadStep    = 3 * time.Millisecond // a turn takes a third of a second
)

// load submits turns, at least as many as asked for and until finish is called, each by a client when its last one
// has ended. It compares each text with the undisturbed one.
func (b *bus) load(least int) *load {
	b.t.Helper()
	l := &load{b: b, least: least, ended: make(chan struct{}, 1<<16), done: make(chan struct{}), finals: map[schemas.TurnID]schemas.Final{}}
	var texts []string
	for i := range loadPrompts {
		texts = append(texts, undisturbed(b.t, busRequest("s", 1, i, loadTokens)))
	}
	var clients sync.WaitGroup
	for i := range loadClients {
		c := b.client(b.url)
		clients.Go(func() {
			for n := l.next(); n > 0; n = l.next() {
				l.run(c, busRequest(fmt.Sprint("client", i), n, n%loadPrompts, loadTokens), texts[n%loadPrompts])
			}
		})
	}
	go func() {
		clients.Wait()
		close(l.done)
	}()
	b.t.Cleanup(l.finish)
	return l
}

// next is the number of a turn to be submitted; 0 is none.
func (l *load) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && l.asked >= l.least || l.b.ctx.Err() != nil {
		return 0
	}
	l.asked++
	return l.asked
}

func (l *load) run(c *client.Client, req client.Request, want string) {
	stream, err := c.Generate(l.b.ctx, req)
	var result *client.Result
	if err == nil {
		result, err = stream.Wait()
	}
	switch {
	case err != nil:
		l.b.t.Errorf("turn %s: %v", busID(req), err)
		l.b.describe(busID(req))
	case result.Text != want:
		l.b.t.Errorf("turn %s, attempt %d: %.100q, undisturbed %.100q", busID(req), result.Final.Attempt, result.Text, want)
	default:
		l.mu.Lock()
		l.finals[busID(req)] = result.Final
		l.mu.Unlock()
	}
	l.ended <- struct{}{}
}

// await waits until so many more turns have ended.
func (l *load) await(n int) {
	l.b.t.Helper()
	for len(l.ended) > 0 {
		<-l.ended
	}
	for range n {
		select {
		case <-l.ended:
		case <-l.b.ctx.Done():
			l.b.t.Fatal("no turn ends any more")
		}
	}
}

// finish waits until all turns that must be have ended.
func (l *load) finish() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	<-l.done
}

// loadSize is how many turns a test of the bus runs at least, and during how many faults.
func loadSize() (turns, faults int) {
	const few = 60
	if n, err := strconv.Atoi(os.Getenv(chaosTurnsEnv)); err == nil {
		return n, max(1, n/few)
	}
	return few, 1
}

// settled checks that every turn has one work record and one final, the one that its client has, and that nothing is left of
// them: no request, no unanswered delivery, no consumer beside those that are to be, no session, no slot.
func (b *bus) settled(finals map[schemas.TurnID]schemas.Final) {
	b.t.Helper()
	requests, err := b.js.Stream(b.ctx, busPrefix.RequestStream())
	b.check(err)
	awaitEmpty(b.ctx, b.t, b.js, requests)
	works := worksOf(b.ctx, b.t, b.js)
	said := finalsOf(b.ctx, b.t, b.js)
	turns, err := b.js.KeyValue(b.ctx, busPrefix.TurnBucket())
	b.check(err)
	for id, final := range finals {
		if works[id] != 1 {
			b.t.Errorf("turn %s has %d work records, not 1", id, works[id])
		}
		want, err := schemas.Encode(&final)
		b.check(err)
		entry, err := turns.Get(b.ctx, id.Key())
		b.check(err)
		record, err := schemas.Decode[schemas.LedgerRecord](entry.Value())
		b.check(err)
		if record.Done == nil || !bytes.Equal(record.Done.Final, want) {
			b.t.Errorf("turn %s: the client's final is %+v, the ledger says %+v", id, final, record)
		}
		for data := range said[busPrefix.Tokens(id)] { // those that the memory store still has
			if data != string(want) {
				b.t.Errorf("turn %s has another final than the one its client has, %+v", id, final)
			}
		}
	}
	if len(works) != len(finals) {
		b.t.Errorf("%d turns have a work record; there were %d", len(works), len(finals))
	}
	b.consumersOnly(requests)
	for _, w := range b.workers {
		b.poll("worker "+w.id.String()+" has nothing left", func() bool { return b.idle(w) })
	}
}

// consumersOnly checks that the requests have the shared consumer and one for each node, and that none waits for an ack.
func (b *bus) consumersOnly(requests jetstream.Stream) {
	b.t.Helper()
	want := []string{schemas.SharedConsumer(busModel)}
	for _, w := range b.workers {
		want = append(want, schemas.OwnConsumer(w.id))
	}
	var got []string
	list := requests.ListConsumers(b.ctx)
	for info := range list.Info() {
		got = append(got, info.Name)
		if info.NumAckPending != 0 || info.NumPending != 0 {
			b.t.Errorf("consumer %s: %d acks pending, %d requests", info.Name, info.NumAckPending, info.NumPending)
		}
	}
	b.check(list.Err())
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(slices.Compact(want), got) {
		b.t.Errorf("consumers are %v, not %v", got, want)
	}
}

// idle says whether a worker holds nothing and could take as much as when it began.
func (b *bus) idle(w *busWorker) bool {
	msg, err := b.conn.RequestWithContext(b.ctx, busPrefix.Node(w.id, schemas.VerbStatus), nil)
	b.check(err)
	reply, err := schemas.Decode[schemas.NodeReply](msg.Data)
	b.check(err)
	t := reply.Advertisement.Telemetry
	return t.ActiveSessions == 0 && t.QueueDepth == 0 && t.KVReservedBytes == 0 && t.FreeSlots == t.MaxActiveSessions && w.engine.KVBytes() == 0
}

// describe logs what is stored of a turn's events.
func (b *bus) describe(id schemas.TurnID) {
	stream, err := b.js.Stream(b.ctx, busPrefix.EventStream())
	if err != nil {
		b.t.Error(err)
		return
	}
	var story strings.Builder
	for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(b.ctx, seq)
		if err != nil || msg.Subject != busPrefix.Tokens(id) {
			continue
		}
		event, err := schemas.DecodeEvent(msg.Data)
		if err != nil {
			b.t.Error(err)
			continue
		}
		fmt.Fprintf(&story, "\n%d %s %s/%d", seq, msg.Time.Format(time.TimeOnly), event.EventKind(), event.EventAttempt())
		if t, ok := event.(*schemas.Tokens); ok {
			fmt.Fprintf(&story, " %d+%d", t.Index, len(t.TokenIDs))
		}
	}
	b.t.Logf("stored of turn %s:%s", id, story.String())
}
