package ledger_test

import (
	"testing"
	"time"

	"github.com/meshnet/node/worker/ledger"
)

// BenchmarkTurn is what the rules cost in one turn's life: its claim, a beat and its end.
func BenchmarkTurn(b *testing.B) {
	now := time.Unix(1_700_000_000, 0)
	msg := ledger.Message{Seq: 7, PayloadHash: ledger.Hash{1}, Deadline: now.Add(time.Minute), Deliveries: 1, LastIndex: -1}
	self := ledger.Self{Node: "n1", Boot: "b1"}
	b.ReportAllocs()
	for b.Loop() {
		claim := ledger.Arrive(ledger.Record{}, msg, self, now)
		held := claim.Write
		held.Rev = 1
		if claim.Action != ledger.Claim || ledger.Beat(held, held, now) != ledger.Continue {
			b.Fatal(claim.Action)
		}
		if end := ledger.End(held, ledger.Outcome{Reason: "completed"}); end.Action != ledger.Finish || !end.Outcome.Claimed {
			b.Fatal(end.Action)
		}
	}
}
