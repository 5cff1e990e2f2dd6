package worker

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// heard is a delivered message of anyone's making. What is not answered here is not asked before its identity is known.
type heard struct {
	jetstream.Msg
	subject string
	header  nats.Header
	data    []byte
}

func (h heard) Subject() string      { return h.subject }
func (h heard) Headers() nats.Header { return h.header }
func (h heard) Data() []byte         { return h.data }
func (h heard) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumDelivered: 1, Timestamp: time.Unix(1e9, 0), Sequence: jetstream.SequencePair{Stream: 7, Consumer: 1}}, nil
}

// unconnected is a service that is not started.
func unconnected(f *testing.F) *Service {
	engine, err := goengine.New(goengine.Config{})
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Config{Node: schemas.Must(schemas.ParseNode("n1")), Model: schemas.Must(schemas.ParseModel("toy")), Engine: engine,
		Text: Text{Tokenize: func(int, string, bool) ([]int32, error) { return nil, nil }, Piece: func(dst []byte, _ int32) ([]byte, error) { return dst, nil }},
		Log:  slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	return s
}

// FuzzRequest: whatever is published as a request, nothing but a turn of the subject's own tenant comes of it, and
// every request that is not valid says why.
func FuzzRequest(f *testing.F) {
	prompt := "once"
	valid, err := schemas.Encode(&schemas.Request{
		Tenant: schemas.Must(schemas.ParseTenant("acme")), Session: schemas.Must(schemas.ParseSession("s1")), Turn: 3,
		Model: schemas.Must(schemas.ParseModel("toy")), Nonce: schemas.Must(schemas.ParseNonce("n")), Prompt: &prompt, MaxNewTokens: 5})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("mesh.v1.req.toy.any.acme", valid, "", "")
	f.Add("mesh.v1.req.toy.n1.acme", valid, "1,2", "1000000000000")
	f.Add("mesh.v1.req.toy.any.other", valid, "", "")
	f.Add("mesh.v1.req.toy.any.acme", []byte("\x84\xa1v\x09\xa6tenant\xa4acme\xa7session\xa2s1\xa4turn\x01"), "0", "-1")
	f.Add("mesh.v1.req.*.>.acme", []byte{0xdf, 0xff, 0xff, 0xff, 0xff}, "x", "x")
	s := unconnected(f)
	f.Fuzz(func(t *testing.T, subject string, data []byte, from, born string) {
		msg := heard{subject: subject, header: nats.Header{schemas.HeaderFrom: {from}, schemas.HeaderBorn: {born}}, data: data}
		d := &delivery{payload: data, header: msg.header, lease: newLease(nil, msg, time.Time{}, time.Second, time.Second)}
		if !s.identify(d, msg) {
			return
		}
		if d.id.Tenant != d.subject.Tenant || !strings.HasSuffix(subject, "."+d.id.Tenant.String()) {
			t.Fatalf("a turn of %s comes of subject %q", d.id, subject)
		}
		if tokens := s.cfg.Prefix.Tokens(d.id); strings.ContainsAny(tokens, "*> \n\x00") || strings.Count(tokens, ".") != 5 {
			t.Fatalf("events would go to %q", tokens)
		}
		if (d.req == nil) && d.flaw == nil {
			t.Fatal("a request that is not valid has no flaw")
		}
		if d.deadline().After(d.meta.Timestamp.Add(schemas.MaxDeadline)) {
			t.Fatalf("the deadline is %s, its copy was stored at %s", d.deadline(), d.meta.Timestamp)
		}
		if d.flaw != nil {
			if detail := invalid(d.flaw); detail.Message == "" || detail.Field == "" {
				t.Fatalf("the refusal says nothing: %+v", detail)
			}
		}
	})
}

// FuzzLedgerRecord: whatever another worker has written for a turn, what is made of it can be written again, keeps its
// meaning, and never leaves done.
func FuzzLedgerRecord(f *testing.F) {
	for _, rec := range fuzzRecords(f) {
		value, err := encodeRecord(rec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value, uint64(7), int64(1e12), false)
		f.Add(value, uint64(8), int64(3e12), true)
	}
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff}, uint64(0), int64(0), false)
	s := unconnected(f)
	f.Fuzz(func(t *testing.T, value []byte, seq uint64, now int64, mine bool) {
		rec, err := decodeRecord(value)
		if err != nil {
			return
		}
		rewritten(t, rec)
		self := ledger.Self{Node: "n1", Boot: "b1"}
		if mine {
			self.Node, self.Boot = rec.Node, rec.Boot
		}
		msg := ledger.Message{Seq: max(seq, 1), PayloadHash: rec.PayloadHash, Deadline: time.UnixMilli(now), Deliveries: 1, LastIndex: -1}
		d, c := ledger.Arrive(rec, msg, self, time.UnixMilli(now)), ledger.Cancel(rec)
		if rec.State == ledger.Done {
			if d.Action != ledger.Republish || d.Writes || !d.Write.Equal(rec) || c.Step != ledger.CancelTooLate {
				t.Fatalf("of a done turn comes %s, of its cancel %s", d.Action, c.Step)
			}
			return
		}
		if c.Writes() {
			rewritten(t, c.Write)
		}
		switch {
		case d.Action == ledger.Finish:
			id := schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant("acme")), Session: schemas.Must(schemas.ParseSession("s1")), Turn: 1}
			done, err := withBytes(d.Write, s.bareFinal(d.Outcome), s.bareWork(id, s.cfg.Model, d.Outcome, d.Write.PayloadHash))
			if err != nil {
				t.Fatal(err)
			}
			rewritten(t, done)
		case d.Writes && d.Write.Attempt <= rec.Attempt:
			t.Fatalf("%s writes attempt %d after %d", d.Action, d.Write.Attempt, rec.Attempt)
		case d.Writes && d.Write.Attempt < 1<<20: // the most that a record may say
			rewritten(t, d.Write)
		}
	})
}

func fuzzRecords(f *testing.F) []ledger.Record {
	running := ledger.Record{State: ledger.Running, Attempt: 2, Node: "n2", Boot: "b2", ReqSeq: 7, Deadline: time.UnixMilli(2e12), LastIndex: 4}
	cancelled, lost := running, running
	cancelled.Cancel, lost.Stuck = true, ledger.MaxStuck-1
	final, err := schemas.Encode(&schemas.Final{Reason: schemas.Cancelled, Node: schemas.Must(schemas.ParseNode("n2"))})
	if err != nil {
		f.Fatal(err)
	}
	return []ledger.Record{running, cancelled, lost, {State: ledger.Done, Reason: ledger.ReasonCancelled, Final: final}}
}

// rewritten writes and reads a record: it is the same one.
func rewritten(t *testing.T, rec ledger.Record) {
	t.Helper()
	value, err := encodeRecord(rec)
	if err != nil {
		t.Fatalf("%+v cannot be written: %v", rec, err)
	}
	if back, err := decodeRecord(value); err != nil || !back.Equal(rec) {
		t.Fatalf("%+v came back as %+v, %v", rec, back, err)
	}
}

// doneTurns is a ledger in which every turn is done; it remembers which one was read.
type doneTurns struct {
	jetstream.KeyValue
	value []byte
	key   string
}

type doneEntry struct {
	jetstream.KeyValueEntry
	value []byte
}

func (e doneEntry) Value() []byte  { return e.value }
func (doneEntry) Revision() uint64 { return 1 }

func (d *doneTurns) Get(_ context.Context, key string) (jetstream.KeyValueEntry, error) {
	d.key = key
	return doneEntry{value: d.value}, nil
}

// FuzzTurnRequest: whatever is asked about a turn, the answer is a valid one, and no turn is looked at but one of the
// subject's own tenant.
func FuzzTurnRequest(f *testing.F) {
	for _, op := range schemas.TurnOps() {
		data, err := schemas.Encode(&schemas.TurnRequest{Op: op, Tenant: schemas.Must(schemas.ParseTenant("acme")), Session: schemas.Must(schemas.ParseSession("s1")), Turn: 3})
		if err != nil {
			f.Fatal(err)
		}
		f.Add("mesh.v1.turn.acme", data)
		f.Add("mesh.v1.turn.other", data)
	}
	f.Add("mesh.v1.turn.*", []byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	s := unconnected(f)
	turns := &doneTurns{}
	records := fuzzRecords(f)
	done := records[len(records)-1]
	var err error
	if turns.value, err = encodeRecord(done); err != nil {
		f.Fatal(err)
	}
	s.ledger = &turnLedger{kv: turns, timeout: time.Second}
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		turns.key = ""
		reply := s.turnReply(t.Context(), &question{subject: subject, data: data})
		encoded, err := schemas.Encode(reply)
		if err != nil {
			t.Fatalf("%+v cannot be sent: %v", reply, err)
		}
		if _, err := schemas.Decode[schemas.TurnReply](encoded); err != nil {
			t.Fatalf("%+v cannot be read: %v", reply, err)
		}
		tenant, _, _ := strings.Cut(turns.key, ".")
		switch {
		case (turns.key == "") != (reply.Error != nil):
			t.Fatalf("turn %q was read, the answer is %+v", turns.key, reply)
		case turns.key != "" && (subject != "mesh.v1.turn."+tenant || !bytes.Equal(reply.Final, done.Final)):
			t.Fatalf("turn %q was read for a question to %q; the answer is %+v", turns.key, subject, reply)
		}
	})
}
