package deploy_test

import (
	"log/slog"
	"testing"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// TestNodesAreSeenWithThePermissions runs the product's own advertiser as a worker, and its registry as each user.
func TestNodesAreSeenWithThePermissions(t *testing.T) {
	m := startMesh(t)
	log := slog.New(slog.DiscardHandler)
	ad := capability.Snapshot(&capability.Identity{
		Node: node1, Boot: schemas.Must(schemas.ParseBoot("b1")), Version: "1",
		Model: model, Architecture: "llama", Quantisation: "Q8_0", FlashAttention: "on",
	}, &capability.Moment{
		State:             schemas.NodeReady,
		Facts:             scheduler.Facts{Slots: 4, ContextTokens: 512, VocabTokens: 1000, Head: true, Tail: true, Trim: scheduler.TrimAny},
		MaxActiveSessions: 4, FreeSlots: 4, MaxQueueDepth: 8,
	})
	node := m.connect(worker)
	advertiser, err := capability.NewAdvertiser(capability.AdvertiserConfig{
		Conn: node, Node: node1, Log: log, Source: func() *schemas.Advertisement { copied := *ad; return &copied },
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, m, advertiser)
	for _, user := range []string{acme, worker, operator} {
		conn := m.connect(user)
		registry, err := capability.NewRegistry(capability.RegistryConfig{Conn: conn, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		changes, end := registry.Changes()
		defer end()
		run(t, m, registry)
		await := func(what string, there bool) {
			for {
				if _, ok := registry.Node(node1); ok == there {
					return
				}
				select {
				case <-changes:
				case <-m.ctx().Done():
					t.Fatalf("%s: %s never %s", user, node1, what)
				}
			}
		}
		await("comes", true)
		if _, ok := registry.HealthySince(); !ok { // it hears the beats, but cannot watch the bucket
			t.Errorf("the registry of %s may not watch the bucket of nodes", user)
		}
		if user == operator { // the last one sees it leave
			advertiser.Stop()
			await("leaves", false)
		}
		registry.Stop()
		undenied(t, user, conn)
	}
	undenied(t, worker, node)
}

// run starts a part, waits until it is ready, and stops it when the test ends.
func run(t *testing.T, m *mesh, p part.Part) {
	t.Helper()
	t.Cleanup(p.Stop)
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := part.Ready(m.ctx(), p); err != nil {
		t.Fatal(err)
	}
}
