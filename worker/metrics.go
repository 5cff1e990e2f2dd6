package worker

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// metrics are all the metrics of a worker. Labels are from closed sets only: never a tenant, a session or a node.
type metrics struct {
	registry *prometheus.Registry

	admissions, sessions, tokens, fetches, moves, publishErrors, guardRejects *prometheus.CounterVec

	redeliveries, takeovers, leasesLost, reconnects, duplicates, terminated, stalls, guests prometheus.Counter

	occupancy, firstToken, interToken, queue prometheus.Histogram
	ticks                                    *prometheus.HistogramVec
}

const namespace = "meshnet"

func newMetrics(s *Service) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.makeCounters()
	m.makeHistograms()
	m.registry.MustRegister(&telemetryCollector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info",
		Help: "Always 1. Which version runs; after a roll-out all workers should show the same."}, []string{"version"})
	info.WithLabelValues(s.cfg.Identity.Version).Set(1)
	model := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "model_info",
		Help: "Always 1. Which model is served; workers of one model with different fingerprints cannot take turns over from each other."},
		[]string{"model", "architecture", "quantisation", "fingerprint"})
	model.WithLabelValues(s.cfg.Model.String(), s.cfg.Identity.Architecture, s.cfg.Identity.Quantisation, s.cfg.ModelFingerprint).Set(1)
	m.registry.MustRegister(info, model)
	m.fill()
	return m
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

func (m *metrics) makeCounters() {
	m.admissions = m.counters("admissions_total", "Requests decided on, by answer. rejected-queue-full is a race and harmless; rejected-kv-budget and rejected-context ask for larger nodes.", "reason")
	m.sessions = m.counters("sessions_total", "Turns that ended here, by reason and, if failed, cause. engine and stalled are this node's fault, deadline is load, worker-lost is a request that kills workers.", "reason", "cause")
	m.tokens = m.counters("tokens_total", "Tokens evaluated, by phase. The rate of decode is the node's throughput.", "phase")
	m.fetches = m.counters("fetches_total", "Fetches of requests, by result. A steady error means that the stream or its consumers are gone.", "result")
	m.moves = m.counters("moves_total", "Requests moved to another lane, by cause. Many full ones mean that hot sessions outgrow their nodes.", "cause")
	m.publishErrors = m.counters("publish_errors_total", "Failed publishes, by kind. Each is tried again; a rising rate means a sick connection.", "kind")
	m.guardRejects = m.counters("guard_rejects_total", "Payloads refused before or while they were decoded, by reason. Somebody sends what is no message of the mesh.", "reason")
	m.redeliveries = m.counter("redeliveries_total", "Requests delivered more than once. Some follow every crash, and every guest; a steady rate without either means that leases are not kept.")
	m.takeovers = m.counter("takeovers_total", "Turns gone on with after another worker, or an earlier start of this one, was lost.")
	m.leasesLost = m.counter("leases_lost_total", "Turns given up because their lease was lost. The node could not reach its servers for AckWait, or paused for that long.")
	m.reconnects = m.counter("nats_reconnects_total", "Times that the control connection was made anew.")
	m.duplicates = m.counter("duplicate_requests_total", "Copies of a turn's request with another payload, which change nothing. A client reuses turn numbers.")
	m.terminated = m.counter("terminated_requests_total", "Requests dropped because nobody can tell whose they are.")
	m.guests = m.counter("guests_total", "Requests taken by a full worker for tenants that had no turn here. A steady rate means that some tenants flood the mesh.")
	m.stalls = m.counter("pull_stalls_total", "Times that requests waited, there was room, and no fetch reached the consumer. Pulling was then begun anew.")
}

func (m *metrics) makeHistograms() {
	m.occupancy = m.histogram("batch_occupancy", "Sessions in each decode batch.", []float64{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64})
	m.firstToken = m.histogram("time_to_first_token_seconds", "From claim to first new token.", prometheus.ExponentialBuckets(0.001, 2, 18))
	m.interToken = m.histogram("inter_token_seconds", "Between two tokens of a turn.", prometheus.ExponentialBuckets(0.0005, 2, 16))
	m.queue = m.histogram("queue_seconds", "From submission to a slot.", prometheus.ExponentialBuckets(0.0005, 2, 20))
	m.ticks = prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: "tick_seconds",
		Help: "Parts of a scheduling step, by phase. decode is what every session waits for; prefill is bounded by the chunk.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18)}, []string{"phase"})
	m.registry.MustRegister(m.ticks)
}

// fill makes every series of a closed set appear at once, so that a rate over the first one is right.
func (m *metrics) fill() {
	for _, reason := range scheduler.Reasons() {
		m.admissions.WithLabelValues(string(reason))
	}
	for _, reason := range schemas.EndReasons() {
		if reason != schemas.Failed {
			m.sessions.WithLabelValues(string(reason), "")
			continue
		}
		for _, cause := range schemas.Causes() {
			m.sessions.WithLabelValues(string(reason), string(cause))
		}
	}
	for _, reason := range schemas.RejectReasons() {
		m.guardRejects.WithLabelValues(string(reason))
	}
	for _, cause := range moveCauses() {
		m.moves.WithLabelValues(cause)
	}
	for _, kind := range []string{"token", "final", "work", "move", "copy"} {
		m.publishErrors.WithLabelValues(kind)
	}
	for _, result := range []string{"ok", "error"} {
		m.fetches.WithLabelValues(result)
	}
	for _, phase := range []string{"decode", "prefill"} {
		m.tokens.WithLabelValues(phase)
	}
}

func (m *metrics) admission(reason scheduler.Reason) {
	m.admissions.WithLabelValues(string(reason)).Inc()
}

// guardReject counts a payload that is no message.
func (m *metrics) guardReject(err error) {
	var bad *schemas.DecodeError
	if errors.As(err, &bad) {
		m.guardRejects.WithLabelValues(string(bad.Reason)).Inc()
	}
}

// tick is called by the goroutine that drives the engine.
func (m *metrics) tick(r *scheduler.Report) {
	if r.Occupancy > 0 {
		m.occupancy.Observe(float64(r.Occupancy))
		m.ticks.WithLabelValues("decode").Observe(r.Decode.Seconds())
	}
	if r.PrefillTokens > 0 {
		m.ticks.WithLabelValues("prefill").Observe(r.Prefill.Seconds())
		m.tokens.WithLabelValues("prefill").Add(float64(r.PrefillTokens))
	}
	m.tokens.WithLabelValues("decode").Add(float64(r.DecodeTokens))
}

// token likewise.
func (m *metrics) token(t *turn, now time.Time) {
	if t.lastToken.IsZero() {
		m.firstToken.Observe(now.Sub(t.claimed).Seconds())
	} else {
		m.interToken.Observe(now.Sub(t.lastToken).Seconds())
	}
	t.lastToken = now
}

func (m *metrics) ended(o ledger.Outcome) { m.sessions.WithLabelValues(o.Reason, o.Cause).Inc() }

// telemetryCollector asks the scheduler when somebody looks.
type telemetryCollector struct{ s *Service }

var (
	activeDesc    = prometheus.NewDesc(namespace+"_active_sessions", "Sessions that hold a place among the active ones.", nil, nil)
	queueDesc     = prometheus.NewDesc(namespace+"_queue_depth", "Turns accepted here that wait for their KV to fit or for an earlier turn of their session.", nil, nil)
	suspendedDesc = prometheus.NewDesc(namespace+"_suspended_sessions", "Turns accepted here that gave their place to another tenant's, and go on later.", nil, nil)
	suspendsDesc  = prometheus.NewDesc(namespace+"_suspensions_total", "Times that a session gave its place to another tenant's. A steady rate means that tenants contend for slots.", nil, nil)
	kvDesc        = prometheus.NewDesc(namespace+"_kv_bytes", "KV bytes, by state. reserved near budget means that the node is full; hot is given up for active sessions; suspended is saved for sessions that go on later.", []string{"state"}, nil)
	hotDesc       = prometheus.NewDesc(namespace+"_hot_lookups_total", "Look-ups of a session's kept KV, by result. Many evicted ones ask for a larger hot budget.", []string{"result"}, nil)
	prefixHits    = prometheus.NewDesc(namespace+"_prefix_hits_total", "Turns that began with KV shared with other sessions.", nil, nil)
	prefixTokens  = prometheus.NewDesc(namespace+"_prefix_tokens_total", "Prompt tokens that were not evaluated since another session's were; many against tokens_total of prefill are a shared system prompt at work.", nil, nil)
	spillBytes    = prometheus.NewDesc(namespace+"_spill_bytes", "Bytes of idle sessions' KV on disk.", nil, nil)
	spillDesc     = prometheus.NewDesc(namespace+"_spill_states_total", "KV handed to the disk, by result. written and hit are good; budget asks for a larger one, backlog for a faster disk; write, read and corrupt for a look at it.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (c *telemetryCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{activeDesc, queueDesc, suspendedDesc, suspendsDesc, kvDesc, hotDesc, prefixHits, prefixTokens, spillBytes, spillDesc} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *telemetryCollector) Collect(out chan<- prometheus.Metric) {
	t := c.s.sched.Telemetry()
	gauge := func(desc *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	gauge(activeDesc, int64(t.ActiveSessions))
	gauge(queueDesc, int64(t.QueueDepth))
	gauge(kvDesc, t.KVTotalBytes, "used")
	gauge(kvDesc, t.KVReservedBytes, "reserved")
	gauge(kvDesc, t.HotBytes, "hot")
	gauge(kvDesc, t.SuspendedBytes, "suspended")
	gauge(kvDesc, t.KVBudgetBytes, "budget")
	gauge(suspendedDesc, int64(t.SuspendedSessions))
	count := func(desc *prometheus.Desc, value int64, result ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), result...)
	}
	count(suspendsDesc, t.SuspensionsTotal)
	count(hotDesc, t.HotHitsTotal, "hit")
	for _, miss := range hotkv.MissCauses() {
		count(hotDesc, t.HotMissesTotal[miss], string(miss))
	}
	count(prefixHits, t.PrefixHitsTotal)
	count(prefixTokens, t.PrefixTokensTotal)
	gauge(spillBytes, t.SpillBytes)
	count(spillDesc, t.SpillWrittenTotal, "written")
	count(spillDesc, t.SpillHitsTotal, "hit")
	for _, cause := range spill.LostCauses() {
		count(spillDesc, t.SpillLostTotal[cause], string(cause))
	}
}
