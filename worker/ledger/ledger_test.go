package ledger_test

import (
	"testing"
	"time"

	"github.com/meshnet/node/worker/ledger"
)

var (
	deadline = epoch.Add(10 * time.Minute)
	hash     = ledger.Hash{1}
	selfA    = ledger.Self{Node: "a", Boot: "a1"}
	selfB    = ledger.Self{Node: "b", Boot: "b1"}
)

func request(seq uint64, lineage ...uint64) ledger.Message {
	return ledger.Message{
		Seq: seq, Lineage: lineage, PayloadHash: hash, Deadline: deadline, Deliveries: 1, LastIndex: -1,
	}
}

// claimed is the record of a turn that worker a claimed for the request with sequence 7.
func claimed() ledger.Record {
	rec := ledger.Arrive(ledger.Record{}, request(7), selfA, epoch).Write
	rec.Rev = 40
	return rec
}

func TestClaimWritesTheFirstRunningRecord(t *testing.T) {
	msg := request(7)
	msg.Deadline = deadline.Add(400 * time.Microsecond)
	d := ledger.Arrive(ledger.Record{}, msg, selfA, epoch)
	want := ledger.Record{
		State: ledger.Running, PayloadHash: hash, Attempt: 1, Node: "a", Boot: "a1", ReqSeq: 7,
		Deadline: deadline, LastIndex: -1,
	}
	if d.Action != ledger.Claim || !d.Writes || !d.Write.Equal(want) || d.Write.Rev != 0 || !d.Write.Deadline.Equal(deadline) {
		t.Errorf("decided %v %+v, want a claim of %+v", d.Action, d.Write, want)
	}
}

func TestTakeoverIsForTheVeryMessage(t *testing.T) {
	foreign := request(7)
	foreign.PayloadHash = ledger.Hash{2}
	restarted := ledger.Self{Node: "a", Boot: "a2"}
	for _, c := range []struct {
		name string
		msg  ledger.Message
		self ledger.Self
		want ledger.Action
	}{
		{"the request itself", request(7), selfB, ledger.Takeover},
		{"a copy moved from it", request(12, 7), selfB, ledger.Takeover},
		{"a copy moved twice", request(15, 7, 12), selfB, ledger.Takeover},
		{"a copy moved from another one", request(15, 9), selfB, ledger.Wait},
		{"a second submission", request(9), selfB, ledger.Wait},
		{"a second submission, at the owner's node after a restart", request(9), restarted, ledger.Wait},
		{"a second submission, at the owner without a session", request(9), selfA, ledger.Takeover},
		{"another payload under the same sequence", foreign, selfB, ledger.Wait},
		{"another payload, at the owner without a session", foreign, selfA, ledger.Wait},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := ledger.Arrive(claimed(), c.msg, c.self, epoch)
			if d.Action != c.want {
				t.Fatalf("decided %v, want %v", d.Action, c.want)
			}
			if ledger.MayTakeOver(claimed(), c.msg, c.self) != (c.want == ledger.Takeover) {
				t.Error("MayTakeOver says otherwise")
			}
			if d.Duplicate != (c.msg.PayloadHash != hash) {
				t.Errorf("Duplicate is %v", d.Duplicate)
			}
			w := d.Write
			if c.want == ledger.Takeover && (w.Attempt != 2 || w.Rev != 40 || w.ReqSeq != c.msg.Seq || w.Node != c.self.Node ||
				w.Boot != c.self.Boot || w.PayloadHash != hash || !w.Deadline.Equal(deadline) || w.Stuck != 1) {
				t.Errorf("writes %+v", w)
			}
		})
	}
}

func TestLiveSessionAdoptsOnlyItsOwnRequest(t *testing.T) {
	held := claimed()
	here := ledger.Self{Node: "a", Boot: "a1", Held: &held}
	late := deadline.Add(time.Hour)
	handed := ledger.HandOver(held)
	handed.Rev++
	foreign := request(7)
	foreign.PayloadHash = ledger.Hash{2}
	for _, c := range []struct {
		name   string
		rec    ledger.Record
		msg    ledger.Message
		want   ledger.Action
		writes bool
	}{
		{"delivered again", held, request(7), ledger.Adopt, false},
		{"a moved copy: the record follows", held, request(12, 7), ledger.Adopt, true},
		{"a second submission", held, request(9), ledger.Wait, false},
		{"an answer from a lagging replica", ledger.Record{}, request(7), ledger.Adopt, false},
		{"another payload under the same sequence", held, foreign, ledger.Wait, false},
		{"while it hands over", handed, request(7), ledger.Wait, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := ledger.Arrive(c.rec, c.msg, here, late) // its own deadline is the session's to find
			if d.Action != c.want || d.Writes != c.writes || d.BeatNow {
				t.Fatalf("decided %+v, want %v", d, c.want)
			}
			if c.writes && (d.Write.ReqSeq != 12 || d.Write.Attempt != 1 || d.Write.Rev != 40) {
				t.Errorf("writes %+v", d.Write)
			}
		})
	}
}

func TestSessionThatLostItsTurnIsToldToBeat(t *testing.T) {
	held := claimed()
	here := ledger.Self{Node: "a", Boot: "a1", Held: &held}
	taken := ledger.Arrive(held, request(7), selfB, epoch).Write
	taken.Rev = 41
	done := ledger.End(taken, ledger.Outcome{Reason: "completed"}).Write
	done.Rev = 42
	if d := ledger.Arrive(taken, request(7), here, epoch); d.Action != ledger.Wait || !d.BeatNow {
		t.Errorf("taken over: decided %+v, want wait and a beat", d)
	}
	if d := ledger.Arrive(done, request(7), here, epoch); d.Action != ledger.Republish || !d.BeatNow {
		t.Errorf("done: decided %+v, want republish and a beat", d)
	}
}

func TestPoisonEndsAtTheThirdFruitlessTakeover(t *testing.T) {
	type event struct {
		last   int
		handed bool
		waited bool // it was lost before it was alone
	}
	for _, c := range []struct {
		name   string
		events []event
		stuck  []int // after each takeover; -1: the turn ends
	}{
		{"never a token", []event{{last: -1}, {last: -1}, {last: -1}}, []int{1, 2, -1}},
		{"a token in between", []event{{last: -1}, {last: 3}, {last: 3}, {last: 3}, {last: 3}}, []int{1, 0, 1, 2, -1}},
		{"hand-overs do not count", []event{{last: -1}, {last: -1, handed: true}, {last: -1, handed: true}, {last: -1}, {last: -1}}, []int{1, 1, 1, 2, -1}},
		{"attempts that only waited do not count", []event{{last: -1}, {last: -1}, {last: -1, waited: true}, {last: -1, waited: true}, {last: -1}}, []int{1, 2, 2, 2, -1}},
		{"token stream lost", []event{{last: 9}, {last: -1}, {last: 2}, {last: 2}}, []int{0, 1, 0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := claimed()
			for i, e := range c.events {
				if !e.waited {
					rec = ledger.Begin(rec)
				}
				if e.handed {
					rec = ledger.HandOver(rec)
				}
				msg := request(7)
				msg.LastIndex = e.last
				d := ledger.Arrive(rec, msg, selfB, epoch)
				if c.stuck[i] < 0 {
					want := ledger.Outcome{Reason: "failed", Cause: "worker-lost", Claimed: true, Node: "b", Attempt: i + 1}
					if d.Action != ledger.Finish || d.Outcome != want {
						t.Fatalf("takeover %d: decided %v %+v, want its end as %+v", i+1, d.Action, d.Outcome, want)
					}
					return
				}
				if d.Action != ledger.Takeover || d.Write.Stuck != c.stuck[i] || d.Write.LastIndex != e.last || d.Write.HandedOver || d.Write.Waiting != ledger.Exclusive(d.Write.Attempt) {
					t.Fatalf("takeover %d: decided %v %+v, want stuck %d", i+1, d.Action, d.Write, c.stuck[i])
				}
				rec = d.Write
			}
		})
	}
}

func TestDeadlineEndsTheTurnThatNobodyHere(t *testing.T) {
	foreign := request(9)
	foreign.PayloadHash = ledger.Hash{2}
	marked := ledger.Cancel(claimed()).Write
	failed := ledger.Outcome{Reason: "failed", Cause: "deadline", Claimed: true, Node: "a", Attempt: 1}
	for _, c := range []struct {
		name string
		rec  ledger.Record
		msg  ledger.Message
		want ledger.Outcome
	}{
		{"claims", ledger.Record{}, request(7), ledger.Outcome{Reason: "failed", Cause: "deadline"}},
		{"finishes", claimed(), request(7), failed},
		{"finishes, found by a second submission", claimed(), request(9), failed},
		{"finishes, found by another payload", claimed(), foreign, failed},
		{"finishes, when a cancel had won before", marked, request(9),
			ledger.Outcome{Reason: "cancelled", Claimed: true, Node: "a", Attempt: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := ledger.Arrive(c.rec, c.msg, selfB, deadline)
			if d.Action != ledger.Finish || d.Outcome != c.want || d.Write.Reason != c.want.Reason {
				t.Errorf("decided %v %+v, want %+v", d.Action, d.Outcome, c.want)
			}
			if d.Write.PayloadHash != hash || d.Write.Attempt != c.want.Attempt {
				t.Errorf("writes %+v", d.Write)
			}
			if early := ledger.Arrive(c.rec, c.msg, selfB, deadline.Add(-1)); early.Action == ledger.Finish && !c.rec.Cancel {
				t.Errorf("just before the deadline: %v", early.Action)
			}
		})
	}
}

func TestRejectEndsOnlyWhatThisWorkerMayRun(t *testing.T) {
	claim := ledger.Arrive(ledger.Record{}, request(7), selfB, epoch).Reject()
	if want := (ledger.Outcome{Reason: "rejected"}); claim.Action != ledger.Finish || claim.Outcome != want || claim.Write.Rev != 0 ||
		claim.Write.PayloadHash != hash {
		t.Errorf("unclaimed: %+v", claim)
	}
	taken := ledger.Arrive(claimed(), request(7), selfB, epoch).Reject()
	if want := (ledger.Outcome{Reason: "rejected", Claimed: true, Node: "a", Attempt: 1}); taken.Outcome != want || taken.Write.Rev != 40 {
		t.Errorf("claimed by a lost worker: %+v", taken)
	}
	if d := ledger.Arrive(claimed(), request(9), selfB, epoch).Reject(); d.Action != ledger.Wait {
		t.Errorf("running elsewhere: %v, want wait", d.Action)
	}
}

func TestDoneTurnIsPublishedAgain(t *testing.T) {
	unclaimed := ledger.Cancel(ledger.Record{}).Write.WithOutcome([]byte("f"), nil)
	unclaimed.Rev = 3
	d := ledger.Arrive(unclaimed, request(7), selfA, epoch)
	if d.Action != ledger.Republish || d.Writes || d.Duplicate || string(d.Write.Final) != "f" {
		t.Errorf("cancelled before its request was seen: %+v", d)
	}
	done := ledger.End(claimed(), ledger.Outcome{Reason: "completed"}).Write
	other := request(9)
	other.PayloadHash = ledger.Hash{2}
	if d := ledger.Arrive(done, other, selfA, epoch); d.Action != ledger.Republish || !d.Duplicate {
		t.Errorf("another payload: %+v, want republish of what is, counted", d)
	}
}

func TestCancelBindsWhoeverEndsTheTurn(t *testing.T) {
	c := ledger.Cancel(claimed())
	if c.Step != ledger.CancelMark || !c.Writes() || !c.Write.Cancel || c.Write.Rev != 40 {
		t.Fatalf("running: %+v", c)
	}
	marked := c.Write
	marked.Rev = 41
	if again := ledger.Cancel(marked); again.Step != ledger.CancelMarked || again.Writes() {
		t.Errorf("again: %+v", again)
	}
	wrote := ledger.End(claimed(), ledger.Outcome{Reason: "completed"}).Write.WithOutcome([]byte("f"), []byte("w"))
	if e := ledger.AfterConflict(marked, wrote, claimed()); e != ledger.Again {
		t.Errorf("the owner's swap lost to the cancel: %v, want again", e)
	}
	d := ledger.End(marked, ledger.Outcome{Reason: "completed"})
	if d.Outcome.Reason != "cancelled" || d.Write.Reason != "cancelled" || d.Write.Rev != 41 {
		t.Errorf("the owner's second swap: %+v", d)
	}
	if d := ledger.Arrive(marked, request(7), selfB, epoch); d.Action != ledger.Finish || d.Outcome.Reason != "cancelled" {
		t.Errorf("a takeover: %+v", d)
	}
	if late := ledger.Cancel(d.Write); late.Step != ledger.CancelTooLate || late.Write.Reason != "cancelled" {
		t.Errorf("after the end: %+v", late)
	}
}

func TestBeat(t *testing.T) {
	held := claimed()
	taken := ledger.Arrive(held, request(7), selfB, epoch).Write
	taken.Rev = 41
	marked := ledger.Cancel(held).Write
	marked.Rev = 41
	older := held
	older.Rev = 39
	for _, c := range []struct {
		name string
		read ledger.Record
		now  time.Time
		want ledger.Verdict
	}{
		{"unchanged", held, epoch, ledger.Continue},
		{"cancelled", marked, epoch, ledger.CancelTurn},
		{"cancelled and overdue", marked, deadline, ledger.CancelTurn},
		{"overdue", held, deadline, ledger.Expire},
		{"taken over", taken, epoch, ledger.Abandon},
		{"done", ledger.Record{State: ledger.Done, Rev: 41}, epoch, ledger.Abandon},
		{"older", older, epoch, ledger.Reread},
		{"absent", ledger.Record{}, epoch, ledger.Reread},
	} {
		if v := ledger.Beat(c.read, held, c.now); v != c.want {
			t.Errorf("%s: %v, want %v", c.name, v, c.want)
		}
	}
}

func TestAfterAnUnclearAnswer(t *testing.T) {
	wrote := ledger.Arrive(claimed(), request(7), selfB, epoch).Write
	landed := wrote
	landed.Rev = 41
	landed.Deadline = time.UnixMilli(landed.Deadline.UnixMilli()) // as read back
	other := ledger.Arrive(claimed(), request(7), ledger.Self{Node: "c", Boot: "c1"}, epoch).Write
	other.Rev = 41
	for _, c := range []struct {
		name string
		read ledger.Record
		want ledger.Ending
	}{
		{"it landed", landed, ledger.Won},
		{"it did not, so far", claimed(), ledger.Again},
		{"exists, then absent", ledger.Record{}, ledger.Again},
		{"another was faster", other, ledger.Lost},
	} {
		if e := ledger.Settle(c.read, wrote); e != c.want {
			t.Errorf("%s: %v, want %v", c.name, e, c.want)
		}
	}
}

func TestWaitsDoubleToThirtySeconds(t *testing.T) {
	for deliveries, want := range map[int]time.Duration{
		0: 2 * time.Second, 1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 4: 16 * time.Second,
		5: 30 * time.Second, 6: 30 * time.Second, 1 << 40: 30 * time.Second,
	} {
		if got := ledger.Delay(deliveries); got != want {
			t.Errorf("delivery %d waits %v, want %v", deliveries, got, want)
		}
	}
}

func TestThirdAttemptRunsAlone(t *testing.T) {
	for attempt, want := range map[int]bool{1: false, 2: false, 3: true, 9: true} {
		if ledger.Exclusive(attempt) != want {
			t.Errorf("attempt %d: %v", attempt, !want)
		}
	}
}

func TestRecordsEqualByContent(t *testing.T) {
	changes := map[string]func(*ledger.Record){
		"node":     func(r *ledger.Record) { r.Node = "x" },
		"boot":     func(r *ledger.Record) { r.Boot = "x" },
		"attempt":  func(r *ledger.Record) { r.Attempt++ },
		"request":  func(r *ledger.Record) { r.ReqSeq++ },
		"cancel":   func(r *ledger.Record) { r.Cancel = true },
		"handed":   func(r *ledger.Record) { r.HandedOver = true },
		"waiting":  func(r *ledger.Record) { r.Waiting = true },
		"deadline": func(r *ledger.Record) { r.Deadline = r.Deadline.Add(time.Millisecond) },
		"payload":  func(r *ledger.Record) { r.PayloadHash[3]++ },
		"stuck":    func(r *ledger.Record) { r.Stuck++ },
		"last":     func(r *ledger.Record) { r.LastIndex++ },
		"state":    func(r *ledger.Record) { r.State = ledger.Done },
	}
	for name, change := range changes {
		rec := claimed()
		change(&rec)
		if rec.Equal(claimed()) || claimed().Equal(rec) {
			t.Errorf("running records that differ in %s are equal", name)
		}
	}
	done := ledger.End(claimed(), ledger.Outcome{Reason: "completed"}).Write.WithOutcome([]byte("f"), []byte("w"))
	for name, change := range map[string]func(*ledger.Record){
		"attempt": func(r *ledger.Record) { r.Attempt++ },
		"reason":  func(r *ledger.Record) { r.Reason = "failed" },
		"payload": func(r *ledger.Record) { r.PayloadHash[3]++ },
		"final":   func(r *ledger.Record) { r.Final = []byte("g") },
		"work":    func(r *ledger.Record) { r.Work = nil },
	} {
		rec := done
		change(&rec)
		if rec.Equal(done) {
			t.Errorf("done records that differ in %s are equal", name)
		}
	}
	moved := claimed()
	moved.Rev++
	if !moved.Equal(claimed()) || !(ledger.Record{Rev: 1}).Equal(ledger.Record{}) {
		t.Error("a revision is no content")
	}
}

func TestNamesForLogs(t *testing.T) {
	for got, want := range map[string]string{
		ledger.Absent.String():  "absent",
		ledger.Running.String(): "running",
		ledger.Done.String():    "done",

		ledger.Adopt.String():     "adopt",
		ledger.Wait.String():      "wait",
		ledger.Republish.String(): "republish",

		ledger.Continue.String():   "continue",
		ledger.CancelTurn.String(): "cancel",
		ledger.Expire.String():     "expire",
		ledger.Reread.String():     "reread",

		ledger.Won.String():       "won",
		ledger.ReadAgain.String(): "read-again",
		ledger.Lost.String():      "lost",

		ledger.CancelUnclaimed.String(): "unclaimed",
		ledger.CancelTooLate.String():   "too-late",

		ledger.Action(99).String(): "unknown",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
