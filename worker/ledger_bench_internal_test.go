package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// benchLedger is the ledger on an embedded server, which syncs every write.
func benchLedger(b *testing.B) *turnLedger {
	js := natsservertest.JetStream(b, natsservertest.Connect(b, natsservertest.Start(b, natsserver.Options{}).ClientURL()))
	cfg := &Config{Replicas: 1}
	kv, err := js.CreateKeyValue(natsservertest.Context(b), (&provisioner{js: js, cfg: cfg}).turnBucket())
	if err != nil {
		b.Fatal(err)
	}
	return &turnLedger{kv: kv, timeout: 10 * time.Second, garbled: func(_ schemas.TurnID, err error) { b.Error(err) }}
}

// ledgerTurn is what one turn asks of the ledger: it is read, claimed, and ended with a final and a work record.
func ledgerTurn(ctx context.Context, l *turnLedger, n int64) error {
	id := schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant("acme")), Session: schemas.Must(schemas.ParseSession(fmt.Sprint("s", n))), Turn: 1}
	now := time.Now()
	rec, err := l.read(ctx, id)
	if err != nil {
		return err
	}
	msg := ledger.Message{Seq: 1, PayloadHash: ledger.Hash{1}, Deadline: now.Add(time.Minute), Deliveries: 1, LastIndex: -1}
	claim := ledger.Arrive(rec, msg, ledger.Self{Node: "n1", Boot: "b1"}, now)
	if won, err := l.settle(ctx, id, &claim.Write); !won || err != nil {
		return fmt.Errorf("claim: won %t, %w", won, err)
	}
	end := ledger.End(claim.Write, ledger.Outcome{Reason: string(schemas.Completed)})
	final := make([]byte, 200)
	_, err = l.swap(ctx, id, end.Write.WithOutcome(final, make([]byte, 300)))
	return err
}

// BenchmarkLedgerTurn is one turn's ledger through NATS, one at a time.
func BenchmarkLedgerTurn(b *testing.B) {
	l := benchLedger(b)
	n := int64(0)
	for b.Loop() {
		n++
		if err := ledgerTurn(context.Background(), l, n); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLedgerTurns is as many turns at once as make the server write without a pause.
func BenchmarkLedgerTurns(b *testing.B) {
	l := benchLedger(b)
	var n atomic.Int64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := ledgerTurn(context.Background(), l, n.Add(1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "swaps/s")
	if status, err := l.kv.Status(natsservertest.Context(b)); err == nil {
		if bucket, ok := status.(*jetstream.KeyValueBucketStatus); ok {
			b.ReportMetric(float64(bucket.Bytes())/float64(status.Values()), "B/turn")
		}
	}
}
