package capability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
)

// Silence is how long a node may be silent before it is taken for dead.
const Silence = 15 * time.Second

// RegistryConfig is what NewRegistry needs. Conn must be set; zero values of the others are the defaults given here.
type RegistryConfig struct {
	Conn   *nats.Conn
	Prefix schemas.Prefix

	Limit  int           // 10,000 nodes; those beyond it are not seen
	Forget time.Duration // 2 h: how long a node that is silent is remembered

	Probe   time.Duration // 5 s: how often it is checked that the watch still sees
	Request time.Duration // 2 s: how long an answer of the server may take

	// Rejected is told of each payload that is no advertisement, and of each advertisement where it does not belong.
	Rejected func(schemas.RejectReason)

	Clock part.Clock   // part.SystemClock
	Log   *slog.Logger // nil is slog.Default()
}

// Registry knows the nodes that advertise themselves. It is a part.Part, and started once it knows those that
// were there, or that nobody can tell it. It goes on through restarts of the server, and when the bucket is made again. Its methods are safe for
// concurrent use, before Start and after Stop too.
type Registry struct {
	part.Life
	cfg RegistryConfig

	mu       sync.Mutex // guards what follows
	table    table
	healthy  time.Time // since when nothing was missed; zero: not now
	rejected uint64
	watchers map[chan struct{}]struct{}
}

// NewRegistry makes a Registry that has to be started.
func NewRegistry(cfg RegistryConfig) (*Registry, error) {
	if cfg.Conn == nil {
		return nil, errors.New("capability: a registry needs Conn")
	}
	cfg.Limit = cmp.Or(cfg.Limit, 10_000)
	cfg.Forget = cmp.Or(cfg.Forget, 2*time.Hour)
	cfg.Probe = cmp.Or(cfg.Probe, 5*time.Second)
	cfg.Request = cmp.Or(cfg.Request, 2*time.Second)
	if cfg.Clock == nil {
		cfg.Clock = part.SystemClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Registry{cfg: cfg, watchers: make(map[chan struct{}]struct{}),
		table: table{limit: cfg.Limit, nodes: make(map[schemas.Node]*sighting)}}, nil
}

// Nodes are the nodes that did not say goodbye, by name, those that are silent included.
func (r *Registry) Nodes() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.all()
}

// Node is one of Nodes.
func (r *Registry) Node(node schemas.Node) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.get(node)
}

// Live says whether a node was heard of in the last while.
func (r *Registry) Live(node schemas.Node, within time.Duration) bool {
	now := r.cfg.Clock.Now()
	entry, ok := r.Node(node)
	return ok && now.Sub(entry.Seen) < within
}

// Feasible are the live, ready nodes that serve a model and could run a turn of so many prompt and new tokens,
// whoever has most room first.
func (r *Registry) Feasible(model schemas.Model, tokens int) []Entry {
	now := r.cfg.Clock.Now()
	entries := slices.DeleteFunc(r.Nodes(), func(e Entry) bool {
		return now.Sub(e.Seen) >= Silence || e.Ad.State != schemas.NodeReady || e.Ad.Model.Name != model ||
			!e.Ad.Model.Head || !e.Ad.Model.Tail || e.Ad.MaxSessionTokens < tokens
	})
	slices.SortFunc(entries, byRoom)
	return entries
}

// Fitting is the first of Feasible that is not self and has the adapter, if one is named.
func (r *Registry) Fitting(model schemas.Model, adapter schemas.Adapter, tokens int, self schemas.Node) (schemas.Node, bool) {
	for _, e := range r.Feasible(model, tokens) {
		if e.Ad.Node != self && e.Ad.Model.Serves(adapter) {
			return e.Ad.Node, true
		}
	}
	return schemas.Node{}, false
}

// HealthySince is since when no news can have been missed; false while that is not known. A connection that hangs is found
// out after RegistryConfig's Probe and Request, so that it means something only over a longer time than the two.
func (r *Registry) HealthySince() (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.healthy, !r.healthy.IsZero()
}

// Sighted says that no news can have been missed for so long: only then absence means anything.
func (r *Registry) Sighted(within time.Duration) bool {
	since, ok := r.HealthySince()
	return ok && r.cfg.Clock.Now().Sub(since) >= within
}

// Rejected counts what was no advertisement.
func (r *Registry) Rejected() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rejected
}

// Changes is a channel that has a value after news came; many are one. It is never closed. stop ends it.
func (r *Registry) Changes() (changes <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	r.mu.Lock()
	r.watchers[c] = struct{}{}
	r.mu.Unlock()
	return c, func() {
		r.mu.Lock()
		delete(r.watchers, c)
		r.mu.Unlock()
	}
}

// Start implements part.Part.
func (r *Registry) Start(ctx context.Context) error {
	js, err := jetstream.New(r.cfg.Conn)
	if err != nil {
		return fmt.Errorf("capability: %w", err)
	}
	var beats *nats.Subscription
	open := func(context.Context) (err error) {
		if beats, err = r.cfg.Conn.SubscribeSync(r.cfg.Prefix.Capabilities()); err != nil {
			return fmt.Errorf("capability: listen to advertisements: %w", err)
		}
		return nil
	}
	return r.Launch(ctx, open, func(ctx context.Context, ready func()) error {
		r.Go(func(ctx context.Context) error { return r.listen(ctx, beats) })
		return r.watch(ctx, js, ready)
	})
}

// listen takes the beats of all nodes.
func (r *Registry) listen(ctx context.Context, beats *nats.Subscription) error {
	defer beats.Unsubscribe() //nolint:errcheck // the connection is closed, or it works
	for {
		msg, err := beats.NextMsgWithContext(ctx)
		switch {
		case err == nil:
			node, err := r.cfg.Prefix.ParseCapability(msg.Subject)
			if err != nil {
				r.reject(schemas.RejectInvalid)
				continue
			}
			r.take(node, msg.Data)
		case errors.Is(err, nats.ErrSlowConsumer):
			r.missed()
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			return fmt.Errorf("capability: listen to advertisements: %w", err)
		}
	}
}

// take reads an advertisement that came as a node's.
func (r *Registry) take(node schemas.Node, payload []byte) {
	ad, err := schemas.Decode[schemas.Advertisement](payload)
	if err == nil && ad.Node != node {
		err = &schemas.DecodeError{Message: "Advertisement", Reason: schemas.RejectInvalid}
	}
	if err != nil {
		reason := schemas.RejectInvalid
		var decode *schemas.DecodeError
		if errors.As(err, &decode) {
			reason = decode.Reason
		}
		r.reject(reason)
		return
	}
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table.add(ad, now) {
		r.notify()
	}
}

func (r *Registry) reject(reason schemas.RejectReason) {
	r.mu.Lock()
	r.rejected++
	r.mu.Unlock()
	if r.cfg.Rejected != nil {
		r.cfg.Rejected(reason)
	}
}

// goodbye takes a node out.
func (r *Registry) goodbye(node schemas.Node) {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.table.remove(node, now) {
		r.notify()
	}
}

// notify tells all watchers. r.mu is held.
func (r *Registry) notify() {
	for c := range r.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
