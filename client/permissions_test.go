package client_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// TestTenantsPermissionsAreEnough does all that a client and an advertiser can do, on a server with the permission sets
// that are deployed.
func TestTenantsPermissionsAreEnough(t *testing.T) {
	for _, user := range []string{"WORKER", "OPERATOR", "ACME", "GLOBEX"} {
		t.Setenv("MESH_"+user+"_PASSWORD", "secret-"+user)
	}
	file, err := filepath.Abs("../deploy/nats/permissions.conf")
	if err != nil {
		t.Fatal(err)
	}
	url := natsservertest.Start(t, natsserver.Options{ConfigFile: file}).ClientURL()
	operator := bedOn(t, url, nats.UserInfo("operator", "secret-OPERATOR")) // makes the stores
	b := &bed{url: url, conn: natsservertest.Connect(t, url, nats.UserInfo("worker", "secret-WORKER")), js: operator.js}
	tenant := natsservertest.Connect(t, url, nats.UserInfo("acme", "secret-ACME"), nats.CustomInboxPrefix("_INBOX_acme"))
	c := clientOn(t, tenant)

	playNode(t, b)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply { return done(completed(1, 2)) })

	r := request()
	r.Keep, r.Heartbeat, r.HotNode = true, time.Second, "n1"
	s := generate(t, c, r)
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "b", 2), completed(1, 2))
	if got, err := s.Wait(); err != nil || got.Text != "ab" {
		t.Errorf("Generate: %q, %v", got.Text, err)
	}
	s, err = c.Attach(waitCtx(t), "acme", "s1", 1, 0) // reads what is stored
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Wait(); err != nil || got.Text != "ab" {
		t.Errorf("Attach: %q, %v", got.Text, err)
	}
	if standing, err := c.Status(waitCtx(t), "acme", "s1", 1); err != nil || standing.State != schemas.StateDone {
		t.Errorf("Status: %+v, %v", standing, err)
	}
	if nodes, err := c.Nodes(waitCtx(t)); err != nil || len(nodes) != 1 {
		t.Errorf("Nodes: %v, %v", nodes, err)
	}
	for who, conn := range map[string]*nats.Conn{"tenant": tenant, "worker": b.conn} {
		if err := conn.FlushWithContext(waitCtx(t)); err != nil {
			t.Fatal(err)
		}
		if err := conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v", who, err)
		}
	}
}

// playNode advertises n1, and knows of other nodes, as a worker does.
func playNode(t *testing.T, b *bed) {
	t.Helper()
	advertiser, err := capability.NewAdvertiser(capability.AdvertiserConfig{Conn: b.conn, Node: node1, Log: quiet, Source: func() *schemas.Advertisement {
		return capability.Snapshot(&capability.Identity{Boot: schemas.Must(schemas.ParseBoot("b1")), Model: schemas.Must(schemas.ParseModel("stories"))},
			&capability.Moment{State: schemas.NodeReady, Facts: scheduler.Facts{ContextTokens: 512, Head: true, Tail: true}})
	}})
	if err != nil {
		t.Fatal(err)
	}
	peers, err := capability.NewRegistry(capability.RegistryConfig{Conn: b.conn, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []part.Part{advertiser, peers} {
		if err := p.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		if err := part.Ready(waitCtx(t), p); err != nil {
			t.Fatal(err)
		}
	}
}
