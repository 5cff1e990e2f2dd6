package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/meshnet/node/scheduler"
)

// S3 (vllm#31731): the head needs 90 % of the KV, those behind it 5 %.
func TestBlockedQueueHeadIsOvertakenOnlySoOften(t *testing.T) {
	for _, patience := range []int{0, 1, 3} {
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			r := newRig(t, withSlots(8), budget(func(b *scheduler.NodeBudget) {
				b.KVBudgetBytes = 200 * (b.KVBudgetBytes / 8 / 256) // 200 positions
				b.MaxOvertakings = patience
			}))
			r.accept(request("running", 1, 10, 41)) // 50 positions
			if d := r.submit(request("big", 2, 170, 11)); d.Reason != scheduler.Queued {
				t.Fatalf("%s, want queued", d)
			}
			overtook := 0
			for i := range 10 {
				if d := r.submit(request(fmt.Sprintf("small%d", i), 3+i, 5, 6)); d.Reason == scheduler.Admitted {
					overtook++
				}
			}
			if overtook != patience {
				t.Errorf("%d small turns overtook the big one, want %d", overtook, patience)
			}
			bigStarted := func() bool { _, ok := r.started[key("big", 1)]; return ok }
			r.tickUntil(bigStarted)
			if _, ok := r.ends[key("small9", 1)]; ok {
				t.Error("the last small turn ended before the big one started")
			}
			r.finish()
			for k := range r.started {
				r.wantEnd(k, scheduler.Completed, "length")
			}
			if len(r.ends) != 12 {
				t.Errorf("%d turns ended, want 12", len(r.ends))
			}
			r.wantIdle()
		})
	}
}

func TestQueueIsFirstComeFirstServedWhereEveryoneFits(t *testing.T) {
	r := newRig(t, withSlots(1))
	for i, name := range names(5) {
		r.accept(request(name, i, 4+i, 3))
	}
	var order []string
	r.tickUntil(func() bool {
		for k := range r.started {
			if n := len(order); n == 0 || order[n-1] != k.Session {
				order = append(order, k.Session)
				delete(r.started, k)
			}
		}
		return r.sched.Pending() == 0
	})
	if got := fmt.Sprint(order); got != "[s0 s1 s2 s3 s4]" {
		t.Errorf("started in the order %s", got)
	}
}

func TestReservationsBoundWhatIsActiveAtOnce(t *testing.T) {
	r := newRig(t, withSlots(4), budget(func(b *scheduler.NodeBudget) { b.KVBudgetBytes = 100 * (b.KVBudgetBytes / 4 / 256) }))
	for i, name := range names(6) {
		r.accept(request(name, i, 20, 21)) // 40 positions each
	}
	r.tickUntil(func() bool {
		tele := r.sched.Telemetry()
		if tele.ActiveSessions > 2 || tele.KVReservedBytes > tele.KVBudgetBytes || tele.KVTotalBytes > tele.KVReservedBytes {
			t.Fatalf("%d active, %d bytes live, %d reserved of %d", tele.ActiveSessions, tele.KVTotalBytes, tele.KVReservedBytes, tele.KVBudgetBytes)
		}
		return r.sched.Pending() == 0
	})
	r.wantIdle()
}

func TestTurnsOfASessionRunOneAfterTheOther(t *testing.T) {
	r := newRig(t, small())
	first, second := request("s", 1, 10, 5), request("s", 1, 12, 5)
	second.Turn = 2
	r.accept(first)
	if d := r.submit(second); d.Reason != scheduler.Queued {
		t.Errorf("%s, want queued although three slots are free", d)
	}
	if d := r.submit(first); d.Reason != scheduler.RejectedDuplicate {
		t.Errorf("%s, want rejected-duplicate", d)
	}
	if d := r.submit(second); d.Reason != scheduler.RejectedDuplicate {
		t.Errorf("%s, want rejected-duplicate", d)
	}
	r.tickUntil(func() bool {
		_, started := r.started[key("s", 2)]
		_, ended := r.ends[key("s", 1)]
		if started && !ended {
			t.Fatal("turn 2 started before turn 1 ended")
		}
		return r.sched.Pending() == 0
	})
	r.wantEnd(key("s", 1), scheduler.Completed, "length")
	r.wantEnd(key("s", 2), scheduler.Completed, "length")
}

func TestTurnBehindItsSessionHoldsNobodyElseUp(t *testing.T) {
	r := newRig(t, small())
	second := request("s", 1, 10, 5)
	second.Turn = 2
	r.accept(request("s", 1, 10, 50), second)
	for i := range 40 { // far more often than patience allows for KV
		name := fmt.Sprintf("other%d", i)
		if d := r.submit(request(name, i, 4, 1)); d.Reason != scheduler.Admitted {
			t.Fatalf("%s, want admitted", d)
		}
		r.tick()
		r.tick()
	}
	r.finish()
}

func TestWaitingTurnsCountToTheDepth(t *testing.T) {
	r := newRig(t, withSlots(1), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 2 }))
	second := request("a", 1, 4, 4)
	second.Turn = 2
	r.accept(request("a", 1, 4, 4), second, request("b", 1, 4, 4))
	if d := r.submit(request("c", 1, 4, 4)); d.Reason != scheduler.RejectedQueueFull || d.Detail.Needed != 3 || d.Detail.Available != 2 {
		t.Errorf("%s %+v, want rejected-queue-full, 3 of 2", d, d.Detail)
	}
	if got := r.sched.Telemetry().QueueDepth; got != 2 {
		t.Errorf("queue depth %d, want 2", got)
	}
	r.finish()
}

func TestCancelledQueuedTurnFreesItsPlace(t *testing.T) {
	r := newRig(t, withSlots(1), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 1 }))
	r.accept(request("a", 1, 4, 4), request("b", 1, 4, 4))
	if found, err := r.sched.Cancel(key("b", 1), scheduler.Cancelled, "", "no longer wanted"); !found || err != nil {
		t.Fatalf("Cancel = %t, %v", found, err)
	}
	r.take() // without a tick
	if end := r.wantEnd(key("b", 1), scheduler.Cancelled, ""); end.Detail != "no longer wanted" || len(end.Tokens) != 0 {
		t.Errorf("ending %+v", end)
	}
	r.accept(request("c", 1, 4, 4))
	r.finish()
	r.wantEnd(key("c", 1), scheduler.Completed, "length")
}
