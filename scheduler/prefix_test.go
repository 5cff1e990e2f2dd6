package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func sharing(kind scheduler.Sharing) func(*scheduler.Config) {
	return func(c *scheduler.Config) { c.Sharing = kind }
}

// after is a turn whose prompt begins with that many tokens of a system prompt that all share, and goes on with own ones.
func after(system int, session string, seed, own, newTokens int) scheduler.Request {
	req := request(session, seed, own, newTokens)
	req.Prompt = slices.Concat(prompt(1000, system), req.Prompt)
	return req
}

// 64 sessions at once with a system prompt of 600 tokens, on 8 slots: what they share is evaluated once, and every session yields
// what it yields alone.
func TestSessionsThatArriveTogetherPayForTheirCommonPrefixOnce(t *testing.T) {
	const sessions, system, own, slots = 64, 600, 20, 8
	for _, test := range []struct{ grid, least, shared int }{{64, 0, 576}, {128, 0, 512}, {256, 0, 512}, {256, 64, 556}, {128, 64, 556}, {256, 16, 600}} {
		t.Run(fmt.Sprintf("grid of %d, no chunk below %d", test.grid, test.least), func(t *testing.T) {
			cfg := small()
			cfg.Slots, cfg.ContextTokens, cfg.PrefillChunk, cfg.LeastChunk = slots, 640, test.grid, test.least
			cfg.Layers, cfg.Dim, cfg.Heads, cfg.KVHeads, cfg.FFN = 1, 16, 2, 1, 16
			r := newRig(t, cfg, sharing(scheduler.ShareTenant))
			for i := range sessions {
				r.accept(after(system, fmt.Sprint(i), i, own, 4))
			}
			r.finish()
			for i := range sessions {
				req := after(system, fmt.Sprint(i), i, own, 4)
				r.wantTokens(req.Key(), baseline(t, cfg, req))
				cached := test.shared
				if i == 0 {
					cached = 0
				}
				r.wantCached(req.Key(), cached, hotkv.MissNever)
			}
			tele := r.sched.Telemetry()
			if want := int64(test.shared + sessions*(system+own-test.shared)); tele.PrefillTokensTotal != want {
				t.Errorf("%d tokens prefilled, want %d", tele.PrefillTokensTotal, want)
			}
			if want := int64((sessions - 1) * test.shared); tele.PrefixHitsTotal != sessions-1 || tele.PrefixTokensTotal != want || tele.CachedTokensTotal != want {
				t.Errorf("%d hits of %d tokens, %d cached; want %d of %d", tele.PrefixHitsTotal, tele.PrefixTokensTotal, tele.CachedTokensTotal, sessions-1, want)
			}
			if tele.HotHitsTotal != 0 || tele.HotSessions != 0 || tele.HotMissesTotal[hotkv.MissNever] != sessions {
				t.Errorf("%d hot hits, %d hot sessions, misses %v; a shared prefix is no hot session", tele.HotHitsTotal, tele.HotSessions, tele.HotMissesTotal)
			}
			if n := r.countCalls(goengine.OpSave); n != 1 {
				t.Errorf("%d states saved, want one", n)
			}
			r.wantIdle()
		})
	}
}

// One after the other: the first says what there is, the second has it saved, the third need not evaluate it.
func TestPrefixIsSavedOnceASecondSessionBeginsSo(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	for i, cached := range []int{0, 0, 48, 48} {
		req := after(50, fmt.Sprint(i), i, 20, 4)
		r.run(req)
		r.wantCached(req.Key(), cached, hotkv.MissNever)
		r.wantTokens(req.Key(), baseline(t, small(), req))
	}
	if n := r.countCalls(goengine.OpSave); n != 1 {
		t.Errorf("%d states saved, want one", n)
	}
}

func TestPromptsThatNobodySharesCostNothing(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	for i, name := range names(6) {
		r.accept(request(name, i, 100, 3))
	}
	r.finish()
	again := request("s0", 0, 100, 3) // its own earlier prompt is not another's
	again.Turn = 2
	r.run(again)
	if saves, restores := r.countCalls(goengine.OpSave), r.countCalls(goengine.OpRestore); saves+restores != 0 {
		t.Errorf("%d saves and %d restores, want none", saves, restores)
	}
}

func TestKVIsSharedAcrossTenantsOnlyWhereTheOperatorSaysSo(t *testing.T) {
	for kind, cached := range map[scheduler.Sharing]int{scheduler.ShareNothing: 0, scheduler.ShareTenant: 0, scheduler.ShareAll: 48} {
		r := newRig(t, small(), sharing(kind))
		ofA, ofB := after(50, "s", 1, 20, 4), after(50, "s", 2, 20, 4)
		ofB.Tenant = "other"
		r.accept(ofA, ofB)
		r.finish()
		r.wantCached(ofB.Key(), cached, hotkv.MissNever)
		r.wantTokens(ofB.Key(), baseline(t, small(), ofB))
	}
}

func TestPrefixesOfDifferentLengthsAreSharedAsFarAsEachGoes(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	long, mid, short := request("long", 1, 120, 3), request("mid", 2, 120, 3), request("short", 3, 120, 3)
	copy(mid.Prompt, long.Prompt[:70])
	copy(short.Prompt, long.Prompt[:40])
	r.accept(long, mid, short)
	r.finish()
	for _, want := range []struct {
		req    scheduler.Request
		cached int
	}{{long, 0}, {mid, 64}, {short, 32}} {
		r.wantCached(want.req.Key(), want.cached, hotkv.MissNever)
		r.wantTokens(want.req.Key(), baseline(t, small(), want.req))
	}
}

// A prompt that is shared to its end still evaluates its last token.
func TestSharedPromptEvaluatesItsLastChunk(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	a, b := request("a", 1, 64, 4), request("b", 1, 64, 4)
	r.accept(a, b)
	r.finish()
	r.wantCached(b.Key(), 48, hotkv.MissNever)
	r.wantTokens(b.Key(), r.ends[a.Key()].Tokens)
}

// Whoever computes for the others may go at any time: then one of the others does.
func TestWaitersGoOnWhenTheSessionTheyWaitForEnds(t *testing.T) {
	for name, leave := range map[string]func(*rig, scheduler.TurnKey){
		"cancelled": func(r *rig, k scheduler.TurnKey) { _, _ = r.sched.Cancel(k, scheduler.Cancelled, "", "") },
		"engine fails it": func(r *rig, _ scheduler.TurnKey) {
			r.engine.Inject(goengine.Fault{Kind: goengine.FaultPrefill, Slot: 0, Times: 1})
		},
		"state cannot be saved": func(r *rig, _ scheduler.TurnKey) {
			r.engine.Inject(goengine.Fault{Kind: goengine.FaultSave, Slot: goengine.AnySlot, Times: 1})
		},
		"state cannot be restored": func(r *rig, _ scheduler.TurnKey) {
			r.engine.Inject(goengine.Fault{Kind: goengine.FaultRestore, Slot: goengine.AnySlot, Times: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, small(), sharing(scheduler.ShareTenant), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 16 }))
			for i, session := range names(4) {
				r.accept(after(100, session, i, 20, 4))
			}
			r.tick()
			r.tick()
			if len(r.started) != 1 {
				t.Fatalf("%d turns started, want the first alone", len(r.started))
			}
			leave(r, key("s0", 1))
			r.finish()
			for i, session := range names(4) {
				req := after(100, session, i, 20, 4)
				if end := r.ends[req.Key()]; end.Reason == scheduler.Completed {
					r.wantTokens(req.Key(), baseline(t, small(), req))
				} else if session != "s0" {
					t.Errorf("%s ended %s %s", session, end.Reason, end.Detail)
				}
			}
			r.wantIdle()
		})
	}
}

// Others' prompts go on while a session waits.
func TestOthersGoOnWhileASessionWaitsForAPrefix(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 16 }))
	other := request("other", 77, 16, 4)
	r.accept(other, after(100, "s0", 0, 20, 4), after(100, "s1", 1, 20, 4))
	r.tickUntil(func() bool { return r.ends[other.Key()].Reason != "" })
	if len(r.started) != 2 {
		t.Errorf("%d turns started, want two: the third waits", len(r.started))
	}
	r.finish()
	r.wantCached(key("s1", 1), 96, hotkv.MissNever)
}

// The state of a prefix is restored into a slot while memory runs short: the least recently used makes room, and no one is harmed.
func TestPrefixesStayWithinTheHotBudget(t *testing.T) {
	for _, positions := range []int64{0, 30, 60, 130} {
		r := newRig(t, withSlots(2), sharing(scheduler.ShareTenant), budget(func(b *scheduler.NodeBudget) {
			b.HotBudgetBytes = positions * (b.KVBudgetBytes / 2 / 256)
		}))
		for i := range 12 {
			req := after(50, fmt.Sprint(i), i, 20, 4)
			req.Keep = i%3 == 0
			r.run(req)
			r.wantTokens(req.Key(), baseline(t, small(), req))
			if tele := r.sched.Telemetry(); tele.HotBytes > positions*r.engine.Facts().BytesPerToken {
				t.Fatalf("%d hot bytes", tele.HotBytes)
			}
		}
	}
}

// A hot session uses its own KV, which holds more of its prompt.
func TestHotSessionUsesItsOwnKV(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	first := kept(after(50, "s", 1, 20, 5))
	end := r.run(first)
	r.run(after(50, "a", 2, 20, 5))
	second := turn(first, end.Tokens, 6, 4)
	r.run(second)
	r.wantCached(second.Key(), 74, hotkv.Hit)
	r.wantTokens(second.Key(), baseline(t, small(), second))
}

func TestPrefixIsNoHotSessionForATurnThatRequiresOne(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	for i, session := range names(3) {
		r.run(after(50, session, i, 20, 4))
	}
	req := after(50, "new", 9, 20, 4)
	req.RequireHot = true
	r.run(req)
	r.wantEnd(req.Key(), scheduler.CacheMiss, "never")
}

// Off the grid, or from KV that was decoded, nothing is shared: it might differ in bits from what is evaluated cold.
func TestKVThatIsNotFromTheGridIsNotShared(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	first := kept(request("s", 1, 40, 9))
	end := r.run(first)
	second := turn(first, end.Tokens, 60, 4) // goes on at 48, where decoded KV ends
	other := second
	other.Session, other.Turn = "other", 1
	r.accept(second, other)
	r.finish()
	r.wantCached(second.Key(), 48, hotkv.Hit)
	r.wantCached(other.Key(), 0, hotkv.MissNever)
	r.wantTokens(other.Key(), baseline(t, small(), other))
}

// The same where they come one after the other: the last one shares what the first turn of s and the session before evaluated both,
// and nothing of what the hot turn did.
func TestKVThatIsNotFromTheGridIsNotSavedForOthers(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	first := kept(request("s", 1, 40, 9))
	second := turn(first, r.run(first).Tokens, 60, 4)
	for _, test := range []struct {
		session string
		cached  int
		miss    hotkv.Miss
	}{{"before", 0, hotkv.MissNever}, {"s", 48, hotkv.Hit}, {"after", 32, hotkv.MissNever}} {
		req := second
		req.Session, req.Keep = test.session, false
		r.run(req)
		r.wantCached(req.Key(), test.cached, test.miss)
		r.wantTokens(req.Key(), baseline(t, small(), req))
	}
}

// Nobody waits for what can no longer be saved.
func TestSessionThatComesTooLateToShareDoesNotWait(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 16 }))
	long, late := request("long", 1, 200, 3), request("late", 2, 60, 3)
	copy(late.Prompt, long.Prompt[:32])
	r.accept(long)
	for range 4 {
		r.tick()
	}
	r.accept(late)
	r.tick()
	if _, started := r.started[late.Key()]; !started {
		t.Error("it waits")
	}
	r.finish()
	r.wantCached(late.Key(), 0, hotkv.MissNever)
	r.wantTokens(late.Key(), baseline(t, small(), late))
}

func TestEveryKindOfModelSharesWhatItCanRestoreExactly(t *testing.T) {
	for _, test := range []struct {
		mode   goengine.Mode
		exact  bool
		cached int
	}{
		{goengine.Attention, false, 96}, {goengine.Attention, true, 96}, {goengine.Recurrent, false, 96},
		{goengine.Window, true, 96}, {goengine.Window, false, 0}, // a ring lies in another order once restored
	} {
		cfg := small()
		cfg.Mode, cfg.Window, cfg.Exact = test.mode, 32, test.exact
		r := newRig(t, cfg, sharing(scheduler.ShareTenant))
		for i, session := range names(3) {
			r.accept(after(100, session, i, 20, 6))
		}
		r.finish()
		for i, session := range names(3) {
			req := after(100, session, i, 20, 6)
			r.wantTokens(req.Key(), baseline(t, cfg, req))
			if i > 0 {
				r.wantCached(req.Key(), test.cached, hotkv.MissNever)
			}
		}
		if n := r.countCalls(goengine.OpTrim); n != 0 {
			t.Errorf("mode %d: %d trims, want none", test.mode, n)
		}
	}
}

// While anyone decodes, one state is saved in a tick, for whatever reason.
func TestSavingPrefixesNeverLengthensAGapByMoreThanAStep(t *testing.T) {
	r := newRig(t, withSlots(8), sharing(scheduler.ShareTenant))
	decoder := request("decoder", 99, 4, 150)
	r.accept(decoder)
	r.untilTokens(decoder.Key(), 1)
	for i := range 6 {
		req := request(fmt.Sprint("x", i), 50+i/2, 60, 3) // three pairs with a prompt each
		r.accept(kept(req))
	}
	for r.sched.Pending() > 1 {
		if report := r.tick(); report.Saves > 1 {
			t.Errorf("tick %d saved %d states", report.Tick, report.Saves)
		}
	}
	if hits := r.sched.Telemetry().PrefixHitsTotal; hits != 3 {
		t.Errorf("%d hits, want one for each pair", hits)
	}
	r.finish()
	r.wantTokens(decoder.Key(), baseline(t, withSlots(8), decoder))
}

// With a spill, and sessions that are kept: whatever was where, every turn yields what it yields cold.
func TestSharedKeptAndSpilledTurnsComeOutTheSame(t *testing.T) {
	folder := t.TempDir
	cfg := small()
	cfg.Layers, cfg.Dim, cfg.Heads, cfg.KVHeads, cfg.FFN = 1, 16, 2, 1, 16
	rapid.Check(t, func(t *rapid.T) {
		cfg := cfg
		cfg.Slots, cfg.Exact = rapid.IntRange(1, 3).Draw(t, "slots"), rapid.Bool().Draw(t, "exact")
		hot := rapid.Int64Range(40, 300).Draw(t, "hot positions")
		process(t, cfg, folder(), func(r *rig) {
			turns := map[string]uint64{}
			for range rapid.IntRange(1, 6).Draw(t, "rounds") {
				var asked []scheduler.Request
				for range rapid.IntRange(1, 5).Draw(t, "together") {
					name := fmt.Sprintf("s%d", rapid.IntRange(0, 5).Draw(t, "session"))
					req := after(rapid.SampledFrom([]int{0, 20, 40, 41}).Draw(t, "system"), name, int(name[1]), rapid.IntRange(1, 30).Draw(t, "own"), 3)
					turns[name]++
					req.Turn, req.Keep = turns[name], rapid.Bool().Draw(t, "keep")
					r.accept(req)
					asked = append(asked, req)
				}
				r.finish()
				for _, req := range asked {
					if got, want := r.ends[req.Key()].Tokens, baseline(t, cfg, req); !slices.Equal(got, want) {
						t.Fatalf("turn %s yields %v, cold %v", req.Key(), got, want)
					}
				}
			}
		}, hotBytes(hot), sharing(scheduler.ShareTenant))
	})
}

// Who waits for a prefix gets no less than its turn: the session that evaluates it goes on in the place of whoever waits for it, however
// low its own priority is, and whatever else its tenant sends.
func TestWaitingForAPrefixTakesNoLongerThanEvaluatingIt(t *testing.T) {
	for name, last := range map[string]func(scheduler.Request) scheduler.Request{
		"higher priority": func(req scheduler.Request) scheduler.Request { req.Priority = 8; return req },
		"another tenant":  func(req scheduler.Request) scheduler.Request { return of("other", req) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, small(), sharing(scheduler.ShareAll), budget(func(b *scheduler.NodeBudget) { b.MaxPrefillTokensPerTick = 16 }))
			low := after(100, "low", 0, 20, 2)
			low.Priority = -8
			r.accept(low)
			r.tick()
			for i := range 2 { // they go ahead of the first
				r.accept(request(fmt.Sprint("mid", i), 10+i, 240, 2))
			}
			urgent := last(after(100, "urgent", 1, 20, 2))
			r.accept(urgent)
			ticks := 0
			r.tickUntil(func() bool { ticks++; return r.ends[urgent.Key()].Reason != "" })
			if r.ends[key("mid0", 1)].Reason != "" || r.ends[key("mid1", 1)].Reason != "" {
				t.Errorf("after %d ticks it ended behind turns that came before it", ticks)
			}
			r.finish()
			r.wantTokens(urgent.Key(), baseline(t, small(), urgent))
			r.wantCached(urgent.Key(), 96, hotkv.MissNever)
		})
	}
}
