package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// Service is a node of the mesh. It is a part.Part: Stop drains it, which takes up to Config.DrainTimeout and the
// expiry of a fetch.
//
// It owns two connections, so that tokens and acks delay each other in neither direction, the scheduler, and every
// goroutine named here. The engine stays its caller's, who may free it once the service has stopped.
type Service struct {
	part.Life
	cfg    Config
	log    *slog.Logger
	facts  scheduler.Facts
	prints scheduler.Fingerprints

	sched   *scheduler.Scheduler
	places  *places
	turns   *turns
	metrics *metrics
	clock   meshClock

	// Made by connect, before anything that uses them runs.
	control   *nats.Conn
	js        jetstream.JetStream
	provision *provisioner
	ledger    *turnLedger
	stream    *publisher
	registry  *capability.Registry
	ads       *capability.Advertiser
	endpoints micro.Service

	unconnected atomic.Pointer[error] // why the last attempt to connect failed

	turnAsks, nodeAsks asks // what the endpoints are asked

	// hard ends when nothing of a turn may go on any more; Life's context ends before it, when no turn may
	// come any more.
	hard       context.Context
	endHard    context.CancelCauseFunc
	background sync.WaitGroup // what serves the turns: the engine's goroutine, the publisher
	tasks      sync.WaitGroup // requests being decided on, and live turns

	ready    atomic.Bool // pulling
	draining atomic.Bool
	stopping atomic.Bool
	opened   sync.Once
	open     func() // closes Life's started
	http     *httpServer
}

// New makes a service that has to be started. The errors name each field of cfg that is wrong.
func New(cfg Config) (*Service, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	sched, err := scheduler.New(cfg.Engine, cfg.Scheduler)
	if err != nil {
		return nil, err
	}
	spare := 0
	if cfg.Scheduler.Budget.SuspendBudgetBytes > 0 {
		spare = sched.ActiveCap()
	}
	s := &Service{
		cfg:    cfg,
		log:    cfg.Log.With("node", cfg.Node.String()),
		facts:  cfg.Engine.Facts(),
		prints: cfg.Engine.Fingerprints(),
		sched:  sched,
		places: newPlaces(sched.ActiveCap(), spare),
		turns:  newTurns(),
	}
	s.metrics = newMetrics(s)
	s.hard, s.endHard = context.WithCancelCause(context.Background())
	if cfg.HTTP != "" {
		s.http = &httpServer{}
	}
	return s, nil
}

// Start implements part.Part. The service is started once it pulls requests.
func (s *Service) Start(ctx context.Context) error { return s.Launch(ctx, s.listenHTTP, s.run) }

// run is the service's life.
func (s *Service) run(ctx context.Context, ready func()) (err error) {
	s.open = ready
	defer s.endHard(nil)
	defer func() { err = errors.Join(err, s.closeHTTP()) }()
	if err := s.connect(ctx); err != nil {
		s.sched.Close()
		return err
	}
	s.background.Go(s.compute)
	s.background.Go(func() { s.stream.run(s.hard) })
	s.background.Go(func() { s.sched.Watch(s.hard, func() { s.deliver(s.sched.TakeResults(nil)) }) })
	s.background.Go(func() { s.readClock(s.hard) })
	s.background.Go(func() { s.countReconnects(s.hard) })
	defer s.disconnect()
	if err := s.offer(ctx); err != nil {
		s.endHard(err)
		return err
	}
	var pulling sync.WaitGroup
	pulling.Go(func() { (&puller{s: s, hints: make(chan struct{}, 1)}).supervise(ctx) })
	pulling.Go(func() { s.rescueRuns(ctx) })
	select {
	case <-ctx.Done():
	case <-s.hard.Done(): // the engine failed, or a test killed the service
		s.Abort()
		s.control.Close()
		s.stream.conn.Close()
		pulling.Wait()
		return context.Cause(s.hard)
	}
	s.shutdown(&pulling)
	return nil
}

// setReady says that requests are pulled.
func (s *Service) setReady() {
	s.ready.Store(true)
	s.opened.Do(s.open)
	s.ads.Nudge()
}

// State is what the node advertises.
func (s *Service) State() schemas.NodeState {
	switch {
	case s.draining.Load():
		return schemas.NodeDraining
	case s.ready.Load():
		return schemas.NodeReady
	}
	return schemas.NodeStarting
}

// errAborted is how a service ends that was aborted.
var errAborted = errors.New("worker: aborted")

// compute drives the engine until hard ends. It is the one goroutine that does.
func (s *Service) compute() {
	err := s.sched.Run(s.hard, s.sink)
	s.sched.Close()
	s.deliver(s.sched.TakeResults(nil))
	if err != nil {
		s.endHard(fmt.Errorf("worker: the engine cannot go on: %w", err))
	}
}

// sink takes what a tick yielded. It never waits for the network: it appends and signals.
func (s *Service) sink(r *scheduler.Report) {
	now := time.Now()
	s.metrics.tick(r)
	for _, started := range r.Started {
		if t := s.turns.find(started.Key); t != nil {
			t.started(started)
			s.metrics.queue.Observe(started.Queued.Seconds())
		}
	}
	endings := s.sched.TakeResults(nil)
	s.stream.mu.Lock()
	for _, token := range r.Tokens {
		if t := s.turns.find(token.Key); t != nil {
			token.Index += t.plan.prefilled
			s.stream.appendLocked(t.out, token)
			s.metrics.token(t, now)
		}
	}
	for _, end := range endings {
		if t := s.turns.find(end.Key); t != nil {
			t.out.whole = end.Reason == scheduler.Completed // with its last token, for the text held back
		}
	}
	s.stream.mu.Unlock()
	if len(r.Tokens) > 0 {
		s.stream.signal()
	}
	s.deliver(endings)
}

func (s *Service) deliver(endings []scheduler.Ending) {
	for _, end := range endings {
		if t := s.turns.find(end.Key); t != nil {
			t.deliver(ending{Ending: end})
		}
	}
}

// readClock measures the server's clock now and then.
func (s *Service) readClock(ctx context.Context) {
	for wait(ctx, s.cfg.Periods.Offset) {
		if err := s.measure(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("the server's clock stays as it was last read", "error", err)
		}
	}
}

func (s *Service) measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Prefix.RequestStream())
	if err != nil {
		return err
	}
	return s.clock.measure(ctx, stream)
}

// offer tells the mesh that the node is there, and answers questions.
func (s *Service) offer(ctx context.Context) error {
	if err := s.aloneInName(ctx); err != nil {
		return err
	}
	var err error
	s.ads, err = capability.NewAdvertiser(capability.AdvertiserConfig{Conn: s.control, Prefix: s.cfg.Prefix, Node: s.cfg.Node,
		Source: s.advertisement, Request: s.cfg.Periods.Request, Log: s.log})
	if err != nil {
		return err
	}
	if s.cfg.Peers == nil {
		s.registry, err = capability.NewRegistry(capability.RegistryConfig{Conn: s.control, Prefix: s.cfg.Prefix,
			Request: s.cfg.Periods.Request, Log: s.log,
			Rejected: func(reason schemas.RejectReason) { s.metrics.guardRejects.WithLabelValues(string(reason)).Inc() }})
		if err != nil {
			return err
		}
		s.cfg.Peers = s.registry
		if err := s.registry.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	if err := s.ads.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return s.answer()
}

// advertisement is what the node is like now.
func (s *Service) advertisement() *schemas.Advertisement {
	budget := s.cfg.Scheduler.Budget
	longest := int64(s.facts.ContextTokens)
	if s.facts.BytesPerToken > 0 {
		longest = min(longest, (budget.KVBudgetBytes-s.facts.FixedBytes)/s.facts.BytesPerToken)
	}
	return capability.Snapshot(&s.cfg.Identity, &capability.Moment{
		State:             s.State(),
		Telemetry:         s.sched.Telemetry(),
		Facts:             s.facts,
		Fingerprints:      s.prints,
		MaxActiveSessions: s.places.limit,
		FreeSlots:         s.places.free(),
		MaxQueueDepth:     budget.MaxQueueDepth,
		MaxSessionTokens:  int(max(0, longest)),
		Certificate:       s.cfg.Certificate,
	})
}
