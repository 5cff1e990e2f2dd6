package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// servers are a worker with its embedded NATS server, and a llama-server.
type servers struct {
	nats, peerURL string
	running       []*exec.Cmd
}

// startTime is how long a server may take until it serves.
const startTime = 2 * time.Minute

func start(ctx context.Context, f flags, s scenario, model, dir string) (*servers, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	list := &servers{nats: "nats://127.0.0.1:4222", peerURL: "http://127.0.0.1:" + strconv.Itoa(port)}
	worker := exec.CommandContext(ctx, f.Worker, append([]string{"run", "--model", model, "--store-dir", filepath.Join(dir, "nats")}, s.worker...)...)
	peer := exec.CommandContext(ctx, f.Peer, append([]string{"--model", model, "--port", strconv.Itoa(port)}, s.peer...)...)
	peer.Dir = f.PeerDir
	timeout, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	ready := make(chan struct{})
	if err := list.run(worker, &watcher{mark: []byte("serving"), seen: ready}); err != nil {
		return nil, err
	}
	select { // before the peer starts: the worker measures at its start how many threads are best
	case <-ready:
	case <-timeout.Done():
		list.stop()
		return nil, errors.New("the worker does not serve; is port 4222 taken?")
	}
	if err := list.run(peer, &watcher{}); err != nil {
		list.stop()
		return nil, err
	}
	if err := healthy(timeout, list.peerURL+"/health"); err != nil {
		list.stop()
		return nil, err
	}
	return list, nil
}

func (s *servers) run(c *exec.Cmd, output *watcher) error {
	c.Stdout, c.Stderr = output, output
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	if err := c.Start(); err != nil {
		return err
	}
	s.running = append(s.running, c)
	return nil
}

func (s *servers) stop() {
	for _, c := range s.running {
		_ = c.Process.Signal(os.Interrupt) // it may have ended already
		_ = c.Wait()
	}
}

// watcher drops a server's output, and says when it has seen a text.
type watcher struct {
	mark []byte
	seen chan struct{}
	once sync.Once
}

func (w *watcher) Write(p []byte) (int, error) {
	if w.seen != nil && bytes.Contains(p, w.mark) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

func healthy(ctx context.Context, url string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("llama-server does not answer at %s: %w", url, ctx.Err())
		case <-tick.C:
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
