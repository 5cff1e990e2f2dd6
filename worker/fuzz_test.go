package worker

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
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
