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

// cutAlike is an engine whose chunks of 8 tokens and more come out alike, wherever they are cut; its grid is 20.
func cutAlike() goengine.Config {
	cfg := small()
	cfg.PrefillChunk, cfg.LeastChunk = 20, 8
	cfg.Layers, cfg.Dim, cfg.Heads, cfg.KVHeads, cfg.FFN = 1, 16, 2, 1, 16
	return cfg
}

// chunks are the lengths of the chunks that were prefilled, in the order of the calls.
func (r *rig) chunks() (lengths []int) {
	for _, call := range r.calls {
		if call.Op == goengine.OpPrefill {
			lengths = append(lengths, call.Tokens)
		}
	}
	return lengths
}

func TestColdPromptIsCutIntoNoChunkThatIsTooShort(t *testing.T) {
	for tokens, want := range map[int][]int{
		5: {5}, 8: {8}, 20: {20}, 21: {13, 8}, 27: {19, 8}, 28: {20, 8}, 40: {20, 20}, 47: {20, 19, 8}, 48: {20, 20, 8}, 65: {20, 20, 17, 8},
	} {
		r := newRig(t, cutAlike())
		r.run(request("s", 1, tokens, 2))
		if got := r.chunks(); !slices.Equal(got, want) {
			t.Errorf("%d tokens are cut into %v, want %v", tokens, got, want)
		}
	}
}

// An exact engine goes on anywhere in what was prefilled, but leaves enough of the prompt for a whole chunk.
func TestExactHotTurnGoesOnWhereItsChunkIsNotTooShort(t *testing.T) {
	cfg := cutAlike()
	cfg.Exact = true
	for _, test := range []struct{ first, more, cached int }{
		{50, 30, 50}, // the 4 tokens that were decoded are evaluated anew
		{50, 4, 50},
		{50, 3, 49}, // of 57 tokens, 8 are left
		{50, 1, 47},
		{7, 30, 0}, // a prompt that was too short
		{8, 1, 5},
	} {
		t.Run(fmt.Sprintf("%d and %d", test.first, test.more), func(t *testing.T) {
			r := newRig(t, cfg)
			first := kept(request("s", 1, test.first, 5))
			second := turn(first, r.run(first).Tokens[:4], test.more, 4)
			r.run(second)
			miss := hotkv.Hit
			if test.cached == 0 {
				miss = hotkv.MissNever // and its client was told: see TestKVThatNoTurnCouldTakeIsNotKept
			}
			r.wantCached(second.Key(), test.cached, miss)
			r.wantTokens(second.Key(), baseline(t, cfg, second))
		})
	}
}

func TestEngineWhoseLeastChunkExceedsHalfAChunkIsRefused(t *testing.T) {
	for _, least := range []int{-1, 9} {
		engine := newStub(1, 64, 16)
		engine.facts.LeastChunk = least
		if _, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.facts)}); err == nil {
			t.Errorf("a least chunk of %d of 16 is accepted", least)
		}
	}
}

// What is saved for one session leaves no chunk that is too short before what is saved for another.
func TestStatesThatAreSavedForOthersAreNoShortChunkApart(t *testing.T) {
	r := newRig(t, cutAlike(), sharing(scheduler.ShareTenant))
	long, mid, short := request("long", 1, 120, 3), request("mid", 2, 120, 3), request("short", 3, 120, 3)
	copy(mid.Prompt, long.Prompt[:70])
	copy(short.Prompt, long.Prompt[:66])
	r.accept(long, mid, short)
	r.finish()
	for _, want := range []struct {
		req    scheduler.Request
		cached int
	}{{long, 0}, {mid, 70}, {short, 62}} { // 66 is but 4 tokens before 70
		r.wantCached(want.req.Key(), want.cached, hotkv.MissNever)
		r.wantTokens(want.req.Key(), baseline(t, cutAlike(), want.req))
	}
	if got, want := r.chunks()[:7], []int{20, 20, 14, 8, 8, 20, 20}; !slices.Equal(got, want) {
		t.Errorf("chunks of %v, want %v", got, want)
	}
}

// Prompts with beginnings of any length in common, and any of their own, together and one after the other, on any grid: every turn
// yields what it yields cold, and no chunk is too short but that of a prompt that is.
func TestTurnsThatShareAnythingComeOutAsCold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := cutAlike()
		cfg.PrefillChunk = rapid.IntRange(1, 40).Draw(t, "grid")
		cfg.LeastChunk = rapid.IntRange(0, (cfg.PrefillChunk+1)/2).Draw(t, "least")
		cfg.Slots, cfg.Exact = rapid.IntRange(1, 4).Draw(t, "slots"), true
		cfg.Mode = rapid.SampledFrom([]goengine.Mode{goengine.Attention, goengine.Window, goengine.Recurrent}).Draw(t, "mode")
		r := newRig(t, cfg, sharing(scheduler.ShareTenant), hotBytes(rapid.Int64Range(0, 600).Draw(t, "hot positions")),
			budget(func(b *scheduler.NodeBudget) {
				b.MaxPrefillTokensPerTick = rapid.IntRange(0, 50).Draw(t, "tokens a tick")
			}))
		turns := map[string]uint64{}
		var all, evaluated, cached int
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			var asked []scheduler.Request
			for range rapid.IntRange(1, 6).Draw(t, "together") {
				name := fmt.Sprintf("s%d", rapid.IntRange(0, 7).Draw(t, "session"))
				turns[name]++
				req := after(rapid.IntRange(0, 120).Draw(t, "common"), name, int(name[1]), rapid.IntRange(1, 60).Draw(t, "own"), 3)
				req.Turn, req.Keep = turns[name], rapid.Bool().Draw(t, "keep")
				r.accept(req)
				asked = append(asked, req)
				for range rapid.IntRange(0, 3).Draw(t, "ticks") {
					r.tick()
				}
			}
			r.finish()
			for _, req := range asked {
				end := r.ends[req.Key()]
				if want := baseline(t, cfg, req); !slices.Equal(end.Tokens, want) {
					t.Fatalf("turn %s yields %v, cold %v", req.Key(), end.Tokens, want)
				}
				if len(req.Prompt) != end.Usage.Cached+end.Usage.Prefilled {
					t.Fatalf("turn %s: %d tokens are cached and %d prefilled, of %d", req.Key(), end.Usage.Cached, end.Usage.Prefilled, len(req.Prompt))
				}
				all += len(req.Prompt)
				evaluated += end.Usage.Prefilled
				cached += end.Usage.Cached
			}
		}
		for _, call := range r.calls {
			if call.Op == goengine.OpPrefill && call.Tokens < cfg.LeastChunk && (call.Pos > 0 || !call.Last) {
				t.Fatalf("a chunk of %d tokens at position %d", call.Tokens, call.Pos)
			}
		}
		tele := r.sched.Telemetry()
		if tele.PrefillTokensTotal != int64(evaluated) || tele.CachedTokensTotal != int64(cached) || evaluated+cached != all {
			t.Fatalf("%d tokens prefilled and %d cached in all, of the turns %d and %d", tele.PrefillTokensTotal, tele.CachedTokensTotal, evaluated, cached)
		}
	})
}

// An exact engine takes nothing of some KV, whatever comes next. Then the client is not told that it was kept, and it is in nobody's way.
func TestKVThatNoTurnCouldTakeIsNotKept(t *testing.T) {
	for name, test := range map[string]struct {
		change    func(*goengine.Config)
		newTokens int
		kept      bool
	}{
		"shorter than a chunk":              {func(c *goengine.Config) { c.PrefillChunk = 64 }, 5, false},
		"as long as a chunk":                {func(c *goengine.Config) { c.PrefillChunk = 40 }, 5, true},
		"shorter than the least chunk":      {func(c *goengine.Config) { c.PrefillChunk, c.LeastChunk = 100, 41 }, 5, false},
		"as long as the least chunk":        {func(c *goengine.Config) { c.PrefillChunk, c.LeastChunk = 100, 40 }, 5, true},
		"recurrent, and decoded":            {func(c *goengine.Config) { c.Mode, c.PrefillChunk = goengine.Recurrent, 40 }, 5, false},
		"recurrent, and prefilled only":     {func(c *goengine.Config) { c.Mode, c.PrefillChunk = goengine.Recurrent, 40 }, 1, true},
		"not exact, shorter than any chunk": {func(c *goengine.Config) { c.Exact, c.PrefillChunk = false, 64 }, 5, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small()
			cfg.Exact = true
			test.change(&cfg)
			r := newRig(t, cfg)
			if end := r.run(kept(request("s", 1, 40, test.newTokens))); end.Kept != test.kept {
				t.Errorf("kept is %t, want %t", end.Kept, test.kept)
			}
		})
	}
}
