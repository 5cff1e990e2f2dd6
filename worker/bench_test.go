package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshnet/node/schemas"
)

// BenchmarkPublishToFirstToken is what the bus adds to a turn's first token: the engine takes next to no time.
func BenchmarkPublishToFirstToken(b *testing.B) {
	m := newMesh(b)
	m.start("n1")
	var first, whole time.Duration
	n := 0
	for b.Loop() {
		n++
		req := request(fmt.Sprintf("s%d", n), 1, 4)
		r := m.read(req.ID())
		began := time.Now()
		m.submit(req, schemas.AnyLane)
		r.untilTokens(1)
		first += time.Since(began)
		r.final()
		whole += time.Since(began)
		m.check(r.sub.Unsubscribe())
	}
	b.ReportMetric(float64(first.Microseconds())/float64(n)/1e3, "ms-to-first")
	b.ReportMetric(float64(whole.Microseconds())/float64(n)/1e3, "ms-to-final")
}
