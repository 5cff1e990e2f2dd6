package integration

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
)

const (
	hostileRounds = 10
	hostileHeap   = 1 << 20  // bytes that all of it may leave on the worker's heap
	hostilePeak   = 64 << 20 // and by which its resident set may grow meanwhile; one payload claims 2 GiB
)

// hostile are payloads that are no message, and that make a careless decoder allocate or recurse without bound.
func hostile(largest int) map[string][]byte {
	nils := bytes.Repeat([]byte{0xc0}, largest)
	copy(nils, []byte{0xdd, byte((largest - 5) >> 24), byte((largest - 5) >> 16), byte((largest - 5) >> 8), byte(largest - 5)})
	return map[string][]byte{
		"nothing":                 {},
		"map32 of 4 G entries":    {0xdf, 0xff, 0xff, 0xff, 0xff},
		"array32 of 4 G elements": {0xdd, 0xff, 0xff, 0xff, 0xff},
		"bin32 of 2 GiB":          {0xc6, 0x80, 0, 0, 0},
		"str32 of 4 GiB":          {0xdb, 0xff, 0xff, 0xff, 0xff, 'x'},
		"ext32 of 4 GiB":          {0xc9, 0xff, 0xff, 0xff, 0xff, 1},
		"nested arrays":           bytes.Repeat([]byte{0x91}, largest),
		"nested maps":             bytes.Repeat([]byte{0x81, 0xa1, 'k'}, largest/3),
		"an array of nils":        nils,
		"trailing bytes":          {0x80, 0xc0},
		"no map":                  {0x93, 1, 2, 3},
		"a wrong type":            {0x81, 0xa7, 's', 'e', 's', 's', 'i', 'o', 'n', 0x01},
	}
}

// hostileSessions are what no session may be called: most of them mean something in a subject.
var hostileSessions = []any{"", ".", "a.b", "*", ">", "a b", "a\nb", "a\r\nPUB x 0\r\n", "a\x00b", strings.Repeat("x", 5000), "ü", 7, nil, []string{"s"}}

func hostileRequest(t *testing.T, session any) []byte {
	t.Helper()
	data, err := msgpack.Marshal(map[string]any{"v": 1, "tenant": "t", "session": session, "turn": 1, "model": "m", "nonce": "n", "prompt": "once", "max_new_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// N9 and N10: what is no message is refused within bounds, and nobody else's turn is touched.
func TestHostilePayloadsAreRefusedAndLeaveTheWorkerWell(t *testing.T) {
	server := natsservertest.StartProcess(t, natsserver.Options{})
	w, err := startToy(toyOptions{URL: server.URL(), Node: "a", Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	h := newHostility(t, server.URL())
	c := meshClient(t, server.URL())
	held := poisonRequest("held", "once "+toyHold)
	stream, err := c.Generate(h.ctx, held)
	if err != nil {
		t.Fatal(err)
	}
	q := &queue{t: t, ctx: h.ctx, js: h.js}
	q.awaitRecord("t.held.1", func(*schemas.LedgerRecord) bool { return true })
	h.sendAll() // so that what is made once is there
	heap, peak := w.memory(t)
	for range hostileRounds {
		h.sendAll()
	}
	after, highest := w.memory(t)
	t.Logf("%d payloads; heap %d bytes before and %d after; peak of the resident set %d before and %d after", h.sent, heap, after, peak, highest)
	if after-heap > hostileHeap || highest-peak > hostilePeak {
		t.Errorf("the heap grew by %d bytes and the peak of the resident set by %d", after-heap, highest-peak)
	}
	w.ask(t, toyRelease)
	result, err := stream.Wait()
	if want := toyUndisturbed(t, held.Prompt, poisonTokens); err != nil || result.Text != want {
		t.Errorf("the turn that ran meanwhile: %v, %.100q; undisturbed %.100q", err, result.Text, want)
	}
	h.checkHeaders(c)
	stores := readStores(t, server.URL())
	if got := slices.Sorted(maps.Keys(stores.finals)); !slices.Equal(got, []string{"t.headers.1", "t.held.1"}) {
		t.Errorf("finals of the turns %v", got)
	}
}

// hostility sends what nobody should.
type hostility struct {
	t    *testing.T
	ctx  context.Context
	nc   *nats.Conn
	js   jetstream.JetStream
	bad  map[string][]byte
	sent int
}

func newHostility(t *testing.T, url string) *hostility {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	nc := natsservertest.Connect(t, url)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	bad := hostile(int(nc.MaxPayload()) / 2)
	for _, session := range hostileSessions {
		data := hostileRequest(t, session)
		bad[string(data)] = data
	}
	return &hostility{t: t, ctx: ctx, nc: nc, js: js, bad: bad}
}

// sendAll sends every payload to everything that a worker listens to, and waits until it has dealt with them.
func (h *hostility) sendAll() {
	h.t.Helper()
	var prefix schemas.Prefix
	ghost := schemas.Must(schemas.ParseNode("ghost"))
	held := schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant("t")), Session: schemas.Must(schemas.ParseSession("held")), Turn: 1}
	nodes, err := h.js.KeyValue(h.ctx, prefix.NodeBucket())
	if err != nil {
		h.t.Fatal(err)
	}
	for name, data := range h.bad {
		for _, subject := range []string{"mesh.v1.req.m.any.t", "mesh.v1.req.m.a.t", "mesh.v1.req.m.any.ü", "mesh.v1.req.m.any." + strings.Repeat("x", 65)} {
			h.publishRequest(subject, data)
		}
		for _, subject := range []string{prefix.Control(held), prefix.Capability(ghost)} {
			if err := h.nc.Publish(subject, data); err != nil {
				h.t.Fatal(err)
			}
		}
		if _, err := nodes.Put(h.ctx, ghost.String(), data); err != nil {
			h.t.Fatal(err)
		}
		if reply := h.ask(prefix.Turn(held.Tenant), data); reply.Error == nil || reply.Error.Reason != schemas.RejectedInvalid || reply.Error.Message == "" {
			h.t.Errorf("%.40q: a question of it is answered %+v, %v", name, reply, reply.Error)
		}
		h.sent += 8
	}
	requests, err := h.js.Stream(h.ctx, prefix.RequestStream())
	if err != nil {
		h.t.Fatal(err)
	}
	for tick := time.Tick(10 * time.Millisecond); ; <-tick {
		info, err := requests.Info(h.ctx)
		if err != nil {
			h.t.Fatal(err)
		}
		if info.State.Msgs == 1 { // the one that is held
			return
		}
	}
}

// publishRequest publishes into the stream of requests, which may refuse what is too large for it.
func (h *hostility) publishRequest(subject string, data []byte) {
	h.t.Helper()
	_, err := h.js.Publish(h.ctx, subject, data)
	var api *jetstream.APIError
	if err != nil && (!errors.As(err, &api) || api.ErrorCode != jetstream.JSErrCodeStreamMessageExceedsMaximum) {
		h.t.Fatal(err)
	}
}

func (h *hostility) ask(subject string, data []byte) *schemas.TurnReply {
	h.t.Helper()
	msg, err := h.nc.RequestWithContext(h.ctx, subject, data)
	if err != nil {
		h.t.Fatal(err)
	}
	reply, err := schemas.Decode[schemas.TurnReply](msg.Data)
	if err != nil {
		h.t.Fatal(err)
	}
	return reply
}

// checkHeaders sends a valid request whose route is not: it is refused with the header's name.
func (h *hostility) checkHeaders(c *client.Client) {
	h.t.Helper()
	prompt := "once"
	req := &schemas.Request{Tenant: schemas.Must(schemas.ParseTenant("t")), Session: schemas.Must(schemas.ParseSession("headers")), Turn: 1,
		Model: schemas.Must(schemas.ParseModel("m")), Nonce: schemas.Must(schemas.ParseNonce("n")), Prompt: &prompt, MaxNewTokens: 1}
	data, err := schemas.Encode(req)
	if err != nil {
		h.t.Fatal(err)
	}
	header := nats.Header{schemas.HeaderFrom: {strings.Repeat("9,", 4000)}, schemas.HeaderHops: {"-1"}, schemas.HeaderBorn: {"1e300"}}
	if _, err := h.js.PublishMsg(h.ctx, &nats.Msg{Subject: "mesh.v1.req.m.any.t", Header: header, Data: data}); err != nil {
		h.t.Fatal(err)
	}
	q := &queue{t: h.t, ctx: h.ctx, js: h.js}
	q.awaitRecord("t.headers.1", func(rec *schemas.LedgerRecord) bool { return rec.Done != nil })
	standing, err := c.Status(h.ctx, "t", "headers", 1)
	if err != nil || standing.Final == nil || standing.Final.Error == nil {
		h.t.Fatalf("%+v, %v", standing, err)
	}
	if e := standing.Final.Error; standing.Final.Reason != schemas.Rejected || e.Reason != schemas.RejectedInvalid || e.Field != schemas.HeaderFrom {
		h.t.Errorf("ended %s, %+v", standing.Final.Reason, e)
	}
}
