package scheduler

import (
	"encoding/json"
	"maps"
	"math"
	"time"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
)

// Telemetry is a bounded snapshot of a node's pressure and work, without any session's content. Rates
// and ratios are rounded to 4 decimals when marshalled.
type Telemetry struct {
	ActiveSessions int `json:"active_sessions"`
	QueueDepth     int `json:"queue_depth"` // turns that wait, those being tokenised included

	// Occupancy counts sessions of a decode batch, never padding rows. Last is 0 after an empty tick; the
	// average is over non-empty batches.
	BatchOccupancyLast int     `json:"batch_occupancy_last"`
	BatchOccupancyAvg  float64 `json:"batch_occupancy_avg"`
	BatchOccupancyMax  int     `json:"batch_occupancy_max"`

	WeightBytes     int64   `json:"weight_bytes"`
	KVTotalBytes    int64   `json:"kv_total_bytes"` // of live tokens, and of hot KV
	KVBudgetBytes   int64   `json:"kv_budget_bytes"`
	KVReservedBytes int64   `json:"kv_reserved_bytes"`
	KVPressure      float64 `json:"kv_pressure"` // reserved / budget

	ScratchUsedBytes   int64   `json:"scratch_used_bytes"`
	ScratchBudgetBytes int64   `json:"scratch_budget_bytes"`
	ScratchPressure    float64 `json:"scratch_pressure"`

	PrefillTokensTotal int64 `json:"prefill_tokens_total"` // evaluated ones
	DecodeTokensTotal  int64 `json:"decode_tokens_total"`  // without first and replayed ones
	CachedTokensTotal  int64 `json:"cached_tokens_total"`

	PrefillTokensPerSec    float64 `json:"prefill_tokens_per_sec"` // since the start
	DecodeTokensPerSec     float64 `json:"decode_tokens_per_sec"`
	PrefillTokensPerSec10s float64 `json:"prefill_tokens_per_sec_10s"` // over the last 10 s
	DecodeTokensPerSec10s  float64 `json:"decode_tokens_per_sec_10s"`

	RejectedAdmissionsTotal int64            `json:"rejected_admissions_total"`
	RejectedByReason        map[Reason]int64 `json:"rejected_by_reason"`

	CompletedSessions int64 `json:"completed_sessions"`
	CancelledSessions int64 `json:"cancelled_sessions"`
	FailedSessions    int64 `json:"failed_sessions"`
	CacheMissSessions int64 `json:"cache_miss_sessions"`

	SuspendedSessions int   `json:"suspended_sessions"` // of the queue: gave their place to another tenant, and go on later
	SuspendedBytes    int64 `json:"suspended_bytes"`    // their saved KV
	SuspensionsTotal  int64 `json:"suspensions_total"`

	HotSessions    int                  `json:"hot_sessions"`
	HotBytes       int64                `json:"hot_bytes"`
	HotHitsTotal   int64                `json:"hot_hits_total"`
	HotMissesTotal map[hotkv.Miss]int64 `json:"hot_misses_total"` // by cause

	PrefixHitsTotal   int64 `json:"prefix_hits_total"`   // turns that began with KV shared with other sessions
	PrefixTokensTotal int64 `json:"prefix_tokens_total"` // what they need not evaluate; of the cached ones

	HotEvictionsTotal int64                `json:"hot_evictions_total"` // entries that made room for others in memory
	SpillSessions     int                  `json:"spill_sessions"`      // whose KV is on disk, or on its way there
	SpillBytes        int64                `json:"spill_bytes"`
	SpillWrittenTotal int64                `json:"spill_written_total"` // of the evicted, and of those that were hot at the end
	SpillHitsTotal    int64                `json:"spill_hits_total"`    // that were made hot again from disk
	SpillLostTotal    map[spill.Lost]int64 `json:"spill_lost_total"`    // by cause

	Ticks         uint64 `json:"ticks"`
	LastTickAgeMS int64  `json:"last_tick_age_ms"` // how long the tick in progress has taken or work has waited for one; 0 when idle
	Threads       int    `json:"threads"`
}

// MarshalJSON rounds rates and ratios to 4 decimals.
func (t Telemetry) MarshalJSON() ([]byte, error) {
	type plain Telemetry // without this method
	for _, f := range []*float64{
		&t.BatchOccupancyAvg, &t.KVPressure, &t.ScratchPressure,
		&t.PrefillTokensPerSec, &t.DecodeTokensPerSec, &t.PrefillTokensPerSec10s, &t.DecodeTokensPerSec10s,
	} {
		*f = round4(*f)
	}
	return json.Marshal(plain(t))
}

func round4(f float64) float64 { return math.Round(f*1e4) / 1e4 }

// Telemetry never waits for an engine call.
func (s *Scheduler) Telemetry() Telemetry {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	hot := s.hot.Stats()
	t := s.stats.telemetry(now)
	t.ActiveSessions = len(s.active)
	t.QueueDepth = s.live - len(s.active)
	t.WeightBytes = s.budget.WeightBytes
	t.HotSessions, t.HotBytes = hot.Parked+hot.Saved, hot.Bytes
	t.SuspendedSessions, t.SuspendedBytes = s.suspended, s.suspendedBytes
	t.KVTotalBytes = hot.Bytes + s.liveBytes()
	t.KVBudgetBytes, t.KVReservedBytes = s.budget.KVBudgetBytes, s.reserved
	t.KVPressure = float64(s.reserved) / float64(s.budget.KVBudgetBytes)
	t.ScratchUsedBytes = int64(len(s.active)) * s.budget.ScratchBytesPerSession
	t.ScratchBudgetBytes = s.budget.ScratchBudgetBytes
	t.ScratchPressure = float64(t.ScratchUsedBytes) / float64(t.ScratchBudgetBytes)
	t.LastTickAgeMS = s.tickAge(now).Milliseconds()
	t.Threads = s.facts.Threads
	t.HotSessions -= hot.Prefixes
	t.PrefixHitsTotal, t.PrefixTokensTotal = s.stats.prefixHits, s.stats.prefixTokens
	t.HotEvictionsTotal = hot.Evictions
	onDisk := s.cfg.Spill.Stats()
	t.SpillSessions, t.SpillBytes, t.SpillWrittenTotal = onDisk.Sessions, onDisk.Bytes, onDisk.Written
	t.SpillHitsTotal, t.SpillLostTotal = onDisk.Hits, onDisk.Lost
	return t
}

// kvTotal is the KV of live tokens and of idle sessions, in bytes.
func (s *Scheduler) kvTotal() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hot.Stats().Bytes + s.liveBytes()
}

// liveBytes is the KV of live turns, that of suspended ones as large as it is saved.
func (s *Scheduler) liveBytes() (bytes int64) {
	bytes = s.suspendedBytes
	for _, t := range s.active {
		if t.saved == nil {
			bytes += s.facts.KVBytes(t.pos)
		}
	}
	return bytes
}

// tickAge is how long whoever has work has seen no tick end.
func (s *Scheduler) tickAge(now time.Time) time.Duration {
	since := s.stats.tickSince
	if since.IsZero() {
		if s.live == 0 {
			return 0
		}
		since = s.stats.lastTick
		if s.stats.busySince.After(since) {
			since = s.stats.busySince
		}
	}
	return max(0, now.Sub(since))
}

// stats are the scheduler's counters, guarded by its lock.
type stats struct {
	started time.Time

	ticks     uint64
	tickSince time.Time // start of the tick in progress; zero between ticks
	lapSince  time.Time
	lastTick  time.Time     // end of the last tick
	busySince time.Time     // when the first of the live turns came
	tickMean  time.Duration // moving average of ticks that did work

	occupancyLast, occupancyMax int
	occupancySum, batches       int64

	suspensions int64

	admissions map[Reason]int64
	rejected   int64
	ends       map[EndReason]int64

	prefill, decode, cached int64
	hits                    int64
	prefixHits              int64
	prefixTokens            int64
	misses                  map[hotkv.Miss]int64
	recent                  window
}

func (st *stats) init(now time.Time) {
	st.started = now
	st.admissions = make(map[Reason]int64)
	st.ends = make(map[EndReason]int64)
	st.misses = make(map[hotkv.Miss]int64)
	for _, cause := range hotkv.MissCauses() {
		st.misses[cause] = 0
	}
}

func (st *stats) occupied(sessions int) {
	st.occupancyLast = sessions
	st.occupancyMax = max(st.occupancyMax, sessions)
	if sessions > 0 {
		st.occupancySum += int64(sessions)
		st.batches++
	}
}

func (st *stats) lookup(cached int, miss hotkv.Miss) {
	if cached > 0 {
		st.hits++
		st.cached += int64(cached)
		return
	}
	st.misses[miss]++
}

func (st *stats) ended(v verdict) { st.ends[v.reason]++ }

func (st *stats) endTick(now time.Time, r *Report) {
	st.prefill += int64(r.PrefillTokens)
	st.decode += int64(r.DecodeTokens)
	st.recent.add(now.Sub(st.started), int64(r.PrefillTokens), int64(r.DecodeTokens))
	if r.DidWork() {
		took := now.Sub(st.tickSince)
		if st.tickMean == 0 {
			st.tickMean = took
		}
		st.tickMean += (took - st.tickMean) / 8
	}
	st.tickSince, st.lastTick = time.Time{}, now
}

func (st *stats) telemetry(now time.Time) Telemetry {
	elapsed := max(now.Sub(st.started).Seconds(), minSpan)
	t := Telemetry{
		BatchOccupancyLast: st.occupancyLast, BatchOccupancyMax: st.occupancyMax,
		PrefillTokensTotal: st.prefill, DecodeTokensTotal: st.decode, CachedTokensTotal: st.cached,
		PrefillTokensPerSec: float64(st.prefill) / elapsed, DecodeTokensPerSec: float64(st.decode) / elapsed,
		RejectedAdmissionsTotal: st.rejected, RejectedByReason: maps.Clone(st.admissions),
		CompletedSessions: st.ends[Completed], CancelledSessions: st.ends[Cancelled],
		FailedSessions: st.ends[Failed], CacheMissSessions: st.ends[CacheMiss],
		SuspensionsTotal: st.suspensions, HotHitsTotal: st.hits, HotMissesTotal: maps.Clone(st.misses), Ticks: st.ticks,
	}
	delete(t.RejectedByReason, Admitted)
	delete(t.RejectedByReason, Queued)
	if st.batches > 0 {
		t.BatchOccupancyAvg = float64(st.occupancySum) / float64(st.batches)
	}
	t.PrefillTokensPerSec10s, t.DecodeTokensPerSec10s = st.recent.rates(now.Sub(st.started))
	return t
}

// windowSeconds is the span of the recent rates.
const windowSeconds = 10

// window counts tokens by seconds since the start: as many as a rate looks back, and the one that runs.
type window struct {
	seconds [windowSeconds + 1]struct {
		second          int64
		prefill, decode int64
	}
}

func (w *window) add(elapsed time.Duration, prefill, decode int64) {
	second := wholeSeconds(elapsed)
	bucket := &w.seconds[second%int64(len(w.seconds))]
	if bucket.second != second {
		bucket.second, bucket.prefill, bucket.decode = second, 0, 0
	}
	bucket.prefill += prefill
	bucket.decode += decode
}

// rates are tokens per second over the last whole seconds and the running one, or since the start if that is less.
func (w *window) rates(elapsed time.Duration) (prefill, decode float64) {
	second := wholeSeconds(elapsed)
	for _, bucket := range w.seconds {
		if second-bucket.second < int64(len(w.seconds)) {
			prefill += float64(bucket.prefill)
			decode += float64(bucket.decode)
		}
	}
	span := elapsed.Seconds()
	if second > windowSeconds {
		span -= float64(second - windowSeconds)
	}
	span = max(span, minSpan)
	return prefill / span, decode / span
}

// minSpan keeps a rate finite, in seconds.
const minSpan = 1e-9

// wholeSeconds treats a clock that went back as one that stood still.
func wholeSeconds(elapsed time.Duration) int64 { return max(0, int64(elapsed/time.Second)) }
