package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
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

// BenchmarkHotTurn is how long a session's next turn waits in the lane of a node with one place, which that node keeps
// ready for whoever comes from the lane of all.
func BenchmarkHotTurn(b *testing.B) {
	m := newMesh(b)
	n := m.start("n1", slots(1), func(c *worker.Config, _ *goengine.Config) { c.Periods = worker.Periods{} })
	var first, slowest time.Duration
	turn := 0
	for b.Loop() {
		turn++
		req := request("s1", schemas.Turn(turn), 4)
		r := m.read(req.ID())
		began := time.Now()
		m.submit(req, schemas.NodeLane(n.id))
		r.untilTokens(1)
		took := time.Since(began)
		first, slowest = first+took, max(slowest, took)
		r.final()
		m.check(r.sub.Unsubscribe())
	}
	b.ReportMetric(float64(first.Microseconds())/float64(turn)/1e3, "ms-to-first")
	b.ReportMetric(float64(slowest.Microseconds())/1e3, "ms-to-first-max")
}
