package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

const (
	demoNodes   = 3
	demoSlots   = 2   // of a node
	demoContext = 512 // of a slot
	demoQuota   = 8   // requests of a tenant in a lane: more than can run at once
	demoThreads = 1
	demoPace    = 10 * time.Millisecond // the shortest decode step: people read slower than the story model tells
	demoAckWait = 2 * time.Second       // how long a killed worker is not missed
)

// demoMesh is a NATS server, workers and a client, in this process.
type demoMesh struct {
	dir    string
	server *natsserver.Server
	model  *llama.Model
	nodes  map[string]*demoNode
	nc     *nats.Conn
	client *client.Client
	killed sync.WaitGroup       // nodes that were killed and are being waited for
	deaths map[string]time.Time // when they were
}

// demoNode is a worker with an engine of its own.
type demoNode struct {
	service *worker.Service
	engine  *llama.Engine
}

// pacedEngine decodes no faster than can be watched.
type pacedEngine struct {
	*llama.Engine
	next time.Time // the earliest time of the next step; belongs to the goroutine that drives the engine
}

// Decode implements scheduler.Engine.
func (e *pacedEngine) Decode(rows []scheduler.Row) []scheduler.Result {
	time.Sleep(time.Until(e.next))
	e.next = time.Now().Add(demoPace)
	return e.Engine.Decode(rows)
}

// newDemoMesh starts everything. With an error comes what was started until then, to be closed.
func newDemoMesh(ctx context.Context, env *environment) (*demoMesh, error) {
	log := env.log
	if !log.Enabled(ctx, slog.LevelDebug) { // a killed worker makes others warn; here that is the plan
		log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	quiet := *env
	quiet.log = log
	m := &demoMesh{nodes: make(map[string]*demoNode), deaths: make(map[string]time.Time)}
	var err error
	if m.dir, err = os.MkdirTemp("", "meshnet-demo-"); err != nil {
		return m, err
	}
	if m.server, err = natsserver.Start(natsserver.Options{Dir: m.dir, Port: natsserver.RandomPort, Log: log}); err != nil {
		return m, err
	}
	flags := modelFlags{Ctx: demoContext, Threads: demoThreads}
	if m.model, err = flags.load(&quiet); err != nil {
		return m, err
	}
	for i := range demoNodes {
		if err := m.add(ctx, &quiet, flags, fmt.Sprintf("node-%d", i+1)); err != nil {
			return m, err
		}
	}
	for _, n := range m.nodes {
		if err := part.Ready(ctx, n.service); err != nil {
			return m, err
		}
	}
	if m.nc, err = nats.Connect(m.server.ClientURL(), nats.ReconnectBufSize(-1)); err != nil {
		return m, err
	}
	m.client, err = client.New(m.nc, client.WithLog(log))
	return m, err
}

// add starts a worker.
func (m *demoMesh) add(ctx context.Context, env *environment, flags modelFlags, name string) error {
	o := flags.engineOptions(env)
	o.Slots = demoSlots
	engine, err := newEngine(env, m.model, o)
	if err != nil {
		return err
	}
	cfg := worker.Config{
		URL: m.server.ClientURL(), TenantQuota: demoQuota, DrainTimeout: -1, Log: env.log,
		Node: schemas.Must(schemas.ParseNode(name)), Model: schemas.Must(schemas.ParseModel(models.StoryName)),
		Periods: worker.Periods{AckWait: demoAckWait},
	}
	run := runCommand{modelFlags: flags, QueueDepth: demoSlots, StallAfter: demoLimit}
	run.describe(&cfg, m.model, engine)
	cfg.Engine = &pacedEngine{Engine: engine}
	n := &demoNode{engine: engine}
	m.nodes[name] = n
	if n.service, err = worker.New(cfg); err != nil {
		return err
	}
	return n.service.Start(context.WithoutCancel(ctx))
}

// kill ends a worker as a crash would: it says nothing any more, and hands nothing over.
func (m *demoMesh) kill(name string) error {
	n := m.nodes[name]
	if n == nil {
		return fmt.Errorf("there is no node %q to kill", name)
	}
	n.service.Abort()
	m.deaths[name] = time.Now()
	m.killed.Go(n.service.Stop)
	return nil
}

// quiet says that all nodes are idle by what they tell, and that the killed ones tell nothing.
func (m *demoMesh) quiet(nodes []capability.Entry) bool {
	const underway = 500 * time.Millisecond // half of what lies between two advertisements
	for _, n := range nodes {
		if death, dead := m.deaths[n.Ad.Node.String()]; dead && n.Seen.After(death.Add(underway)) || !dead && n.Ad.Telemetry.ActiveSessions > 0 {
			return false
		}
	}
	return true
}

// close ends what newDemoMesh and kill left, and removes the server's data.
func (m *demoMesh) close() error {
	if m.client != nil {
		m.client.Close()
	}
	if m.nc != nil {
		m.nc.Close()
	}
	var stopping sync.WaitGroup
	for _, n := range m.nodes {
		if n.service != nil {
			stopping.Go(n.service.Stop)
		}
	}
	stopping.Wait()
	m.killed.Wait()
	for _, n := range m.nodes {
		n.engine.Free()
	}
	if m.model != nil {
		m.model.Free()
	}
	var errs []error
	if m.server != nil {
		errs = append(errs, m.server.Shutdown())
	}
	if m.dir != "" {
		errs = append(errs, os.RemoveAll(m.dir))
	}
	return errors.Join(errs...)
}
