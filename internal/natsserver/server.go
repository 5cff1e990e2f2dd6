package natsserver

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startTimeout is how long a server may take until its listeners are open. Its data is read before that,
// and does not count.
const startTimeout = 20 * time.Second

// ErrStopped answers Restart after Shutdown.
var ErrStopped = errors.New("the server was shut down")

// Server is a running NATS server. Its methods are safe for concurrent use.
type Server struct {
	opts Options // with the port that was drawn
	url  string
	lock *lock

	mu      sync.Mutex // guards what follows, and is held while the server starts and stops
	running *server.Server
	stopped bool
}

// Start runs a server, and returns when it takes connections. Its errors say which folder or port was the
// trouble; ErrDirInUse and ErrPortInUse can be told apart from others.
func Start(opts Options) (*Server, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	lock, err := lockDir(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, lock: lock}
	if err := s.begin(); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	if err := lock.sign(s.url); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write into the server's data folder: %w", err), s.Shutdown())
	}
	return s, nil
}

// ClientURL is where clients connect. It stays the same through Restart.
func (s *Server) ClientURL() string { return s.url }

// Dir is the folder of the server's data.
func (s *Server) Dir() string { return s.opts.Dir }

// Shutdown stops the server, waits until it has stopped, and gives its folder back. Clients are cut off.
// Calling it again is safe.
func (s *Server) Shutdown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	s.end()
	if err := s.lock.release(); err != nil {
		return fmt.Errorf("cannot unlock the server's data folder: %w", err)
	}
	return nil
}

// Restart stops the server and starts it again with the same folder and port. What was kept in memory is
// gone. A server whose Restart failed is down; Restart may be tried again.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return ErrStopped
	}
	s.end()
	return s.begin()
}

// LeadsMeta is whether this server leads its cluster's JetStream, which places streams. It is false for a
// server that stands alone.
func (s *Server) LeadsMeta() bool {
	running := s.current()
	return running != nil && running.JetStreamIsLeader()
}

// LeadsStream is whether this server leads a stream of its cluster. The account "" is that of servers without
// accounts.
func (s *Server) LeadsStream(account, stream string) bool {
	if account == "" {
		account = server.DEFAULT_GLOBAL_ACCOUNT
	}
	running := s.current()
	return running != nil && running.JetStreamIsStreamLeader(account, stream)
}

// Healthy is nil when JetStream and all its streams and consumers are up to date, else it says what is not.
func (s *Server) Healthy() error {
	running := s.current()
	if running == nil {
		return errors.New("the server is down")
	}
	if status := running.Healthz(&server.HealthzOptions{}); status.Error != "" {
		return errors.New(status.Error)
	}
	return nil
}

func (s *Server) current() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// begin starts a server with s.opts; mu is held, or nobody else has s yet.
func (s *Server) begin() error {
	if err := portIsFree(&s.opts); err != nil {
		return err
	}
	opts, err := s.opts.native()
	if err != nil {
		return err
	}
	running, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("the embedded NATS server does not take its options: %w", err)
	}
	log := newBridge(s.opts.Log)
	running.SetLoggerV2(log, false, false, false)
	running.Start() // returns when the client port is open, or after a call of Fatalf
	ready := log.failure() == "" && running.ReadyForConnections(startTimeout)
	if reason := log.failure(); reason != "" || !ready {
		if reason == "" {
			reason = fmt.Sprintf("not ready within %s", startTimeout)
		}
		running.Shutdown()
		running.WaitForShutdown()
		return fmt.Errorf("the embedded NATS server on %s with its data in %s does not start: %s", s.opts.address(), s.opts.Dir, reason)
	}
	if address, ok := running.Addr().(*net.TCPAddr); ok {
		s.opts.Port = address.Port
	}
	s.running = running
	if s.url == "" {
		s.url = running.ClientURL()
	}
	return nil
}

// end stops what begin started; mu is held.
func (s *Server) end() {
	if s.running != nil {
		s.running.Shutdown()
		s.running.WaitForShutdown()
		s.running = nil
	}
}

// portIsFree finds out early, and without the server's log, that somebody else has the port.
func portIsFree(o *Options) error {
	if o.Port == RandomPort {
		return nil
	}
	listener, err := net.Listen("tcp", o.address())
	switch {
	case err == nil:
		return listener.Close()
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: something listens on %s already; if it is a NATS server, connect to it, else stop it or choose another port", ErrPortInUse, o.address())
	default:
		return fmt.Errorf("cannot listen on %s: %w", o.address(), err)
	}
}
