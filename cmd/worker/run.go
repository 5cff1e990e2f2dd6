package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// runCommand serves a model in the mesh.
type runCommand struct {
	natsFlags  `embed:"" group:"NATS:"`
	modelFlags `embed:"" group:"Model:"`
	kvFlags    `embed:"" group:"KV shared and on disk:"`

	Name         string             `help:"Name under which the model is served; default: that of its file." placeholder:"MODEL"`
	Node         string             `help:"Name of this node; default: that of the machine." placeholder:"ID"`
	MaxActive    int                `help:"Turns that are computed at once." default:"8" placeholder:"N"`
	QueueDepth   int                `help:"Turns that wait for KV inside the node." default:"8" placeholder:"N"`
	KVBudget     byteCount          `help:"KV that active turns may reserve; default: all slots to their end." placeholder:"BYTES"`
	HotBudget    *byteCount         `help:"KV of idle sessions to keep; default: as much as the slots have." placeholder:"BYTES"`
	Suspend      *byteCount         `help:"Saved KV of sessions that gave their place to another tenant; 0: none does; default: as much as the slots have." name:"suspend-budget" placeholder:"BYTES"`
	TenantWeight map[string]float64 `help:"Tokens of a tenant in proportion to the others, 0.01 to 100, while they contend; 1 without it. May be repeated." placeholder:"NAME=W"`
	HTTP         string             `help:"Address of /metrics, /healthz and /readyz; none without it." name:"http" placeholder:"HOST:PORT"`
	Provision    string             `help:"Make streams and buckets that are missing (auto), or only check them (verify)." enum:"auto,verify" default:"auto" placeholder:"MODE"`
	Replicas     int                `help:"Replicas of the streams and buckets that are made." default:"1" placeholder:"N"`
	TenantQuota  int                `help:"Requests that a tenant may have in a lane, waiting and running." default:"64" placeholder:"N"`
	ReplayMax    int                `help:"Tokens that a takeover replays one by one; more are prefilled." default:"512" placeholder:"N"`
	AckWait      time.Duration      `help:"How long a worker may be silent before another takes its turn over; the same for all workers of a mesh." default:"30s" placeholder:"DURATION"`
	DrainTimeout time.Duration      `help:"How long active turns may go on after Ctrl-C." default:"30s" placeholder:"DURATION"`
	StallAfter   time.Duration      `help:"How long the engine may be silent before its turns are given up." default:"2m" placeholder:"DURATION"`
	AllowGrammar bool               `help:"Take grammars that clients write, beside JSON Schemas."`
	StoreDir     string             `help:"Data of the embedded NATS server, where --nats is not given; default: under the user's state folder." type:"path" default:"" placeholder:"DIR"`
}

// Help is the long help of the command.
func (runCommand) Help() string {
	return `Without --nats the node serves from a JetStream server of its own on 127.0.0.1:4222.

Ctrl-C drains it: active turns finish, or another worker goes on with them. A second Ctrl-C ends it at once.

Examples:
  worker run
  worker run --nats nats://bus:4222 --model qwen.gguf --max-active 4
  worker run --nats nats://bus:4222 --model qwen.gguf --lora poet=poet.gguf --lora sql=sql.gguf:0.5
  worker run --nats tls://bus:4222 --creds node.creds --http :9090
  worker run --config mesh.yaml                   # with lines like "max-active: 4"`
}

// mendEvery is how often a server of the node's own is looked after.
const mendEvery = 5 * time.Second

// Run is called by the command-line parser.
func (c *runCommand) Run(env *environment) (err error) {
	cfg, err := c.config(env)
	if err != nil {
		return err
	}
	model, err := c.load(env)
	if err != nil {
		return err
	}
	defer model.Free()
	o := c.engineOptions(env)
	o.Slots = c.MaxActive
	engine, err := newEngine(env, model, o)
	if err != nil {
		return err
	}
	defer engine.Free()
	if err := c.holdsATurn(engine.Facts()); err != nil {
		return err
	}
	c.describe(&cfg, model, engine)
	store, err := c.openSpill(env, engine)
	if err != nil {
		return err
	}
	defer closeSpill(env.log, store)
	cfg.Scheduler.Spill, cfg.Scheduler.Sharing = store, c.sharing()
	defer serveChat(&cfg.Text, model)()
	if err := serveAnswers(&cfg.Text, model, c.AllowGrammar); err != nil {
		return err
	}
	cfg.Identity.Features = c.features(&cfg)
	if c.NATS == "" {
		server, err := c.embedded(env)
		if err != nil {
			return err
		}
		var mending sync.WaitGroup
		ctx, stopMending := context.WithCancel(context.WithoutCancel(env.ctx)) // turns that drain need it too
		mending.Go(func() { server.Mend(ctx, mendEvery) })
		defer func() {
			stopMending()
			mending.Wait()
			err = errors.Join(err, server.Shutdown())
		}()
		cfg.URL = server.ClientURL()
	}
	return c.serve(env, cfg)
}

// serve runs the service until Ctrl-C, and then drains it.
func (c *runCommand) serve(env *environment, cfg worker.Config) error {
	service, err := worker.New(cfg)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	env.status.set("joining the mesh")
	if err := service.Start(context.WithoutCancel(env.ctx)); err != nil {
		return err
	}
	started := false
	select {
	case <-service.Started():
		started = true
	case <-env.ctx.Done():
	case <-service.Stopped():
	}
	env.status.clear()
	if started {
		fmt.Fprintf(env.stderr, "serving %s as node %s on %s; Ctrl-C drains and ends\n", cfg.Model, cfg.Node, worker.WithoutPasswords(cfg.URL))
	}
	select {
	case <-env.ctx.Done():
		env.status.set("draining; Ctrl-C ends at once")
		service.Stop()
	case <-service.Stopped():
	}
	return service.Err()
}

// config is what the flags say, but for the engine.
func (c *runCommand) config(env *environment) (worker.Config, error) {
	var cfg worker.Config
	var err error
	if cfg.Prefix, err = c.prefix(); err != nil {
		return cfg, err
	}
	if cfg.Options, err = c.options(); err != nil {
		return cfg, err
	}
	if cfg.Node, err = c.nodeName(); err != nil {
		return cfg, err
	}
	if cfg.Model, err = c.servedName(); err != nil {
		return cfg, err
	}
	if err := c.inRange(); err != nil {
		return cfg, err
	}
	if err := c.checkSpill(c.HotBudget); err != nil {
		return cfg, err
	}
	cfg.URL, cfg.HTTP = c.url(), c.HTTP
	cfg.Provision, cfg.Replicas, cfg.TenantQuota = worker.Provision(c.Provision), c.Replicas, c.TenantQuota
	cfg.ReplayMax, cfg.DrainTimeout, cfg.Periods.AckWait = c.ReplayMax, c.DrainTimeout, c.AckWait
	if c.Exact {
		cfg.ReplayMax = -1
	}
	if c.DrainTimeout == 0 {
		cfg.DrainTimeout = -1 // which is how a configuration says it
	}
	cfg.Log = env.log
	return cfg, nil
}

// inRange refuses what the service would take for its default, which a zero is there.
func (c *runCommand) inRange() error {
	switch {
	case c.MaxActive < 1 || c.MaxActive > llama.MaxSlots:
		return usageError("--max-active is %d; use 1 to %d", c.MaxActive, llama.MaxSlots)
	case c.Replicas < 1:
		return usageError("--replicas is %d; use at least 1", c.Replicas)
	case c.TenantQuota < 1:
		return usageError("--tenant-quota is %d; use at least 1", c.TenantQuota)
	case c.ReplayMax == 0:
		return usageError("--replay-max is 0; use at least 1, or -1 for no limit")
	case c.AckWait <= 0:
		return usageError("--ack-wait is %s; use 2s or more", c.AckWait)
	}
	return nil
}

// holdsATurn refuses a KV budget in which not even the smallest turn fits: such a node would take none.
func (c *runCommand) holdsATurn(facts scheduler.Facts) error {
	if least := facts.FixedBytes + facts.BytesPerToken; c.KVBudget > 0 && int64(c.KVBudget) < least {
		return usageError("--kv-budget is %d bytes; the KV of a single token of this model takes %d", c.KVBudget, least)
	}
	return nil
}

// describe adds what the loaded model and its engine say.
func (c *runCommand) describe(cfg *worker.Config, model *llama.Model, engine *llama.Engine) {
	facts, m, probes := engine.Facts(), model.Facts(), engine.Probes()
	budget := scheduler.DefaultBudget(facts)
	budget.MaxQueueDepth = c.QueueDepth
	if c.KVBudget > 0 {
		budget.KVBudgetBytes = int64(c.KVBudget)
	}
	if c.HotBudget != nil {
		budget.HotBudgetBytes = int64(*c.HotBudget)
	}
	if c.Suspend != nil {
		budget.SuspendBudgetBytes = int64(*c.Suspend)
	}
	cfg.Engine = engine
	cfg.ModelFingerprint = model.Identity()[:32] // nodes with another number of slots go on with each other's turns
	cfg.Scheduler = scheduler.Config{Budget: budget, StallAfter: c.StallAfter, Weights: c.TenantWeight}
	cfg.Text = worker.Text{Tokenize: model.TokenizeWithin, Piece: model.AppendText}
	cfg.Identity = capability.Identity{
		Version: semantic(version), Architecture: m.Architecture, Parameters: int64(m.Parameters), Quantisation: m.Quantisation,
		WindowBytes: probes.WindowBytes, FlashAttention: probes.FlashAttention,
	}
}

// features are what clients may ask of this node, and not of every other.
func (c *runCommand) features(cfg *worker.Config) []string {
	var features []string
	if cfg.Text.Chat != nil {
		features = append(features, "chat")
	}
	if cfg.Text.JSONSchema != nil {
		features = append(features, "json-schema")
	}
	if cfg.Text.Grammar != nil {
		features = append(features, "grammar")
	}
	if c.Exact {
		features = append(features, "exact")
	}
	return features
}

// semantic is a version as NATS services must have one: that of a release, or 0.0.0 with what git says.
func semantic(v string) string {
	v = strings.TrimPrefix(v, "v")
	if regexp.MustCompile(`^\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?$`).MatchString(v) {
		return v
	}
	return "0.0.0+" + regexp.MustCompile(`[^0-9A-Za-z.-]`).ReplaceAllString(v, "-")
}

var unnamable = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// nameOf makes something a name of the mesh.
func nameOf(s string) string {
	const longest = 64
	s = strings.Trim(unnamable.ReplaceAllString(s, "-"), "-")
	return s[:min(len(s), longest)]
}

func (c *runCommand) nodeName() (schemas.Node, error) {
	name := c.Node
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return schemas.Node{}, fmt.Errorf("the machine has no name (%w); give the node one with --node", err)
		}
		host, _, _ = strings.Cut(host, ".")
		name = nameOf(host)
	}
	node, err := schemas.ParseNode(name)
	if err != nil {
		return node, usageError("--node: %v", err)
	}
	return node, nil
}

func (c *runCommand) servedName() (schemas.Model, error) {
	name := c.Name
	switch {
	case name != "":
	case c.Model == "":
		name = models.StoryName
	default:
		name = nameOf(c.source().Name)
	}
	model, err := schemas.ParseModel(name)
	if err != nil {
		return model, usageError("--name: %v", err)
	}
	return model, nil
}

// embedded starts the server of a node that was given none.
func (c *runCommand) embedded(env *environment) (*natsserver.Server, error) {
	server, err := natsserver.Start(natsserver.Options{Dir: c.StoreDir, Port: natsserver.DefaultPort, Log: env.log})
	switch {
	case errors.Is(err, natsserver.ErrPortInUse), errors.Is(err, natsserver.ErrDirInUse):
		return nil, fmt.Errorf("%w; to join the mesh of that server, run with --nats %s", err, nats.DefaultURL)
	case err != nil:
		return nil, err
	}
	env.log.Log(env.ctx, slog.LevelInfo, "embedded NATS server", "url", server.ClientURL(), "dir", server.Dir())
	return server, nil
}
