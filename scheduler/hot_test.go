package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// turn is a later turn of a session: the prompt so far, what the session yielded, and some more.
func turn(before scheduler.Request, yielded []scheduler.Token, more, newTokens int) scheduler.Request {
	next := before
	next.Turn++
	next.Prompt = slices.Concat(before.Prompt, yielded, prompt(int(next.Turn)+100, more))
	next.MaxNewTokens = newTokens
	return next
}

func (r *rig) run(req scheduler.Request) scheduler.Ending {
	r.Helper()
	r.accept(req)
	r.finish()
	return r.ends[req.Key()]
}

func (r *rig) wantCached(k scheduler.TurnKey, cached int, miss hotkv.Miss) {
	r.Helper()
	if got := r.started[k]; got.CachedTokens != cached || got.Miss != miss {
		r.Errorf("turn %s started with %d cached tokens and miss %q, want %d and %q", k, got.CachedTokens, got.Miss, cached, miss)
	}
	usage := r.ends[k].Usage
	if usage.Cached != cached || usage.Prefilled != usage.Prompt-cached {
		r.Errorf("turn %s: usage %+v, want %d cached and the rest prefilled", k, usage, cached)
	}
}

func kept(req scheduler.Request) scheduler.Request {
	req.Keep = true
	return req
}

// I4 (llama.cpp#4479): a hot second turn against the same turn cold.
func TestHotSecondTurnEqualsTheSameTurnCold(t *testing.T) {
	for _, exact := range []bool{false, true} {
		t.Run(fmt.Sprintf("exact=%t", exact), func(t *testing.T) {
			cfg := small()
			cfg.Exact = exact
			r := newRig(t, cfg)
			first := kept(request("s", 1, 40, 9))
			end := r.run(first)
			if !end.Kept {
				t.Error("the first turn was not kept")
			}
			r.wantCached(key("s", 1), 0, hotkv.MissNever)
			second := turn(first, end.Tokens, 10, 8)
			r.run(second)
			r.wantTokens(key("s", 2), baseline(t, cfg, second))
			cached := 48 // all but the last token, which was never evaluated
			if exact {
				cached = 32 // what came from prefill on the grid, whole chunks
			}
			r.wantCached(key("s", 2), cached, hotkv.Hit)
		})
	}
}

// K5 (llama.cpp, fully cached prompt): the same prompt twice in one session.
func TestFullyCachedPromptEvaluatesOneToken(t *testing.T) {
	for _, test := range []struct {
		exact          bool
		prompt, cached int
	}{{false, 40, 39}, {true, 40, 32}, {true, 48, 32}, {false, 48, 47}, {false, 1, 0}} {
		cfg := small()
		cfg.Exact = test.exact
		r := newRig(t, cfg)
		first := kept(request("s", 1, test.prompt, 6))
		want := r.run(first).Tokens
		again := first
		again.Turn = 2
		r.run(again)
		r.wantTokens(key("s", 2), want)
		miss := hotkv.Hit
		if test.cached == 0 {
			miss = hotkv.MissInvalidated
		}
		r.wantCached(key("s", 2), test.cached, miss)
	}
}

// How far KV comes from grid prefill is inherited: chunks that continue off the grid add nothing to it.
func TestExactReuseTakesOnlyWhatCameFromTheGrid(t *testing.T) {
	cfg := small()
	cfg.Exact = true
	r := newRig(t, cfg)
	req := kept(request("s", 1, 40, 9))
	for i, cached := range []int{0, 32, 48, 64, 80} {
		end := r.run(req)
		miss := hotkv.Hit
		if i == 0 {
			miss = hotkv.MissNever
		}
		r.wantCached(req.Key(), cached, miss)
		r.wantTokens(req.Key(), baseline(t, cfg, req))
		req = turn(req, end.Tokens, 8, 9) // prompts of 40, 57, 74, 91, 108
	}
}

func TestParkedSessionGetsItsOwnSlotBack(t *testing.T) {
	r := newRig(t, small())
	var ends []scheduler.Ending
	for i, name := range names(3) {
		r.accept(kept(request(name, i, 20, 5)))
	}
	r.finish()
	for i, name := range names(3) {
		ends = append(ends, r.ends[key(name, 1)])
		if got := r.started[key(name, 1)].Slot; got != i {
			t.Errorf("%s in slot %d, want %d", name, got, i)
		}
	}
	last := turn(kept(request("s2", 2, 20, 5)), ends[2].Tokens, 3, 5)
	r.run(last)
	if got := r.started[key("s2", 2)].Slot; got != 2 {
		t.Errorf("second turn in slot %d, want 2", got)
	}
	if n := r.countCalls(goengine.OpSave) + r.countCalls(goengine.OpRestore); n != 0 {
		t.Errorf("%d saves and restores, want none", n)
	}
}

func TestParkedKVIsSavedWhenItsSlotIsNeededAndRestoredLater(t *testing.T) {
	r := newRig(t, withSlots(1))
	first := kept(request("a", 1, 40, 9))
	end := r.run(first)
	r.run(kept(request("b", 2, 30, 5)))
	if r.countCalls(goengine.OpSave) != 1 {
		t.Errorf("%d saves, want 1", r.countCalls(goengine.OpSave))
	}
	tele := r.sched.Telemetry()
	if tele.HotSessions != 2 || tele.HotBytes != tele.KVTotalBytes || r.engine.LiveStates() != 1 {
		t.Errorf("%d hot sessions, %d hot bytes, %d saved states", tele.HotSessions, tele.HotBytes, r.engine.LiveStates())
	}
	second := turn(first, end.Tokens, 10, 8)
	r.run(second)
	r.wantCached(key("a", 2), 48, hotkv.Hit)
	r.wantTokens(key("a", 2), baseline(t, small(), second))
}

// Someone else's need for a slot does not drive out a session that is about to run.
func TestParkedSessionsGetTheirSlotsBeforeOthersNeedOne(t *testing.T) {
	r := newRig(t, withSlots(2))
	oldest := kept(request("oldest", 1, 40, 5))
	end := r.run(oldest)
	r.run(kept(request("other", 2, 40, 5)))
	r.accept(request("new", 3, 20, 5), turn(oldest, end.Tokens, 4, 5))
	r.finish()
	r.wantCached(key("oldest", 2), 44, hotkv.Hit)
	if n := r.countCalls(goengine.OpRestore); n != 0 {
		t.Errorf("%d restores, want none", n)
	}
}

// KV that was built by decoding does not become exact because it happens to end on the grid.
func TestSavedStateSaysHowFarItIsExact(t *testing.T) {
	r := newRig(t, withSlots(1))
	first := kept(request("s", 1, 40, 9))
	end := r.run(first)
	second := turn(first, end.Tokens, 10, 4) // goes on at 48, which is on the grid of 16
	r.run(second)
	r.wantCached(second.Key(), 48, hotkv.Hit)
	r.run(request("other", 2, 10, 2))
	for _, call := range r.calls {
		if call.Op == goengine.OpSave && call.Pos != 40 {
			t.Errorf("saved as exact up to %d, want 40", call.Pos)
		}
	}
	if r.countCalls(goengine.OpSave) != 1 {
		t.Errorf("%d saves, want 1", r.countCalls(goengine.OpSave))
	}
}

// Saving never lengthens a decoder's gap by more than one step.
func TestOneSessionIsSavedPerTickWhileOthersDecode(t *testing.T) {
	r := newRig(t, withSlots(4))
	for i, name := range names(3) {
		r.accept(kept(request(name, i, 40, 3)))
	}
	r.finish()
	r.accept(request("decoder", 9, 4, 60))
	r.untilTokens(key("decoder", 1), 2)
	for i := range 3 {
		r.accept(request(fmt.Sprintf("new%d", i), 20+i, 10, 20))
	}
	saves := 0
	for range 4 {
		r.calls = nil
		report := r.tick()
		if report.Saves > 1 || report.Occupancy < 1 {
			t.Errorf("tick saved %d sessions and decoded %d", report.Saves, report.Occupancy)
		}
		saves += report.Saves
	}
	if saves != 3 {
		t.Errorf("%d saves, want 3", saves)
	}
	r.finish()
	for i, name := range names(3) {
		r.accept(request("idle"+name, 40+i, 10, 3))
	}
	r.finish()
}

// missCase is a way to lose what session s kept, between its first turn and its second.
type missCase struct {
	miss   hotkv.Miss
	cfg    func(*goengine.Config)
	budget func(*scheduler.NodeBudget)
	before func(*rig)
	change func(*scheduler.Request)
}

var missCases = map[string]missCase{
	"evicted by another": {miss: hotkv.MissEvicted,
		budget: func(b *scheduler.NodeBudget) { b.HotBudgetBytes = 60 * (b.KVBudgetBytes / 4 / 256) },
		before: func(r *rig) { r.run(kept(request("other", 2, 40, 5))) }},
	"higher epoch":   {miss: hotkv.MissEpoch, change: func(q *scheduler.Request) { q.Epoch = 1 }},
	"nothing shared": {miss: hotkv.MissInvalidated, change: func(q *scheduler.Request) { q.Prompt = prompt(77, 44) }},
	"trim refused": {miss: hotkv.MissInvalidated,
		before: func(r *rig) { r.engine.Inject(goengine.Fault{Kind: goengine.FaultTrimRefused, Slot: goengine.AnySlot}) },
		change: func(q *scheduler.Request) { q.Prompt[30]++ }},
	"restore fails": {miss: hotkv.MissInvalidated,
		cfg: func(c *goengine.Config) { c.Slots = 1 },
		before: func(r *rig) {
			r.run(request("other", 2, 40, 5))
			r.engine.Inject(goengine.Fault{Kind: goengine.FaultRestore, Slot: goengine.AnySlot})
		}},
	"save fails": {miss: hotkv.MissInvalidated,
		cfg: func(c *goengine.Config) { c.Slots = 1 },
		before: func(r *rig) {
			r.engine.Inject(goengine.Fault{Kind: goengine.FaultSave, Slot: goengine.AnySlot})
			r.run(request("other", 2, 40, 5))
		}},
	"budget of none": {miss: hotkv.MissNever, budget: func(b *scheduler.NodeBudget) { b.HotBudgetBytes = 0 }},
	"recurrent model that would have to trim": {miss: hotkv.MissInvalidated,
		cfg:    func(c *goengine.Config) { c.Mode = goengine.Recurrent },
		change: func(q *scheduler.Request) { q.Prompt[30]++ }},
}

func TestMissesSayWhy(t *testing.T) {
	for name, test := range missCases {
		t.Run(name, func(t *testing.T) {
			cfg := small()
			if test.cfg != nil {
				test.cfg(&cfg)
			}
			r := newRig(t, cfg, budget(func(b *scheduler.NodeBudget) {
				if test.budget != nil {
					test.budget(b)
				}
			}))
			end := r.run(kept(request("s", 1, 40, 5)))
			if test.before != nil {
				test.before(r)
			}
			req := turn(kept(request("s", 1, 40, 5)), end.Tokens, 4, 4)
			if test.change != nil {
				test.change(&req)
			}
			r.run(req)
			r.wantCached(key("s", 2), 0, test.miss)
			r.wantTokens(key("s", 2), baseline(t, cfg, req))
			if got := r.sched.Telemetry().HotMissesTotal[test.miss]; got < 1 {
				t.Errorf("telemetry counts %d misses of cause %q", got, test.miss)
			}
		})
	}
}

func TestRequiredHotTurnEndsCacheMissInsteadOfPrefilling(t *testing.T) {
	r := newRig(t, small())
	first := kept(request("s", 1, 40, 5))
	end := r.run(first)
	second := turn(first, end.Tokens, 4, 4)
	second.RequireHot = true
	r.run(second)
	r.wantEnd(key("s", 2), scheduler.Completed, "length")
	r.wantCached(key("s", 2), 44, hotkv.Hit)

	third := second
	third.Turn, third.Epoch = 3, 1
	r.calls = nil
	r.run(third)
	r.wantEnd(key("s", 3), scheduler.CacheMiss, "epoch")
	fourth := third
	fourth.Turn, fourth.Prompt = 4, prompt(50, 10)
	r.run(fourth)
	r.wantEnd(key("s", 4), scheduler.CacheMiss, "epoch")
	if n := r.countCalls(goengine.OpPrefill); n != 0 {
		t.Errorf("%d chunks prefilled, want none", n)
	}
	if got := r.sched.Telemetry().CacheMissSessions; got != 2 {
		t.Errorf("%d cache-miss sessions, want 2", got)
	}
}

func TestRequiredHotTurnDrivesNobodyOutOfItsSlot(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.run(kept(request("a", 1, 40, 5)))
	missing := request("b", 2, 40, 5)
	missing.RequireHot = true
	r.run(missing)
	r.wantEnd(key("b", 1), scheduler.CacheMiss, "never")
	if r.countCalls(goengine.OpSave) != 0 {
		t.Error("a's KV was saved for a turn that could not run")
	}
}

// A recurrent state reuses what it holds entirely, or nothing.
func TestModelThatCannotTrimReusesTheWholeStateOrNothing(t *testing.T) {
	cfg := small()
	cfg.Mode = goengine.Recurrent
	r := newRig(t, cfg)
	first := kept(request("s", 1, 40, 5))
	end := r.run(first)
	second := kept(turn(first, end.Tokens, 4, 4))
	r.run(second)
	r.wantCached(key("s", 2), 44, hotkv.Hit)
	r.wantTokens(key("s", 2), baseline(t, cfg, second))
	third := turn(kept(request("s", 1, 40, 5)), end.Tokens, 4, 4)
	third.Turn = 3
	third.Prompt[30] ^= 1
	r.run(third)
	if n := r.countCalls(goengine.OpTrim); n != 0 {
		t.Errorf("%d trims tried on a model that cannot", n)
	}
}

func TestModelWithAWindowTrimsOrPrefillsAgain(t *testing.T) {
	cfg := small()
	cfg.Mode, cfg.Window = goengine.Window, 32
	for _, test := range []struct {
		prompt, changed, cached int
		miss                    hotkv.Miss
	}{
		{20, 22, 22, hotkv.Hit},             // all of it is within the window
		{100, 20, 0, hotkv.MissInvalidated}, // what comes before the change was forgotten
		{100, 105, 104, hotkv.Hit},          // nothing to drop
	} {
		r := newRig(t, cfg)
		first := kept(request("s", 1, test.prompt, 5))
		end := r.run(first)
		second := turn(first, end.Tokens, 4, 6)
		second.Prompt[test.changed] ^= 1
		r.run(second)
		r.wantTokens(key("s", 2), baseline(t, cfg, second))
		r.wantCached(key("s", 2), test.cached, test.miss)
	}
}

// K7 (sglang#36475): turn 1 of a kept session is cancelled; the next must not see its tokens.
func TestCancelledTurnLeavesNoTraceInTheNext(t *testing.T) {
	r := newRig(t, small())
	first := kept(request("s", 1, 40, 5))
	end := r.run(first)
	second := turn(first, end.Tokens, 4, 50)
	r.accept(second)
	r.untilTokens(key("s", 2), 1)
	if found, err := r.sched.Cancel(key("s", 2), scheduler.Cancelled, "", ""); !found || err != nil {
		t.Fatalf("Cancel = %t, %v", found, err)
	}
	third := turn(first, end.Tokens, 6, 8)
	third.Turn = 3
	r.accept(third)
	r.finish()
	if cancelled := r.wantEnd(key("s", 2), scheduler.Cancelled, ""); cancelled.Kept {
		t.Error("a cancelled turn was kept")
	}
	// What turn 1 had kept went into turn 2, and was lost with it.
	r.wantCached(key("s", 3), 0, hotkv.MissInvalidated)
	r.wantTokens(key("s", 3), baseline(t, small(), third))

	first = kept(request("fresh", 2, 40, 50))
	r.accept(first)
	r.untilTokens(key("fresh", 1), 1)
	if found, _ := r.sched.Cancel(key("fresh", 1), scheduler.Cancelled, "", ""); !found {
		t.Fatal("not found")
	}
	second = turn(first, nil, 6, 8)
	r.accept(second)
	r.finish()
	r.wantCached(key("fresh", 2), 0, hotkv.MissNever)
	r.wantTokens(key("fresh", 2), baseline(t, small(), second))
}

func TestHotKVNeverExceedsItsBudget(t *testing.T) {
	r := newRig(t, withSlots(2), budget(func(b *scheduler.NodeBudget) { b.HotBudgetBytes = 100 * (b.KVBudgetBytes / 2 / 256) }))
	for i, name := range names(12) {
		r.run(kept(request(name, i, 20+i, 5)))
		if tele := r.sched.Telemetry(); tele.HotBytes > 100*r.engine.Facts().BytesPerToken {
			t.Fatalf("%d hot bytes", tele.HotBytes)
		}
	}
}

// foreign restores nothing, as if every state came from an engine of another recipe.
type foreign struct{ *goengine.Engine }

func (foreign) Restore(int, scheduler.State) error {
	return fmt.Errorf("state of another build: %w", scheduler.ErrStateRecipe)
}

func TestSavedStateOfAnotherRecipeIsAMissOfThatCause(t *testing.T) {
	engine, err := goengine.New(withSlots(1))
	if err != nil {
		t.Fatal(err)
	}
	sched, err := scheduler.New(foreign{engine}, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	run := func(req scheduler.Request) scheduler.Ending {
		sched.Submit(req)
		ends, err := sched.RunToCompletion(0)
		if err != nil || len(ends) != 1 {
			t.Fatalf("%d endings, %v", len(ends), err)
		}
		return ends[0]
	}
	first := kept(request("s", 1, 40, 5))
	yielded := run(first).Tokens
	run(request("other", 2, 40, 5)) // drives s out of the only slot
	second := turn(first, yielded, 4, 4)
	second.RequireHot = true
	if end := run(second); end.Reason != scheduler.CacheMiss || end.Miss != hotkv.MissRecipe {
		t.Errorf("ended %s %s, want cache-miss of cause recipe", end.Reason, end.Miss)
	}
}

// A higher epoch comes while the session's KV is being saved: the state is of no use to anyone any more.
func TestKVThatIsFencedWhileItIsSavedIsDisposedOf(t *testing.T) {
	r := newRig(t, withSlots(1))
	first := kept(request("s", 1, 40, 5))
	end := r.run(first)
	second := turn(first, end.Tokens, 4, 4)
	second.Epoch = 1
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpSave {
			r.accept(second)
		}
	}
	r.run(request("other", 2, 40, 5))
	r.finish()
	if states := r.engine.LiveStates(); states != 0 {
		t.Errorf("%d saved states left", states)
	}
	r.wantCached(second.Key(), 0, hotkv.MissEpoch)
	r.wantTokens(second.Key(), baseline(t, withSlots(1), second))
}

func TestKVThatIsFencedWhileItIsParkedIsReleased(t *testing.T) {
	r := newRig(t, withSlots(2))
	first := kept(request("s", 1, 40, 5))
	second := turn(first, nil, 4, 4)
	second.Epoch = 1
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpClose {
			r.onCall = nil
			r.accept(second)
		}
	}
	r.run(first)
	r.finish()
	r.wantCached(second.Key(), 0, hotkv.MissEpoch)
	other := request("other", 2, 40, 5)
	r.run(other)
	r.wantTokens(other.Key(), baseline(t, small(), other))
	r.wantTokens(second.Key(), baseline(t, small(), second))
	if tele := r.sched.Telemetry(); r.engine.KVBytes() != tele.HotBytes {
		t.Errorf("%d KV bytes in the engine, %d hot", r.engine.KVBytes(), tele.HotBytes)
	}
}
