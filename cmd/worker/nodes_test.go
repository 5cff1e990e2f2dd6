package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/schemas"
)

func TestNodesListsAdaptersWhereANodeHasOne(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	node := func(name string, adapters ...string) capability.Entry {
		ad := &schemas.Advertisement{Node: schemas.Must(schemas.ParseNode(name)), State: schemas.NodeReady}
		ad.Model.Name = schemas.Must(schemas.ParseModel("stories"))
		ad.Telemetry.MaxActiveSessions = 4
		for _, a := range adapters {
			ad.Model.Adapters = append(ad.Model.Adapters, schemas.AdapterInfo{Name: schemas.Must(schemas.ParseAdapter(a))})
		}
		return capability.Entry{Ad: ad, Seen: now.Add(-time.Second)}
	}
	for claim, c := range map[string]struct {
		nodes []capability.Entry
		want  string
	}{
		"no adapters": {[]capability.Entry{node("a")},
			"NODE  MODEL    STATE  ACTIVE  QUEUE  KV   HOT  TOKENS/S  REJECTED  SEEN\n" +
				"a     stories  ready  0/4     0/0    0 %  0    0         0         1s ago\n"},
		"one node has adapters": {[]capability.Entry{node("a"), node("b", "poet", "sql")},
			"NODE  MODEL    STATE  ACTIVE  QUEUE  KV   HOT  TOKENS/S  REJECTED  SEEN    ADAPTERS\n" +
				"a     stories  ready  0/4     0/0    0 %  0    0         0         1s ago  -\n" +
				"b     stories  ready  0/4     0/0    0 %  0    0         0         1s ago  poet,sql\n"},
	} {
		var out bytes.Buffer
		if err := printNodes(&out, c.nodes, now); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("%s: printed\n%swant\n%s", claim, &out, c.want)
		}
	}
}
