package schemas

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Telemetry is a node's pressure and work, without any session's content. Rates and ratios have 4 decimals; Encode rounds them.
type Telemetry struct {
	ActiveSessions    int `msgpack:"active_sessions" json:"active_sessions"`
	MaxActiveSessions int `msgpack:"max_active_sessions" json:"max_active_sessions"`
	FreeSlots         int `msgpack:"free_slots" json:"free_slots"` // sessions that could become active now
	QueueDepth        int `msgpack:"queue_depth" json:"queue_depth"`
	MaxQueueDepth     int `msgpack:"max_queue_depth" json:"max_queue_depth"`

	BatchOccupancyLast int     `msgpack:"batch_occupancy_last" json:"batch_occupancy_last"` // sessions of the last decode batch
	BatchOccupancyAvg  float64 `msgpack:"batch_occupancy_avg" json:"batch_occupancy_avg"`
	BatchOccupancyMax  int     `msgpack:"batch_occupancy_max" json:"batch_occupancy_max"`

	WeightBytes     int64   `msgpack:"weight_bytes" json:"weight_bytes"`
	KVTotalBytes    int64   `msgpack:"kv_total_bytes" json:"kv_total_bytes"` // of live tokens, and of hot KV
	KVBudgetBytes   int64   `msgpack:"kv_budget_bytes" json:"kv_budget_bytes"`
	KVReservedBytes int64   `msgpack:"kv_reserved_bytes" json:"kv_reserved_bytes"`
	KVPressure      float64 `msgpack:"kv_pressure" json:"kv_pressure"` // reserved / budget

	ScratchUsedBytes   int64   `msgpack:"scratch_used_bytes" json:"scratch_used_bytes"`
	ScratchBudgetBytes int64   `msgpack:"scratch_budget_bytes" json:"scratch_budget_bytes"`
	ScratchPressure    float64 `msgpack:"scratch_pressure" json:"scratch_pressure"`

	PrefillTokensTotal int64 `msgpack:"prefill_tokens_total" json:"prefill_tokens_total"`
	DecodeTokensTotal  int64 `msgpack:"decode_tokens_total" json:"decode_tokens_total"`
	CachedTokensTotal  int64 `msgpack:"cached_tokens_total" json:"cached_tokens_total"`

	PrefillTokensPerSec    float64 `msgpack:"prefill_tokens_per_sec" json:"prefill_tokens_per_sec"` // since the start
	DecodeTokensPerSec     float64 `msgpack:"decode_tokens_per_sec" json:"decode_tokens_per_sec"`
	PrefillTokensPerSec10s float64 `msgpack:"prefill_tokens_per_sec_10s" json:"prefill_tokens_per_sec_10s"` // over the last 10 s
	DecodeTokensPerSec10s  float64 `msgpack:"decode_tokens_per_sec_10s" json:"decode_tokens_per_sec_10s"`

	RejectedAdmissionsTotal int64  `msgpack:"rejected_admissions_total" json:"rejected_admissions_total"`
	RejectedByReason        Counts `msgpack:"rejected_by_reason" json:"rejected_by_reason"` // by Reason

	CompletedSessions int64 `msgpack:"completed_sessions" json:"completed_sessions"`
	CancelledSessions int64 `msgpack:"cancelled_sessions" json:"cancelled_sessions"`
	FailedSessions    int64 `msgpack:"failed_sessions" json:"failed_sessions"`
	CacheMissSessions int64 `msgpack:"cache_miss_sessions" json:"cache_miss_sessions"`

	SuspendedSessions int   `msgpack:"suspended_sessions" json:"suspended_sessions"` // of the queue: gave their place to another tenant, and go on later
	SuspendedBytes    int64 `msgpack:"suspended_bytes" json:"suspended_bytes"`       // their saved KV
	SuspensionsTotal  int64 `msgpack:"suspensions_total" json:"suspensions_total"`

	HotSessions    int    `msgpack:"hot_sessions" json:"hot_sessions"`
	HotBytes       int64  `msgpack:"hot_bytes" json:"hot_bytes"`
	HotHitsTotal   int64  `msgpack:"hot_hits_total" json:"hot_hits_total"`
	HotMissesTotal Counts `msgpack:"hot_misses_total" json:"hot_misses_total"` // by Miss

	// What a worker of an earlier version does not tell, and one without a spill has nothing of.
	PrefixHitsTotal   int64  `msgpack:"prefix_hits_total,omitempty" json:"prefix_hits_total,omitempty"` // turns that began with KV shared with others
	PrefixTokensTotal int64  `msgpack:"prefix_tokens_total,omitempty" json:"prefix_tokens_total,omitempty"`
	HotEvictionsTotal int64  `msgpack:"hot_evictions_total,omitempty" json:"hot_evictions_total,omitempty"` // KV that made room for other KV in memory
	SpillSessions     int    `msgpack:"spill_sessions,omitempty" json:"spill_sessions,omitempty"`           // whose KV is on disk
	SpillBytes        int64  `msgpack:"spill_bytes,omitempty" json:"spill_bytes,omitempty"`
	SpillWrittenTotal int64  `msgpack:"spill_written_total,omitempty" json:"spill_written_total,omitempty"`
	SpillHitsTotal    int64  `msgpack:"spill_hits_total,omitempty" json:"spill_hits_total,omitempty"`
	SpillLostTotal    Counts `msgpack:"spill_lost_total,omitempty" json:"spill_lost_total,omitempty"` // by cause

	Ticks         uint64 `msgpack:"ticks" json:"ticks"`
	LastTickAgeMS int64  `msgpack:"last_tick_age_ms" json:"last_tick_age_ms"` // how long work has waited for a tick; 0 when idle
	Threads       int    `msgpack:"threads" json:"threads"`
}

// Counts are counters by a wire string. A nil one is empty.
type Counts map[string]int64

// EncodeMsgpack writes the counters in the order of their keys, so that equal ones have equal bytes.
func (c Counts) EncodeMsgpack(e *msgpack.Encoder) error {
	if err := e.EncodeMapLen(len(c)); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if err := e.EncodeString(key); err != nil {
			return err
		}
		if err := e.EncodeInt(c[key]); err != nil {
			return err
		}
	}
	return nil
}

// numbers are the rates and ratios with their names.
func (t *Telemetry) numbers() []namedNumber {
	return []namedNumber{
		{"batch_occupancy_avg", &t.BatchOccupancyAvg},
		{"kv_pressure", &t.KVPressure},
		{"scratch_pressure", &t.ScratchPressure},
		{"prefill_tokens_per_sec", &t.PrefillTokensPerSec},
		{"decode_tokens_per_sec", &t.DecodeTokensPerSec},
		{"prefill_tokens_per_sec_10s", &t.PrefillTokensPerSec10s},
		{"decode_tokens_per_sec_10s", &t.DecodeTokensPerSec10s},
	}
}

type namedNumber struct {
	name  string
	value *float64
}

// round cuts rates and ratios to 4 decimals.
func (t *Telemetry) round() {
	for _, n := range t.numbers() {
		*n.value = math.Round(*n.value*1e4) / 1e4
	}
}

func (t *Telemetry) validate(path string) error {
	for _, n := range t.numbers() {
		if err := checkNumber(path+n.name, *n.value); err != nil {
			return err
		}
	}
	return first(
		t.validateCounts(path),
		checkBytes(path+"weight_bytes", t.WeightBytes),
		checkBytes(path+"kv_total_bytes", t.KVTotalBytes),
		checkBytes(path+"kv_budget_bytes", t.KVBudgetBytes),
		checkBytes(path+"kv_reserved_bytes", t.KVReservedBytes),
		checkBytes(path+"scratch_used_bytes", t.ScratchUsedBytes),
		checkBytes(path+"scratch_budget_bytes", t.ScratchBudgetBytes),
		checkBytes(path+"hot_bytes", t.HotBytes),
		checkBytes(path+"suspended_bytes", t.SuspendedBytes),
		checkBytes(path+"suspensions_total", t.SuspensionsTotal),
		checkBytes(path+"prefill_tokens_total", t.PrefillTokensTotal),
		checkBytes(path+"decode_tokens_total", t.DecodeTokensTotal),
		checkBytes(path+"cached_tokens_total", t.CachedTokensTotal),
		checkBytes(path+"rejected_admissions_total", t.RejectedAdmissionsTotal),
		checkBytes(path+"completed_sessions", t.CompletedSessions),
		checkBytes(path+"cancelled_sessions", t.CancelledSessions),
		checkBytes(path+"failed_sessions", t.FailedSessions),
		checkBytes(path+"cache_miss_sessions", t.CacheMissSessions),
		checkBytes(path+"hot_hits_total", t.HotHitsTotal),
		checkBytes(path+"last_tick_age_ms", t.LastTickAgeMS),
		t.RejectedByReason.validate(path+"rejected_by_reason"),
		t.HotMissesTotal.validate(path+"hot_misses_total"),
		checkBytes(path+"prefix_hits_total", t.PrefixHitsTotal),
		checkBytes(path+"prefix_tokens_total", t.PrefixTokensTotal),
		checkBytes(path+"hot_evictions_total", t.HotEvictionsTotal),
		checkBytes(path+"spill_bytes", t.SpillBytes),
		checkBytes(path+"spill_written_total", t.SpillWrittenTotal),
		checkBytes(path+"spill_hits_total", t.SpillHitsTotal),
		t.SpillLostTotal.validate(path+"spill_lost_total"),
	)
}

func (t *Telemetry) validateCounts(path string) error {
	return first(
		checkCount(path+"active_sessions", t.ActiveSessions),
		checkCount(path+"max_active_sessions", t.MaxActiveSessions),
		checkCount(path+"free_slots", t.FreeSlots),
		checkCount(path+"queue_depth", t.QueueDepth),
		checkCount(path+"max_queue_depth", t.MaxQueueDepth),
		checkCount(path+"batch_occupancy_last", t.BatchOccupancyLast),
		checkCount(path+"batch_occupancy_max", t.BatchOccupancyMax),
		checkCount(path+"hot_sessions", t.HotSessions),
		checkCount(path+"suspended_sessions", t.SuspendedSessions),
		checkCount(path+"spill_sessions", t.SpillSessions),
		checkCount(path+"threads", t.Threads),
	)
}

// validate takes any key that could be a wire string: another version may know more of them.
func (c Counts) validate(field string) error {
	if len(c) > MaxKeys {
		return fieldError(field, fmt.Sprintf("%d counters", len(c)), "at most %d counters", MaxKeys)
	}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if !validName(key) {
			return fieldError(field+" (a key)", shown(key), nameLimit)
		}
		if err := checkBytes(field+"."+key, c[key]); err != nil {
			return err
		}
	}
	return nil
}

// checkBytes bounds bytes, and totals of whatever else, below 0 only.
func checkBytes(field string, n int64) error { return checkInt(field, n, 0, math.MaxInt64) }
