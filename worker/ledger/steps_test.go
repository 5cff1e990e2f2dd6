package ledger_test

import (
	"time"

	"github.com/meshnet/node/worker/ledger"
)

// rules are the decisions under test and the duties of their caller; broken ones must be found out.
type rules struct {
	arrive   func(ledger.Record, ledger.Message, ledger.Self, time.Time) ledger.Decision
	beat     func(read, held ledger.Record, now time.Time) ledger.Verdict
	end      func(held ledger.Record, want ledger.Outcome) ledger.Decision
	handOver func(held ledger.Record) ledger.Record
	begin    func(held ledger.Record) ledger.Record
	conflict func(read, wrote, held ledger.Record) ledger.Ending
	settle   func(read, wrote ledger.Record) ledger.Ending
	cancel   func(ledger.Record) ledger.Cancellation

	losersAck       bool // who has lost a turn acks its request
	loserNaks       bool // who has lost its lease naks all the same
	ackBeforeCopy   bool // a move acks the old copy before the new one is there
	publishFirst    bool // an outcome is published before its swap
	ackFirst        bool // a done request is acked before final and work record are out
	ackUnpublished  bool // a request found done is acked without publishing again
	replyBeforeSwap bool // a cancel is answered before its swap is settled
	blindWrites     bool // writes replace whatever is there
}

func realRules() rules {
	return rules{
		arrive: ledger.Arrive, beat: ledger.Beat, end: ledger.End, handOver: ledger.HandOver, begin: ledger.Begin,
		conflict: ledger.AfterConflict, settle: ledger.Settle, cancel: ledger.Cancel,
	}
}

// step names a transition for a counter-example. Faults are what need not happen for a turn to end.
type step struct {
	name  string
	who   uint8 // a worker from 1, or a request's sequence
	fault bool
}

// model generates the successors of worlds.
type model struct {
	rules rules
	emit  func(st step, w world, bad string)
}

// yield emits a successor, after the checks that hold in every state.
func (m *model) yield(st step, w world, bad string) {
	if bad == "" {
		bad = w.checkReply()
	}
	m.emit(st, w, bad)
}

func (m *model) apply(w *world, sw swap, onTime bool) (ok bool, bad string) {
	if m.rules.blindWrites {
		sw.exp = w.cur.rev()
	}
	return w.apply(sw, onTime)
}

// next emits every successor of a world.
func (m *model) next(w world) {
	m.environment(w)
	for seq := uint8(1); seq <= maxMessages; seq++ {
		m.request(w, seq)
	}
	for n := range w.workers {
		if w.workers[n].boot == 0 {
			continue
		}
		m.arrivalSteps(w, n)
		m.sessionSteps(w, n)
		if w.faults.crash > 0 && w.workers[n].boot < 7 {
			v := w
			v.faults.crash--
			v.workers[n] = worker{boot: w.workers[n].boot + 1}
			m.yield(step{"crash", uint8(n + 1), true}, v, "")
		}
	}
	m.cancelSteps(w)
}

// environment: time, a client that submits again, writes that land late.
func (m *model) environment(w world) {
	if w.faults.tick > 0 {
		v := w
		v.faults.tick--
		v.now++
		// Only where a request was purged may the end of a turn depend on time.
		m.yield(step{"deadline passes", v.now, !w.purged}, v, "")
	}
	if seq := w.free(); seq != 0 {
		v := w
		if w.faults.dup > 0 {
			v.faults.dup--
			v.msgs[seq] = message{where: ready, hash: 1, deadline: 2}
			m.yield(step{"submitted again", seq, true}, v, "")
		}
		if v = w; w.faults.otherDup > 0 {
			v.faults.otherDup--
			v.msgs[seq] = message{where: ready, hash: 2, deadline: 2}
			m.yield(step{"submitted with another payload", seq, true}, v, "")
		}
	}
	if w.inflight != (swap{}) {
		v := w
		v.inflight = swap{}
		m.yield(step{"late write is lost", 0, true}, v, "")
		if ok, bad := m.apply(&v, w.inflight, false); ok {
			m.yield(step{"late write lands", 0, true}, v, bad)
		}
	}
}

// request: expiry, delivery and loss of one request.
func (m *model) request(w world, seq uint8) {
	if v := w; w.faults.purge > 0 && (w.msgs[seq].where == ready || w.msgs[seq].where == out) {
		v.faults.purge--
		v.purged, v.faults.tick = true, 2-v.now
		v.msgs[seq].where = gone
		m.yield(step{"purged", seq, true}, v, "")
	}
	switch w.msgs[seq].where {
	case out:
		v := w
		v.msgs[seq].where = ready
		if !w.tracked(seq) {
			m.yield(step{"AckWait ends", seq, false}, v, "")
			return
		}
		if w.faults.lease == 0 {
			return
		}
		v.faults.lease--
		for n := range v.workers {
			s, a := &v.workers[n].ses, &v.workers[n].arr
			s.lost = s.lost || s.stage != none && s.seq == seq
			a.lost = a.lost || a.stage != none && a.seq == seq
		}
		m.yield(step{"lease lost unnoticed", seq, true}, v, "")
	case ready:
		for n := range w.workers {
			wk := &w.workers[n]
			if wk.boot == 0 || wk.arr.stage != none || wk.ses.stage == nakking {
				continue
			}
			m.deliver(w, n, seq)
		}
	}
}

func (m *model) deliver(w world, n int, seq uint8) {
	w.msgs[seq].where = out
	w.workers[n].arr = arrival{stage: writing, seq: seq}
	m.decide(w, n, w.cur, step{"delivered", uint8(n + 1), false})
	if w.faults.lag > 0 && w.prev != w.cur {
		v := w
		v.faults.lag--
		m.decide(v, n, w.prev, step{"delivered, lagging read", uint8(n + 1), true})
	}
	if copied := w.free(); w.faults.move > 0 && copied != 0 {
		m.move(w, n, seq, copied)
	}
}

// move publishes a copy; the old one is acked once the stream acknowledged it, else given back.
func (m *model) move(w world, n int, seq, copied uint8) {
	old := w.msgs[seq]
	w.faults.move--
	v := w
	v.msgs[copied] = message{where: ready, lineage: old.lineage | 1<<seq, hash: old.hash, deadline: old.deadline}
	v.workers[n].arr = arrival{stage: moving, seq: seq}
	m.yield(step{"moved", uint8(n + 1), true}, v, "")
	v.workers[n].arr = arrival{}
	v.msgs[seq].where = ready
	m.yield(step{"moved, answer lost", uint8(n + 1), true}, v, "")
	if m.rules.ackBeforeCopy {
		bad := w.ack(seq)
		m.yield(step{"old copy acked before the move", uint8(n + 1), true}, w, bad)
	}
}

// decide asks the rules about an arrival, with the record that it read.
func (m *model) decide(w world, n int, read reg, st step) {
	wk := &w.workers[n]
	a := &wk.arr
	var held ledger.Record
	d := m.rules.arrive(read.record(), w.message(a.seq), w.self(n, &held), clock[w.now])
	bad := ""
	wrote := a.sw.new
	a.action = uint8(d.Action)
	switch d.Action {
	case ledger.Wait:
		m.giveBack(&w, a.seq, a.lost)
		*a = arrival{}
	case ledger.Republish:
		a.stage, a.sw = publishing, swap{new: regOf(d.Write)}
		if m.rules.ackUnpublished {
			a.stage = acking
		}
	case ledger.Finish:
		a.stage, a.sw = writing, swap{uint16(d.Write.Rev), regOf(encode(d.Write, d.Outcome))}
	case ledger.Adopt:
		a.stage, a.sw = writing, swap{uint16(d.Write.Rev), regOf(d.Write)}
		if !d.Writes {
			bad = first(bad, m.act(&w, n))
		}
	case ledger.Claim, ledger.Takeover:
		a.stage, a.sw = writing, swap{uint16(d.Write.Rev), regOf(d.Write)}
		bad = first(bad, w.checkStart(a, read, wrote))
		if v := w; w.faults.reject > 0 {
			v.faults.reject--
			r := d.Reject()
			b := &v.workers[n].arr
			b.action, b.sw = uint8(r.Action), swap{uint16(r.Write.Rev), regOf(encode(r.Write, r.Outcome))}
			m.yield(step{st.name + ", infeasible", st.who, true}, v, bad)
		}
	default:
		bad = "no decision"
	}
	m.yield(st, w, bad)
}

// checkStart checks a decision to run a turn, made with the record read; wrote is what this arrival wrote
// before, if anything.
func (w *world) checkStart(a *arrival, read, wrote reg) string {
	deadline := w.msgs[a.seq].deadline
	if read.state == uint8(ledger.Running) {
		deadline = read.deadline
	}
	switch {
	case w.now >= deadline:
		return "a turn was started after its deadline"
	case w.msgs[a.seq].hash != a.sw.new.hash:
		return "a turn runs another payload than its record's"
	case wrote.state == uint8(ledger.Running) && wrote == w.cur:
		return "an arrival took the turn over from itself"
	}
	return ""
}

// giveBack naks a request, unless the lease is known to be over.
func (m *model) giveBack(w *world, seq uint8, lost bool) {
	if w.msgs[seq].where == out && (!lost || m.rules.loserNaks) {
		w.msgs[seq].where = ready
	}
}

// act does what an arrival decided, its swap being won.
func (m *model) act(w *world, n int) string {
	wk := &w.workers[n]
	a := wk.arr
	switch ledger.Action(a.action) {
	case ledger.Claim, ledger.Takeover:
		if wk.ses.stage != none {
			return "two sessions of one turn on one worker"
		}
		wk.ses = session{stage: live, seq: a.seq, held: a.sw.new, lost: a.lost}
		wk.arr = arrival{}
	case ledger.Adopt:
		if wk.ses.stage != none && wk.ses.stage < nakking {
			wk.ses.seq, wk.ses.held, wk.ses.lost = a.seq, a.sw.new, a.lost
		}
		wk.arr = arrival{}
	case ledger.Finish:
		wk.arr.stage = publishing
	}
	return ""
}

func (m *model) arrivalSteps(w world, n int) {
	a := w.workers[n].arr
	who := uint8(n + 1)
	switch a.stage {
	case writing:
		v := w
		ok, bad := m.apply(&v, a.sw, !a.lost)
		if ok {
			bad = first(bad, m.act(&v, n))
			m.yield(step{"arrival writes", who, false}, v, bad)
		} else {
			m.settle(w, n, "arrival's write conflicts")
		}
		m.doubt(w, a.sw, step{"arrival's write unanswered", who, true}, func(v *world) {
			v.workers[n].arr.stage = writeDoubt
		})
	case writeDoubt:
		m.settle(w, n, "arrival reads again")
	case publishing:
		bad := w.publish(a.sw.new)
		w.workers[n].arr.stage = acking
		m.yield(step{"arrival publishes", who, false}, w, bad)
	case acking:
		bad := w.checkAck(a.seq)
		w.workers[n].arr = arrival{}
		m.yield(step{"arrival acks", who, false}, w, bad)
	case moving:
		bad := w.ack(a.seq)
		w.workers[n].arr = arrival{}
		m.yield(step{"moved request acked", who, false}, w, bad)
	}
}

// doubt emits the world in which a swap got no clear answer: it is applied later, or never.
func (m *model) doubt(w world, sw swap, st step, mark func(*world)) {
	if w.faults.doubt == 0 || w.inflight != (swap{}) {
		return
	}
	w.faults.doubt--
	w.inflight = sw
	mark(&w)
	m.yield(st, w, "")
}

// settle lets an arrival read again and judge its swap, from the leader and from a lagging replica.
func (m *model) settle(w world, n int, name string) {
	m.reads(w, name, uint8(n+1), func(w world, read reg, st step) {
		a := &w.workers[n].arr
		switch m.rules.settle(read.record(), a.sw.record()) {
		case ledger.Won:
			bad := m.act(&w, n)
			m.yield(st, w, bad)
		case ledger.Again:
			a.stage = writing
			m.yield(st, w, "")
		default:
			m.decide(w, n, read, st)
		}
	})
}

// reads calls do with each answer that a read may give.
func (m *model) reads(w world, name string, who uint8, do func(w world, read reg, st step)) {
	do(w, w.cur, step{name, who, false})
	if w.faults.lag > 0 && w.prev != w.cur {
		w.faults.lag--
		do(w, w.prev, step{name + ", lagging read", who, true})
	}
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
