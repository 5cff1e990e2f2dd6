package scheduler_test

import (
	"slices"
	"testing"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// adapted is an engine with two adapters.
func adapted(slots int) goengine.Config {
	cfg := withSlots(slots)
	cfg.Adapters = []string{"bard", "clerk"}
	return cfg
}

func with(adapter string, req scheduler.Request) scheduler.Request {
	req.Adapter = adapter
	return req
}

func TestTokensInACrowdOfMixedAdaptersAreThoseAlone(t *testing.T) {
	adapters := []string{"", "bard", "clerk"}
	for _, n := range []int{2, 4, 8} {
		r := newRig(t, adapted(8))
		var requests []scheduler.Request
		for i, name := range names(n) {
			requests = append(requests, with(adapters[i%3], request(name, i, 10+17*i, 20)))
		}
		r.accept(requests...)
		r.finish()
		for _, req := range requests {
			r.wantTokens(req.Key(), baseline(t, adapted(1), req))
		}
	}
}

func TestEachAdapterGivesOtherTokens(t *testing.T) {
	req := request("s", 1, 40, 20)
	plain, bard, clerk := baseline(t, adapted(1), req), baseline(t, adapted(1), with("bard", req)), baseline(t, adapted(1), with("clerk", req))
	if slices.Equal(plain, bard) || slices.Equal(plain, clerk) || slices.Equal(bard, clerk) {
		t.Errorf("none %v\nbard %v\nclerk %v\nare not all different", plain, bard, clerk)
	}
	if unloaded := baseline(t, small(), req); !slices.Equal(plain, unloaded) {
		t.Errorf("without an adapter %v, on an engine that has none %v", plain, unloaded)
	}
}

func TestUnknownAdapterIsRefusedWithThoseThereAre(t *testing.T) {
	tests := map[string]struct {
		cfg  goengine.Config
		want string
	}{
		"some are loaded": {adapted(1), `adapter is "poet"; it must be absent or one of those loaded: bard, clerk`},
		"none is loaded":  {withSlots(1), `adapter is "poet"; it must be absent: no adapter is loaded`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newRig(t, tt.cfg).submit(with("poet", request("s", 1, 4, 4)))
			if d.Reason != scheduler.RejectedInvalid || d.Detail.Field != "adapter" || d.Detail.Message != tt.want {
				t.Errorf("decision is %+v, want %s of adapter: %s", d, scheduler.RejectedInvalid, tt.want)
			}
		})
	}
}

// A tick has one call for each adapter among its decoders, the first of them that of the call before: the engine changes
// its adapter twice a tick for three, and each is the first, the second and the last equally often.
func TestEachTickDecodesEveryAdapterInRotation(t *testing.T) {
	r := newRig(t, adapted(6))
	var order []string // of the decode calls, by the adapter of their first row
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpDecode {
			order = append(order, []string{"none", "bard", "clerk"}[call.Rows[0].Slot%3])
		}
	}
	for i, adapter := range []string{"", "bard", "clerk", "", "bard", "clerk"} {
		r.accept(with(adapter, request(names(6)[i], i, 4, 16)))
	}
	r.tickUntil(func() bool { return r.sched.Telemetry().BatchOccupancyLast == 6 })
	order = nil
	for range 3 {
		r.tick()
	}
	want := []string{"none", "bard", "clerk", "clerk", "none", "bard", "bard", "clerk", "none"}
	if i := slices.Index([]string{"none", "clerk", "bard"}, order[0]); i > 0 {
		want = slices.Concat(want[3*i:], want[:3*i])
	}
	if !slices.Equal(order, want) {
		t.Errorf("decode calls were of %v, want %v", order, want)
	}
	r.finish()
}

func TestKVOfOneAdapterIsNeverUsedWithAnother(t *testing.T) {
	for name, saved := range map[string]bool{"parked": false, "saved": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, adapted(1))
			first := kept(with("bard", request("s", 1, 40, 8)))
			r.accept(first)
			r.finish()
			if saved {
				other := request("other", 9, 8, 2)
				r.accept(other)
				r.finish()
			}
			second := with("clerk", request("s", 1, 40, 8))
			second.Turn = 2
			second.Prompt = slices.Concat(first.Prompt, r.ends[first.Key()].Tokens)
			r.accept(second)
			r.finish()
			if s := r.started[second.Key()]; s.CachedTokens != 0 || s.Miss != hotkv.MissRecipe {
				t.Errorf("%d tokens cached, miss %q; want none, %q", s.CachedTokens, s.Miss, hotkv.MissRecipe)
			}
			r.wantTokens(second.Key(), baseline(t, adapted(1), second))
		})
	}
}

func TestHotTurnOfAnAdapterGoesOnFromItsKV(t *testing.T) {
	for name, saved := range map[string]bool{"parked": false, "saved": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, adapted(1))
			first := kept(with("bard", request("s", 1, 40, 8)))
			r.accept(first)
			r.finish()
			if saved {
				r.accept(with("clerk", request("other", 9, 8, 2)))
				r.finish()
			}
			second := with("bard", request("s", 1, 40, 8))
			second.Turn = 2
			second.Prompt = slices.Concat(first.Prompt, r.ends[first.Key()].Tokens)
			r.accept(second)
			r.finish()
			if s := r.started[second.Key()]; s.CachedTokens != 47 {
				t.Errorf("%d tokens cached, want all 47 that the first turn left", s.CachedTokens)
			}
			r.wantTokens(second.Key(), baseline(t, adapted(1), second))
		})
	}
}

func TestEngineWithOneAdapterTwiceIsRefused(t *testing.T) {
	engine := newStub(1, 64, 16)
	engine.facts.Adapters = []scheduler.Adapter{{Name: "a", Recipe: "1"}, {Name: "a", Recipe: "2"}}
	_, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	want := `scheduler: adapters is "a" with recipe "2"; it must be named and with a recipe, each name once`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}
