package worker_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// counter counts the messages of the connections that it makes, both ways.
type counter struct {
	tb       testing.TB
	messages atomic.Int64
}

// Dial implements nats.CustomDialer.
func (c *counter) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	sent, sends := io.Pipe()
	got, gets := io.Pipe()
	go c.count(sent)
	go c.count(got)
	return &countedConn{Conn: conn, sends: sends, gets: gets}, nil
}

// count reads the protocol of NATS: lines, and behind those of messages their payload.
func (c *counter) count(stream io.Reader) {
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // the connection is closed
		}
		fields := bytes.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch string(fields[0]) {
		case "PUB", "HPUB", "MSG", "HMSG":
			size, err := strconv.Atoi(string(fields[len(fields)-1]))
			if err == nil {
				_, err = lines.Discard(size + 2)
			}
			if err != nil {
				c.tb.Errorf("after %q: %v", line, err)
				return
			}
			c.messages.Add(1)
		}
	}
}

// countedConn shows a counter what goes through a connection.
type countedConn struct {
	net.Conn
	sends, gets *io.PipeWriter
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	_, _ = c.gets.Write(p[:n]) // fails only once it is closed
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	_, _ = c.sends.Write(p[:n])
	return n, err
}

func (c *countedConn) Close() error {
	_ = c.gets.Close() // never fails
	_ = c.sends.Close()
	return c.Conn.Close()
}

// counted is a worker with the periods of every day, and its client, whose messages are counted.
func counted(b *testing.B) (*mesh, *counter) {
	c := &counter{tb: b}
	m := newMeshOf(b, natsserver.Options{}, nats.SetCustomDialer(c))
	m.start("n1", func(cfg *worker.Config, e *goengine.Config) {
		cfg.Periods = worker.Periods{}
		e.OnCall = func(call goengine.Call) {
			if call.Op == goengine.OpDecode {
				<-time.After(5 * time.Millisecond)
			}
		}
		cfg.Options = append(cfg.Options, nats.SetCustomDialer(c))
	})
	return m, c
}

// BenchmarkMessagesOfATurn counts the messages of a turn of 16 tokens that runs alone, those of its client included. A step takes 5 ms, so that
// each token is an event of its own.
func BenchmarkMessagesOfATurn(b *testing.B) {
	m, c := counted(b)
	turns := 0
	before := c.messages.Load()
	for b.Loop() {
		turns++
		r := m.follow(request(fmt.Sprintf("s%d", turns), 1, 16), schemas.AnyLane)
		r.final()
		m.check(r.sub.Unsubscribe())
	}
	b.ReportMetric(float64(c.messages.Load()-before)/float64(turns), "messages/turn")
}

// BenchmarkIdleWorker counts the messages of a worker that has nothing to do. An operation is a second of waiting.
func BenchmarkIdleWorker(b *testing.B) {
	_, c := counted(b)
	before := c.messages.Load()
	for b.Loop() {
		<-time.After(time.Second)
	}
	b.ReportMetric(float64(c.messages.Load()-before)/float64(b.N), "messages/op")
}

// BenchmarkWaitingRequest is what a request of 700 bytes takes that waits in the stream while the only worker is full: in memory, of the
// worker and its embedded server together, and in goroutines. An operation is two thousand requests.
func BenchmarkWaitingRequest(b *testing.B) {
	const requests = 2000
	var bytesGrown, goroutines int64
	for b.Loop() {
		m := newMesh(b)
		_, gate := m.startGated("n1", slots(1), func(c *worker.Config, _ *goengine.Config) { c.TenantQuota = 2 * requests })
		m.follow(request("running", 1, 4), schemas.AnyLane).untilTokens(1)
		before, running := heapInUse(), runtime.NumGoroutine()
		for i := range requests {
			req := request(fmt.Sprintf("s%d", i), 1, 4)
			long := string(bytes.Repeat([]byte("long "), 120))
			req.Prompt = &long
			m.submit(req, schemas.AnyLane)
		}
		bytesGrown += heapInUse() - before
		goroutines += int64(runtime.NumGoroutine() - running)
		gate.Open()
	}
	b.ReportMetric(float64(bytesGrown)/float64(b.N)/requests, "B/request")
	b.ReportMetric(float64(goroutines)/float64(b.N)/requests, "goroutines/request")
}

// heapInUse is the memory in use after a collection.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
