package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// Provision says what a worker does about stores and consumers that are missing.
type Provision string

// The ways to provision.
const (
	ProvisionAuto   Provision = "auto"   // make what is missing
	ProvisionVerify Provision = "verify" // make nothing but the memory stores, and say which setting differs
)

// Text is what the service needs of a model beside its engine.
type Text struct {
	// Tokenize is called with the most tokens that could be of use; an error is the request's.
	Tokenize func(limit int, text string, special bool) ([]int32, error)
	// Piece appends the raw text of a token, which may end within a character. A token outside the vocabulary is an
	// error. Called from several goroutines at once.
	Piece func(dst []byte, token int32) ([]byte, error)

	// Chat turns messages into a prompt, by the model's own template; now is what the template takes for the present. The
	// error is the request's, a *FieldError where one field is to blame. Nil: the model takes no messages, and NoChat says why.
	Chat   func(limit int, messages []schemas.ChatMessage, tools string, now time.Time) ([]int32, error)
	NoChat error

	// JSONSchema turns a JSON Schema into a grammar for the engine, which is a scheduler.GrammarEngine then; a *FieldError is the
	// request's, every other error the node's. Nil: no turn is held to a schema here.
	JSONSchema func(ctx context.Context, schema string) (string, error)
	// Grammar checks a grammar that a client wrote. Nil: none is taken.
	Grammar func(text string) error
}

// FieldError says which field of a request the model cannot take.
type FieldError struct {
	Field  string // such as messages[2].role
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Peers is what the service knows of the other nodes.
type Peers interface {
	// Fitting is a live node, not self, that serves the model with the adapter, if one is named, and could run a turn of so
	// many tokens.
	Fitting(model schemas.Model, adapter schemas.Adapter, tokens int, self schemas.Node) (schemas.Node, bool)
	// Live says whether a node was heard of in the last while.
	Live(node schemas.Node, within time.Duration) bool
	// Sighted says that the watch on nodes has been without a gap for so long: only then absence means anything.
	Sighted(within time.Duration) bool
}

// Config is what New needs. Node, Model, Engine and Text must be set; the zero value of the others is a default.
type Config struct {
	URL     string        // of the NATS servers
	Options []nats.Option // TLS, credentials and the like, for both connections

	Prefix schemas.Prefix
	Node   schemas.Node
	Boot   schemas.Boot // drawn
	Model  schemas.Model

	// Identity is what else is advertised; its Node, Boot and Model are those above. Its Version must be a semantic
	// one; empty is 0.0.0.
	Identity    capability.Identity
	Certificate *schemas.Certificate

	// ModelFingerprint tells models apart that could be served under one name. A turn is gone on with only on the
	// same model. Empty is the engine's restore fingerprint.
	ModelFingerprint string

	Engine    scheduler.Engine
	Text      Text
	Scheduler scheduler.Config // a zero Budget is the default of the engine

	Peers Peers // nil is a registry of the service's own

	HTTP string // address of /metrics, /healthz and /readyz; empty is none

	Provision   Provision // ProvisionAuto
	TenantQuota int       // requests of a tenant in one lane; 64
	Replicas    int       // of the stores that are made; 1
	ReplayMax   int       // tokens that a takeover replays rather than prefills; 512, negative is no limit

	Periods      Periods
	DrainTimeout time.Duration // how long active turns may go on after Stop; 30 s, negative is not at all

	Log *slog.Logger // nil is slog.Default()
}

// Periods are how often and how long. Zero fields have the defaults given here.
type Periods struct {
	AckWait      time.Duration // 30 s: how long a request may be silent before it is delivered again
	FetchExpiry  time.Duration // 1 s: how long one fetch waits
	Keepalive    time.Duration // 5 s: how long a turn's stream may be silent
	LaneSweep    time.Duration // 2 s: how often a worker without room empties its own lane
	Guests       time.Duration // 250 ms: how often a full worker looks for tenants that have no turn here
	Rescue       time.Duration // 10 s: how often lanes of dead nodes are looked for
	DeadAfter    time.Duration // 15 s: how long a node is silent before it is dead
	ForgetAfter  time.Duration // 1 h: how long a node is silent before its consumer is deleted
	Offset       time.Duration // 1 m: how often the server's clock is read
	Request      time.Duration // 2 s: how long one answer of the server may take
	Watchdog     time.Duration // 5 s: how often a stalled consumer is looked for
	Confirm      time.Duration // 250 ms: how often tokens are looked for that the stream has not confirmed
	Ping         time.Duration // 10 s: how often a silent connection is tried; one that misses three is made anew
	ReconnectMax time.Duration // 2 s: the longest wait between two attempts to connect
}

const (
	defaultQuota     = 64
	defaultReplayMax = 512
	defaultDrain     = 30 * time.Second
)

func (p *Periods) setDefaults() {
	set := func(d *time.Duration, def time.Duration) { *d = cmp.Or(*d, def) }
	set(&p.AckWait, 30*time.Second)
	set(&p.FetchExpiry, time.Second)
	set(&p.Keepalive, 5*time.Second)
	set(&p.LaneSweep, 2*time.Second)
	set(&p.Guests, 250*time.Millisecond)
	set(&p.Rescue, 10*time.Second)
	set(&p.DeadAfter, 15*time.Second)
	set(&p.ForgetAfter, time.Hour)
	set(&p.Offset, time.Minute)
	set(&p.Request, 2*time.Second)
	set(&p.Watchdog, 5*time.Second)
	set(&p.Confirm, 250*time.Millisecond)
	set(&p.Ping, 10*time.Second)
	set(&p.ReconnectMax, 2*time.Second)
	p.Request = min(p.Request, p.AckWait/3) // a beat that takes longer than its period is no beat
}

// complete checks the configuration and fills in its defaults.
func (c *Config) complete() error {
	if c.Boot.IsZero() {
		c.Boot = schemas.Must(schemas.ParseBoot(rand.Text()))
	}
	c.Provision = cmp.Or(c.Provision, ProvisionAuto)
	c.TenantQuota = cmp.Or(c.TenantQuota, defaultQuota)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.ReplayMax = cmp.Or(c.ReplayMax, defaultReplayMax)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, defaultDrain)
	c.Identity.Version = cmp.Or(c.Identity.Version, "0.0.0")
	c.Identity.Node, c.Identity.Boot, c.Identity.Model = c.Node, c.Boot, c.Model
	c.URL = cmp.Or(c.URL, nats.DefaultURL)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Periods.setDefaults()
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("worker: "+format, args...)) }
	if c.Node.IsZero() {
		fail("node is missing; give it a name")
	}
	if c.Model.IsZero() {
		fail("model is missing; name what is served")
	}
	if c.Engine == nil || c.Text.Tokenize == nil || c.Text.Piece == nil {
		fail("engine and text must be set")
	}
	if c.Provision != ProvisionAuto && c.Provision != ProvisionVerify {
		fail("provision is %q; it must be %s or %s", c.Provision, ProvisionAuto, ProvisionVerify)
	}
	if c.TenantQuota < 1 {
		fail("tenant quota is %d; it must be at least 1", c.TenantQuota)
	}
	if p := c.Periods; p.AckWait < 2*p.FetchExpiry {
		fail("ack wait is %s; it must be at least twice the fetch expiry of %s", p.AckWait, p.FetchExpiry)
	}
	if len(errs) == 0 {
		errs = append(errs, c.checkAdapters(), c.checkWeights())
		c.completeEngine()
	}
	return errors.Join(errs...)
}

// checkAdapters refuses adapters that requests could not name.
func (c *Config) checkAdapters() error {
	adapters := c.Engine.Facts().Adapters
	if n := len(adapters); n > schemas.MaxAdapters {
		return fmt.Errorf("worker: the engine has %d adapters; a node may have %d", n, schemas.MaxAdapters)
	}
	for _, a := range adapters {
		if _, err := schemas.ParseAdapter(a.Name); err != nil {
			return fmt.Errorf("worker: %w", err)
		}
	}
	return nil
}

// checkWeights refuses weights of tenants that no subject could name.
func (c *Config) checkWeights() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Scheduler.Weights)) {
		if _, err := schemas.ParseTenant(name); err != nil {
			errs = append(errs, fmt.Errorf("worker: weights[%.*q]: %w", scheduler.MaxNameBytes, name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) completeEngine() {
	if c.ModelFingerprint == "" {
		c.ModelFingerprint = c.Engine.Fingerprints().Restore
	}
	if c.Scheduler.Budget == (scheduler.NodeBudget{}) {
		c.Scheduler.Budget = scheduler.DefaultBudget(c.Engine.Facts())
	}
}
