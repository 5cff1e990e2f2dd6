// Package natsservertest gives tests NATS servers: one in the test's process, one in a process of its own
// that can be killed, a cluster of those, and a proxy that breaks connections. Everything listens on
// 127.0.0.1, keeps its data in the test's temporary folder, and is stopped and waited for when the test ends.
package natsservertest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/natsserver"
)

// patience is how long a test waits for what a server should do soon.
const patience = 30 * time.Second

// Start runs a server in this process, on a random port unless opts names one.
func Start(t testing.TB, opts natsserver.Options) *natsserver.Server {
	t.Helper()
	complete(t, &opts)
	server, err := natsserver.Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// complete chooses folder and port where the test did not.
func complete(t testing.TB, opts *natsserver.Options) {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	if opts.Port == 0 {
		opts.Port = natsserver.RandomPort
	}
}

// Connect connects to a server, and closes the connection and waits for its goroutines when the test ends.
// Options may replace what it does by default: fail at once if there is no server, reconnect for ever after.
func Connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	defaults := []nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints
	}
	options = append(defaults, options...)
	conn, err := nats.Connect(url, append(options, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		<-closed
	})
	return conn
}

// Context ends when the test does, or after as long as a test waits for what a server should do soon.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// JetStream is a connection's, with the library's defaults.
func JetStream(t testing.TB, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// poll asks again and again until what was waited for has come, and fails the test if it does not. It is for
// what servers tell nobody, such as who was elected.
func poll(t testing.TB, what string, came func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !came() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}
