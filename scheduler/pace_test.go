package scheduler_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// measured is a rig that has run four whole chunks and nine steps.
func measured(t *testing.T) *rig {
	r := newRig(t, small())
	r.timed(nil)
	r.run(request("warm", 1, 64, 10))
	return r
}

func within(r *rig, req scheduler.Request, d time.Duration) scheduler.Request {
	req.Deadline = r.clock.Now().Add(d)
	return req
}

// 48 tokens are three chunks of 30 ms, and 21 new ones are 20 steps of 5 ms.
func TestDeadlineOutOfReachIsRefusedAtOnce(t *testing.T) {
	r := measured(t)
	d := r.submit(within(r, request("s", 2, 48, 21), 189*time.Millisecond))
	if d.Reason != scheduler.RejectedDeadline || d.Detail.Field != "deadline_ms" || d.Detail.Needed != 190 || d.Detail.Available != 189 {
		t.Errorf("%s %+v, want rejected-deadline, 190 of 189 ms", d, d.Detail)
	}
	if d := r.submit(within(r, request("s", 2, 48, 21), 190*time.Millisecond)); d.Reason != scheduler.Admitted {
		t.Errorf("%s, want admitted", d)
	}
	r.finish()
	r.wantEnd(key("s", 1), scheduler.Completed, "length")
}

func TestDeadlineOutOfReachIsRefusedOnceThePromptIsKnown(t *testing.T) {
	r := measured(t)
	tokens := prompt(2, 48)
	req := lazily(request("s", 2, 48, 21), func() ([]scheduler.Token, error) { return tokens, nil })
	if d := r.submit(within(r, req, 189*time.Millisecond)); d.Reason != scheduler.RejectedDeadline || d.Detail.Needed != 190 {
		t.Errorf("%s %+v, want rejected-deadline, 190 ms needed", d, d.Detail)
	}
	r.wantIdle()
}

func TestWhatIsHotTakesNoTimeOfADeadline(t *testing.T) {
	r := measured(t)
	first := kept(request("s", 1, 64, 1))
	end := r.run(first)
	next := turn(first, end.Tokens, 15, 1) // 80 tokens, of which 64 are hot
	if d := r.submit(within(r, next, 30*time.Millisecond)); d.Reason != scheduler.Admitted {
		t.Errorf("%s, want admitted", d)
	}
	r.finish()
}

// Absurd deadlines are no others than those that are merely wrong: what is over is refused, however long ago, what has more time than any
// turn needs is not, and neither depends on what was measured.
func TestAbsurdDeadlines(t *testing.T) {
	far := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	for name, r := range map[string]*rig{"just started": newRig(t, small()), "measured": measured(t)} {
		for deadline, want := range map[time.Time]scheduler.Reason{
			time.Unix(-1<<40, 0):             scheduler.RejectedDeadline,
			time.Unix(0, 0):                  scheduler.RejectedDeadline,
			r.clock.Now().Add(-1):            scheduler.RejectedDeadline,
			r.clock.Now():                    scheduler.RejectedDeadline,
			far:                              scheduler.Admitted,
			time.Unix(1<<40, 0):              scheduler.Admitted,
			r.clock.Now().Add(math.MaxInt64): scheduler.Admitted,
			{}:                               scheduler.Admitted,
		} {
			req := request("s", 1, 4, 4)
			req.Turn, req.Deadline = uint64(len(r.ends)+2), deadline
			d := r.submit(req)
			if d.Reason != want {
				t.Errorf("%s, deadline %v: %s, want %s", name, deadline, d, want)
			}
			r.finish()
		}
	}
}

// What nobody has measured, or not for long, keeps nobody out: else one slow minute would last for ever.
func TestOldMeasurementsRefuseNobody(t *testing.T) {
	r := newRig(t, small())
	r.timed(nil)
	impossible := func() scheduler.Reason {
		req := within(r, request("s", 2, 48, 21), time.Millisecond)
		d := r.submit(req)
		if d.Accepted() {
			r.tick()
			r.clock.Advance(time.Millisecond)
			r.finish()
			r.wantEnd(req.Key(), scheduler.Failed, "deadline")
			delete(r.ends, req.Key())
			delete(r.news, req.Key())
		}
		return d.Reason
	}
	if got := impossible(); got != scheduler.Admitted {
		t.Errorf("%s before anything was measured, want admitted", got)
	}
	r.run(request("warm", 1, 64, 10))
	if got := impossible(); got != scheduler.RejectedDeadline {
		t.Errorf("%s once it was measured, want rejected-deadline", got)
	}
	r.clock.Advance(time.Minute + time.Second)
	if got := impossible(); got != scheduler.Admitted {
		t.Errorf("%s a minute later, want admitted", got)
	}
}

// The speed is that of the quickest crowd: the turn may be alone before long.
func TestSpeedOfADeadlineIsThatOfAnIdleNode(t *testing.T) {
	r := newRig(t, small())
	r.onCall = func(call goengine.Call) {
		r.clock.Advance(time.Duration(len(call.Rows)) * 10 * time.Millisecond)
	}
	r.run(request("alone", 1, 4, 10))
	for i, name := range names(3) {
		r.accept(request(name, i, 4, 60))
	}
	for range 20 {
		r.tick()
	}
	if d := r.submit(within(r, request("s", 2, 4, 11), 100*time.Millisecond)); !d.Accepted() {
		t.Errorf("%s, want accepted", d)
	}
	if d := r.submit(within(r, request("u", 2, 4, 11), 99*time.Millisecond)); d.Reason != scheduler.RejectedDeadline {
		t.Errorf("%s, want rejected-deadline", d)
	}
	r.finish()
}

// What an earlier attempt began is gone on with, however late it is.
func TestTurnThatIsGoneOnWithIsNotRefusedForItsDeadline(t *testing.T) {
	r := measured(t)
	req := within(r, request("s", 2, 48, 21), 100*time.Millisecond)
	req.Replay = baseline(t, small(), request("s", 2, 48, 21))[:3]
	prefilled := within(r, request("u", 2, 48, 21), 100*time.Millisecond)
	prefilled.Continued = true
	for _, req := range []scheduler.Request{req, prefilled} {
		if d := r.submit(req); d.Reason != scheduler.Admitted {
			t.Errorf("%s, want admitted", d)
		}
	}
	r.finish()
	r.wantEnd(key("s", 1), scheduler.Failed, "deadline")
	r.wantEnd(key("u", 1), scheduler.Failed, "deadline")
}

// What is shared of a prompt is hot as well: kept, or on the way with whoever evaluates it.
func TestWhatIsSharedOfAPromptTakesNoTimeOfADeadline(t *testing.T) {
	r := newRig(t, small(), sharing(scheduler.ShareTenant))
	r.timed(nil)
	for i, name := range names(2) { // the second has it saved
		r.run(after(64, name, i, 16, 4))
	}
	for i := range 4 {
		r.run(request(fmt.Sprint("warm", i), 10+i, 32, 4))
	}
	req := after(64, "s", 5, 16, 1) // 80 tokens, of which 64 are shared
	if d := r.submit(within(r, req, 29*time.Millisecond)); d.Reason != scheduler.RejectedDeadline || d.Detail.Needed != 30 {
		t.Errorf("%s %+v, want rejected-deadline, 30 ms needed", d, d.Detail)
	}
	if d := r.submit(within(r, req, 30*time.Millisecond)); d.Reason != scheduler.Admitted {
		t.Errorf("%s, want admitted", d)
	}
	r.finish()
	r.wantEnd(req.Key(), scheduler.Completed, "length")
}

// Nor is a turn refused for a prompt that may be hot when its time comes: because an earlier turn of its session is still to leave it, or
// because it is on disk.
func TestPromptThatMayBeHotTakesNoTimeOfADeadline(t *testing.T) {
	for name, leave := range map[string]func(r *rig, first scheduler.Request){
		"earlier turn is live": func(r *rig, first scheduler.Request) { r.accept(first); r.untilTokens(first.Key(), 1) },
		"on disk": func(r *rig, first scheduler.Request) {
			r.run(first)
			r.run(kept(request("other", 3, 64, 2))) // takes its place in memory
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small()
			r := newRig(t, cfg, hotBytes(80), withSpill(openSpill(t, cfg, t.TempDir())))
			r.timed(nil)
			r.run(request("warm", 1, 64, 10))
			first := kept(request("s", 2, 64, 2))
			leave(r, first)
			next := turn(first, baseline(t, cfg, first), 10, 1)
			if d := r.submit(within(r, next, 100*time.Millisecond)); !d.Accepted() {
				t.Errorf("%s, want accepted", d)
			}
			r.finish()
			if end := r.ends[next.Key()]; end.Usage.Cached != 65 {
				t.Errorf("%d tokens of its prompt were hot, want 65", end.Usage.Cached)
			}
		})
	}
}
