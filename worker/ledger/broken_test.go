package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/worker/ledger"
)

// arriving breaks the rules for arrivals: before changes what they are given, after what they say.
func arriving(before func(*ledger.Record, *ledger.Message, *ledger.Self), after func(*ledger.Decision, ledger.Self)) func(*rules) {
	return func(r *rules) {
		r.arrive = func(rec ledger.Record, msg ledger.Message, self ledger.Self, now time.Time) ledger.Decision {
			if before != nil {
				before(&rec, &msg, &self)
			}
			d := ledger.Arrive(rec, msg, self, now)
			if after != nil {
				after(&d, self)
			}
			return d
		}
	}
}

// given is arriving with a change of what the rules are given.
func given(before func(*ledger.Record, *ledger.Message, *ledger.Self)) func(*rules) {
	return arriving(before, nil)
}

var brokenRules = []struct {
	name   string
	faults faults
	spoil  func(*rules)
	found  string
}{
	{"who loses a turn acks its request", faults{lease: 1},
		func(r *rules) { r.losersAck = true }, "last copy of a request was acked"},
	{"a move acks the old copy first", faults{move: 1},
		func(r *rules) { r.ackBeforeCopy = true }, "last copy of a request was acked"},
	{"writes replace whatever is there", faults{lease: 1},
		func(r *rules) { r.blindWrites = true }, "went backwards"},
	{"the final is published before the swap", faults{},
		func(r *rules) { r.publishFirst = true }, "not the record's"},
	{"the request is acked before the final is out", faults{},
		func(r *rules) { r.ackFirst = true }, "acked before any final"},
	{"a done turn is acked without publishing again", faults{crash: 1},
		func(r *rules) { r.ackUnpublished = true }, "acked before any final"},
	{"any copy takes over", faults{dup: 1},
		given(func(rec *ledger.Record, msg *ledger.Message, _ *ledger.Self) { rec.ReqSeq = msg.Seq }),
		"well lost its turn"},
	{"no moved copy takes over", faults{move: 1, crash: 1},
		given(func(_ *ledger.Record, msg *ledger.Message, _ *ledger.Self) { msg.Lineage = nil }), "stuck"},
	{"a worker takes its own turn over beside the live session", faults{dup: 1},
		given(func(_ *ledger.Record, _ *ledger.Message, self *ledger.Self) { self.Held = nil }),
		"well lost its turn"},
	{"a live session adopts any copy", faults{dup: 1},
		given(func(_ *ledger.Record, msg *ledger.Message, self *ledger.Self) {
			if self.Held != nil {
				msg.Lineage = append(msg.Lineage[:len(msg.Lineage):len(msg.Lineage)], self.Held.ReqSeq)
			}
		}), "went backwards"},
	{"a live session leases a copy that its record does not name", faults{move: 1},
		arriving(nil, func(d *ledger.Decision, self ledger.Self) {
			if d.Action == ledger.Adopt {
				d.Write, d.Writes = *self.Held, false
			}
		}), "well lost its turn"},
	{"a takeover keeps the attempt", faults{crash: 1},
		arriving(nil, func(d *ledger.Decision, _ ledger.Self) {
			if d.Action == ledger.Takeover {
				d.Write.Attempt--
			}
		}), "went backwards"},
	{"another payload takes over", faults{otherDup: 1, lease: 1},
		given(func(rec *ledger.Record, msg *ledger.Message, _ *ledger.Self) { msg.PayloadHash = rec.PayloadHash }),
		"another payload"},
	{"deadlines do not count", faults{tick: 1},
		given(func(rec *ledger.Record, msg *ledger.Message, _ *ledger.Self) {
			rec.Deadline, msg.Deadline = clock[3], clock[3]
		}), "after its deadline"},
	{"only the claimed request ends its turn at the deadline", faults{crash: 1, otherDup: 1, tick: 2, purge: 1},
		arriving(nil, func(d *ledger.Decision, _ ledger.Self) {
			if d.Action == ledger.Finish && d.Duplicate {
				*d = ledger.Decision{Action: ledger.Wait}
			}
		}), "stuck"},
	{"who lost its lease naks", faults{lease: 1},
		func(r *rules) { r.loserNaks = true }, "well lost its turn"},
	{"an unclear answer counts as success", faults{doubt: 1},
		func(r *rules) { r.settle = func(_, _ ledger.Record) ledger.Ending { return ledger.Won } }, "stuck"},
	{"an unclear answer counts as failure, for an arrival", faults{doubt: 1},
		func(r *rules) {
			r.settle = func(read, wrote ledger.Record) ledger.Ending {
				if e := ledger.Settle(read, wrote); e != ledger.Won {
					return e
				}
				return ledger.Lost
			}
		}, "from itself"},
	{"an unclear answer counts as failure, for the owner", faults{doubt: 1},
		func(r *rules) {
			r.conflict = func(read, wrote, held ledger.Record) ledger.Ending {
				if e := ledger.AfterConflict(read, wrote, held); e != ledger.Won {
					return e
				}
				return ledger.Lost
			}
		}, "though its outcome won"},
	{"an unclear answer counts as success, for the owner", faults{doubt: 1},
		func(r *rules) {
			r.conflict = func(_, _, _ ledger.Record) ledger.Ending { return ledger.Won }
		}, "not the record's"},
	{"a lagging beat counts", faults{lag: 1},
		func(r *rules) {
			r.beat = func(read, held ledger.Record, now time.Time) ledger.Verdict {
				if v := ledger.Beat(read, held, now); v != ledger.Reread {
					return v
				}
				return ledger.Abandon
			}
		}, "its own"},
	{"a lagging answer after an unclear one counts", faults{doubt: 1, lag: 1},
		func(r *rules) {
			r.conflict = func(read, wrote, held ledger.Record) ledger.Ending {
				if e := ledger.AfterConflict(read, wrote, held); e != ledger.ReadAgain {
					return e
				}
				return ledger.Lost
			}
		}, "its own"},
	{"the owner stops silently at a cancel", faults{cancel: 1},
		func(r *rules) {
			r.conflict = func(read, wrote, held ledger.Record) ledger.Ending {
				if read.Cancel {
					return ledger.Lost
				}
				return ledger.AfterConflict(read, wrote, held)
			}
		}, "its own"},
	{"the owner overrules a cancel", faults{cancel: 1},
		func(r *rules) {
			r.end = func(held ledger.Record, want ledger.Outcome) ledger.Decision {
				held.Cancel = false
				return ledger.End(held, want)
			}
		}, "overruled"},
	{"a takeover overlooks a cancel", faults{cancel: 1, crash: 1},
		given(func(rec *ledger.Record, _ *ledger.Message, _ *ledger.Self) { rec.Cancel = false }), "cancelled turn was taken over"},
	{"a cancel is answered before its swap is settled", faults{cancel: 1},
		func(r *rules) { r.replyBeforeSwap = true }, "a cancel was answered"},
	{"a cancel of an unclaimed turn writes nothing", faults{cancel: 1},
		func(r *rules) {
			r.cancel = func(rec ledger.Record) ledger.Cancellation {
				if rec.State == ledger.Absent {
					return ledger.Cancellation{Step: ledger.CancelMarked, Write: rec}
				}
				return ledger.Cancel(rec)
			}
		}, "no record holds"},
	{"nothing is poison", faults{crash: 3},
		given(func(rec *ledger.Record, _ *ledger.Message, _ *ledger.Self) { rec.Stuck = 0 }), "three times without a new token"},
	{"a new token does not clear a turn", faults{crash: 3, tokens: 1},
		given(func(rec *ledger.Record, msg *ledger.Message, _ *ledger.Self) { msg.LastIndex = rec.LastIndex }), "ended as poison"},
	{"a hand-over counts as a lost worker", faults{crash: 2, drain: 1},
		given(func(rec *ledger.Record, _ *ledger.Message, _ *ledger.Self) { rec.HandedOver = false }), "ended as poison"},
	{"an attempt that waited to be alone counts as a lost worker", faults{crash: 3},
		given(func(rec *ledger.Record, _ *ledger.Message, _ *ledger.Self) { rec.Waiting = false }), "ended as poison"},
	{"a turn that has begun says that it waits", faults{crash: 5},
		func(r *rules) { r.begin = func(held ledger.Record) ledger.Record { return held } }, "went backwards"},
}

func TestEachRuleIsNeeded(t *testing.T) {
	for _, broken := range brokenRules {
		t.Run(broken.name, func(t *testing.T) {
			r := realRules()
			broken.spoil(&r)
			x := explore(r, newWorld(2, broken.faults), 2_000_000)
			if !strings.Contains(x.bad, broken.found) || x.bad == "" {
				t.Errorf("%d states, found %q, want a counter-example with %q", x.states, x.bad, broken.found)
			}
			t.Logf("%d states: %v", x.states, x)
		})
	}
}

// Without these every turn ends as well, once and alike; what they save is time, and a second prefill.
func TestRulesThatOnlySaveTime(t *testing.T) {
	waitsInsteadOf := func(action ledger.Action, unless func(ledger.Record, ledger.Message) bool) rules {
		r := realRules()
		r.arrive = func(rec ledger.Record, msg ledger.Message, self ledger.Self, now time.Time) ledger.Decision {
			d := ledger.Arrive(rec, msg, self, now)
			if d.Action == action && !unless(rec, msg) {
				return ledger.Decision{Action: ledger.Wait}
			}
			return d
		}
		return r
	}
	for name, r := range map[string]rules{
		"a worker takes over what it has no session for": waitsInsteadOf(ledger.Takeover,
			func(rec ledger.Record, msg ledger.Message) bool {
				return ledger.MayTakeOver(rec, msg, ledger.Self{Node: "no such node"})
			}),
		"a live session adopts its request": waitsInsteadOf(ledger.Adopt,
			func(ledger.Record, ledger.Message) bool { return false }),
	} {
		for _, f := range []faults{
			{crash: 1, lease: 1, cancel: 1, tokens: 1},
			{move: 1, crash: 1, lease: 1},
			{purge: 1, crash: 1, dup: 1},
			{lease: 1, doubt: 1, drain: 1},
		} {
			if x := explore(r, newWorld(2, f), 2_000_000); x.bad != "" || !x.full {
				t.Errorf("without the rule that %s, %d states: %v", name, x.states, x)
			}
		}
	}
}
