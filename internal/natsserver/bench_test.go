package natsserver_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
)

// BenchmarkEvents is what a server does for a token: a message of 60 bytes goes into a stream in memory, on one of a thousand subjects, and to the
// one connection that listens to it. Publisher, server and reader share the machine.
func BenchmarkEvents(b *testing.B) {
	server := natsservertest.Start(b, natsserver.Options{})
	publisher, reader := natsservertest.Connect(b, server.ClientURL()), natsservertest.Connect(b, server.ClientURL())
	js := natsservertest.JetStream(b, publisher)
	_, err := js.CreateStream(natsservertest.Context(b), jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"event.*"}, Storage: jetstream.MemoryStorage, MaxBytes: 256 << 20, Discard: jetstream.DiscardOld,
	})
	if err != nil {
		b.Fatal(err)
	}
	const subjects = 1000
	var all sync.WaitGroup
	all.Add(b.N)
	for i := range subjects {
		subscribe(b, reader, fmt.Sprint("event.", i), func(*nats.Msg) { all.Done() })
	}
	flush(b, reader)
	payload := bytes.Repeat([]byte{1}, 60)
	b.ResetTimer()
	for i := range b.N {
		if err := publisher.Publish(fmt.Sprint("event.", i%subjects), payload); err != nil {
			b.Fatal(err)
		}
		if i%subjects == 0 {
			flush(b, publisher) // the stream is not outrun
		}
	}
	flush(b, publisher)
	all.Wait()
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkFanOut is what a server does for an advertisement: a message of 1,400 bytes goes to a hundred connections. An operation is one
// delivery.
func BenchmarkFanOut(b *testing.B) {
	const readers = 100
	server := natsservertest.Start(b, natsserver.Options{})
	publisher := natsservertest.Connect(b, server.ClientURL())
	var heard atomic.Int64
	var all sync.WaitGroup
	rounds := max(1, b.N/readers)
	all.Add(rounds * readers)
	for range readers {
		reader := natsservertest.Connect(b, server.ClientURL())
		subscribe(b, reader, "ad.*", func(*nats.Msg) {
			heard.Add(1)
			all.Done()
		})
		flush(b, reader)
	}
	payload := bytes.Repeat([]byte{1}, 1400)
	b.ResetTimer()
	for i := range rounds {
		if err := publisher.Publish("ad.n1", payload); err != nil {
			b.Fatal(err)
		}
		if i%100 == 99 {
			flush(b, publisher)
		}
	}
	all.Wait()
	b.ReportMetric(float64(heard.Load())/b.Elapsed().Seconds(), "deliveries/s")
}

// BenchmarkFileWrites is a stream in a file, each write of which is synced, with many publishers at once.
func BenchmarkFileWrites(b *testing.B) {
	server := natsservertest.Start(b, natsserver.Options{})
	js := natsservertest.JetStream(b, natsservertest.Connect(b, server.ClientURL()))
	_, err := js.CreateStream(natsservertest.Context(b), jetstream.StreamConfig{Name: "FILE", Subjects: []string{"file"}, Storage: jetstream.FileStorage})
	if err != nil {
		b.Fatal(err)
	}
	payload := bytes.Repeat([]byte{1}, 300)
	b.SetParallelism(64)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := js.Publish(b.Context(), "file", payload); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}

func subscribe(b *testing.B, conn *nats.Conn, subject string, heard nats.MsgHandler) {
	b.Helper()
	sub, err := conn.Subscribe(subject, heard)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func flush(b *testing.B, conn *nats.Conn) {
	b.Helper()
	if err := conn.Flush(); err != nil {
		b.Fatal(err)
	}
}
