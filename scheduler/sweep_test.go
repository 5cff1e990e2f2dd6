package scheduler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func sweepRequests(n int) []scheduler.Request {
	all := make([]scheduler.Request, n)
	for i, name := range names(n) {
		all[i] = request(name, i, 30+5*i, 12)
	}
	return all
}

// factory makes engines of the level's size, corrupted by the fault if there is one.
func factory(t *testing.T, cfg goengine.Config, corrupt func(level int, engine *goengine.Engine)) scheduler.EngineFactory {
	return func(level int) (scheduler.Engine, func(), error) {
		cfg.Slots = max(2, level)
		engine, err := goengine.New(cfg)
		if err != nil {
			return nil, nil, err
		}
		if corrupt != nil {
			corrupt(level, engine)
		}
		return engine, func() {
			if kv, states := engine.KVBytes(), engine.LiveStates(); corrupt == nil && (kv != 0 || states != 0) {
				t.Errorf("level %d left %d KV bytes and %d states", level, kv, states)
			}
		}, nil
	}
}

func TestSweepOfAnIsolatedEngineFindsNoDifference(t *testing.T) {
	for _, exact := range []bool{false, true} {
		cfg := small()
		cfg.Exact = exact
		var progress []string
		report, err := scheduler.Sweep(t.Context(), factory(t, cfg, nil), scheduler.SweepOptions{
			Requests: sweepRequests(8), Levels: []int{8, 1, 4, 2, 4},
			Progress: func(s scheduler.Setting, level int) { progress = append(progress, fmt.Sprintf("%s@%d", s, level)) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if !report.CorruptionFree || report.BitExact == nil || !*report.BitExact || report.SaturationConcurrency != 8 {
			t.Errorf("report %+v", report)
		}
		if len(progress) != 13 || progress[0] != "cold@1" || progress[11] != "cancelled-neighbour@8" || progress[12] != "afresh@1" {
			t.Errorf("progress %v", progress)
		}
		for i, level := range []int{1, 2, 4, 8} {
			got := report.Results[i]
			if got.Concurrency != level || got.DecodeTokens != 8*11 || got.PrefillTokens != 8*30+5*28 || got.MaxBatchOccupancy != level ||
				got.RejectedAdmissions != 0 || got.CacheMisses != 0 || got.PeakKVBytes == 0 || got.CachedTokens != 0 {
				t.Errorf("cold result %+v", got)
			}
		}
		if one, eight := report.Results[0], report.Results[3]; one.DecodeBatches != 88 || one.AvgBatchOccupancy != 1 || eight.Ticks >= one.Ticks || eight.TokensPerTick <= one.TokensPerTick {
			t.Errorf("level 1 %+v, level 8 %+v", one, eight)
		}
		for i, req := range sweepRequests(8) {
			if got, want := fmt.Sprint(report.ReferenceOutputs[req.Session]), fmt.Sprint(baseline(t, cfg, req)); got != want {
				t.Errorf("request %d: reference output %s, want %s", i, got, want)
			}
		}
		for _, hot := range report.Settings[1].Results {
			if hot.CachedTokens < 8*16 {
				t.Errorf("hot result %+v, want KV reused", hot)
			}
		}
		if got := report.SettingDifferences; len(got) != 2 || got[0].Setting != scheduler.SettingHot || got[0].Against != scheduler.SettingAfresh ||
			got[1].Setting != scheduler.SettingCancelledNeighbour || got[1].Against != scheduler.SettingCold {
			t.Errorf("compared %+v, want hot with afresh and cancelled-neighbour with cold", got)
		}
		if report.SettingsExact == nil || !*report.SettingsExact {
			t.Errorf("settings exact %v, want true", report.SettingsExact)
		}
		for _, d := range report.SettingDifferences {
			if !d.TokensEqual || d.BitsEqual == nil || !*d.BitsEqual {
				t.Errorf("setting %s differs from %s: %+v", d.Setting, d.Against, d.FirstDifference)
			}
		}
	}
}

// The negative controls: what a sweep is for must not escape it.
func TestSweepReportsCorruption(t *testing.T) {
	for _, test := range []struct {
		name    string
		corrupt func(level int, engine *goengine.Engine)
	}{
		{"two rows swapped", func(level int, engine *goengine.Engine) {
			if level >= 4 {
				engine.Inject(goengine.Fault{Kind: goengine.FaultSwapRows, Slot: 1, Other: 2, After: 3, Times: 1})
			}
		}},
		{"one KV cell taken from a neighbour", func(level int, engine *goengine.Engine) {
			if level >= 4 {
				engine.Inject(goengine.Fault{Kind: goengine.FaultCopyCell, Slot: 2, Other: 1, Pos: 29, Layer: 0, After: 4})
			}
		}},
		{"stale slot", func(_ int, engine *goengine.Engine) {
			engine.Inject(goengine.Fault{Kind: goengine.FaultStaleSlot, Slot: goengine.AnySlot})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			report, err := scheduler.Sweep(t.Context(), factory(t, small(), test.corrupt), scheduler.SweepOptions{
				Requests: sweepRequests(8), Levels: []int{1, 2, 4, 8},
			})
			if err != nil {
				t.Fatal(err)
			}
			if report.CorruptionFree || *report.BitExact {
				t.Error("not reported as corruption")
			}
			cold := report.Settings[0]
			d := cold.FirstDifference
			if cold.CorruptionFree || *cold.BitExact || d == nil || !d.TokensDiffer || d.Level < 2 || d.ReferenceToken == d.Token || d.ReferenceGap <= 0 {
				t.Errorf("cold: %+v, first difference %+v", cold, d)
			}
		})
	}
}

// tilted has other logits than its model where it runs several rows, but chooses the same tokens.
type tilted struct{ *goengine.Engine }

func (e tilted) Decode(rows []scheduler.Row) []scheduler.Result {
	results := e.Engine.Decode(rows)
	for i := range results {
		if len(rows) > 1 {
			results[i].LogitHash++
		}
	}
	return results
}

func TestSweepTellsEqualTokensFromEqualBits(t *testing.T) {
	inner := factory(t, small(), nil)
	report, err := scheduler.Sweep(t.Context(), func(level int) (scheduler.Engine, func(), error) {
		engine, closeEngine, err := inner(level)
		return tilted{engine.(*goengine.Engine)}, closeEngine, err
	}, scheduler.SweepOptions{Requests: sweepRequests(4), Levels: []int{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	d := report.Settings[0].FirstDifference
	if !report.CorruptionFree || *report.BitExact || d == nil || d.TokensDiffer || d.Level != 2 || d.Session != "s0" || d.Token != d.ReferenceToken {
		t.Errorf("corruption free %t, bit exact %t, first difference %+v", report.CorruptionFree, *report.BitExact, d)
	}
}

// wornOut evaluates otherwise, at every level alike, on KV that was restored.
type wornOut struct {
	*goengine.Engine
	restored map[int]bool
	token    bool // it yields other tokens, not only other logits
}

func (e wornOut) Restore(slot int, state scheduler.State) error {
	e.restored[slot] = true
	return e.Engine.Restore(slot, state)
}

func (e wornOut) Release(slot int) {
	delete(e.restored, slot)
	e.Engine.Release(slot)
}

func (e wornOut) Decode(rows []scheduler.Row) []scheduler.Result {
	results := e.Engine.Decode(rows)
	for i, row := range rows {
		if e.restored[row.Slot] {
			results[i].LogitHash++
			if e.token && !results[i].EOG {
				results[i].Token ^= 1
			}
		}
	}
	return results
}

func TestSweepTellsWhatRestoredKVChangesAtEveryLevelAlike(t *testing.T) {
	for _, token := range []bool{false, true} {
		inner := factory(t, small(), nil)
		report, err := scheduler.Sweep(t.Context(), func(level int) (scheduler.Engine, func(), error) {
			engine, closeEngine, err := inner(level)
			return wornOut{engine.(*goengine.Engine), make(map[int]bool), token}, closeEngine, err
		}, scheduler.SweepOptions{Requests: sweepRequests(4), Levels: []int{1, 2}})
		if err != nil {
			t.Fatal(err)
		}
		hot := report.SettingDifferences[0]
		if !report.CorruptionFree || !*report.BitExact || *report.SettingsExact || hot.TokensEqual == token || *hot.BitsEqual ||
			hot.FirstDifference == nil || hot.FirstDifference.Session != "s0" || hot.FirstDifference.TokenIndex != 7 {
			t.Errorf("other tokens %t: corruption free %t, bit exact %t, settings exact %t, hot %+v", token,
				report.CorruptionFree, *report.BitExact, *report.SettingsExact, hot)
		}
	}
}

func TestSweepOfAnEngineWithoutAuditSaysNothingOfBits(t *testing.T) {
	cfg := small()
	cfg.Audit = false
	report, err := scheduler.Sweep(t.Context(), factory(t, cfg, nil), scheduler.SweepOptions{
		Requests: sweepRequests(2), Levels: []int{1, 2}, Settings: []scheduler.Setting{scheduler.SettingCold},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !report.CorruptionFree || report.BitExact != nil || len(report.Settings) != 1 {
		t.Errorf("report %+v", report)
	}
	data, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	if string(fields["schema_version"]) != "2" || string(fields["settings_exact"]) != "null" || string(fields["bit_exact"]) != "null" || string(fields["setting_differences"]) != "[]" {
		t.Errorf("JSON %s", data)
	}
	for _, name := range []string{"concurrency", "ticks", "decode_batches", "decode_tokens", "prefill_tokens", "avg_batch_occupancy",
		"max_batch_occupancy", "tokens_per_tick", "peak_kv_bytes", "rejected_admissions", "cache_misses", "tokens_per_sec"} {
		if !strings.Contains(string(fields["results"]), `"`+name+`":`) {
			t.Errorf("results lack %s", name)
		}
	}
}

func TestSweepSaturatesWhereOccupancyStopsRising(t *testing.T) {
	report, err := scheduler.Sweep(t.Context(), factory(t, small(), nil), scheduler.SweepOptions{
		Requests: sweepRequests(2), Levels: []int{1, 2, 4, 8}, Settings: []scheduler.Setting{scheduler.SettingCold},
	})
	if err != nil || report.SaturationConcurrency != 2 {
		t.Errorf("saturation at %d, %v; want 2 with two requests", report.SaturationConcurrency, err)
	}
}

func TestSweepSaysWhatItCannotRun(t *testing.T) {
	good := scheduler.SweepOptions{Requests: sweepRequests(2), Levels: []int{1, 2}}
	for name, test := range map[string]struct {
		change func(*scheduler.SweepOptions)
		cfg    func(*goengine.Config)
		says   string
	}{
		"no requests":     {func(o *scheduler.SweepOptions) { o.Requests = nil }, nil, "no requests"},
		"level 0":         {func(o *scheduler.SweepOptions) { o.Levels = []int{0, 1} }, nil, "levels"},
		"unknown setting": {func(o *scheduler.SweepOptions) { o.Settings = []scheduler.Setting{"lukewarm"} }, nil, "lukewarm"},
		"same session":    {func(o *scheduler.SweepOptions) { o.Requests[1].Session = "s0" }, nil, "session"},
		"one token":       {func(o *scheduler.SweepOptions) { o.Requests[1].MaxNewTokens = 1 }, nil, "at least 2"},
		"the neighbour":   {func(o *scheduler.SweepOptions) { o.Requests[0].Tenant = "sweep-neighbour" }, nil, "tenant"},
		"a stop hook":     {func(o *scheduler.SweepOptions) { o.Requests[1].Stop = func(scheduler.Token) bool { return true } }, nil, "Prompt only"},
		"refused":         {func(*scheduler.SweepOptions) {}, func(c *goengine.Config) { c.ContextTokens = 20 }, "rejected-context"},
	} {
		opts, cfg := good, small()
		opts.Requests = sweepRequests(2)
		test.change(&opts)
		if test.cfg != nil {
			test.cfg(&cfg)
		}
		if _, err := scheduler.Sweep(t.Context(), factory(t, cfg, nil), opts); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	failing := func(level int, engine *goengine.Engine) {
		engine.Inject(goengine.Fault{Kind: goengine.FaultNoKV, Slot: 0})
	}
	if _, err := scheduler.Sweep(t.Context(), factory(t, small(), failing), good); err == nil || !strings.Contains(err.Error(), "no-kv") {
		t.Errorf("engine failure: %v", err)
	}
	broken := errors.New("no device")
	if _, err := scheduler.Sweep(t.Context(), func(int) (scheduler.Engine, func(), error) { return nil, nil, broken }, good); !errors.Is(err, broken) {
		t.Errorf("factory failure: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := scheduler.Sweep(ctx, factory(t, small(), nil), good); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSweepSaysWhenNothingCouldDiffer(t *testing.T) {
	cold := []scheduler.Setting{scheduler.SettingCold}
	long := func(n int) []scheduler.Request { // longer than two chunks of the engine
		all := sweepRequests(n)
		for i := range all {
			all[i] = request(all[i].Session, i, 40, 12)
		}
		return all
	}
	for name, test := range map[string]struct {
		opts   scheduler.SweepOptions
		change func(*goengine.Config)
		says   string
	}{
		"a proof":                {scheduler.SweepOptions{Requests: long(4), Levels: []int{1, 4}}, func(*goengine.Config) {}, ""},
		"an exact proof":         {scheduler.SweepOptions{Requests: long(4), Levels: []int{1, 4}}, func(c *goengine.Config) { c.Exact = true }, ""},
		"one level":              {scheduler.SweepOptions{Requests: long(4), Levels: []int{4}}, func(*goengine.Config) {}, "only one level"},
		"fewer requests":         {scheduler.SweepOptions{Requests: long(2), Levels: []int{1, 4}, Settings: cold}, func(*goengine.Config) {}, "level 4 never had more than 2"},
		"no whole chunk to keep": {scheduler.SweepOptions{Requests: long(4), Levels: []int{1, 4}}, func(c *goengine.Config) { c.Exact, c.PrefillChunk = true, 64 }, "hot: no KV was reused"},
	} {
		cfg := small()
		test.change(&cfg)
		report, err := scheduler.Sweep(t.Context(), factory(t, cfg, nil), test.opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := report.Unproven(); !strings.Contains(got, test.says) || (got == "") != (test.says == "") {
			t.Errorf("%s: unproven %q, want %q", name, got, test.says)
		}
	}
}

func TestSweepIsNoProofWhereSessionsLostTheirKVAtEveryLevel(t *testing.T) {
	report, err := scheduler.Sweep(t.Context(), factory(t, small(), func(_ int, engine *goengine.Engine) {
		engine.Inject(goengine.Fault{Kind: goengine.FaultMiss, Slot: goengine.AnySlot, After: 1})
	}), scheduler.SweepOptions{Requests: sweepRequests(4), Levels: []int{1, 2}, Settings: []scheduler.Setting{scheduler.SettingCold}})
	if err != nil {
		t.Fatal(err)
	}
	if report.Unproven() == "" {
		t.Errorf("results %+v pass for a proof", report.Results)
	}
}

func TestSweepMakesACrowdOfShortTurns(t *testing.T) {
	requests := sweepRequests(32)
	for i := range requests {
		requests[i].MaxNewTokens = 4
	}
	report, err := scheduler.Sweep(t.Context(), factory(t, small(), nil), scheduler.SweepOptions{
		Requests: requests, Levels: []int{1, 16}, Settings: []scheduler.Setting{scheduler.SettingCold},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := report.Results[1].MaxBatchOccupancy; got != 16 {
		t.Errorf("at level 16 no batch had more than %d sessions", got)
	}
}
