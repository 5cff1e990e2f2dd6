package scheduler_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func TestTelemetryHasTheDashboardsNames(t *testing.T) {
	r := newRig(t, small())
	data, err := json.Marshal(r.sched.Telemetry())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"active_sessions", "queue_depth", "batch_occupancy_last", "batch_occupancy_avg", "batch_occupancy_max",
		"weight_bytes", "kv_total_bytes", "kv_budget_bytes", "kv_pressure", "scratch_used_bytes", "scratch_budget_bytes",
		"scratch_pressure", "prefill_tokens_total", "decode_tokens_total", "prefill_tokens_per_sec", "decode_tokens_per_sec",
		"rejected_admissions_total", "rejected_by_reason", "completed_sessions", "cancelled_sessions", "failed_sessions", "ticks",
		"kv_reserved_bytes", "hot_sessions", "hot_bytes", "hot_hits_total", "hot_misses_total", "cache_miss_sessions",
		"cached_tokens_total", "last_tick_age_ms", "threads", "prefill_tokens_per_sec_10s", "decode_tokens_per_sec_10s",
		"suspended_sessions", "suspended_bytes", "suspensions_total",
		"prefix_hits_total", "prefix_tokens_total", "hot_evictions_total", "spill_sessions", "spill_bytes", "spill_written_total", "spill_hits_total", "spill_lost_total",
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("fields\n%v, want\n%v", got, want)
	}
}

func TestTelemetryCountsTokensOncePerKind(t *testing.T) {
	r := newRig(t, small())
	first := kept(request("a", 1, 20, 5))
	end := r.run(first)
	second := turn(first, end.Tokens, 6, 4)
	r.accept(second, request("b", 2, 10, 4))
	r.finish()
	_ = r.submit(request("c", 3, 300, 1))
	tele := r.sched.Telemetry()
	if tele.PrefillTokensTotal != 20+7+10 || tele.CachedTokensTotal != 24 || tele.DecodeTokensTotal != 4+3+3 {
		t.Errorf("prefill %d, cached %d, decode %d; want 37, 24, 10", tele.PrefillTokensTotal, tele.CachedTokensTotal, tele.DecodeTokensTotal)
	}
	if tele.CompletedSessions != 3 || tele.RejectedAdmissionsTotal != 1 || fmt.Sprint(tele.RejectedByReason) != "map[rejected-context:1]" {
		t.Errorf("completed %d, rejected %d %v", tele.CompletedSessions, tele.RejectedAdmissionsTotal, tele.RejectedByReason)
	}
	if tele.HotHitsTotal != 1 || tele.HotMissesTotal["never"] != 2 || tele.BatchOccupancyMax != 2 {
		t.Errorf("hits %d, misses %v, occupancy up to %d", tele.HotHitsTotal, tele.HotMissesTotal, tele.BatchOccupancyMax)
	}
}

func TestPressureIsWhatIsReserved(t *testing.T) {
	r := newRig(t, small())
	r.accept(request("a", 1, 100, 29)) // 128 positions of the budget's 1024
	tele := r.sched.Telemetry()
	perToken := r.engine.Facts().BytesPerToken
	if tele.KVPressure != 0.125 || tele.KVReservedBytes != 128*perToken || tele.KVTotalBytes != 0 || tele.ScratchPressure != 0.25 {
		t.Errorf("pressure %v, reserved %d, total %d, scratch pressure %v", tele.KVPressure, tele.KVReservedBytes, tele.KVTotalBytes, tele.ScratchPressure)
	}
	r.tick() // four chunks of 16
	if got := r.sched.Telemetry().KVTotalBytes; got != 64*perToken || r.engine.KVBytes() != got {
		t.Errorf("%d KV bytes after four chunks, want %d as the engine has", got, 64*perToken)
	}
	r.finish()
}

func TestRatesOfTheLastSecondsForgetWhatIsOlder(t *testing.T) {
	r := newRig(t, small())
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpDecode {
			r.clock.Advance(500 * time.Millisecond)
		}
	}
	r.accept(request("a", 1, 16, 41)) // 40 decode tokens in 20 s
	r.finish()
	tele := r.sched.Telemetry()
	if tele.DecodeTokensPerSec != 2 || tele.PrefillTokensPerSec != 0.8 {
		t.Errorf("since the start %v and %v tokens/s, want 2 and 0.8", tele.DecodeTokensPerSec, tele.PrefillTokensPerSec)
	}
	if tele.DecodeTokensPerSec10s < 1.9 || tele.DecodeTokensPerSec10s > 2.1 || tele.PrefillTokensPerSec10s != 0 {
		t.Errorf("over 10 s %v and %v tokens/s, want about 2 and 0", tele.DecodeTokensPerSec10s, tele.PrefillTokensPerSec10s)
	}
	r.clock.Advance(20 * time.Second)
	if tele = r.sched.Telemetry(); tele.DecodeTokensPerSec10s != 0 || tele.DecodeTokensPerSec != 1 {
		t.Errorf("after 20 s more %v over 10 s, %v since the start; want 0 and 1", tele.DecodeTokensPerSec10s, tele.DecodeTokensPerSec)
	}
}

func TestRatesAreRoundedToFourDecimals(t *testing.T) {
	data, err := json.Marshal(scheduler.Telemetry{KVPressure: 1.0 / 3, BatchOccupancyAvg: 2.00006})
	if err != nil {
		t.Fatal(err)
	}
	var fields struct {
		KVPressure        float64 `json:"kv_pressure"`
		BatchOccupancyAvg float64 `json:"batch_occupancy_avg"`
	}
	if err := json.Unmarshal(data, &fields); err != nil || fields.KVPressure != 0.3333 || fields.BatchOccupancyAvg != 2.0001 {
		t.Errorf("%s: %v", data, err)
	}
}

func TestTimingsAreMeasuredFromSubmission(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpDecode || call.Op == goengine.OpPrefill {
			r.clock.Advance(time.Second)
		}
	}
	r.accept(request("a", 1, 10, 3), request("b", 2, 20, 2))
	r.finish()
	if got := r.ends[key("a", 1)].Timings; got != (scheduler.Timings{Queued: 0, FirstToken: time.Second, Total: 3 * time.Second}) {
		t.Errorf("a: %+v, want 0 s, 1 s, 3 s", got)
	}
	if got := r.ends[key("b", 1)].Timings; got != (scheduler.Timings{Queued: 3 * time.Second, FirstToken: 5 * time.Second, Total: 6 * time.Second}) {
		t.Errorf("b: %+v, want 3 s, 5 s, 6 s", got)
	}
}

func TestTickAgeGrowsOnlyWhileWorkWaitsForATick(t *testing.T) {
	r := newRig(t, small())
	wantAge := func(want time.Duration) {
		t.Helper()
		if got := r.sched.Telemetry().LastTickAgeMS; got != want.Milliseconds() {
			t.Errorf("last tick age %d ms, want %s", got, want)
		}
	}
	r.tick()
	r.clock.Advance(time.Hour)
	wantAge(0) // idle
	r.accept(request("a", 1, 10, 5))
	r.clock.Advance(5 * time.Second)
	wantAge(5 * time.Second) // not the idle hour
	r.tick()
	wantAge(0)
	r.clock.Advance(2 * time.Second)
	wantAge(2 * time.Second)
	r.finish()
	r.clock.Advance(time.Hour)
	wantAge(0)
}
