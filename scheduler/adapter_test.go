package scheduler_test

import (
	"fmt"
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
	var order []string     // of the decode calls, by the adapter of their first row
	of := map[int]string{} // slots
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpDecode {
			order = append(order, of[call.Rows[0].Slot])
		}
	}
	adapters := []string{"", "bard", "clerk", "", "bard", "clerk"}
	for i, adapter := range adapters {
		r.accept(with(adapter, request(names(6)[i], i, 4, 16)))
	}
	r.tickUntil(func() bool { return r.sched.Telemetry().BatchOccupancyLast == 6 })
	for key, s := range r.started {
		of[s.Slot] = []string{"none", "bard", "clerk"}[(int(key.Session[1]-'0'))%3]
	}
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

func TestSessionsOfOneAdapterTakeAdjacentSlots(t *testing.T) {
	for name, c := range map[string]struct {
		adapters []string
		want     []int // slots
	}{
		"one":            {[]string{"bard", "bard", "bard", "bard"}, []int{0, 1, 2, 3}},
		"two in turns":   {[]string{"bard", "clerk", "bard", "clerk", "bard", "clerk", "bard", "clerk"}, []int{0, 7, 1, 6, 2, 5, 3, 4}},
		"with none":      {[]string{"", "bard", "", "bard", "", "", "", ""}, []int{0, 7, 1, 6, 2, 3, 4, 5}},
		"three in turns": {[]string{"", "bard", "clerk", "", "bard", "clerk"}, []int{0, 7, 3, 1, 6, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, adapted(8))
			for i, adapter := range c.adapters {
				r.accept(with(adapter, request(names(8)[i], i, 4, 8)))
				r.tick()
			}
			for i, want := range c.want {
				key := scheduler.TurnKey{Tenant: "t", Session: names(8)[i], Turn: 1}
				if got := r.started[key].Slot; got != want {
					t.Errorf("session %d, of adapter %q, has slot %d, want %d", i, c.adapters[i], got, want)
				}
			}
			if r.countCalls(goengine.OpMove) > 0 {
				t.Error("a session was moved")
			}
			r.finish()
		})
	}
}

func TestSlotThatAnEndedSessionLeftIsTakenByOneOfTheAdapterBesideIt(t *testing.T) {
	r := newRig(t, adapted(6))
	var ended scheduler.Request
	for i, adapter := range []string{"bard", "clerk", "bard", "clerk", "bard"} { // slots 0, 5, 1, 4, 2
		req := with(adapter, request(names(6)[i], i, 4, 40))
		if i == 3 {
			req.MaxNewTokens, ended = 6, req
		}
		r.accept(req)
		r.tick()
	}
	r.tickUntil(func() bool { _, done := r.ends[ended.Key()]; return done })
	for _, c := range []struct {
		session, adapter string
		want             int
	}{{"c", "clerk", 4}, {"b", "bard", 3}} {
		req := with(c.adapter, request(c.session, 9, 4, 8))
		r.accept(req)
		r.tick()
		if got := r.started[req.Key()].Slot; got != c.want {
			t.Errorf("%s has slot %d, want %d", c.adapter, got, c.want)
		}
	}
	r.finish()
}

// One prompt is prefilled all the while, a chunk a tick.
func TestATickChangesToNoAdapterTwice(t *testing.T) {
	r := newRig(t, adapted(4))
	var calls []int // the slots of the engine's calls in a tick
	r.onCall = func(call goengine.Call) {
		switch call.Op {
		case goengine.OpDecode:
			calls = append(calls, call.Rows[0].Slot)
		case goengine.OpPrefill:
			calls = append(calls, call.Slot)
		}
	}
	of := map[int]string{}
	for i, adapter := range []string{"", "bard", "clerk"} {
		req := with(adapter, request(names(3)[i], i, 4, 60))
		r.accept(req)
		r.tickUntil(func() bool { _, ok := r.started[req.Key()]; return ok })
		of[r.started[req.Key()].Slot] = adapter
	}
	r.tickUntil(func() bool { return r.sched.Telemetry().BatchOccupancyLast == 3 })
	for i, adapter := range []string{"clerk", "", "bard"} {
		long := with(adapter, request("long"+adapter, 5+i, 160, 2))
		r.accept(long)
		last := ""
		calls = nil
		r.tickUntil(func() bool {
			changes := map[string]int{}
			for _, slot := range calls {
				now, known := of[slot]
				if !known {
					now = adapter
				}
				if now != last {
					changes[now]++
				}
				last = now
			}
			calls = calls[:0]
			for name, n := range changes {
				if n > 1 {
					t.Errorf("prompt of %q: a tick changed to adapter %q %d times", adapter, name, n)
				}
			}
			_, done := r.ends[long.Key()]
			return done
		})
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

// A turn that needs its KV hot ends with the cause; nothing is evaluated for it, and no one else's KV makes room for it.
func TestTurnThatRequiresHotKVOfAnotherAdapterIsACacheMiss(t *testing.T) {
	for _, c := range []struct {
		from, to string
		reason   scheduler.EndReason
		detail   string
	}{
		{"bard", "bard", scheduler.Completed, "length"},
		{"bard", "clerk", scheduler.CacheMiss, "recipe"}, {"bard", "", scheduler.CacheMiss, "recipe"}, {"", "bard", scheduler.CacheMiss, "recipe"},
	} {
		for name, saved := range map[string]bool{"parked": false, "saved": true} {
			t.Run(fmt.Sprintf("of %q with %q, %s", c.from, c.to, name), func(t *testing.T) {
				r := newRig(t, adapted(2))
				first := kept(with(c.from, request("s", 1, 40, 8)))
				second := with(c.to, turn(first, r.run(first).Tokens, 10, 8))
				second.RequireHot = true
				if saved { // two others take the slots one after the other
					r.run(kept(request("a", 2, 8, 2)))
					r.run(kept(request("b", 3, 8, 2)))
				}
				prefills, saves := r.countCalls(goengine.OpPrefill), r.countCalls(goengine.OpSave)
				r.run(second)
				end := r.wantEnd(second.Key(), c.reason, c.detail)
				if c.reason == scheduler.Completed {
					return
				}
				if r.countCalls(goengine.OpPrefill) != prefills || r.countCalls(goengine.OpSave) != saves || len(end.Tokens) != 0 {
					t.Errorf("the engine was called for it: usage %+v", end.Usage)
				}
			})
		}
	}
}

// There are more adapters than slots, and more sessions than adapters.
func TestTwentyAdaptersTakeTurns(t *testing.T) {
	cfg := withSlots(3)
	cfg.Adapters = names(20)
	r := newRig(t, cfg, budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 40 }))
	var requests []scheduler.Request
	for i := range 40 {
		requests = append(requests, with(names(20)[i%20], request(fmt.Sprint("session", i), i, 10+i, 6)))
	}
	r.accept(requests...)
	r.finish()
	for _, req := range requests {
		r.wantTokens(req.Key(), baseline(t, cfg, req))
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
