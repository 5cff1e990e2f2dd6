package scheduler_test

import (
	"strings"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// four starts four sessions that decode side by side, and says what each yields undisturbed.
func four(t *testing.T) (*rig, map[string][]scheduler.Token) {
	t.Helper()
	r := newRig(t, small())
	want := map[string][]scheduler.Token{}
	for i, name := range names(4) {
		req := kept(request(name, i, 10+i, 30))
		want[name] = baseline(t, small(), req)
		r.accept(req)
	}
	r.untilTokens(key("s3", 1), 3)
	return r, want
}

// K1 (llama.cpp#14097) and its neighbours: one session's fault ends that session alone.
func TestOneSessionsFaultLeavesTheOthersExact(t *testing.T) {
	for _, test := range []struct {
		name   string
		fault  goengine.Fault
		reason scheduler.EndReason
		cause  string
		detail string
	}{
		{"no KV cell", goengine.Fault{Kind: goengine.FaultNoKV, Slot: 2, After: 5}, scheduler.Failed, "engine", "no-kv"},
		{"fatal with half the rows done", goengine.Fault{Kind: goengine.FaultFatal, Slot: 2, After: 5, Times: 1}, scheduler.Failed, "engine", "fatal"},
		{"NaN logits", goengine.Fault{Kind: goengine.FaultNaN, Slot: 2, After: 5, Times: 1}, scheduler.Failed, "engine", "nan-logits"},
		{"no token to choose", goengine.Fault{Kind: goengine.FaultSampler, Slot: 2, After: 5, Times: 1}, scheduler.Failed, "engine", "sampler"},
		{"cache miss", goengine.Fault{Kind: goengine.FaultMiss, Slot: 2, After: 5, Times: 1}, scheduler.CacheMiss, "invalidated", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, want := four(t)
			perToken := r.engine.Facts().BytesPerToken
			r.engine.Inject(test.fault)
			r.tickUntil(func() bool { return len(r.ends) > 0 })
			end := r.wantEnd(key("s2", 1), test.reason, test.cause)
			if !strings.Contains(end.Detail, test.detail) {
				t.Errorf("detail %q does not name %q", end.Detail, test.detail)
			}
			var live int64
			for i, name := range names(4) {
				if name != "s2" {
					live += int64(10+i+len(r.news[key(name, 1)])-1) * perToken
				}
			}
			if got := r.sched.Telemetry().KVTotalBytes; got != live || r.engine.KVBytes() != live {
				t.Errorf("%d KV bytes reported, %d in the engine, want those of three sessions: %d", got, r.engine.KVBytes(), live)
			}
			r.finish()
			for name, tokens := range want {
				if name != "s2" {
					r.wantEnd(key(name, 1), scheduler.Completed, "length")
					r.wantTokens(key(name, 1), tokens)
				}
			}
		})
	}
}

func TestWrongResultCountEndsTheBatchAndNobodyElse(t *testing.T) {
	for _, kind := range []goengine.FaultKind{goengine.FaultTooFew, goengine.FaultTooMany} {
		r, want := four(t)
		later := request("later", 9, 40, 5)
		r.engine.Inject(goengine.Fault{Kind: kind, Slot: goengine.AnySlot, After: 2, Times: 1})
		r.tickUntil(func() bool { return len(r.ends) > 0 })
		for name := range want {
			end := r.wantEnd(key(name, 1), scheduler.Failed, "engine")
			if !strings.Contains(end.Detail, "results for a batch of 4") {
				t.Errorf("detail %q", end.Detail)
			}
		}
		r.accept(later)
		r.finish()
		r.wantTokens(later.Key(), baseline(t, small(), later))
		r.wantIdle()
	}
}

func TestFailedPrefillEndsTheTurnAndFreesItsSlot(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.engine.Inject(goengine.Fault{Kind: goengine.FaultPrefill, Slot: 0, After: 1, Times: 1})
	r.accept(request("s", 1, 40, 5), request("next", 2, 40, 5))
	r.finish()
	if end := r.wantEnd(key("s", 1), scheduler.Failed, "engine"); end.Usage.Prefilled != 16 {
		t.Errorf("%d tokens prefilled, want the 16 of the first chunk", end.Usage.Prefilled)
	}
	r.wantTokens(key("next", 1), baseline(t, small(), request("next", 2, 40, 5)))
}

func TestFailedOpenEndsTheTurnAndFreesItsSlot(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.engine.Inject(goengine.Fault{Kind: goengine.FaultOpen, Slot: 0, Times: 1})
	r.accept(request("s", 1, 40, 5), request("next", 2, 40, 5))
	r.finish()
	r.wantEnd(key("s", 1), scheduler.Failed, "engine")
	r.wantEnd(key("next", 1), scheduler.Completed, "length")
}

func TestChangedRecipeFailsActivationsAndDropsHotKV(t *testing.T) {
	r := newRig(t, small())
	r.run(kept(request("hot", 1, 40, 5)))
	running := request("running", 2, 10, 20)
	r.accept(running)
	r.untilTokens(running.Key(), 2)
	r.engine.Inject(goengine.Fault{Kind: goengine.FaultFingerprint, Slot: goengine.AnySlot})
	r.accept(request("s", 3, 40, 5))
	report, err := r.sched.Tick()
	if err == nil || !strings.Contains(err.Error(), "recipe changed") {
		t.Errorf("Tick error %v, want the changed recipe", err)
	}
	r.observe(report)
	r.wantEnd(key("s", 1), scheduler.Failed, "engine")
	if got := r.sched.Telemetry(); got.HotSessions != 0 || got.HotBytes != 0 {
		t.Errorf("%d hot sessions of %d bytes left", got.HotSessions, got.HotBytes)
	}
	r.finish() // what runs goes on
	r.wantTokens(running.Key(), baseline(t, small(), running))
}

// liar is an engine that breaks its contract in one result.
type liar struct {
	scheduler.Engine
	result scheduler.Result
}

func (l liar) Prefill(scheduler.Chunk) scheduler.Result { return l.result }

func TestResultsThatBreakTheContractFailTheTurn(t *testing.T) {
	for name, test := range map[string]struct {
		result scheduler.Result
		prompt int
	}{
		"a token for a chunk that is not the last": {scheduler.Result{Outcome: scheduler.OutcomeToken, Token: 5}, 20},
		"no token for the last chunk":              {scheduler.Result{Outcome: scheduler.OutcomeNone}, 4},
		"a token that there is not":                {scheduler.Result{Outcome: scheduler.OutcomeToken, Token: 256}, 4},
		"an error without a reason":                {scheduler.Result{Outcome: scheduler.OutcomeError}, 4},
		"an unknown outcome":                       {scheduler.Result{Outcome: 99}, 4},
	} {
		engine, err := goengine.New(small())
		if err != nil {
			t.Fatal(err)
		}
		sched, err := scheduler.New(liar{engine, test.result}, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
		if err != nil {
			t.Fatal(err)
		}
		sched.Submit(request("s", 1, test.prompt, 4))
		ends, err := sched.RunToCompletion(0)
		if err != nil || len(ends) != 1 || ends[0].Cause != scheduler.FailEngine || ends[0].Detail == "" {
			t.Errorf("%s: %+v, %v; want failed by the engine", name, ends, err)
		}
		sched.Close()
	}
}
