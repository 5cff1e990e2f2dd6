package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func turnOf(tenant, session string) scheduler.TurnKey {
	return scheduler.TurnKey{Tenant: tenant, Session: session, Turn: 1}
}

// held are the sessions of tenant "big" that a rig of two slots runs when another tenant's turn comes: both have run for a quantum.
func (r *rig) held(first, second scheduler.Request) {
	r.Helper()
	r.accept(of("big", first), of("big", second))
	r.untilTokens(turnOf("big", second.Session), 2)
}

// ticksUntilStarted is how many ticks a turn waits for its slot.
func (r *rig) ticksUntilStarted(k scheduler.TurnKey) (ticks int) {
	r.Helper()
	r.tickUntil(func() bool {
		if _, ok := r.started[k]; ok {
			return true
		}
		ticks++
		return false
	})
	return ticks
}

// Whatever the model's memory, and however its tokens are chosen.
func TestSuspendedSessionGoesOnWithEqualTokens(t *testing.T) {
	warm := scheduler.DefaultSampling()
	warm.Temperature, warm.RepeatPenalty, warm.FrequencyPenalty, warm.PenaltyLastN, warm.Seed = 1, 1.3, 0.2, 20, 42
	for _, mode := range []goengine.Mode{goengine.Attention, goengine.Window, goengine.Recurrent, goengine.Echo} {
		for _, sampling := range []scheduler.Sampling{scheduler.DefaultSampling(), warm} {
			t.Run(fmt.Sprintf("%d/%g", mode, sampling.Temperature), func(t *testing.T) {
				cfg := withSlots(2)
				cfg.Mode = mode
				r := newRig(t, cfg)
				first, second, other := request("a", 1, 40, 50), request("b", 2, 40, 50), request("c", 3, 40, 12)
				first.Sampling, second.Sampling = sampling, sampling
				r.held(first, second)
				r.accept(of("small", other))
				if ticks := r.ticksUntilStarted(turnOf("small", "c")); ticks != 1 {
					t.Errorf("the tenant without a place waited %d ticks, want 1", ticks)
				}
				if tele := r.sched.Telemetry(); tele.SuspendedSessions != 1 || tele.SuspendedBytes == 0 || tele.ActiveSessions != 2 || tele.QueueDepth != 1 {
					t.Errorf("%d suspended with %d bytes, %d active, %d queued", tele.SuspendedSessions, tele.SuspendedBytes, tele.ActiveSessions, tele.QueueDepth)
				}
				r.finish()
				for _, req := range []scheduler.Request{of("big", first), of("big", second), of("small", other)} {
					end := r.wantEnd(req.Key(), scheduler.Completed, "length")
					r.wantTokens(req.Key(), baseline(t, cfg, req))
					if end.Usage.Prefilled != 40 || end.Usage.New != req.MaxNewTokens {
						t.Errorf("turn %s: usage %+v", req.Key(), end.Usage)
					}
				}
				if tele := r.sched.Telemetry(); tele.SuspensionsTotal != 1 || tele.SuspendedSessions != 0 || tele.SuspendedBytes != 0 {
					t.Errorf("%d suspensions, %d suspended with %d bytes", tele.SuspensionsTotal, tele.SuspendedSessions, tele.SuspendedBytes)
				}
				r.wantIdle()
			})
		}
	}
}

// At a chunk's border, with the rest of the prompt evaluated later in another slot.
func TestSessionSuspendedInItsPromptGoesOnWithEqualTokens(t *testing.T) {
	cfg := withSlots(1)
	r := newRig(t, cfg)
	long, short := of("big", request("long", 1, 200, 8)), of("small", request("short", 2, 20, 4))
	r.accept(long)
	r.tick() // four chunks
	r.accept(short)
	r.tickUntil(func() bool { return r.sched.Telemetry().SuspendedSessions == 1 })
	r.finish()
	for _, req := range []scheduler.Request{long, short} {
		r.wantEnd(req.Key(), scheduler.Completed, "length")
		r.wantTokens(req.Key(), baseline(t, cfg, req))
	}
	if end := r.ends[long.Key()]; end.Usage.Prefilled != 200 {
		t.Errorf("%d prompt tokens evaluated, want each once", end.Usage.Prefilled)
	}
}

func TestLongestRunningSessionOfTheLargestHolderIsSuspended(t *testing.T) {
	r := newRig(t, withSlots(4))
	r.accept(of("one", request("o", 1, 40, 100)), of("big", request("a", 2, 40, 100)))
	r.untilTokens(turnOf("big", "a"), 1)
	r.accept(of("big", request("b", 3, 40, 100)), of("big", request("c", 4, 40, 100)))
	r.untilTokens(turnOf("big", "c"), 1)
	r.accept(of("small", request("s", 5, 10, 4)))
	if got := r.tick().Suspended; len(got) != 1 || got[0] != turnOf("big", "a") {
		t.Errorf("suspended %v, want big's session a", got)
	}
	r.finish()
}

// One that has not begun gives way for nothing, where no session has run for a quantum.
func TestSessionThatHasNotBegunIsSuspendedForFree(t *testing.T) {
	r := newRig(t, withSlots(4))
	for i, name := range names(4) {
		r.accept(of("big", request(name, i, 100, 4)))
	}
	r.accept(of("small", request("s", 5, 10, 4)))
	report := r.tick()
	if len(report.Suspended) != 1 || report.Suspended[0] != turnOf("big", "s3") || report.Saves != 0 {
		t.Errorf("suspended %v with %d saves, want big's newest session and none", report.Suspended, report.Saves)
	}
	r.finish()
	if end := r.wantEnd(turnOf("big", "s3"), scheduler.Completed, "length"); end.Usage.Prefilled != 100 {
		t.Errorf("usage %+v", end.Usage)
	}
}

// No session of a tenant is suspended twice before each was once.
func TestSuspensionsGoRoundATenantsSessions(t *testing.T) {
	r := newRig(t, withSlots(3))
	for i, name := range names(3) {
		r.accept(of("big", request(name, i, 40, 180)))
	}
	r.untilTokens(turnOf("big", "s2"), 1)
	times := map[string]int{}
	for turn := range 6 {
		req := of("small", request("q", turn, 10, 20))
		req.Turn = uint64(turn + 1)
		r.accept(req)
		r.tickUntil(func() bool {
			for _, k := range r.tick().Suspended {
				times[k.Session]++
			}
			_, ended := r.ends[req.Key()]
			return ended
		})
		most, least := 0, 9
		for _, name := range names(3) {
			most, least = max(most, times[name]), min(least, times[name])
		}
		if most-least > 1 {
			t.Fatalf("suspended %v", times)
		}
	}
	r.finish()
}

// More tenants than slots: each gets its turn, after a quantum of another.
func TestMoreTenantsThanSlotsTakeTurns(t *testing.T) {
	cfg := withSlots(2)
	r := newRig(t, cfg)
	var all []scheduler.Request
	for i := range 5 {
		req := of(fmt.Sprintf("t%d", i), request("s", i, 20, 200))
		all = append(all, req)
		r.accept(req)
	}
	began := map[scheduler.TurnKey]bool{}
	r.tickUntil(func() bool {
		for k := range r.started {
			began[k] = true
		}
		if len(r.ends) > 0 && len(began) < 5 {
			t.Fatalf("a turn ended when only %d tenants had begun", len(began))
		}
		return r.sched.Pending() == 0
	})
	for _, req := range all {
		r.wantEnd(req.Key(), scheduler.Completed, "length")
		r.wantTokens(req.Key(), baseline(t, cfg, req))
	}
	if n := r.sched.Telemetry().SuspensionsTotal; n > 5*200/32 {
		t.Errorf("%d suspensions: sessions ran for less than a quantum", n)
	}
}

func TestNothingIsSuspendedWithoutRoomForItsKV(t *testing.T) {
	for _, bytes := range []int64{0, 1, 2048} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			r := newRig(t, withSlots(2), budget(func(b *scheduler.NodeBudget) { b.SuspendBudgetBytes = bytes }))
			r.held(request("a", 1, 40, 20), request("b", 2, 40, 30))
			r.accept(of("small", request("c", 3, 10, 4)))
			r.finish()
			if n := r.sched.Telemetry().SuspensionsTotal; n != 0 {
				t.Errorf("%d suspensions", n)
			}
			if started, ended := r.started[turnOf("small", "c")], r.ends[turnOf("big", "a")]; started.Queued == 0 && ended.Reason != scheduler.Completed {
				t.Errorf("the small tenant began before a place was free")
			}
		})
	}
}

// KV is what is short here, not slots: the session whose room is enough gives way.
func TestSessionIsSuspendedForItsKV(t *testing.T) {
	r := newRig(t, withSlots(4), budget(func(b *scheduler.NodeBudget) { b.KVBudgetBytes = 200 * (b.KVBudgetBytes / 4 / 256) }))
	r.accept(of("big", request("a", 1, 20, 30)), of("big", request("b", 2, 60, 80)))
	r.untilTokens(turnOf("big", "b"), 1)
	r.accept(of("small", request("c", 3, 60, 30)))
	if got := r.tick().Suspended; len(got) != 1 || got[0] != turnOf("big", "b") {
		t.Errorf("suspended %v, want big's session b: a's room is not enough", got)
	}
	r.finish()
	r.wantIdle()
}

func TestSaveThatFailsLeavesTheSessionWhereItIs(t *testing.T) {
	cfg := withSlots(2)
	r := newRig(t, cfg)
	first, second := request("a", 1, 40, 30), request("b", 2, 40, 30)
	r.held(first, second)
	r.engine.Inject(goengine.Fault{Kind: goengine.FaultSave, Slot: goengine.AnySlot})
	r.accept(of("small", request("c", 3, 10, 4)))
	r.finish()
	r.wantEnd(turnOf("small", "c"), scheduler.Completed, "length")
	r.wantTokens(turnOf("big", "a"), baseline(t, cfg, first))
	r.wantTokens(turnOf("big", "b"), baseline(t, cfg, second))
}

// Another attempt can go on with the turn: nothing has ended for its client.
func TestLostKVOfASuspendedSessionIsAnInterruption(t *testing.T) {
	cfg := withSlots(2)
	r := newRig(t, cfg)
	first := request("a", 1, 40, 60)
	r.held(first, request("b", 2, 40, 60))
	r.accept(of("small", request("c", 3, 10, 4)))
	r.ticksUntilStarted(turnOf("small", "c"))
	r.engine.Inject(goengine.Fault{Kind: goengine.FaultRestore, Slot: goengine.AnySlot})
	r.finish()
	end := r.wantEnd(turnOf("big", "a"), scheduler.Interrupted, "")
	if want := baseline(t, cfg, first)[:len(end.Tokens)]; len(end.Tokens) == 0 || fmt.Sprint(end.Tokens) != fmt.Sprint(want) {
		t.Errorf("ended with %v, want %v", end.Tokens, want)
	}
	if !strings.Contains(end.Detail, "suspended session is lost") {
		t.Errorf("detail %q", end.Detail)
	}
	r.wantEnd(turnOf("big", "b"), scheduler.Completed, "length")
	r.wantIdle()
}

func TestSuspendedSessionEndsLikeAnyThatWaits(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(*rig)
		reason scheduler.EndReason
		detail string
	}{
		{"cancelled", func(r *rig) {
			if found, err := r.sched.Cancel(turnOf("big", "a"), scheduler.Cancelled, "", ""); !found || err != nil {
				r.Fatal(found, err)
			}
			r.take() // without a tick
		}, scheduler.Cancelled, ""},
		{"deadline", func(r *rig) {
			r.clock.Advance(time.Minute)
			r.tick()
		}, scheduler.Failed, "deadline"},
		{"interrupted", func(r *rig) {
			r.sched.Interrupt()
			r.take()
		}, scheduler.Interrupted, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, withSlots(2))
			first := kept(request("a", 1, 40, 60))
			first.Deadline = r.clock.Now().Add(time.Minute)
			r.held(first, request("b", 2, 40, 60))
			r.accept(of("small", request("c", 3, 10, 40)))
			r.ticksUntilStarted(turnOf("small", "c"))
			c.end(r)
			end := r.wantEnd(turnOf("big", "a"), c.reason, c.detail)
			if len(end.Tokens) < 2 {
				t.Errorf("ended with %d tokens", len(end.Tokens))
			}
			if tele := r.sched.Telemetry(); tele.SuspendedSessions != 0 || tele.SuspendedBytes != 0 {
				t.Errorf("%d suspended with %d bytes", tele.SuspendedSessions, tele.SuspendedBytes)
			}
			r.finish()
			r.wantIdle()
		})
	}
}

// A flood that fills the queue refuses itself, not the others.
func TestFullQueueHasRoomForATenantWithoutAPlace(t *testing.T) {
	for _, depth := range []int{0, 3} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			r := newRig(t, withSlots(2), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = depth }))
			r.held(request("a", 1, 40, 60), request("b", 2, 40, 60))
			for i := range depth {
				r.accept(of("big", request(fmt.Sprintf("w%d", i), i, 10, 4)))
			}
			if d := r.submit(of("big", request("over", 1, 10, 4))); d.Reason != scheduler.RejectedQueueFull {
				t.Errorf("%s, want rejected-queue-full", d)
			}
			tokens := prompt(3, 10)
			lazy := lazily(of("small", request("c", 3, 10, 4)), func() ([]scheduler.Token, error) { return tokens, nil })
			if d := r.submit(lazy); d.Reason != scheduler.Queued {
				t.Errorf("%s, want queued", d)
			}
			if d := r.submit(of("small", request("d", 4, 10, 4))); d.Reason != scheduler.RejectedQueueFull {
				t.Errorf("%s, want rejected-queue-full: one turn of a tenant is let in so", d)
			}
			if ticks := r.ticksUntilStarted(turnOf("small", "c")); ticks != 1 {
				t.Errorf("it waited %d ticks, want 1", ticks)
			}
			r.finish()
			r.wantIdle()
		})
	}
}

// Given up on while it is saved or while it comes back, a session leaves neither a slot nor a saved state behind.
func TestStallOfASuspensionLeavesNothingBehind(t *testing.T) {
	for _, op := range []goengine.Op{goengine.OpSave, goengine.OpRestore, goengine.OpRelease} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t, withSlots(2), stallAfter(time.Second))
			r.held(request("a", 1, 40, 60), request("b", 2, 40, 60))
			stalled := 0
			r.onCall = func(call goengine.Call) {
				if call.Op == op && stalled == 0 {
					r.clock.Advance(2 * time.Second)
					stalled = r.sched.FailStalled(r.clock.Now())
				}
			}
			r.accept(of("small", request("c", 3, 10, 4)))
			r.finish()
			if stalled == 0 {
				t.Fatalf("there was no %s", op)
			}
			if tele := r.sched.Telemetry(); tele.SuspendedSessions != 0 || tele.SuspendedBytes != 0 {
				t.Errorf("%d suspended with %d bytes", tele.SuspendedSessions, tele.SuspendedBytes)
			}
			r.tick()
			r.wantIdle()
			next := request("d", 4, 40, 10)
			r.run(next)
			r.wantTokens(next.Key(), baseline(t, withSlots(2), next))
		})
	}
}

// Marked while its KV is saved, a session keeps its place until it is reaped, and nothing was suspended.
func TestSessionCancelledWhileItIsSavedIsNotSuspended(t *testing.T) {
	r := newRig(t, withSlots(2))
	r.held(request("a", 1, 40, 60), request("b", 2, 40, 60))
	r.onCall = func(call goengine.Call) {
		if call.Op == goengine.OpSave {
			if found, err := r.sched.Cancel(turnOf("big", "a"), scheduler.Cancelled, "", ""); !found || err != nil {
				t.Error(found, err)
			}
		}
	}
	r.accept(of("small", request("c", 3, 10, 4)))
	r.finish()
	r.wantEnd(turnOf("big", "a"), scheduler.Cancelled, "")
	r.wantEnd(turnOf("small", "c"), scheduler.Completed, "length")
	if n := r.sched.Telemetry().SuspensionsTotal; n != 0 {
		t.Errorf("%d suspensions", n)
	}
	r.wantIdle()
}
