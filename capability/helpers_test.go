package capability_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	mesh  schemas.Prefix
	quiet = slog.New(slog.DiscardHandler)
)

func nodeName(s string) schemas.Node { return schemas.Must(schemas.ParseNode(s)) }

// ad is a valid advertisement of a ready node.
func ad(node, boot string) *schemas.Advertisement {
	return capability.Snapshot(&capability.Identity{
		Node: nodeName(node), Boot: schemas.Must(schemas.ParseBoot(boot)), Version: "1.2.3",
		Model: schemas.Must(schemas.ParseModel("stories")), Architecture: "llama", Quantisation: "Q8_0", FlashAttention: "on",
	}, &capability.Moment{
		State:             schemas.NodeReady,
		Facts:             scheduler.Facts{Slots: 4, ContextTokens: 512, VocabTokens: 1000, Head: true, Tail: true, Trim: scheduler.TrimAny},
		MaxActiveSessions: 4, FreeSlots: 4, MaxQueueDepth: 8,
	})
}

var waitCtx = natsservertest.Context

// bed is a server with one connection and the bucket of live nodes.
type bed struct {
	server *natsserver.Server
	conn   *nats.Conn
	js     jetstream.JetStream
	kv     jetstream.KeyValue
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{server: natsservertest.Start(t, natsserver.Options{})}
	b.connect(t)
	b.makeBucket(t)
	return b
}

func (b *bed) connect(t testing.TB) {
	t.Helper()
	b.conn = natsservertest.Connect(t, b.server.ClientURL(), nats.ReconnectBufSize(-1))
	b.js = natsservertest.JetStream(t, b.conn)
}

func (b *bed) makeBucket(t testing.TB) {
	t.Helper()
	kv, err := b.js.CreateKeyValue(waitCtx(t), jetstream.KeyValueConfig{
		Bucket: mesh.NodeBucket(), History: 1, TTL: capability.Silence, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	b.kv = kv
}

// restart loses what is kept in memory, and returns once the connection is there again.
func (b *bed) restart(t testing.TB) {
	t.Helper()
	status := b.conn.StatusChanged(nats.CONNECTED)
	defer b.conn.RemoveStatusListener(status)
	if err := b.server.Restart(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-status:
	case <-waitCtx(t).Done():
		t.Fatal("the connection does not come back")
	}
}

// publish publishes an advertisement as its node would.
func (b *bed) publish(t testing.TB, a *schemas.Advertisement) {
	t.Helper()
	payload, err := schemas.Encode(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.conn.Publish(mesh.Capability(a.Node), payload); err != nil {
		t.Fatal(err)
	}
}

// put keeps an advertisement as its node would.
func (b *bed) put(t testing.TB, a *schemas.Advertisement) {
	t.Helper()
	payload, err := schemas.Encode(a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.kv.Put(waitCtx(t), a.Node.String(), payload); err != nil {
		t.Fatal(err)
	}
}

func start(t testing.TB, p part.Part) {
	t.Helper()
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	if err := part.Ready(waitCtx(t), p); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until changes make a claim true.
func eventually(t testing.TB, r *capability.Registry, claim string, holds func() bool) {
	t.Helper()
	changes, stop := r.Changes()
	defer stop()
	ctx := waitCtx(t)
	tick := time.NewTicker(10 * time.Millisecond) // for what is no change of the nodes
	defer tick.Stop()
	for !holds() {
		select {
		case <-changes:
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: never; nodes are %s", claim, names(r))
		}
	}
}

func names(r *capability.Registry) (s string) {
	for _, e := range r.Nodes() {
		s += fmt.Sprintf("%s/%s ", e.Ad.Node, e.Ad.Boot)
	}
	return s
}

// apart is a bed whose server runs in a process of its own, so that its goroutines are not taken for ours. The
// connection has its own by the time this returns.
func apart(t *testing.T) *bed {
	t.Helper()
	server := natsservertest.StartProcess(t, natsserver.Options{})
	b := &bed{conn: natsservertest.Connect(t, server.URL())}
	b.js = natsservertest.JetStream(t, b.conn)
	if _, err := b.js.AccountInfo(waitCtx(t)); err != nil {
		t.Fatal(err)
	}
	return b
}
