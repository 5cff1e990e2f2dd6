package natsservertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// queue makes a file stream and returns it with its JetStream.
func queue(t *testing.T, conn *nats.Conn, replicas int) (jetstream.JetStream, jetstream.Stream) {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(within(t, 20*time.Second), jetstream.StreamConfig{Name: "Q", Subjects: []string{"q.>"}, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	return js, stream
}

// publish publishes one message, again and again until the deadline, since a server may be away.
func publish(t *testing.T, js jetstream.JetStream, id string) {
	t.Helper()
	for ctx := within(t, 30*time.Second); ; {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := js.Publish(attempt, "q.x", nil, jetstream.WithMsgID(id))
		if err != nil {
			<-attempt.Done() // the rest of its second
		}
		cancel()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("publishing %s: %v", id, err)
		}
	}
}

func TestKilledProcessKeepsWhatItAcknowledged(t *testing.T) {
	server := natsservertest.StartProcess(t, natsserver.Options{})
	url := server.URL()
	js, stream := queue(t, natsservertest.Connect(t, url), 1)
	for i := range 20 {
		publish(t, js, fmt.Sprint(i))
	}
	server.Kill()
	server.Kill() // a server that is down stays so
	if conn, err := nats.Connect(url); err == nil {
		conn.Close()
		t.Fatal("a killed server takes connections")
	}
	if server.Healthy() {
		t.Error("a killed server says that it is healthy")
	}
	server.Restart()
	if server.URL() != url {
		t.Errorf("the URL is %s after Restart, was %s", server.URL(), url)
	}
	publish(t, js, "last")
	info, err := stream.Info(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 21 {
		t.Errorf("%d messages survived, want 21", info.State.Msgs)
	}
	if !server.Healthy() {
		t.Error("a restarted server says that it is not healthy")
	}
}

func TestClusterGoesOnWithoutItsLeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	cluster := natsservertest.StartCluster(t, 3)
	js, stream := queue(t, natsservertest.Connect(t, cluster.URL()), 3)
	publish(t, js, "1")
	first := cluster.StreamLeader("Q")
	first.Kill()
	publish(t, js, "2")
	if second := cluster.StreamLeader("Q"); second == first {
		t.Errorf("the killed server %s still leads", first.Name())
	}
	first.Restart()
	cluster.AwaitHealthy()
	meta := cluster.MetaLeader()
	meta.Stop()
	publish(t, js, "3")
	if cluster.MetaLeader() == meta {
		t.Errorf("the stopped server %s still leads", meta.Name())
	}
	meta.Restart()
	cluster.AwaitHealthy()
	cluster.StreamLeader("Q")
	info, err := stream.Info(within(t, 20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 3 || len(info.Cluster.Replicas) != 2 {
		t.Errorf("%d messages and %d further replicas, want 3 and 2", info.State.Msgs, len(info.Cluster.Replicas))
	}
}

// echo is a server that sends back what it gets, and its URL.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return "nats://" + listener.Addr().String()
}

func dial(t *testing.T, proxy *natsservertest.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(proxy.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// send writes a line, and read gets one within a time.
func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func read(conn net.Conn, n int, d time.Duration) (string, error) {
	buffer := make([]byte, n)
	_ = conn.SetReadDeadline(time.Now().Add(d))
	n, err := io.ReadFull(conn, buffer)
	return string(buffer[:n]), err
}

func isTimeout(err error) bool {
	var netError net.Error
	return errors.As(err, &netError) && netError.Timeout()
}

func TestStalledBytesComeAfterHeal(t *testing.T) {
	for name, direction := range map[string]natsservertest.Direction{
		"to the server": natsservertest.ToServer, "to the client": natsservertest.ToClient, "both ways": natsservertest.BothWays,
	} {
		t.Run(name, func(t *testing.T) {
			proxy := natsservertest.StartProxy(t, echo(t))
			conn := dial(t, proxy)
			send(t, conn, "one")
			if got, err := read(conn, 3, 10*time.Second); got != "one" || err != nil {
				t.Fatalf("got %q, %v; want one", got, err)
			}
			proxy.Stall(direction)
			send(t, conn, "two")
			if got, err := read(conn, 3, 50*time.Millisecond); got != "" || !isTimeout(err) {
				t.Fatalf("got %q, %v through a stalled proxy; want a time-out", got, err)
			}
			proxy.Heal()
			if got, err := read(conn, 3, 10*time.Second); got != "two" || err != nil {
				t.Fatalf("got %q, %v after Heal; want two", got, err)
			}
			if n := proxy.Connections(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

func TestCutEndsConnectionsAndRefusesNewOnes(t *testing.T) {
	proxy := natsservertest.StartProxy(t, echo(t))
	old := dial(t, proxy)
	send(t, old, "x")
	if _, err := read(old, 1, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	if _, err := read(old, 1, 10*time.Second); err == nil || isTimeout(err) {
		t.Errorf("reading from a cut connection: %v, want its end", err)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(proxy.URL(), "nats://")); err == nil { // else it was reset already
		if _, err := read(conn, 1, 10*time.Second); err == nil || isTimeout(err) {
			t.Errorf("reading from a new connection: %v, want its end", err)
		}
		conn.Close()
	}
	proxy.Heal()
	next := dial(t, proxy)
	send(t, next, "y")
	if got, err := read(next, 1, 10*time.Second); got != "y" || err != nil {
		t.Errorf("got %q, %v after Heal; want y", got, err)
	}
}

func TestDelayIsPaidInEachDirection(t *testing.T) {
	proxy := natsservertest.StartProxy(t, echo(t))
	proxy.Delay(40 * time.Millisecond)
	conn := dial(t, proxy)
	began := time.Now()
	send(t, conn, "x")
	if _, err := read(conn, 1, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 80*time.Millisecond {
		t.Errorf("there and back took %s, want at least 80ms", took)
	}
}

func TestEndOfOneSideReachesTheOtherAfterItsBytes(t *testing.T) {
	proxy := natsservertest.StartProxy(t, echo(t))
	conn := dial(t, proxy)
	big := strings.Repeat("0123456789", 100_000)
	go func() { _, _ = conn.Write([]byte(big)) }()
	if got, err := read(conn, len(big), 20*time.Second); got != big {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(big), err)
	}
}

func TestClientOfAStalledServerNotices(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	proxy := natsservertest.StartProxy(t, server.ClientURL())
	conn := natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers())
	if err := conn.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	proxy.Stall(natsservertest.BothWays)
	if err := conn.FlushTimeout(50 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("Flush = %v through a stalled proxy, want %v", err, nats.ErrTimeout)
	}
	proxy.Heal()
	if err := conn.FlushTimeout(10 * time.Second); err != nil {
		t.Errorf("Flush = %v after Heal", err)
	}
}
