package fold_test

import (
	"testing"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/schemas"
)

// FuzzFold gives a reader any events that can be decoded, cut from one input as a length byte and a payload each.
func FuzzFold(f *testing.F) {
	pack := func(events ...[]byte) (all []byte) {
		for _, e := range events {
			all = append(append(all, byte(len(e))), e...)
		}
		return all
	}
	node := schemas.Must(schemas.ParseNode("n1"))
	start, _ := schemas.Encode(&schemas.Started{Attempt: 1, Node: node})
	second, _ := schemas.Encode(&schemas.Started{Attempt: 2, Node: node, ResumeIndex: 1})
	token, _ := schemas.Encode(&schemas.Tokens{Attempt: 1, TokenIDs: []int64{1, 2}, Text: "ab"})
	alive, _ := schemas.Encode(&schemas.Keepalive{Attempt: 1, LastIndex: 1})
	final, _ := schemas.Encode(&schemas.Final{Reason: schemas.Completed, Finish: schemas.FinishStop, Attempt: 1, Node: node, Count: 2})
	f.Add(pack(start, token, alive, final), 0)
	f.Add(pack(token, start, token, second, token, final), 3)
	f.Fuzz(func(t *testing.T, data []byte, from int) {
		r := fold.From(from)
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1)
			if event, err := schemas.DecodeEvent(data[1 : 1+n]); err == nil {
				if n%2 == 0 {
					r.ApplyLive(event)
				} else {
					r.ApplyStored(event)
				}
			}
			data = data[1+n:]
			r.Take()
			if r.Status() == fold.Whole && r.Final() == nil {
				t.Fatal("whole without a final")
			}
		}
		if d := r.Take(); !d.Empty() {
			t.Fatalf("taken twice: %+v", d)
		}
	})
}
