// Package deploy_test checks what is deployed: that the permission sets let through what a mesh needs and nothing
// else, and that the compose file, the dashboard and the alert rules fit together.
package deploy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const permissions = "nats/permissions.conf"

// The users of the permission sets.
const (
	worker   = "worker"
	operator = "operator"
	acme     = "acme"
	globex   = "globex"
)

// mesh is a server with the permission sets and the mesh's stores.
type mesh struct {
	t   *testing.T
	url string
}

func startMesh(t *testing.T) *mesh {
	t.Helper()
	for _, user := range []string{worker, operator, acme, globex} {
		t.Setenv("MESH_"+strings.ToUpper(user)+"_PASSWORD", password(user))
	}
	file, err := filepath.Abs(permissions)
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{t: t, url: natsservertest.Start(t, natsserver.Options{ConfigFile: file}).ClientURL()}
	m.provision(m.jetStream(m.connect(worker)))
	return m
}

func password(user string) string { return user + "-secret" }

// connect connects a user as its client would: a tenant with an inbox prefix of its own.
func (m *mesh) connect(user string) *nats.Conn {
	m.t.Helper()
	options := []nats.Option{nats.UserInfo(user, password(user))}
	if user != worker && user != operator {
		options = append(options, nats.CustomInboxPrefix("_INBOX_"+user))
	}
	return natsservertest.Connect(m.t, m.url, options...)
}

func (m *mesh) jetStream(conn *nats.Conn) jetstream.JetStream {
	m.t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		m.t.Fatal(err)
	}
	return js
}

func (m *mesh) ctx() context.Context {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Second)
	m.t.Cleanup(cancel)
	return ctx
}

// provision makes the stores, as a worker does.
func (m *mesh) provision(js jetstream.JetStream) {
	m.t.Helper()
	for _, config := range []jetstream.StreamConfig{
		{Name: p.RequestStream(), Subjects: []string{p.Requests()}, Retention: jetstream.WorkQueuePolicy},
		{Name: p.EventStream(), Subjects: []string{p.Events()}, Storage: jetstream.MemoryStorage, AllowDirect: true},
		{Name: p.WorkStream(), Subjects: []string{p.WorkRecords()}},
	} {
		if _, err := js.CreateStream(m.ctx(), config); err != nil {
			m.t.Fatalf("a worker makes %s: %v", config.Name, err)
		}
	}
	for _, config := range []jetstream.KeyValueConfig{
		{Bucket: p.TurnBucket(), TTL: 24 * time.Hour},
		{Bucket: p.NodeBucket(), TTL: 15 * time.Second, Storage: jetstream.MemoryStorage},
	} {
		if _, err := js.CreateKeyValue(m.ctx(), config); err != nil {
			m.t.Fatalf("a worker makes %s: %v", config.Bucket, err)
		}
	}
}

// denied is whether the server refused something that a connection did up to now.
func denied(t *testing.T, conn *nats.Conn) bool {
	t.Helper()
	if err := conn.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	return errors.Is(conn.LastError(), nats.ErrPermissionViolation)
}

func id(tenant, session string, turn schemas.Turn) schemas.TurnID {
	return schemas.TurnID{
		Tenant:  schemas.Must(schemas.ParseTenant(tenant)),
		Session: schemas.Must(schemas.ParseSession(session)),
		Turn:    turn,
	}
}

var (
	model = schemas.Must(schemas.ParseModel("story"))
	node1 = schemas.Must(schemas.ParseNode("n1"))
)

// claim is one thing that a user tries, and whether it may.
type claim struct {
	name    string
	user    string
	subject string
	may     bool
}

// The turns and stores that are tried.
var (
	p           schemas.Prefix // the default one, which the permission sets are written for
	own, others = id(acme, "s1", 7), id(globex, "s1", 7)
)

// shared is where a tenant's requests wait for any worker.
func shared(tenant string) string {
	return p.Request(model, schemas.AnyLane, id(tenant, "s", 0).Tenant)
}

var publishing = []claim{
	{"a tenant submits its own request", acme, shared(acme), true},
	{"a tenant submits to the node that keeps its session", acme, p.Request(model, schemas.NodeLane(node1), own.Tenant), true},
	{"a tenant submits no other tenant's request", acme, shared(globex), false},
	{"a tenant sends heartbeats of its own turn", acme, p.Control(own), true},
	{"a tenant sends none of another's", acme, p.Control(others), false},
	{"a tenant asks about its own turns", acme, p.Turn(own.Tenant), true},
	{"a tenant asks about and cancels no other's", acme, p.Turn(others.Tenant), false},
	{"a tenant forges no event of its own", acme, p.Tokens(own), false},
	{"a tenant forges no event of another's", acme, p.Tokens(others), false},
	{"a tenant forges no work record", acme, p.Work(own, node1), false},
	{"a tenant forges no advertisement", acme, p.Capability(node1), false},
	{"a tenant forges no liveness", acme, "$KV.MESH_NODES.n1", false},
	{"a tenant writes nothing into the ledger", acme, "$KV.MESH_TURNS." + own.Key(), false},
	{"a tenant reads nothing of the ledger", acme, "$JS.API.DIRECT.GET.KV_MESH_TURNS.$KV.MESH_TURNS." + others.Key(), false},
	{"a tenant drains no node", acme, p.Node(node1, schemas.VerbDrain), false},
	{"a tenant asks no node for its sessions", acme, p.Node(node1, schemas.VerbSessions), false},
	{"a tenant reads no request in the stream", acme, "$JS.API.STREAM.MSG.GET.MESH_REQ", false},
	{"a tenant deletes no request", acme, "$JS.API.STREAM.MSG.DELETE.MESH_REQ", false},
	{"a tenant fetches no request", acme, "$JS.API.CONSUMER.MSG.NEXT.MESH_REQ." + schemas.SharedConsumer(model), false},
	{"a tenant makes no consumer of requests", acme, "$JS.API.CONSUMER.CREATE.MESH_REQ.x." + shared(acme), false},
	{"a tenant acks no request", acme, "$JS.ACK.MESH_REQ.req-story.1.1.1.1.0", false},
	{"a tenant reads no event by its sequence", acme, "$JS.API.DIRECT.GET.MESH_TOK", false},
	{"a tenant reads no event by its sequence from the leader", acme, "$JS.API.STREAM.MSG.GET.MESH_TOK", false},
	{"a tenant reads the last event of its own turn", acme, "$JS.API.DIRECT.GET.MESH_TOK." + p.Tokens(own), true},
	{"a tenant reads no last event of another's", acme, "$JS.API.DIRECT.GET.MESH_TOK." + p.Tokens(others), false},
	{"a tenant makes a consumer of its own events", acme, "$JS.API.CONSUMER.CREATE.MESH_TOK.x." + p.Tokens(own), true},
	{"a tenant makes no consumer of another's events", acme, "$JS.API.CONSUMER.CREATE.MESH_TOK.x." + p.Tokens(others), false},
	{"a tenant makes no consumer of all events", acme, "$JS.API.CONSUMER.CREATE.MESH_TOK.x", false},
	{"a tenant makes no consumer the old way", acme, "$JS.API.CONSUMER.DURABLE.CREATE.MESH_TOK.x", false},
	{"a tenant makes no nameless consumer", acme, "$JS.API.CONSUMER.CREATE.MESH_TOK", false},
	{"a tenant lists no consumers", acme, "$JS.API.CONSUMER.NAMES.MESH_TOK", false},
	{"a tenant learns no subjects of the events", acme, "$JS.API.STREAM.INFO.MESH_TOK", false},
	{"a tenant deletes no stream", acme, "$JS.API.STREAM.DELETE.MESH_TOK", false},
	{"a tenant purges no stream", acme, "$JS.API.STREAM.PURGE.MESH_REQ", false},
	{"a tenant makes no stream", acme, "$JS.API.STREAM.CREATE.OTHER", false},
	{"a tenant answers nobody", acme, "_INBOX_globex.x", false},

	{"a worker reads work records", worker, "$JS.API.STREAM.MSG.GET.MESH_WORK", true},
	{"a worker moves any tenant's request", worker, shared(globex), true},
	{"a worker publishes events", worker, p.Tokens(own), true},
	{"a worker publishes work records", worker, p.Work(own, node1), true},
	{"a worker advertises", worker, p.Capability(node1), true},
	{"a worker pokes", worker, p.Control(own), true},
	{"a worker fetches requests", worker, "$JS.API.CONSUMER.MSG.NEXT.MESH_REQ.x", true},
	{"a worker deletes the consumer of a node that is gone", worker, "$JS.API.CONSUMER.DELETE.MESH_REQ." + schemas.OwnConsumer(node1), true},
	{"a worker asks whether a node's name is free", worker, p.Node(node1, schemas.VerbStatus), true},
	{"a worker drains no other node", worker, p.Node(node1, schemas.VerbDrain), false},
	{"a worker cancels in nobody's name", worker, p.Turn(own.Tenant), false},
	{"a worker changes no stream", worker, "$JS.API.STREAM.UPDATE.MESH_REQ", false},
	{"a worker deletes no stream", worker, "$JS.API.STREAM.DELETE.MESH_REQ", false},
	{"a worker purges no stream", worker, "$JS.API.STREAM.PURGE.MESH_TOK", false},
	{"a worker reads requests", worker, "$JS.API.STREAM.MSG.GET.MESH_REQ", true},
	{"a worker deletes requests", worker, "$JS.API.STREAM.MSG.DELETE.MESH_REQ", true},
	{"a worker deletes no work record", worker, "$JS.API.STREAM.MSG.DELETE.MESH_WORK", false},
	{"a worker deletes no event", worker, "$JS.API.STREAM.MSG.DELETE.MESH_TOK", false},
	{"a worker makes no store of another kind", worker, "$JS.API.STREAM.CREATE.OTHER", false},
	{"a worker deletes no work record's consumer", worker, "$JS.API.CONSUMER.DELETE.MESH_WORK.accounting", false},
	{"a worker acks for no accounting", worker, "$JS.ACK.MESH_WORK.accounting.1.1.1.1.0", false},
	{"a worker answers only who asked", worker, "_INBOX_acme.x", false},
	{"a worker publishes nothing else", worker, "anything", false},

	{"an operator drains a node", operator, p.Node(node1, schemas.VerbDrain), true},
	{"an operator cancels any tenant's turn", operator, p.Turn(own.Tenant), true},
	{"an operator acks work records", operator, "$JS.ACK.MESH_WORK.accounting.1.1.1.1.0", true},
	{"an operator acks no request", operator, "$JS.ACK.MESH_REQ.req-story.1.1.1.1.0", false},
	{"an operator submits in no tenant's name", operator, shared(acme), false},
	{"an operator forges no event", operator, p.Tokens(own), false},
	{"an operator forges no work record", operator, p.Work(own, node1), false},
	{"an operator writes nothing into the ledger", operator, "$KV.MESH_TURNS." + own.Key(), false},
}

func TestPublishPermissions(t *testing.T) {
	m := startMesh(t)
	for _, c := range publishing {
		t.Run(c.name, func(t *testing.T) {
			conn := m.connect(c.user)
			if err := conn.Publish(c.subject, nil); err != nil {
				t.Fatal(err)
			}
			if may := !denied(t, conn); may != c.may {
				t.Errorf("%s may publish on %s: %v, want %v", c.user, c.subject, may, c.may)
			}
		})
	}
}

func TestSubscribePermissions(t *testing.T) {
	m := startMesh(t)
	for _, c := range []claim{
		{"a tenant reads the events of its own turn", acme, p.Tokens(own), true},
		{"a tenant reads no other's", acme, p.Tokens(others), false},
		{"a tenant reads not everybody's events", acme, p.Events(), false},
		{"a tenant reads not everything", acme, ">", false},
		{"a tenant reads advertisements", acme, p.Capabilities(), true},
		{"a tenant reads its own inbox", acme, "_INBOX_acme.x", true},
		{"a tenant reads no other tenant's inbox", acme, "_INBOX_globex.>", false},
		{"a tenant reads no worker's inbox", acme, "_INBOX.>", false},
		{"a tenant reads no requests", acme, p.Requests(), false},
		{"a tenant sees no cancels, not even its own", acme, p.Turn(own.Tenant), false},
		{"a tenant reads no work records", acme, p.WorkRecords(), false},
		{"a tenant watches no ledger", acme, "$KV.MESH_TURNS.>", false},
		{"a tenant sees no JetStream events, which name consumers", acme, "$JS.EVENT.>", false},

		{"a worker answers turn requests", worker, p.Turns(), true},
		{"a worker hears what is for a turn", worker, p.Control(own), true},
		{"a worker answers operators", worker, p.Node(node1, schemas.VerbStatus), true},
		{"a worker can be discovered", worker, "$SRV.PING.mesh", true},
		{"a worker reads no tenant's inbox", worker, "_INBOX_acme.>", false},
		{"a worker hears what comes into its own lane", worker, p.Own(node1), true},

		{"an operator sees every event", operator, p.Events(), true},
		{"an operator sees work records", operator, p.WorkRecords(), true},
		{"an operator sees JetStream's events", operator, "$JS.EVENT.>", true},
		{"an operator reads no tenant's inbox", operator, "_INBOX_acme.>", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := m.connect(c.user)
			if _, err := conn.SubscribeSync(c.subject); err != nil {
				t.Fatal(err)
			}
			if may := !denied(t, conn); may != c.may {
				t.Errorf("%s may subscribe to %s: %v, want %v", c.user, c.subject, may, c.may)
			}
		})
	}
}

func TestNobodyConnectsWithoutAPassword(t *testing.T) {
	m := startMesh(t)
	for _, options := range [][]nats.Option{nil, {nats.UserInfo(acme, "wrong")}, {nats.UserInfo("nobody", "")}} {
		if conn, err := nats.Connect(m.url, options...); !errors.Is(err, nats.ErrAuthorization) {
			conn.Close()
			t.Errorf("connecting with %d options: %v, want %v", len(options), err, nats.ErrAuthorization)
		}
	}
}

func TestTenantBlocksDifferOnlyInTheName(t *testing.T) {
	text, err := os.ReadFile(permissions)
	if err != nil {
		t.Fatal(err)
	}
	block := func(tenant string) string {
		match := regexp.MustCompile(`(?s)\n    \{\n      user: ` + tenant + `\n.*?\n    \}\n`).Find(text)
		if match == nil {
			t.Fatalf("there is no block of %s", tenant)
		}
		renamed := strings.ReplaceAll(string(match), tenant, "TENANT")
		return strings.ReplaceAll(renamed, strings.ToUpper(tenant), "TENANT")
	}
	if block(acme) != block(globex) {
		t.Error("the blocks of acme and globex differ in more than the name, so that copying one is not enough")
	}
}
