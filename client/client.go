package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
)

// How long a client waits. A test moves its clock instead of waiting.
const (
	publishAttempt = time.Second            // one try to publish a request
	firstRetry     = 100 * time.Millisecond // wait before the second, doubling
	lastRetry      = 2 * time.Second        // the longest wait
	noStream       = 15 * time.Second       // how long nobody may take requests before that is an error
	answer         = 2 * time.Second        // one answer of a worker or of the server
	askPatience    = 5 * time.Second        // of Cancel and Status, over all tries
	silence        = 15 * time.Second       // of a turn, before a worker is asked
	askAgain       = 5 * time.Second        // after nobody answered
	openGap        = 5 * time.Second        // how long a gap may stay open after the final
	unreadGap      = 30 * time.Second       // if the stored events cannot be read meanwhile: a cluster may be electing a leader
	overdue        = 5 * time.Second        // after the deadline, before the client cancels
	lastWait       = 15 * time.Second       // after that, for the outcome
	registryWait   = time.Second            // for the nodes to be known, when a hot one is looked for
)

// Client submits turns over one NATS connection, which stays its caller's. It is safe for concurrent use.
//
// For what is sent late to be not sent at all, connect with nats.ReconnectBufSize(-1).
type Client struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	prefix schemas.Prefix
	clock  part.Clock
	log    *slog.Logger
	buffer int // events that a stream keeps for a slow reader

	hot hotNodes

	mu       sync.Mutex // guards what follows
	registry *capability.Registry
	own      bool // registry is to be stopped by Close
	closed   bool
}

// Option changes what New makes.
type Option func(*Client)

// WithPrefix is for a mesh with another subject prefix than the default.
func WithPrefix(p schemas.Prefix) Option { return func(c *Client) { c.prefix = p } }

// WithRegistry lets the client use a registry that runs already, and that its caller stops.
func WithRegistry(r *capability.Registry) Option { return func(c *Client) { c.registry = r } }

// WithLog is where the client tells of retries and of payloads it cannot read; slog.Default() otherwise.
func WithLog(log *slog.Logger) Option { return func(c *Client) { c.log = log } }

// WithClock is for tests.
func WithClock(clock part.Clock) Option { return func(c *Client) { c.clock = clock } }

// WithBuffer is how many events a Stream keeps for a reader that is slow; 1024 otherwise. Events beyond them are
// not lost: they are read again from the mesh.
func WithBuffer(events int) Option { return func(c *Client) { c.buffer = max(1, events) } }

// New makes a Client.
func New(nc *nats.Conn, options ...Option) (*Client, error) {
	if nc == nil {
		return nil, errors.New("client: New needs a connection")
	}
	c := &Client{nc: nc, clock: part.SystemClock{}, log: slog.Default(), buffer: 1024}
	for _, option := range options {
		option(c)
	}
	var err error
	if c.js, err = jetstream.New(nc); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}

// Close ends what the client runs in the background. Streams have a Close of their own.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	registry, own := c.registry, c.own
	c.mu.Unlock()
	if own {
		registry.Stop()
	}
}

// Nodes are the nodes of the mesh, by name, those that are silent for a while included.
func (c *Client) Nodes(ctx context.Context) ([]capability.Entry, error) {
	registry, err := c.nodes()
	if err != nil {
		return nil, err
	}
	if err := part.Ready(ctx, registry); err != nil {
		return nil, fmt.Errorf("client: find out which nodes there are: %w", err)
	}
	return registry.Nodes(), nil
}

// nodes is the registry, which is started the first time that it is of use.
func (c *Client) nodes() (*capability.Registry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.registry != nil {
		return c.registry, nil
	}
	if c.closed {
		return nil, errors.New("client: it was closed")
	}
	registry, err := capability.NewRegistry(capability.RegistryConfig{Conn: c.nc, Prefix: c.prefix, Clock: c.clock, Log: c.log})
	if err != nil {
		return nil, err
	}
	if err := registry.Start(context.Background()); err != nil {
		return nil, err
	}
	c.registry, c.own = registry, true
	return registry, nil
}
