package schemas_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meshnet/node/schemas"
)

// badNames are what NATS would read as several subjects, as a wildcard or not at all.
var badNames = []string{"", ".", "a.b", "*", "a*", ">", "a>", " ", "a b", "a\n", "\r", "a\x00", "\t", "ü", "a/b", "$a", "\xff",
	strings.Repeat("x", 65), strings.Repeat("x", 5000)}

func TestNamesThatWouldChangeASubjectAreRefused(t *testing.T) {
	parsers := map[string]func(string) error{
		"tenant":  func(s string) error { _, err := schemas.ParseTenant(s); return err },
		"session": func(s string) error { _, err := schemas.ParseSession(s); return err },
		"node":    func(s string) error { _, err := schemas.ParseNode(s); return err },
		"model":   func(s string) error { _, err := schemas.ParseModel(s); return err },
		"boot":    func(s string) error { _, err := schemas.ParseBoot(s); return err },
		"nonce":   func(s string) error { _, err := schemas.ParseNonce(s); return err },
		"lane":    func(s string) error { _, err := schemas.ParseLane(s); return err },
	}
	for field, parse := range parsers {
		for _, bad := range badNames {
			err := parse(bad)
			wantField(t, field+" "+bad[:min(len(bad), 10)], err, field)
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("%s: an error of %d bytes repeats what it refuses", field, len(err.Error()))
			}
		}
		for _, good := range []string{"a", "-", "_", "A-z_0", strings.Repeat("x", 64), "ANY", "any1"} {
			if err := parse(good); err != nil {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	_, err := schemas.ParseNode("any")
	wantField(t, "any", err, "node")
	if _, err := schemas.ParseTenant("any"); err != nil {
		t.Errorf("a tenant may be named any: %v", err)
	}
}

func TestBadNamesInAMessageAreRefused(t *testing.T) {
	for name, c := range codecs() {
		sample := asMap(t, c.samples[0])
		for _, field := range []string{"tenant", "session", "node", "model", "boot", "nonce"} {
			if _, isName := sample[field].(string); !isName {
				continue
			}
			for _, bad := range badNames {
				m := asMap(t, c.samples[0])
				m[field] = bad
				_, err := c.decode(pack(t, m))
				wantReject(t, name+" "+field, err, schemas.RejectInvalid)
				wantField(t, name, err, field)
			}
		}
	}
}

func TestTurnsHaveOneSpelling(t *testing.T) {
	for _, good := range []string{"0", "1", "10", "18446744073709551615"} {
		if turn, err := schemas.ParseTurn(good); err != nil || turn.String() != good {
			t.Errorf("ParseTurn(%q) = %v, %v", good, turn, err)
		}
	}
	for _, bad := range []string{"", "00", "01", "+1", "-1", " 1", "1 ", "1_0", "0x1", "1.0", "1e3", "18446744073709551616", "١", strings.Repeat("1", 5000)} {
		_, err := schemas.ParseTurn(bad)
		wantField(t, bad[:min(len(bad), 10)], err, "turn")
	}
}

func TestZeroNameMakesNoSubject(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a subject was built without a session")
		}
	}()
	schemas.Prefix{}.Tokens(schemas.TurnID{Tenant: tenant})
}

func TestSubjectsAreThoseOfTheProtocol(t *testing.T) {
	var p schemas.Prefix
	for got, want := range map[string]string{
		p.Request(model, schemas.AnyLane, tenant):        "mesh.v1.req.stories.any.acme",
		p.Request(model, schemas.NodeLane(node), tenant): "mesh.v1.req.stories.node_A.acme",
		p.Tokens(turnID):                       "mesh.v1.tok.acme.story-1.7",
		p.Control(turnID):                      "mesh.v1.ctl.acme.story-1.7",
		p.Turn(tenant):                         "mesh.v1.turn.acme",
		p.Capability(node):                     "mesh.v1.cap.node_A",
		p.Node(node, schemas.VerbDrain):        "mesh.v1.node.node_A.drain",
		p.Work(turnID, node):                   "mesh.v1.work.acme.node_A.story-1.7",
		p.Shared(model):                        "mesh.v1.req.stories.any.*",
		p.Own(node):                            "mesh.v1.req.*.node_A.*",
		p.Requests():                           "mesh.v1.req.*.*.*",
		p.Events():                             "mesh.v1.tok.*.*.*",
		p.Turns():                              "mesh.v1.turn.*",
		p.Capabilities():                       "mesh.v1.cap.*",
		p.WorkRecords():                        "mesh.v1.work.*.*.*.*",
		p.WorkOf(turnID):                       "mesh.v1.work.acme.*.story-1.7",
		turnID.Key():                           "acme.story-1.7",
		p.RequestStream() + p.EventStream():    "MESH_REQMESH_TOK",
		p.WorkStream():                         "MESH_WORK",
		p.TurnBucket() + p.NodeBucket():        "MESH_TURNSMESH_NODES",
		schemas.SharedConsumer(model):          "req-stories",
		schemas.OwnConsumer(node):              "node-node_A",
		parsePrefix(t, "a.b-c").TurnBucket():   "MESH_TURNS_a_b-c",
		parsePrefix(t, "a.b-c").Turn(tenant):   "a.b-c.turn.acme",
		parsePrefix(t, "mesh.v1").WorkStream(): "MESH_WORK",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func parsePrefix(t *testing.T, s string) schemas.Prefix {
	t.Helper()
	p, err := schemas.ParsePrefix(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPrefixesThatAreNoSubjectAreRefused(t *testing.T) {
	for _, bad := range append([]string{"a..b", ".a", "a.", "a_b", "a.*", strings.Repeat("a.", 100) + "a"}, badNames...) {
		if bad == "a.b" {
			continue
		}
		_, err := schemas.ParsePrefix(bad)
		wantField(t, bad[:min(len(bad), 10)], err, "prefix")
	}
}

// draw makes names of every kind, and everything that is made of them.
func draw[T any](t *rapid.T, label string, parse func(string) (T, error)) T {
	name, err := parse(rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`).Filter(func(s string) bool { return s != "any" }).Draw(t, label))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func drawTurn(t *rapid.T) schemas.TurnID {
	return schemas.TurnID{Tenant: draw(t, "tenant", schemas.ParseTenant), Session: draw(t, "session", schemas.ParseSession),
		Turn: schemas.Turn(rapid.Uint64().Draw(t, "turn"))}
}

func drawPrefix(t *rapid.T) schemas.Prefix {
	p, err := schemas.ParsePrefix(rapid.SampledFrom([]string{"mesh.v1", "mesh", "a-b.c.d"}).Draw(t, "prefix"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSubjectsSayWhatTheyWereBuiltFrom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, id := drawPrefix(t), drawTurn(t)
		node, model := draw(t, "node", schemas.ParseNode), draw(t, "model", schemas.ParseModel)
		lane := rapid.SampledFrom([]schemas.Lane{schemas.AnyLane, schemas.NodeLane(node)}).Draw(t, "lane")
		verb := rapid.SampledFrom(schemas.NodeVerbs()).Draw(t, "verb")
		equal := func(got, want any, err error) {
			if err != nil || got != want {
				t.Fatalf("got %v, %v; want %v", got, err, want)
			}
		}
		request, err := p.ParseRequest(p.Request(model, lane, id.Tenant))
		equal(request, schemas.RequestSubject{Model: model, Lane: lane, Tenant: id.Tenant}, err)
		got, err := p.ParseTokens(p.Tokens(id))
		equal(got, id, err)
		got, err = p.ParseControl(p.Control(id))
		equal(got, id, err)
		got, err = schemas.ParseTurnKey(id.Key())
		equal(got, id, err)
		tenant, err := p.ParseTurn(p.Turn(id.Tenant))
		equal(tenant, id.Tenant, err)
		gotNode, err := p.ParseCapability(p.Capability(node))
		equal(gotNode, node, err)
		gotNode, gotVerb, err := p.ParseNode(p.Node(node, verb))
		equal(gotNode, node, err)
		equal(gotVerb, verb, err)
		got, gotNode, err = p.ParseWork(p.Work(id, node))
		equal(got, id, err)
		equal(gotNode, node, err)
		gotNode, ok := schemas.ParseOwnConsumer(schemas.OwnConsumer(node))
		equal(gotNode, node, nil)
		equal(ok, true, nil)
	})
}

func TestOtherSubjectsAreRefused(t *testing.T) {
	var p schemas.Prefix
	for _, bad := range []string{"", "mesh.v1.req", "mesh.v1.req.", "mesh.v1.req.m.any", "mesh.v1.req.m.any.t.x", "mesh.v1.tok.m.any.t", "mesh.v2.req.m.any.t",
		"mesh.v1.req.m.*.t", "mesh.v1.req..any.t", "mesh.v1.req.m.any.", "mesh.v1.req.m.any.t" + strings.Repeat("t", 5000), "xmesh.v1.req.m.any.t"} {
		if s, err := p.ParseRequest(bad); err == nil {
			t.Errorf("ParseRequest(%.30q) = %v", bad, s)
		}
	}
	for _, bad := range []string{"mesh.v1.node.n.status.x", "mesh.v1.node.n.reboot", "mesh.v1.node.any.status"} {
		if _, _, err := p.ParseNode(bad); err == nil {
			t.Errorf("ParseNode(%q) is no error", bad)
		}
	}
	if _, err := p.ParseTokens("mesh.v1.tok.a.b.01"); err == nil {
		t.Error("a turn with a leading zero is read")
	}
	for _, bad := range []string{"", "a.b", "a.b.1.2", "a.b.x", strings.Repeat("a.", 3000)} {
		if _, err := schemas.ParseTurnKey(bad); err == nil {
			t.Errorf("ParseTurnKey(%.30q) is no error", bad)
		}
	}
	if _, ok := schemas.ParseOwnConsumer("req-stories"); ok {
		t.Error("a shared consumer is taken for a node's")
	}
}

func TestHeadersComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := schemas.Route{Hops: rapid.IntRange(0, 1000).Draw(t, "hops"), Fit: rapid.Bool().Draw(t, "fit"), Twin: rapid.Uint64().Draw(t, "twin"),
			From: rapid.SliceOfN(rapid.Uint64Range(1, math.MaxUint64), 0, 16).Draw(t, "from")}
		if ms := rapid.Int64Range(0, 4e12).Draw(t, "born"); ms > 0 {
			want.Born = time.UnixMilli(ms)
		}
		header := map[string][]string{schemas.HeaderFrom: {"stale"}, schemas.HeaderFit: {"stale"}, schemas.HeaderTwin: {"stale"}, "Other": {"x"}}
		want.Set(header)
		got, err := schemas.ParseRoute(header)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.From) != len(want.From) || !got.Born.Equal(want.Born) || got.Hops != want.Hops || got.Fit != want.Fit || got.Twin != want.Twin {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		for i, seq := range want.From {
			if got.From[i] != seq {
				t.Fatalf("lineage is %v, want %v", got.From, want.From)
			}
		}
	})
}

func TestHeadersThatAreNotBelievableAreRefused(t *testing.T) {
	for header, values := range map[string][]string{
		schemas.HeaderFrom: {"", "0", "1,", ",1", "1,,2", "x", "-1", "01", strings.Repeat("1,", 16) + "1", strings.Repeat("1", 5000)},
		schemas.HeaderBorn: {"", "0", "-1", "x", "1.5", "18446744073709551615", "253402300800000"},
		schemas.HeaderHops: {"", "-1", "x", "1001", "1e1"},
		schemas.HeaderFit:  {"", "0", "true", "2"},
		schemas.HeaderTwin: {"", "0", "-1", "x", "01", "18446744073709551616"},
	} {
		for _, v := range values {
			_, err := schemas.ParseRoute(map[string][]string{header: {v}})
			wantField(t, header+" "+v[:min(len(v), 20)], err, header)
		}
		_, err := schemas.ParseRoute(map[string][]string{header: {"1", "1"}})
		wantField(t, header+" twice", err, header)
	}
	if r, err := schemas.ParseRoute(nil); err != nil || r.Hops != 0 || r.From != nil {
		t.Errorf("no headers are %+v, %v; want the zero route", r, err)
	}
}

// Else it could take over from a turn that runs on the original.
func TestCopyDoesNotDescendFromItsOriginal(t *testing.T) {
	born := time.Date(2030, 1, 1, 0, 0, 0, 123_000_000, time.UTC)
	moved := schemas.Route{}.Moved(5, born, true)
	twin := moved.Copied(9, born.Add(time.Minute))
	if !slices.Equal(twin.From, []uint64{5}) || twin.Twin != 9 || twin.Hops != 1 || twin.Fit || !twin.Born.Equal(born) {
		t.Errorf("the copy's route is %+v", twin)
	}
	if next := twin.Moved(12, born.Add(time.Hour), false); !slices.Equal(next.From, []uint64{5, 12}) || next.Twin != 9 {
		t.Errorf("moved on it is %+v", next)
	}
}

func TestMoveAddsToTheLineageAndKeepsTheBirth(t *testing.T) {
	born := time.Date(2030, 1, 1, 0, 0, 0, 123_456_789, time.UTC)
	once := schemas.Route{}.Moved(5, born, true)
	twice := once.Moved(9, born.Add(time.Minute), false)
	if len(twice.From) != 2 || twice.From[0] != 5 || twice.From[1] != 9 || twice.Hops != 2 || twice.Fit || !once.Fit {
		t.Errorf("after two moves: %+v", twice)
	}
	if want := born.Truncate(time.Millisecond); !twice.Born.Equal(want) {
		t.Errorf("born %v, want %v", twice.Born, want)
	}
	future := schemas.Route{Born: born.Add(time.Hour)}
	if got := future.BornAt(born); !got.Equal(born.Truncate(time.Millisecond)) {
		t.Errorf("a header makes a request younger than its copy: born %v", got)
	}
}

func TestNamesInJSONAreChecked(t *testing.T) {
	var id struct{ Tenant schemas.Tenant }
	if err := json.Unmarshal([]byte(`{"Tenant":"acme"}`), &id); err != nil || id.Tenant != tenant {
		t.Errorf("got %v, %v", id.Tenant, err)
	}
	err := json.Unmarshal([]byte(`{"Tenant":"a.b"}`), &id)
	var fe *schemas.FieldError
	if !errors.As(err, &fe) {
		t.Errorf("a bad name is read from JSON: %v", err)
	}
}
