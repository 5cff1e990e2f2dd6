package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func (r *rig) cancel(k scheduler.TurnKey) {
	r.Helper()
	if found, err := r.sched.Cancel(k, scheduler.Cancelled, "", ""); !found || err != nil {
		r.Fatalf("Cancel of %s = %t, %v", k, found, err)
	}
}

// C1 (llama.cpp#24496): in every phase one ending within a tick, nothing after it, and the slot is reusable.
func TestCancelEndsATurnWithinATickInEveryPhase(t *testing.T) {
	for name, test := range map[string]struct {
		reached func(r *rig) bool
		tokens  int
	}{
		"queued":           {func(*rig) bool { return true }, 0},
		"in chunk 1":       {func(r *rig) bool { return r.started[key("s", 1)].PromptTokens > 0 }, 0},
		"at token 5":       {func(r *rig) bool { return len(r.news[key("s", 1)]) == 5 }, 5},
		"at token 9 of 10": {func(r *rig) bool { return len(r.news[key("s", 1)]) == 9 }, 9},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withSlots(1))
			r.accept(request("before", 2, 4, 5), request("s", 1, 128, 10))
			r.tickUntil(func() bool { return test.reached(r) })
			r.cancel(key("s", 1))
			if _, ended := r.ends[key("s", 1)]; ended {
				t.Fatal("ended before it was cancelled")
			}
			r.calls = nil
			r.tick()
			end := r.wantEnd(key("s", 1), scheduler.Cancelled, "")
			if len(end.Tokens) != test.tokens {
				t.Errorf("%d tokens, want %d", len(end.Tokens), test.tokens)
			}
			if found, err := r.sched.Cancel(key("s", 1), scheduler.Cancelled, "", ""); found || err != nil {
				t.Errorf("second Cancel = %t, %v; want false", found, err)
			}
			after := request("after", 3, 20, 5)
			r.accept(after)
			r.finish()
			r.wantTokens(after.Key(), baseline(t, small(), after))
			r.wantIdle()
			if got := r.sched.Telemetry().CancelledSessions; got != 1 {
				t.Errorf("%d cancelled sessions, want 1", got)
			}
		})
	}
}

// A token that is computed while the cancel comes is dropped.
func TestTokenInFlightOfACancelledTurnIsDropped(t *testing.T) {
	r := newRig(t, small())
	other := request("other", 2, 20, 10)
	r.accept(request("s", 1, 20, 10), other)
	r.untilTokens(key("other", 1), 2)
	before := len(r.news[key("s", 1)])
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpDecode {
			r.onCall = nil
			r.cancel(key("s", 1))
		}
	}
	r.tick()
	end := r.wantEnd(key("s", 1), scheduler.Cancelled, "")
	if len(end.Tokens) != before || len(r.news[key("s", 1)]) != before {
		t.Errorf("%d tokens in the ending, %d reported, want %d", len(end.Tokens), len(r.news[key("s", 1)]), before)
	}
	r.finish()
	r.wantTokens(other.Key(), baseline(t, small(), other))
}

// The first terminal mark wins: a turn that just completed cannot be cancelled, nor the other way round.
func TestFirstTerminalMarkWins(t *testing.T) {
	r := newRig(t, small())
	var cancelled bool
	req := request("s", 1, 4, 3)
	req.Stop = func(scheduler.Token) bool {
		cancelled, _ = r.sched.Cancel(key("s", 1), scheduler.Failed, scheduler.FailHeartbeatLost, "")
		return true
	}
	r.accept(req)
	r.finish()
	if !cancelled {
		t.Error("Cancel came first but found nothing")
	}
	r.wantEnd(key("s", 1), scheduler.Failed, "heartbeat-lost")
	if found, _ := r.sched.Cancel(key("s", 1), scheduler.Cancelled, "", ""); found {
		t.Error("an ended turn was cancelled")
	}
}

func TestCancelTakesOnlyCancelledOrFailedWithACause(t *testing.T) {
	r := newRig(t, small())
	r.accept(request("s", 1, 4, 3))
	for _, wrong := range []struct {
		reason scheduler.EndReason
		cause  scheduler.FailCause
	}{
		{scheduler.Completed, ""}, {scheduler.CacheMiss, ""}, {scheduler.Interrupted, ""}, {"", ""},
		{scheduler.Cancelled, scheduler.FailDeadline}, {scheduler.Failed, ""}, {scheduler.Failed, "tired"},
	} {
		if found, err := r.sched.Cancel(key("s", 1), wrong.reason, wrong.cause, ""); found || err == nil {
			t.Errorf("Cancel(%q, %q) = %t, %v; want an error", wrong.reason, wrong.cause, found, err)
		}
	}
	if found, err := r.sched.Cancel(key("s", 2), scheduler.Cancelled, "", ""); found || err != nil {
		t.Errorf("unknown turn: %t, %v; want false", found, err)
	}
	r.finish()
	r.wantEnd(key("s", 1), scheduler.Completed, "length")
}

// C2 (ollama#11889): a long prompt is given up between two chunks.
func TestCancelledPromptIsNotPrefilledToItsEnd(t *testing.T) {
	cfg := small()
	cfg.ContextTokens, cfg.PrefillChunk, cfg.Layers = 8200, 256, 1
	r := newRig(t, cfg)
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpPrefill && call.Pos == 256 {
			r.cancel(key("s", 1))
		}
	}
	r.accept(request("s", 1, 8192, 4))
	r.tick()
	r.wantEnd(key("s", 1), scheduler.Cancelled, "")
	if n := r.countCalls(goengine.OpPrefill); n != 2 {
		t.Errorf("%d chunks, want 2", n)
	}
}

// C3 (model_server#4428): one of 16 is dropped after 3 tokens, over and over.
func TestDroppingOneSessionLeavesTheOthersEqual(t *testing.T) {
	cfg := withSlots(16)
	want := map[string][]scheduler.Token{}
	for i, name := range names(16) {
		want[name] = baseline(t, cfg, request(name, i, 10+i, 12))
	}
	r := newRig(t, cfg)
	for round := range 50 {
		victim := fmt.Sprintf("s%d", round%16)
		for i, name := range names(16) {
			req := request(name, i, 10+i, 12)
			req.Turn = uint64(round + 1)
			r.accept(req)
		}
		dropped := key(victim, uint64(round+1))
		r.untilTokens(dropped, 3)
		r.cancel(dropped)
		r.finish()
		for name, tokens := range want {
			if name != victim {
				r.wantTokens(key(name, uint64(round+1)), tokens)
			}
		}
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
		clear(r.ends)
		clear(r.news)
	}
}

// C5 (vllm#23697): the session's next turn follows the cancel at once.
func TestNextTurnRightAfterCancelCompletes(t *testing.T) {
	r := newRig(t, small())
	for i := range uint64(100) {
		req := kept(request("s", int(i), 10, 20))
		req.Turn = 2*i + 1
		r.accept(req)
		r.untilTokens(req.Key(), 1+int(i)%5)
		r.cancel(req.Key())
		next := turn(req, nil, 4, 3)
		r.accept(next)
		r.finish()
		r.wantEnd(req.Key(), scheduler.Cancelled, "")
		r.wantEnd(next.Key(), scheduler.Completed, "length")
	}
	r.wantIdle()
}

// K6 (ROCm/ATOM#1562): whatever the phase, everything is given back.
func TestThousandCancelsAtRandomPhasesGiveEverythingBack(t *testing.T) {
	r := newRig(t, withSlots(3), budget(func(b *scheduler.NodeBudget) { b.HotBudgetBytes = 0 }))
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		req := kept(request(fmt.Sprintf("s%d", i), i, 1+rnd.IntN(100), 1+rnd.IntN(20)))
		r.accept(req)
		for range rnd.IntN(4) {
			r.tick()
		}
		if rnd.IntN(10) > 0 {
			_, _ = r.sched.Cancel(req.Key(), scheduler.Cancelled, "", "")
		}
		r.take()
	}
	r.finish()
	r.tick()
	if len(r.ends) != 1000 {
		t.Errorf("%d endings, want 1000", len(r.ends))
	}
	r.wantIdle()
	if kv := r.engine.KVBytes(); kv != 0 {
		t.Errorf("%d KV bytes in the engine, want none", kv)
	}
}

func TestHigherEpochSupersedesTheRunningTurn(t *testing.T) {
	r := newRig(t, small())
	first := kept(request("s", 1, 20, 50))
	waiting := turn(first, nil, 2, 5)
	r.accept(first, waiting)
	r.untilTokens(key("s", 1), 3)
	third := turn(waiting, nil, 2, 5)
	third.Epoch = 2
	r.accept(third)
	r.take()
	r.wantEnd(key("s", 2), scheduler.Failed, "superseded") // it waited, so it leaves at once
	r.finish()
	if end := r.wantEnd(key("s", 1), scheduler.Failed, "superseded"); len(end.Tokens) != 3 {
		t.Errorf("%d tokens, want 3", len(end.Tokens))
	}
	r.wantEnd(key("s", 3), scheduler.Completed, "length")
	r.wantTokens(key("s", 3), baseline(t, small(), third))
	stale := turn(third, nil, 2, 5)
	stale.Epoch = 1
	if d := r.submit(stale); d.Reason != scheduler.RejectedStaleEpoch || d.Detail.Needed != 2 || d.Detail.Available != 1 {
		t.Errorf("%s %+v, want rejected-stale-epoch, 1 below 2", d, d.Detail)
	}
}

// A new route may count its turns anew.
func TestHigherEpochMayComeWithALowerTurn(t *testing.T) {
	r := newRig(t, small())
	first := request("s", 1, 20, 50)
	first.Turn = 7
	r.accept(first)
	r.untilTokens(first.Key(), 1)
	next := request("s", 2, 20, 5)
	next.Turn, next.Epoch = 3, 1
	r.accept(next)
	r.finish()
	r.wantEnd(key("s", 7), scheduler.Failed, "superseded")
	r.wantEnd(key("s", 3), scheduler.Completed, "length")
}

func TestRefusedTurnSupersedesNobody(t *testing.T) {
	r := newRig(t, small())
	r.accept(request("s", 1, 20, 10))
	next := request("s", 1, 20, 1000)
	next.Turn, next.Epoch = 2, 5
	if d := r.submit(next); d.Reason != scheduler.RejectedContext {
		t.Errorf("%s, want rejected-context", d)
	}
	r.finish()
	r.wantEnd(key("s", 1), scheduler.Completed, "length")
}

func TestDeadlineEndsATurnAtTheNextTickBoundary(t *testing.T) {
	r := newRig(t, withSlots(1))
	running, waiting := request("a", 1, 4, 50), request("b", 2, 4, 5)
	running.Deadline = r.clock.Now().Add(time.Second)
	waiting.Deadline = running.Deadline
	r.accept(running, waiting, request("c", 3, 4, 5))
	r.clock.Advance(time.Second - 1)
	r.untilTokens(key("a", 1), 3)
	r.clock.Advance(1)
	r.tick()
	if end := r.wantEnd(key("a", 1), scheduler.Failed, "deadline"); len(end.Tokens) != 3 || end.Timings.Total != time.Second {
		t.Errorf("ended with %d tokens after %s", len(end.Tokens), end.Timings.Total)
	}
	r.wantEnd(key("b", 1), scheduler.Failed, "deadline")
	r.finish()
	r.wantEnd(key("c", 1), scheduler.Completed, "length")
}

func TestInterruptHandsBackWhatThereIsAndTakesNothingMore(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.accept(request("a", 1, 4, 50), request("b", 2, 4, 5))
	r.untilTokens(key("a", 1), 3)
	if n := r.sched.Interrupt(); n != 2 {
		t.Errorf("%d interrupted, want 2", n)
	}
	if d := r.submit(request("c", 3, 4, 5)); d.Reason != scheduler.RejectedDraining {
		t.Errorf("%s, want rejected-draining", d)
	}
	r.tick()
	if end := r.wantEnd(key("a", 1), scheduler.Interrupted, ""); len(end.Tokens) != 3 {
		t.Errorf("%d tokens, want 3", len(end.Tokens))
	}
	r.wantEnd(key("b", 1), scheduler.Interrupted, "")
	tele := r.sched.Telemetry()
	if tele.FailedSessions != 0 || tele.CancelledSessions != 0 || tele.CompletedSessions != 0 {
		t.Errorf("interrupted turns counted as ended: %+v", tele)
	}
	r.wantIdle()
}

func TestDrainingNodeFinishesWhatItHas(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.accept(request("a", 1, 4, 5), request("b", 2, 4, 5))
	r.sched.Drain()
	r.finish()
	r.wantEnd(key("a", 1), scheduler.Completed, "length")
	r.wantEnd(key("b", 1), scheduler.Completed, "length")
	r.sched.Undrain()
	r.accept(request("c", 3, 4, 5))
	r.finish()
}
