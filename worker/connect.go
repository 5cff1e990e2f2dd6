package worker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connect makes both connections and the stores, and waits for the servers as long as it takes. What it returns is
// nothing that waiting would help.
func (s *Service) connect(ctx context.Context) error {
	var err error
	if s.control, err = s.dial("control"); err != nil {
		return err
	}
	tokens, err := s.dial("tokens")
	if err != nil {
		s.control.Close()
		return err
	}
	abandon := func(err error) error {
		s.control.Close()
		tokens.Close()
		return err
	}
	if s.js, err = jetstream.New(s.control, jetstream.WithDefaultTimeout(s.cfg.Periods.Request)); err != nil {
		return abandon(err)
	}
	tokenJS, err := jetstream.New(tokens, jetstream.WithDefaultTimeout(s.cfg.Periods.Request))
	if err != nil {
		return abandon(err)
	}
	s.stream = newPublisher(tokens, tokenJS, s.cfg.Prefix.EventStream(), s.cfg.Periods, func(kind string) { s.metrics.publishErrors.WithLabelValues(kind).Inc() })
	s.provision = &provisioner{js: s.js, prefix: s.cfg.Prefix, cfg: &s.cfg, lost: s.stream.lost}
	var said time.Time
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := s.firstStores(ctx)
		if err == nil {
			return nil
		}
		var wrong *settingError
		if errors.As(err, &wrong) || errors.Is(err, nats.ErrAuthorization) {
			return abandon(err)
		}
		if ctx.Err() == nil && pause >= maxPause/8 && time.Since(said) > sayAgain { // a server that is just starting is no news
			said = time.Now()
			s.log.Warn("waiting for NATS", "error", err)
		}
		if !wait(ctx, pause) {
			return abandon(ctx.Err())
		}
	}
}

// sayAgain is how often a worker says that it waits for its server.
const sayAgain = 30 * time.Second

func (s *Service) firstStores(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*s.cfg.Periods.Request)
	defer cancel()
	if !s.control.IsConnected() {
		servers := WithoutPasswords(s.cfg.URL)
		if why := s.unconnected.Load(); why != nil {
			return fmt.Errorf("no connection to %s yet: %w", servers, *why)
		}
		return fmt.Errorf("no connection to %s yet", servers)
	}
	turns, err := s.provision.stores(ctx)
	if err != nil {
		return err
	}
	s.ledger = &turnLedger{kv: turns, timeout: s.cfg.Periods.Request, garbled: s.foundGarbled}
	for _, want := range []jetstream.ConsumerConfig{s.provision.ownConsumer(s.cfg.Node), s.provision.sharedConsumer(s.cfg.Model)} {
		var wrong *settingError
		if _, err := s.provision.durable(ctx, want); errors.As(err, &wrong) {
			return err // waiting for it would not help; whatever else it is, the puller waits for
		}
	}
	return s.measure(ctx)
}

// WithoutPasswords is a list of servers, separated by commas, as it may be shown.
func WithoutPasswords(servers string) string {
	list := strings.Split(servers, ",")
	for i, server := range list {
		server = strings.TrimSpace(server)
		if !strings.Contains(server, "://") { // as the client takes it
			server = "nats://" + server
		}
		if u, err := url.Parse(server); err == nil {
			list[i] = u.Redacted()
		} else {
			list[i] = "a server whose URL cannot be read"
		}
	}
	return strings.Join(list, ",")
}

// dial makes a connection that lasts for ever and keeps nothing for later: what could not be sent is known at once.
func (s *Service) dial(purpose string) (*nats.Conn, error) {
	options := append([]nats.Option{
		nats.Name("meshnet worker " + s.cfg.Node.String() + " " + purpose),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(min(100*time.Millisecond, s.cfg.Periods.ReconnectMax)),
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			return min(time.Duration(attempts)*100*time.Millisecond, s.cfg.Periods.ReconnectMax)
		}),
		nats.RetryOnFailedConnect(true),
		nats.PingInterval(s.cfg.Periods.Ping), // the default takes minutes to find that nobody is there any more
		nats.FlusherTimeout(2 * s.cfg.Periods.Ping),
		nats.ReconnectOnFlusherError(), // what could not be written is lost, and only a reconnect tells
		nats.IgnoreAuthErrorAbort(),
		nats.NoEcho(),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			s.log.Warn("NATS", "connection", purpose, "error", err)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { s.unconnected.Store(&err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				s.log.Warn("NATS connection lost", "connection", purpose, "error", err)
			}
		}),
	}, s.cfg.Options...)
	conn, err := nats.Connect(s.cfg.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", WithoutPasswords(s.cfg.URL), err)
	}
	return conn, nil
}

// countReconnects keeps the metric, and makes the memory stores again that a restart of the server lost.
func (s *Service) countReconnects(ctx context.Context) {
	status := s.control.StatusChanged(nats.CONNECTED)
	defer s.control.RemoveStatusListener(status)
	for {
		select {
		case <-ctx.Done():
			return
		case <-status:
		}
		s.metrics.reconnects.Inc()
		for pause := minPause; ctx.Err() == nil; pause = min(2*pause, maxPause) {
			short, cancel := context.WithTimeout(ctx, 2*s.cfg.Periods.Request)
			err := s.provision.memoryStores(short)
			cancel()
			if err == nil {
				break
			}
			s.log.Debug("the memory stores are not there yet", "error", err)
			if !wait(ctx, pause) {
				return
			}
		}
	}
}

// disconnect ends what serves the turns, and then the connections: never the other way round.
func (s *Service) disconnect() {
	if s.endpoints != nil {
		_ = s.endpoints.Stop() // fails only where the connection is closed
	}
	s.turnAsks.close()
	s.nodeAsks.close()
	if s.ads != nil {
		s.ads.Stop()
	}
	if s.registry != nil {
		s.registry.Stop()
	}
	s.endHard(nil)
	if e, ok := s.cfg.Engine.(interface{ Interrupt() }); ok && s.sched.Pending() > 0 {
		e.Interrupt() // a long call would keep the engine's goroutine, for turns that nobody waits for
	}
	s.tasks.Wait()
	s.background.Wait()
	for _, conn := range []*nats.Conn{s.control, s.stream.conn} {
		closed := conn.StatusChanged(nats.CLOSED)
		if err := conn.Drain(); err != nil {
			conn.Close()
		}
		if !conn.IsClosed() {
			<-closed
		}
		conn.RemoveStatusListener(closed)
	}
}
