package schemas_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/meshnet/node/schemas"
)

// fuzzDecoder feeds a decoder anything: it may only refuse with a reason of the closed set, and what it takes is
// written and read again as the same bytes.
func fuzzDecoder(f *testing.F, name string) {
	all := codecs()
	c := all[name]
	for _, sample := range c.samples {
		f.Add(sample)
	}
	for _, other := range all {
		f.Add(other.samples[0])
	}
	for _, h := range hostile() {
		if len(h.data) < 1<<10 {
			f.Add(h.data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		again, _, err := c.recode(data)
		var de *schemas.DecodeError
		if errors.As(err, &de) {
			wantReject(t, name, err, de.Reason)
			return
		}
		if err != nil {
			t.Fatalf("decoded, but not encoded again: %v", err)
		}
		third, _, err := c.recode(again)
		if err != nil {
			t.Fatalf("encoded, but not decoded again: %v", err)
		}
		if !bytes.Equal(again, third) {
			t.Fatalf("encoded as\n%x, then as\n%x", again, third)
		}
	})
}

func FuzzRequest(f *testing.F)       { fuzzDecoder(f, "Request") }
func FuzzEvent(f *testing.F)         { fuzzDecoder(f, "Event") }
func FuzzWorkRecord(f *testing.F)    { fuzzDecoder(f, "WorkRecord") }
func FuzzLedgerRecord(f *testing.F)  { fuzzDecoder(f, "LedgerRecord") }
func FuzzControl(f *testing.F)       { fuzzDecoder(f, "Control") }
func FuzzTurnRequest(f *testing.F)   { fuzzDecoder(f, "TurnRequest") }
func FuzzTurnReply(f *testing.F)     { fuzzDecoder(f, "TurnReply") }
func FuzzAdvertisement(f *testing.F) { fuzzDecoder(f, "Advertisement") }
func FuzzNodeReply(f *testing.F)     { fuzzDecoder(f, "NodeReply") }

// FuzzGuard compares the guard with the decoder it guards: what it lets pass is one whole value.
func FuzzGuard(f *testing.F) {
	for _, c := range codecs() {
		f.Add(c.samples[0])
	}
	for _, h := range hostile() {
		if len(h.data) < 1<<10 {
			f.Add(h.data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if schemas.Guard(data) != "" {
			return
		}
		r := bytes.NewReader(data)
		if err := msgpack.NewDecoder(r).Skip(); err != nil || r.Len() != 0 {
			t.Fatalf("let pass, but the decoder says %v with %d bytes left", err, r.Len())
		}
	})
}

func FuzzTurnID(f *testing.F) {
	for _, c := range codecs() {
		f.Add(c.samples[0])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		id, err := schemas.DecodeTurnID(data)
		if err != nil {
			return
		}
		if back, err := schemas.ParseTurnKey(id.Key()); err != nil || back != id {
			t.Fatalf("%v came back as %v, %v", id, back, err)
		}
	})
}

// FuzzSubject: a subject that is read is the one that its parts make.
func FuzzSubject(f *testing.F) {
	var p schemas.Prefix
	for _, s := range []string{p.Request(model, schemas.AnyLane, tenant), p.Tokens(turnID), p.Control(turnID), p.Turn(tenant), p.Capability(node),
		p.Node(node, schemas.VerbStatus), p.Work(turnID, node), "mesh.v1.tok.>", "..."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		same := func(built string) {
			if built != s {
				t.Fatalf("%q is read as %q", s, built)
			}
		}
		if r, err := p.ParseRequest(s); err == nil {
			same(p.Request(r.Model, r.Lane, r.Tenant))
		}
		if id, err := p.ParseTokens(s); err == nil {
			same(p.Tokens(id))
		}
		if id, err := p.ParseControl(s); err == nil {
			same(p.Control(id))
		}
		if tenant, err := p.ParseTurn(s); err == nil {
			same(p.Turn(tenant))
		}
		if node, err := p.ParseCapability(s); err == nil {
			same(p.Capability(node))
		}
		if node, verb, err := p.ParseNode(s); err == nil {
			same(p.Node(node, verb))
		}
		if id, node, err := p.ParseWork(s); err == nil {
			same(p.Work(id, node))
		}
	})
}

func FuzzRoute(f *testing.F) {
	f.Add("1,2", "1700000000000", "2", "1", "7")
	f.Add("", "x", "-1", "2", "0")
	f.Fuzz(func(t *testing.T, from, born, hops, fit, twin string) {
		header := map[string][]string{schemas.HeaderFrom: {from}, schemas.HeaderBorn: {born}, schemas.HeaderHops: {hops}, schemas.HeaderFit: {fit},
			schemas.HeaderTwin: {twin}}
		r, err := schemas.ParseRoute(header)
		if err != nil {
			return
		}
		again := map[string][]string{}
		r.Set(again)
		for name, value := range again {
			if value[0] != header[name][0] {
				t.Fatalf("%s %q came back as %q", name, header[name][0], value[0])
			}
		}
	})
}
