package worker_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func TestASecondProcessUnderANodesNameIsRefusedAndNamesTheFirst(t *testing.T) {
	m := newMesh(t)
	first := schemas.Must(schemas.ParseBoot("first"))
	m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.Boot = first })
	cfg, _ := m.config("n1")
	second, err := worker.New(cfg)
	m.check(err)
	m.check(second.Start(context.Background()))
	t.Cleanup(second.Stop)
	<-second.Stopped()
	var taken *worker.NameTakenError
	if err := second.Err(); !errors.As(err, &taken) || *taken != (worker.NameTakenError{Node: cfg.Node, Boot: first, Model: model}) {
		t.Errorf("the second ends with %v", err)
	}
}

func TestAProcessWaitsForTheOneThatDrainsUnderItsName(t *testing.T) {
	m := newMesh(t)
	first := m.start("n1")
	first.Drain(true)
	cfg, _ := m.config("n1")
	second, err := worker.New(cfg)
	m.check(err)
	m.check(second.Start(context.Background()))
	t.Cleanup(second.Stop)
	select {
	case <-second.Started():
		t.Fatal("it serves beside the one that drains")
	case <-first.Stopped():
		t.Fatal("the first ended")
	default:
	}
	first.Stop()
	m.check(part.Ready(m.ctx, second))
}

// TestAWorkersPermissionsAreEnough runs a worker on a server with the permission sets that are deployed.
func TestAWorkersPermissionsAreEnough(t *testing.T) {
	for _, user := range []string{"WORKER", "OPERATOR", "ACME", "GLOBEX"} {
		t.Setenv("MESH_"+user+"_PASSWORD", "secret-"+user)
	}
	file, err := filepath.Abs("../deploy/nats/permissions.conf")
	if err != nil {
		t.Fatal(err)
	}
	m := newMeshOf(t, natsserver.Options{ConfigFile: file}, nats.UserInfo("operator", "secret-OPERATOR"))
	var mu sync.Mutex
	var refused []error
	n := m.start("n1", func(c *worker.Config, _ *goengine.Config) {
		c.Options = []nats.Option{nats.UserInfo("worker", "secret-WORKER"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, err)
		})}
	})
	n.Stop()
	mu.Lock()
	defer mu.Unlock()
	for _, err := range refused {
		t.Errorf("the server refused something that a worker needs: %v", err)
	}
}
