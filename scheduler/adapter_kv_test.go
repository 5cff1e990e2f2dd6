package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// Sessions of one tenant with one system prompt, at once: only those of one adapter wait for each other and share.
func TestSessionsThatArriveTogetherShareOnlyWithinTheirAdapter(t *testing.T) {
	cfg := adapted(6)
	r := newRig(t, cfg, sharing(scheduler.ShareTenant))
	adapters := []string{"", "bard", "clerk", "", "bard", "clerk"}
	for i, adapter := range adapters {
		r.accept(with(adapter, after(50, fmt.Sprint(i), i, 20, 6)))
	}
	r.finish()
	for i, adapter := range adapters {
		req := with(adapter, after(50, fmt.Sprint(i), i, 20, 6))
		r.wantTokens(req.Key(), baseline(t, cfg, req))
		cached := 48
		if i < 3 {
			cached = 0
		}
		r.wantCached(req.Key(), cached, hotkv.MissNever)
	}
	if n := r.countCalls(goengine.OpSave); n != 3 {
		t.Errorf("%d states saved, want one for each adapter and one for none", n)
	}
}

// One after the other: what was seen with one adapter is not seen with another, and what is kept of one is not found by another.
func TestKeptPrefixesAreFoundOnlyByTheirAdapter(t *testing.T) {
	cfg := adapted(2)
	r := newRig(t, cfg, sharing(scheduler.ShareTenant))
	for i, step := range []struct {
		adapter       string
		cached, saved int
	}{{"bard", 0, 0}, {"clerk", 0, 0}, {"", 0, 0}, {"bard", 0, 1}, {"bard", 48, 1}, {"clerk", 0, 2}, {"", 0, 3}, {"clerk", 48, 3}, {"", 48, 3}, {"bard", 48, 3}} {
		req := with(step.adapter, after(50, fmt.Sprint(i), i, 20, 6))
		r.run(req)
		r.wantCached(req.Key(), step.cached, hotkv.MissNever)
		r.wantTokens(req.Key(), baseline(t, cfg, req))
		if n := r.countCalls(goengine.OpSave); n != step.saved {
			t.Errorf("turn %d, of adapter %q: %d states saved, want %d", i, step.adapter, n, step.saved)
		}
	}
}

// Its own KV is of another adapter, so that it shares as a new session does.
func TestSessionThatChangesItsAdapterSharesWithThoseOfItsNewOne(t *testing.T) {
	for name, leads := range map[string]bool{"with what is kept": false, "with what is being evaluated": true} {
		t.Run(name, func(t *testing.T) {
			cfg := adapted(4)
			r := newRig(t, cfg, sharing(scheduler.ShareTenant), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 16 }))
			first := kept(with("bard", after(50, "s", 1, 20, 5)))
			second := with("clerk", turn(first, r.run(first).Tokens, 6, 4))
			if leads {
				r.accept(with("clerk", after(50, "leader", 2, 20, 5)))
				r.tick() // a chunk
			} else {
				r.run(with("clerk", after(50, "a", 2, 20, 5)))
				r.run(with("clerk", after(50, "b", 3, 20, 5)))
			}
			r.run(second)
			r.wantCached(second.Key(), 48, hotkv.MissRecipe)
			r.wantTokens(second.Key(), baseline(t, cfg, second))
		})
	}
}

func TestSpilledKVOfOneAdapterIsNeverUsedWithAnother(t *testing.T) {
	for _, test := range []struct {
		from, to string
		cached   int
		miss     hotkv.Miss
	}{
		{"bard", "bard", 48, hotkv.Hit}, {"", "", 48, hotkv.Hit},
		{"bard", "clerk", 0, hotkv.MissRecipe}, {"bard", "", 0, hotkv.MissRecipe}, {"", "bard", 0, hotkv.MissRecipe},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("of %q with %q, restarted=%t", test.from, test.to, restarted), func(t *testing.T) {
				cfg, dir := adapted(1), t.TempDir()
				first := kept(with(test.from, request("s", 1, 40, 9)))
				var second scheduler.Request
				goOn := func(r *rig) {
					if tele := r.sched.Telemetry(); tele.SpillSessions == 0 {
						t.Error("there is nothing on disk")
					}
					r.run(second)
					r.wantCached(second.Key(), test.cached, test.miss)
					r.wantTokens(second.Key(), baseline(t, cfg, second))
					if tele := r.sched.Telemetry(); tele.SpillHitsTotal != 1 {
						t.Errorf("%d read from disk, want 1", tele.SpillHitsTotal)
					}
				}
				process(t, cfg, dir, func(r *rig) {
					second = with(test.to, turn(first, r.run(first).Tokens, 10, 8))
					if !restarted {
						r.run(kept(with("clerk", request("other", 2, 60, 8)))) // takes all there is in memory
						goOn(r)
					}
				}, hotBytes(70))
				if restarted {
					process(t, cfg, dir, goOn, hotBytes(70))
				}
			})
		}
	}
}

// Of an adapter that the node no longer has, or has as another, nothing is left.
func TestSpilledKVOfAnAdapterThatIsGoneIsRemoved(t *testing.T) {
	dir := t.TempDir()
	process(t, adapted(2), dir, func(r *rig) {
		r.run(kept(with("bard", request("a", 1, 40, 4))))
		r.run(kept(with("clerk", request("b", 2, 40, 4))))
		r.run(kept(request("c", 3, 40, 4)))
	})
	cfg := adapted(2)
	cfg.Adapters = []string{"clerk"}
	process(t, cfg, dir, func(r *rig) {
		if tele := r.sched.Telemetry(); tele.SpillSessions != 2 || tele.SpillLostTotal[spill.LostRecipe] != 1 {
			t.Errorf("%d sessions on disk and %d lost to their recipe, want 2 and 1", tele.SpillSessions, tele.SpillLostTotal[spill.LostRecipe])
		}
	})
}

func TestSpillThatDoesNotTakeAnAdaptersKVIsRefused(t *testing.T) {
	store := openSpill(t, small(), t.TempDir())
	engine, err := goengine.New(adapted(1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts()), Spill: store})
	want := "scheduler: the spill is not open for recipe " + engine.Fingerprints().Restore + "+shift-bard, which is one of the engine's; open it for this engine"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	if err := store.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// There is one slot, and whoever has it meanwhile has another adapter.
func TestSuspendedSessionGoesOnWithItsAdapter(t *testing.T) {
	warm := scheduler.DefaultSampling()
	warm.Temperature, warm.RepeatPenalty, warm.PenaltyLastN, warm.Seed = 1, 1.3, 20, 42
	for _, mode := range []goengine.Mode{goengine.Attention, goengine.Window, goengine.Recurrent} {
		for name, promptTokens := range map[string]int{"in its prompt": 200, "in its answer": 40} {
			t.Run(fmt.Sprintf("mode %d, %s", mode, name), func(t *testing.T) {
				cfg := adapted(1)
				cfg.Mode = mode
				r := newRig(t, cfg)
				long := of("big", with("bard", request("long", 1, promptTokens, 50)))
				long.Sampling = warm
				r.accept(long)
				r.tick() // four chunks
				if promptTokens == 40 {
					r.untilTokens(long.Key(), 10)
				}
				short := of("small", with("clerk", request("short", 2, 20, 4)))
				r.accept(short)
				r.tickUntil(func() bool { return r.sched.Telemetry().SuspendedSessions == 1 })
				r.finish()
				for _, req := range []scheduler.Request{long, short} {
					r.wantEnd(req.Key(), scheduler.Completed, "length")
					r.wantTokens(req.Key(), baseline(t, cfg, req))
				}
				if end := r.ends[long.Key()]; end.Usage.Prefilled != promptTokens {
					t.Errorf("%d prompt tokens evaluated, want each once", end.Usage.Prefilled)
				}
			})
		}
	}
}

// A tenant pays for its tokens, whatever the calls of the engine that yield them.
func TestTenantsOfDifferentAdaptersGetEqualShares(t *testing.T) {
	r := newRig(t, adapted(2), budget(func(b *scheduler.NodeBudget) { b.MaxBatchSize = 1 }))
	a, b := of("a", with("bard", request("s", 1, 16, 60))), of("b", with("clerk", request("s", 2, 16, 60)))
	r.accept(a, b)
	r.tickUntil(func() bool { return len(r.news[a.Key()])+len(r.news[b.Key()]) >= 80 })
	if na, nb := len(r.news[a.Key()]), len(r.news[b.Key()]); na-nb > 1 || nb-na > 1 {
		t.Errorf("%d and %d tokens, want as many", na, nb)
	}
	r.finish()
	for _, req := range []scheduler.Request{a, b} {
		r.wantTokens(req.Key(), baseline(t, adapted(2), req))
	}
}

// A change of the adapter takes 40 ms here, which a session that runs alone does not pay.
func TestSpeedOfADeadlineIsThatOfOneAdapter(t *testing.T) {
	r := newRig(t, adapted(2))
	last := -1 // slot; each has its own adapter
	r.onCall = func(call goengine.Call) {
		took := 10 * time.Millisecond
		slot := call.Slot
		switch call.Op {
		case goengine.OpDecode:
			slot = call.Rows[0].Slot
		case goengine.OpPrefill:
		default:
			return
		}
		if slot != last {
			took += 40 * time.Millisecond
		}
		last = slot
		r.clock.Advance(took)
	}
	r.accept(with("bard", request("a", 1, 96, 30)), with("clerk", request("b", 2, 96, 30)))
	r.finish()
	// A chunk and ten steps.
	if d := r.submit(within(r, with("bard", request("c", 3, 16, 11)), 109*time.Millisecond)); d.Reason != scheduler.RejectedDeadline || d.Detail.Needed != 110 {
		t.Errorf("%s %+v, want rejected-deadline, 110 ms needed", d, d.Detail)
	}
}

func TestHotKVOfAnotherAdapterSavesNoTimeOfADeadline(t *testing.T) {
	r := newRig(t, adapted(2))
	r.timed(nil)
	r.run(request("warm", 1, 64, 10))
	first := kept(with("bard", request("s", 1, 64, 1)))
	next := turn(first, r.run(first).Tokens, 15, 1) // 80 tokens, of which 64 are hot: five chunks or one, of 30 ms
	if d := r.submit(within(r, with("clerk", next), 149*time.Millisecond)); d.Reason != scheduler.RejectedDeadline || d.Detail.Needed != 150 {
		t.Errorf("with another adapter %s %+v, want rejected-deadline, 150 ms needed", d, d.Detail)
	}
	if d := r.submit(within(r, next, 30*time.Millisecond)); d.Reason != scheduler.Admitted {
		t.Errorf("with its adapter %s, want admitted", d)
	}
	r.finish()
}
