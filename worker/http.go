package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// httpServer serves metrics and probes.
type httpServer struct {
	listener net.Listener
	server   *http.Server
	done     chan error
}

const (
	headerTimeout = 5 * time.Second
	closeTimeout  = 2 * time.Second
)

// Handler serves /metrics, /healthz (the process works) and /readyz (it takes requests).
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		limit := max(s.cfg.Scheduler.StallAfter, minStallShown)
		if age := time.Duration(s.sched.Telemetry().LastTickAgeMS) * time.Millisecond; age > limit {
			http.Error(w, fmt.Sprintf("the engine has not answered for %s", age), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Ready() {
			http.Error(w, string(s.State()), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}

// minStallShown is how long a tick may take before the process is called unhealthy.
const minStallShown = time.Minute

// Ready says whether the service takes requests: it pulls, does not drain, and reaches its servers.
func (s *Service) Ready() bool {
	return s.ready.Load() && !s.draining.Load() && s.control.IsConnected() && s.stream.conn.IsConnected()
}

// HTTPAddr is where the HTTP server listens, nil without one.
func (s *Service) HTTPAddr() net.Addr {
	if s.http == nil || s.http.listener == nil {
		return nil
	}
	return s.http.listener.Addr()
}

func (s *Service) listenHTTP(ctx context.Context) error {
	if s.http == nil {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.HTTP)
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	s.http.listener = listener
	s.http.server = &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerTimeout}
	s.http.done = make(chan error, 1)
	go func() { s.http.done <- s.http.server.Serve(listener) }() // closeHTTP waits for it
	return nil
}

func (s *Service) closeHTTP() error {
	if s.http == nil || s.http.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.http.server.Shutdown(ctx); err != nil {
		_ = s.http.server.Close() // a request that does not end is cut off
	}
	if err := <-s.http.done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
