package capability

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// FuzzAdvertisement gives a registry whatever may be published as a node's advertisement.
func FuzzAdvertisement(f *testing.F) {
	node := schemas.Must(schemas.ParseNode("n1"))
	good := Snapshot(&Identity{Node: node, Boot: schemas.Must(schemas.ParseBoot("b1")), Model: schemas.Must(schemas.ParseModel("m"))},
		&Moment{State: schemas.NodeReady, Facts: scheduler.Facts{ContextTokens: 512, Head: true, Tail: true}})
	payload, err := schemas.Encode(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0x81, 0xa1, 'v', 1})
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := NewRegistry(RegistryConfig{Conn: &nats.Conn{}, Clock: &parttest.Clock{}, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.take(node, payload)
		known := len(r.Nodes()) == 1
		if known == (r.Rejected() == 1) {
			t.Fatalf("known: %t, rejected: %d", known, r.Rejected())
		}
		if known != r.Live(node, Silence) {
			t.Fatal("what was just heard is live, and nothing else")
		}
		r.goodbye(node)
		r.take(node, payload)
		if len(r.Nodes()) != 0 {
			t.Fatal("a node that said goodbye comes back by what it said before")
		}
	})
}
