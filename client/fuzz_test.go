package client

import (
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
)

// FuzzEvents gives a stream whatever may be published on its subject, cut from one input as a length byte and a
// payload each.
func FuzzEvents(f *testing.F) {
	node := schemas.Must(schemas.ParseNode("n1"))
	start, _ := schemas.Encode(&schemas.Started{Attempt: 1, Node: node})
	token, _ := schemas.Encode(&schemas.Tokens{Attempt: 1, TokenIDs: []int64{1, 2}, Text: "ab"})
	final, _ := schemas.Encode(&schemas.Final{Reason: schemas.Completed, Finish: schemas.FinishStop, Attempt: 1, Node: node, Count: 2})
	var all []byte
	for _, payload := range [][]byte{start, token, final} {
		all = append(append(all, byte(len(payload))), payload...)
	}
	f.Add(all)
	f.Add([]byte{5, 0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &Stream{c: &Client{clock: &parttest.Clock{}, log: slog.New(slog.DiscardHandler)}, fold: fold.From(0)}
		text := ""
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1)
			s.hear(&nats.Msg{Data: data[1 : 1+n]})
			data = data[1+n:]
			s.emit()
		}
		for _, event := range s.out {
			switch e := event.(type) {
			case Reset:
				text = text[:e.TextBytes]
			case Text:
				text += e.Text
			}
		}
		if text != s.fold.Text() {
			t.Fatalf("%q was yielded of %q", text, s.fold.Text())
		}
		if s.fold.Status() == fold.Whole {
			if err := s.finish(true); !errors.Is(err, io.EOF) && s.fold.Final().Reason == schemas.Completed {
				t.Fatal(err)
			}
		}
	})
}

// FuzzStanding gives a client whatever may answer a question of it.
func FuzzStanding(f *testing.F) {
	node := schemas.Must(schemas.ParseNode("n1"))
	final, _ := schemas.Encode(&schemas.Final{Reason: schemas.Cancelled, Node: node})
	for _, reply := range []*schemas.TurnReply{
		{Op: schemas.OpStatus, State: schemas.StateAbsent},
		{Op: schemas.OpCancel, Outcome: schemas.CancelEnded, State: schemas.StateDone, Reason: schemas.Cancelled, Final: final},
		{Error: &schemas.ErrorDetail{Message: "no"}},
		{Op: schemas.OpStatus, State: schemas.StateDone, Reason: schemas.Cancelled, Final: []byte{0xc1}},
	} {
		payload, err := schemas.Encode(reply)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		standing, err := readStanding(payload)
		if (standing == nil) != (err != nil) {
			t.Fatalf("%+v, %v", standing, err)
		}
		if err == nil && (standing.Final != nil) != (standing.State == schemas.StateDone) {
			t.Fatalf("%+v", standing)
		}
	})
}
