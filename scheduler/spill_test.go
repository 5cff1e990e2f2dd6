package scheduler_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// openSpill opens a store for a rig that is made of cfg, which closes it.
func openSpill(tb tester, cfg goengine.Config, dir string, change ...func(*spill.Options)) *spill.Store {
	tb.Helper()
	loader, err := goengine.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	o := spill.Options{Dir: dir, BudgetBytes: 1 << 30, Recipes: scheduler.Recipes(loader), Exact: loader.Fingerprints().Exact, Load: loader.LoadState, ReadLimit: time.Minute}
	for _, f := range change {
		f(&o)
	}
	store, err := spill.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if n := loader.LiveStates(); n != 0 {
			tb.Errorf("%d states that came from disk are left", n)
		}
	})
	return store
}

func withSpill(store *spill.Store) func(*scheduler.Config) {
	return func(c *scheduler.Config) { c.Spill = store }
}

// process runs f with a scheduler that has the folder to itself, and ends it: what it leaves is on disk.
func process(tb tester, cfg goengine.Config, dir string, f func(r *rig), change ...func(*scheduler.Config)) {
	tb.Helper()
	r := newRig(tb, cfg, append(change, withSpill(openSpill(tb, cfg, dir)))...)
	f(r)
	r.end()
}

// slow makes the store's loads wait for the gate, once they have begun.
func slow(began, gate chan struct{}) func(*spill.Options) {
	return func(o *spill.Options) {
		load := o.Load
		o.Load = func(size int64, r io.Reader) (hotkv.State, error) {
			close(began)
			<-gate
			return load(size, r)
		}
	}
}

// hotBytes is a hot budget of that many positions.
func hotBytes(positions int64) func(*scheduler.Config) {
	return budget(func(b *scheduler.NodeBudget) {
		b.HotBudgetBytes = positions * (b.KVBudgetBytes / int64(b.MaxActiveSessions) / 256)
	})
}

func TestHotTurnAfterARestartEqualsTheSameTurnCold(t *testing.T) {
	for _, mode := range []goengine.Mode{goengine.Attention, goengine.Window, goengine.Recurrent} {
		for _, exact := range []bool{false, true} {
			if exact && mode != goengine.Attention {
				continue
			}
			t.Run(fmt.Sprintf("mode %d, exact=%t", mode, exact), func(t *testing.T) {
				cfg, dir := withSlots(2), t.TempDir()
				cfg.Mode, cfg.Exact = mode, exact
				first := map[string]scheduler.Request{}
				yielded := map[string][]scheduler.Token{}
				process(t, cfg, dir, func(r *rig) {
					for i, name := range names(4) { // two are parked in the end, two are saved
						first[name] = kept(request(name, i, 40, 9))
						yielded[name] = r.run(first[name]).Tokens
					}
				})
				process(t, cfg, dir, func(r *rig) {
					if tele := r.sched.Telemetry(); tele.SpillSessions != 4 || tele.HotSessions != 0 {
						t.Errorf("%d sessions on disk and %d in memory, want 4 and 0", tele.SpillSessions, tele.HotSessions)
					}
					for _, name := range names(4) {
						second := turn(first[name], yielded[name], 10, 8)
						second.RequireHot = true
						r.run(second)
						r.wantTokens(key(name, 2), baseline(t, cfg, second))
						cached := 48
						if exact {
							cached = 32
						}
						r.wantCached(key(name, 2), cached, hotkv.Hit)
					}
					if tele := r.sched.Telemetry(); tele.SpillHitsTotal != 4 || tele.HotHitsTotal != 4 {
						t.Errorf("%d hits, of which %d from disk, want 4 and 4", tele.HotHitsTotal, tele.SpillHitsTotal)
					}
				})
			})
		}
	}
}

// Where prompts are cut in another way, an exact engine takes nothing of what they left on disk for as good as cold.
func TestExactTurnAfterARestartWithAnotherGridIsEvaluatedCold(t *testing.T) {
	cfg, dir := withSlots(2), t.TempDir()
	cfg.Exact = true
	first := kept(request("s", 1, 70, 9))
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })
	cfg.PrefillChunk, cfg.LeastChunk = 20, 8
	process(t, cfg, dir, func(r *rig) {
		second := turn(first, yielded, 10, 8)
		r.run(second)
		r.wantCached(second.Key(), 0, hotkv.MissInvalidated)
		r.wantTokens(second.Key(), baseline(t, cfg, second))
	})
}

// The budget in memory holds one session: all others are on disk, whether they were saved or parked when they made room.
func TestEvictedKVIsHotAgainFromDisk(t *testing.T) {
	for _, slots := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
			cfg := withSlots(slots)
			process(t, cfg, t.TempDir(), func(r *rig) {
				ends := map[string]scheduler.Ending{}
				for i, name := range names(4) {
					ends[name] = r.run(kept(request(name, i, 40, 9)))
				}
				for i, name := range names(4) {
					second := kept(turn(request(name, i, 40, 9), ends[name].Tokens, 10, 8))
					r.run(second)
					r.wantCached(second.Key(), 48, hotkv.Hit)
					r.wantTokens(second.Key(), baseline(t, cfg, second))
				}
				if tele := r.sched.Telemetry(); tele.SpillHitsTotal != 4 || tele.HotEvictionsTotal < 4 {
					t.Errorf("%d hits from disk and %d evictions, want 4 and at least 4", tele.SpillHitsTotal, tele.HotEvictionsTotal)
				}
			}, hotBytes(70))
		})
	}
}

// While one session's KV is read, others run.
func TestOthersGoOnWhileASessionsKVIsRead(t *testing.T) {
	cfg, dir := withSlots(4), t.TempDir()
	first := kept(request("s", 1, 40, 9))
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })

	gate, began := make(chan struct{}), make(chan struct{})
	r := newRig(t, cfg, withSpill(openSpill(t, cfg, dir, slow(began, gate))))
	second := turn(first, yielded, 10, 8)
	r.accept(second)
	r.tick()
	<-began
	other := request("other", 2, 20, 5)
	r.accept(other)
	r.tickUntil(func() bool { return r.ends[other.Key()].Reason != "" })
	if _, started := r.started[second.Key()]; started {
		t.Error("the turn started before its KV was read")
	}
	close(gate)
	r.finish()
	r.wantCached(second.Key(), 48, hotkv.Hit)
	r.wantTokens(second.Key(), baseline(t, cfg, second))
}

func TestTurnThatIsCancelledWhileItsKVIsReadLeavesTheKVHot(t *testing.T) {
	cfg, dir := withSlots(4), t.TempDir()
	first := kept(request("s", 1, 40, 9))
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })
	gate, began := make(chan struct{}), make(chan struct{})
	r := newRig(t, cfg, withSpill(openSpill(t, cfg, dir, slow(began, gate))))
	second := turn(first, yielded, 10, 8)
	r.accept(second)
	r.tick()
	<-began
	if found, err := r.sched.Cancel(second.Key(), scheduler.Cancelled, "", ""); !found || err != nil {
		t.Fatal(found, err)
	}
	r.finish()
	r.wantEnd(second.Key(), scheduler.Cancelled, "")
	close(gate)
	for r.sched.Telemetry().HotSessions == 0 {
		runtime.Gosched() // until it is read
	}
	third := second
	third.Turn = 3
	r.run(third)
	r.wantCached(third.Key(), 48, hotkv.Hit)
}

// Run sleeps while all it has to do is wait for the disk, and the disk wakes it.
func TestRunWaitsForTheDisk(t *testing.T) {
	cfg, dir := withSlots(1), t.TempDir()
	first := kept(request("s", 1, 40, 9))
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })
	r := newRig(t, cfg, withSpill(openSpill(t, cfg, dir)))
	second := turn(first, yielded, 10, 8)
	r.accept(second)
	ctx, cancel := context.WithCancel(t.Context())
	ticks := 0
	err := r.sched.Run(ctx, func(report *scheduler.Report) {
		ticks++
		r.observe(report)
		if len(r.ends) > 0 {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r.wantTokens(second.Key(), baseline(t, cfg, second))
	if want := 1 + 8 + 1; ticks > want { // one that begins the read, one for each token, one more that may find it still read
		t.Errorf("%d ticks, want at most %d", ticks, want)
	}
}

func TestDamagedFileIsAMissAndTheTurnPrefillsAgain(t *testing.T) {
	cfg, dir := withSlots(1), t.TempDir()
	first := kept(request("s", 1, 40, 9))
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })
	process(t, cfg, dir, func(r *rig) {
		paths, err := filepath.Glob(filepath.Join(dir, "*", "*.kv"))
		if err != nil || len(paths) != 1 {
			t.Fatal(paths, err)
		}
		content, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)-1] ^= 1
		if err := os.WriteFile(paths[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
		second := turn(first, yielded, 10, 8)
		r.run(second)
		r.wantCached(second.Key(), 0, hotkv.MissInvalidated)
		r.wantTokens(second.Key(), baseline(t, cfg, second))
		if lost := r.sched.Telemetry().SpillLostTotal[spill.LostCorrupt]; lost != 1 {
			t.Errorf("%d corrupt, want 1", lost)
		}
	})
}

func TestRouteEpochsReachTheDisk(t *testing.T) {
	cfg, dir := withSlots(1), t.TempDir()
	first := kept(request("s", 1, 40, 9))
	first.Epoch = 5
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })
	process(t, cfg, dir, func(r *rig) {
		stale := turn(first, yielded, 10, 8)
		stale.Epoch = 4
		if d := r.submit(stale); d.Reason != scheduler.RejectedStaleEpoch {
			t.Errorf("%s, want it refused: a lower epoch than the KV's", d)
		}
		second := turn(first, yielded, 10, 8)
		second.Epoch = 6
		r.run(second)
		r.wantCached(second.Key(), 0, hotkv.MissNever)
		r.wantTokens(second.Key(), baseline(t, cfg, second))
		if tele := r.sched.Telemetry(); tele.SpillSessions != 0 || tele.SpillHitsTotal != 0 {
			t.Errorf("%d sessions on disk and %d hits, want none", tele.SpillSessions, tele.SpillHitsTotal)
		}
	})
}

// A higher epoch comes while evicted KV is being saved for the disk: it is of no use to anyone any more.
func TestKVThatIsFencedWhileItIsSavedForTheDiskIsDisposedOf(t *testing.T) {
	process(t, withSlots(4), t.TempDir(), func(r *rig) {
		first := kept(request("s", 1, 40, 9))
		second := turn(first, r.run(first).Tokens, 4, 4)
		second.Epoch, second.Keep = 1, false
		r.onCall = func(call goengine.Call) {
			if call.Op == goengine.OpSave {
				r.onCall = nil
				r.accept(second)
			}
		}
		r.run(kept(request("other", 2, 40, 9))) // evicts s, which is parked
		r.finish()
		if r.onCall != nil {
			t.Fatal("nothing was saved")
		}
		r.wantTokens(second.Key(), baseline(t, withSlots(4), second))
		if tele := r.sched.Telemetry(); tele.SpillSessions != 0 || tele.SpillWrittenTotal != 0 {
			t.Errorf("%d sessions on disk and %d written, want none", tele.SpillSessions, tele.SpillWrittenTotal)
		}
	}, hotBytes(70))
}

// What a turn took from disk and lost is lost there too.
func TestCancelledTurnLeavesNothingOnDisk(t *testing.T) {
	cfg, dir := withSlots(1), t.TempDir()
	first := kept(request("s", 1, 40, 9))
	var yielded []scheduler.Token
	process(t, cfg, dir, func(r *rig) { yielded = r.run(first).Tokens })
	process(t, cfg, dir, func(r *rig) {
		second := turn(first, yielded, 4, 50)
		r.accept(second)
		r.untilTokens(second.Key(), 1)
		if found, err := r.sched.Cancel(second.Key(), scheduler.Cancelled, "", ""); !found || err != nil {
			t.Fatal(found, err)
		}
		r.finish()
	})
	process(t, cfg, dir, func(r *rig) {
		if n := r.sched.Telemetry().SpillSessions; n != 0 {
			t.Errorf("%d sessions on disk, want none", n)
		}
	})
}

func TestSpillOfAnotherRecipeIsRefused(t *testing.T) {
	store := openSpill(t, small(), t.TempDir(), func(o *spill.Options) { o.Recipes = []string{"other"} })
	engine, err := goengine.New(small())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts()), Spill: store}); err == nil {
		t.Error("accepted")
	}
	if err := store.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// While others decode, no more than one session is saved in a tick, for the disk neither.
func TestSpillingNeverSavesTwoSessionsInATickOfDecoders(t *testing.T) {
	process(t, withSlots(4), t.TempDir(), func(r *rig) {
		decoder := request("decoder", 9, 4, 120)
		r.accept(decoder)
		r.untilTokens(decoder.Key(), 1)
		for i, name := range names(9) {
			r.accept(kept(request(name, i, 30, 2+i%3)))
		}
		for r.sched.Pending() > 1 {
			if report := r.tick(); report.Saves > 1 {
				t.Errorf("tick %d saved %d sessions", report.Tick, report.Saves)
			}
		}
		r.finish()
		r.wantTokens(decoder.Key(), baseline(t, withSlots(4), decoder))
	}, hotBytes(70))
}

// crowdOut has three sessions' KV parked, and then crowded out by another's in one tick, while a session decodes.
func (r *rig) crowdOut() (decoder scheduler.Request, parked []scheduler.Request, yielded [][]scheduler.Token) {
	r.Helper()
	decoder = request("decoder", 9, 4, 200)
	r.accept(decoder)
	r.untilTokens(decoder.Key(), 1)
	for i, name := range names(3) {
		req := kept(request(name, i, 30, 1)) // none of them decodes, and so none is moved beside the decoder
		r.accept(req)
		r.tickUntil(func() bool { return r.ends[req.Key()].Reason != "" })
		parked, yielded = append(parked, req), append(yielded, r.ends[req.Key()].Tokens)
	}
	if n := r.sched.Telemetry().HotEvictionsTotal; n != 0 {
		r.Fatalf("%d evictions, want none yet", n)
	}
	large := kept(request("large", 8, 100, 1))
	r.accept(large)
	r.tickUntil(func() bool { return r.ends[large.Key()].Reason != "" })
	return decoder, parked, yielded
}

// All are saved for the disk, one in each tick; one whose next turn comes meanwhile waits for that.
func TestSessionsThatAreCrowdedOutInOneTickAreAllHotFromDisk(t *testing.T) {
	cfg := withSlots(5)
	process(t, cfg, t.TempDir(), func(r *rig) {
		decoder, parked, yielded := r.crowdOut()
		var again []scheduler.Request
		for i := range parked {
			again = append(again, turn(parked[i], yielded[i], 10, 4))
		}
		slices.Reverse(again) // the last to be saved is the first to be asked for
		r.accept(again...)
		for r.sched.Pending() > 1 {
			if report := r.tick(); report.Saves > 1 {
				t.Errorf("tick %d saved %d sessions", report.Tick, report.Saves)
			}
		}
		r.finish()
		for _, req := range again {
			r.wantCached(req.Key(), 30, hotkv.Hit)
			r.wantTokens(req.Key(), baseline(t, cfg, req))
		}
		r.wantTokens(decoder.Key(), baseline(t, cfg, decoder))
		tele := r.sched.Telemetry()
		if tele.SpillHitsTotal != 3 {
			t.Errorf("%d hits from disk, want 3", tele.SpillHitsTotal)
		}
	}, hotBytes(101))
}

// What is yet to be saved when the engine's recipe changes is of the old one.
func TestKVThatLeavesWhileTheRecipeChangesReachesNoDisk(t *testing.T) {
	process(t, withSlots(5), t.TempDir(), func(r *rig) {
		r.crowdOut()
		r.engine.Inject(goengine.Fault{Kind: goengine.FaultFingerprint, Slot: goengine.AnySlot, Times: 1})
		r.accept(request("next", 5, 4, 2))
		report, err := r.sched.Tick()
		if err == nil {
			t.Error("the tick tells nothing of the recipe")
		}
		r.observe(report)
		r.finish()
		if n := r.sched.Telemetry().SpillSessions; n != 0 {
			t.Errorf("%d sessions on disk, want none", n)
		}
	}, hotBytes(101))
}

func TestKVThatTheEngineCannotSaveForTheDiskIsCounted(t *testing.T) {
	process(t, withSlots(5), t.TempDir(), func(r *rig) {
		r.onCall = func(call goengine.Call) {
			if call.Op == goengine.OpSave {
				r.onCall = nil
				r.engine.Inject(goengine.Fault{Kind: goengine.FaultSave, Slot: goengine.AnySlot, Times: 1})
			}
		}
		r.crowdOut()
		r.finish()
		tele := r.sched.Telemetry()
		if lost := tele.SpillLostTotal[spill.LostSave]; tele.HotEvictionsTotal != 3 || tele.SpillSessions != 2 || lost != 1 {
			t.Errorf("of %d evicted sessions %d are on disk and %d lost, want 3, 2 and 1", tele.HotEvictionsTotal, tele.SpillSessions, lost)
		}
	}, hotBytes(101))
}

// Sessions come and go, at random, beyond what memory holds and across restarts: every turn yields what it yields cold.
func TestTurnsComeOutTheSameWhereverTheirKVWas(t *testing.T) {
	cfg := adapted(1)
	cfg.Layers, cfg.Dim, cfg.Heads, cfg.KVHeads, cfg.FFN = 1, 16, 2, 1, 16
	folder := t.TempDir
	rapid.Check(t, func(t *rapid.T) {
		dir, cfg := folder(), cfg
		cfg.Slots, cfg.Exact = rapid.IntRange(1, 3).Draw(t, "slots"), rapid.Bool().Draw(t, "exact")
		hot := rapid.Int64Range(40, 300).Draw(t, "hot positions")
		last := map[string]scheduler.Request{}
		for range rapid.IntRange(1, 3).Draw(t, "processes") {
			process(t, cfg, dir, func(r *rig) {
				for range rapid.IntRange(1, 12).Draw(t, "turns") {
					name := fmt.Sprintf("s%d", rapid.IntRange(0, 4).Draw(t, "session"))
					req, known := last[name]
					if !known {
						req = kept(request(name, int(name[1]), rapid.IntRange(1, 30).Draw(t, "prompt"), 3))
					}
					req.Adapter = anyAdapter.Draw(t, "adapter")
					end := r.run(req)
					if !slices.Equal(end.Tokens, baseline(t, cfg, req)) {
						t.Fatalf("turn %s yields %v", req.Key(), end.Tokens)
					}
					last[name] = turn(req, end.Tokens, rapid.IntRange(1, 6).Draw(t, "more"), 3)
				}
			}, hotBytes(hot))
		}
	})
}
