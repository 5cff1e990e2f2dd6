package sim

import (
	"fmt"
	"time"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// decide does what the ledger's rules say about a request, and says whether its turn runs here now.
func (n *node) decide(m *message, place, rescue bool) (running bool) {
	t := m.t
	n.w.traffic.count(n.w.now, Ledger, msgRead)
	msg := ledger.Message{Seq: m.seq, Lineage: m.lineage, PayloadHash: t.hash, Deadline: t.deadline, Deliveries: m.deliveries, LastIndex: -1}
	self := ledger.Self{Node: n.name, Boot: n.boot}
	if n.runs[t.key] != nil {
		held := t.rec
		self.Held = &held
	}
	if ledger.MayTakeOver(t.rec, msg, self) {
		msg.LastIndex = t.said - 1
		n.w.traffic.count(n.w.now, Events, 3*msgAsk+t.said) // a consumer is made, and read
	}
	d := ledger.Arrive(t.rec, msg, self, epoch.Add(n.w.now))
	switch d.Action {
	case ledger.Claim, ledger.Takeover:
		return n.runHere(m, d, place, rescue)
	case ledger.Wait:
		n.w.bus.nak(m, d.Delay)
	case ledger.Finish:
		n.end(m, d)
	case ledger.Republish:
		n.w.traffic.count(n.w.now, Events, msgPublish+msgDelivery)
		n.w.bus.ack(m)
	default:
		n.w.broken(fmt.Sprintf("%s of %s at a node that cannot have it", d.Action, t.key))
	}
	return false
}

// runHere claims a turn or takes it over, unless it belongs elsewhere or there is no place for it.
func (n *node) runHere(m *message, d ledger.Decision, place, rescue bool) bool {
	t := m.t
	switch mine := m.lane == n.own; {
	case rescue && m.hops >= schemas.MaxHops:
		n.end(m, d.Reject())
		return false
	case rescue, !place && mine && m.hops < schemas.MaxHops:
		n.move(m)
		return false
	case !place && mine:
		n.w.bus.nak(m, ledger.Delay(m.deliveries))
		return false
	case !place:
		n.w.bus.nak(m, 0)
		return false
	}
	if d.Action == ledger.Takeover {
		n.w.stats.takeovers++
	}
	n.swap(t, d.Write)
	r := &run{n: n, m: m, t: t, alone: ledger.Exclusive(d.Write.Attempt)}
	n.runs[t.key] = r
	n.w.after(toClaim, func() {
		if n.up {
			n.seat(r)
		}
	})
	return true
}

// swap writes a turn's record.
func (n *node) swap(t *turn, rec ledger.Record) {
	rec.Rev = t.rec.Rev + 1
	t.rec = rec
	n.w.traffic.count(n.w.now, Ledger, msgSwap)
	n.w.traffic.writes++
	n.w.traffic.swaps++
}

// move gives a request to the lane of all.
func (n *node) move(m *message) {
	n.w.stats.moves++
	if !n.w.bus.publish(n.w.bus.all, m.t, m) {
		n.w.bus.nak(m, ledger.Delay(m.deliveries))
		return
	}
	n.w.bus.ack(m)
}

// end writes a turn's outcome, tells it and acks the request.
func (n *node) end(m *message, d ledger.Decision) {
	n.swap(m.t, d.Write)
	n.w.traffic.count(n.w.now, Events, msgPublish+msgDelivery)
	if d.Outcome.Claimed {
		n.w.traffic.count(n.w.now, Records, msgPublish)
		n.w.traffic.writes++
	}
	n.w.bus.ack(m)
	n.w.ended(m.t, d.Outcome.Reason, d.Outcome.Cause)
}

// seat lets an attempt begin: all at once, but one from its third on alone.
func (n *node) seat(r *run) {
	if r.alone {
		n.lonely++
	}
	n.waiting = append(n.waiting, r)
	n.grant()
}

func (n *node) grant() {
	for len(n.waiting) > 0 {
		r := n.waiting[0]
		if n.seated > 0 && (n.alone || r.alone) {
			return
		}
		n.waiting = n.waiting[1:]
		n.seated++
		n.alone = r.alone
		n.begin(r)
	}
}

// leave gives an attempt's seat and place back.
func (n *node) leave(r *run) {
	delete(n.runs, r.t.key)
	n.seated--
	if r.alone {
		n.lonely--
		n.alone = false
	}
	n.grant()
	n.release(r.t)
}

// begin submits the turn before the next tick.
func (n *node) begin(r *run) {
	if r.t.rec.Waiting {
		n.swap(r.t, ledger.Begin(r.t.rec))
	}
	n.arrived = append(n.arrived, r)
	if !n.ticking {
		n.ticking = true // the tick is under way once all have come that come now
		n.w.after(0, n.tick)
	}
}

// tick runs the scheduler's next step, whose effects are seen when it is over.
func (n *node) tick() {
	if !n.up {
		return
	}
	n.now, n.ticking = n.w.now, true
	for len(n.arrived) > 0 {
		r := n.arrived[0]
		n.arrived = n.arrived[1:]
		n.submit(r)
	}
	if n.sched.Pending() == 0 {
		n.ticking = false
		return
	}
	report, err := n.sched.Tick()
	if err != nil {
		n.w.broken(err.Error())
	}
	n.report, n.now = report, max(n.now, n.w.now+leastTick)
	n.w.at(n.now, n.ticked)
}

// submit gives a turn to the scheduler.
func (n *node) submit(r *run) {
	t := r.t
	d := n.sched.Submit(scheduler.Request{
		Tenant: t.key.Tenant, Session: t.key.Session, Turn: t.key.Turn,
		Prompt: n.w.tokens[:t.prompt], MaxNewTokens: t.newTokens, Sampling: scheduler.DefaultSampling(),
		Keep: n.w.cfg.Turns > 1, Replay: n.w.tokens[:t.said], Continued: t.said > 0, Deadline: t.deadline,
	})
	switch {
	case d.Accepted():
		return
	case d.Reason == scheduler.RejectedQueueFull:
		n.handOver(r, d.RetryAfter)
	case !epoch.Add(n.w.now).Before(t.deadline):
		n.end(r.m, ledger.End(t.rec, ledger.Outcome{Reason: ledger.ReasonFailed, Cause: ledger.CauseDeadline}))
	default:
		n.end(r.m, ledger.End(t.rec, ledger.Outcome{Reason: ledger.ReasonRejected, Cause: string(d.Reason)}))
	}
	n.leave(r)
}

// handOver gives a running turn back.
func (n *node) handOver(r *run, delay time.Duration) {
	n.w.stats.handovers++
	n.swap(r.t, ledger.HandOver(r.t.rec))
	n.w.bus.nak(r.m, delay)
}

// ticked makes the effects of a tick known, and begins the next one.
func (n *node) ticked() {
	if !n.up {
		return
	}
	for i := range n.report.Started {
		n.w.traffic.count(n.w.now, Events, msgEvent)
		n.w.began(n.runs[n.report.Started[i].Key].t, &n.report.Started[i])
	}
	for i := range n.report.Tokens {
		n.w.traffic.count(n.w.now, Events, msgEvent)
		n.w.said(n.runs[n.report.Tokens[i].Key].t)
	}
	if len(n.report.Started)+len(n.report.Tokens) > 0 {
		n.w.traffic.count(n.w.now, Events, msgConfirm)
	}
	n.w.stats.suspensions += len(n.report.Suspended)
	n.endings = n.sched.TakeResults(n.endings[:0])
	for i := range n.endings {
		n.conclude(&n.endings[i])
	}
	n.tick()
}

// conclude brings a turn that ran here to its outcome.
func (n *node) conclude(e *scheduler.Ending) {
	r := n.runs[e.Key]
	t := r.t
	t.s.hot = -1
	if e.Kept {
		t.s.hot = n.id
	}
	if e.Reason == scheduler.Interrupted {
		n.handOver(r, 0)
		n.leave(r)
		return
	}
	if e.Reason == scheduler.Completed {
		n.w.stats.useful += int64(e.Usage.Prefilled + len(e.Tokens) - 1)
	}
	n.end(r.m, ledger.End(t.rec, ledger.Outcome{Reason: string(e.Reason), Cause: string(e.Cause)}))
	n.leave(r)
}

// hot says whether a turn began with its session's own KV.
func hot(s *scheduler.Started) bool { return s.Miss == hotkv.Hit && s.CachedTokens > 0 }
