package ledger_test

import "github.com/meshnet/node/worker/ledger"

// sessionSteps emits what the live session of a worker may do next.
func (m *model) sessionSteps(w world, n int) {
	s := w.workers[n].ses
	who := uint8(n + 1)
	switch s.stage {
	case live:
		m.liveSteps(w, n)
	case ending, handing, seating:
		v := w
		ok, bad := m.apply(&v, s.sw, true)
		if ok {
			v.workers[n].ses.won()
			m.yield(step{"session writes", who, false}, v, bad)
		} else {
			m.afterConflict(w, n, "session's write conflicts")
		}
		m.doubt(w, s.sw, step{"session's write unanswered", who, true}, func(v *world) {
			v.workers[n].ses.stage = s.stage + 1
		})
	case endDoubt, handDoubt, seatDoubt:
		m.afterConflict(w, n, "session reads again")
	case nakking:
		m.giveBack(&w, s.seq, s.lost)
		w.workers[n].ses = session{}
		m.yield(step{"session naks", who, false}, w, "")
	case publishing:
		if v := w; m.rules.ackFirst {
			bad := v.checkAck(s.seq)
			m.yield(step{"session acks first", who, false}, v, bad)
		}
		bad := w.publish(s.sw.new)
		w.workers[n].ses.stage = acking
		m.yield(step{"session publishes", who, false}, w, bad)
	case acking:
		bad := w.checkAck(s.seq)
		w.workers[n].ses = session{}
		m.yield(step{"session acks", who, false}, w, bad)
	}
	if s.stage != none && s.stage < nakking && s.lost {
		v := w
		v.workers[n].ses = session{}
		if m.rules.loserNaks {
			m.giveBack(&v, s.seq, true)
		}
		m.yield(step{"session notices its lost lease", who, false}, v, "")
	}
}

// won moves a session on whose swap was applied.
func (s *session) won() {
	s.held = s.sw.new
	switch {
	case s.sw.new.state == uint8(ledger.Done):
		s.stage = publishing
	case s.stage == seating || s.stage == seatDoubt:
		s.stage = live
	default:
		s.stage = nakking
	}
}

func (m *model) liveSteps(w world, n int) {
	s := w.workers[n].ses
	who := uint8(n + 1)
	if w.owns(s) && !s.held.waiting && w.last+1 < int8(w.faults.tokens) && w.quiet() {
		v := w
		v.last++
		v.newToken = true
		m.yield(step{"token", who, true}, v, "")
	}
	v := w
	if s.held.waiting {
		v.workers[n].ses.seat(m)
		m.yield(step{"is alone", who, false}, v, "")
	} else {
		v.workers[n].ses.end(m, completed)
		m.yield(step{"completes", who, false}, v, "")
	}
	if m.rules.publishFirst {
		bad := v.publish(v.workers[n].ses.sw.new)
		m.yield(step{"publishes before the swap", who, false}, v, bad)
	}
	if w.faults.drain > 0 {
		v := w
		v.faults.drain--
		v.workers[n].ses.hand(m)
		m.yield(step{"drains", who, true}, v, "")
	}
	m.reads(w, "beat", who, func(w world, read reg, st step) {
		s := &w.workers[n].ses
		bad := ""
		switch m.rules.beat(read.record(), s.held.record(), clock[w.now]) {
		case ledger.Continue:
			s.held = read
		case ledger.CancelTurn:
			s.held = read
			s.end(m, cancelled)
		case ledger.Expire:
			s.held = read
			s.end(m, overdue)
		case ledger.Abandon:
			bad = m.drop(&w, n)
		case ledger.Reread:
		default:
			bad = "no verdict"
		}
		m.yield(st, w, bad)
	})
}

// quiet reports whether no takeover is being written: a token of that moment is one it could not find.
func (w *world) quiet() bool {
	for i := range w.workers {
		if w.workers[i].arr.stage != none {
			return false
		}
	}
	return w.inflight == swap{}
}

// end gives a session the outcome to write.
func (s *session) end(m *model, want uint8) {
	d := m.rules.end(s.held.record(), ledger.Outcome{Reason: reasons[want].reason, Cause: reasons[want].cause})
	s.stage, s.want = ending, want
	s.sw = swap{uint16(d.Write.Rev), regOf(encode(d.Write, d.Outcome))}
}

// hand gives a session the hand-over to write.
func (s *session) hand(m *model) {
	s.stage, s.want = handing, cancelled
	s.sw = swap{s.held.rev(), regOf(m.rules.handOver(s.held.record()))}
}

// seat gives a session that waited the beginning to write.
func (s *session) seat(m *model) {
	s.stage, s.want = seating, cancelled
	s.sw = swap{s.held.rev(), regOf(m.rules.begin(s.held.record()))}
}

// drop ends a session silently.
func (m *model) drop(w *world, n int) string {
	s := w.workers[n].ses
	bad := w.checkDrop(s)
	w.workers[n].ses = session{}
	if m.rules.losersAck {
		bad = first(bad, w.ack(s.seq))
	}
	if m.rules.loserNaks {
		m.giveBack(w, s.seq, true)
	}
	return bad
}

// afterConflict lets a session read again and judge its swap.
func (m *model) afterConflict(w world, n int, name string) {
	m.reads(w, name, uint8(n+1), func(w world, read reg, st step) {
		s := &w.workers[n].ses
		bad := ""
		switch m.rules.conflict(read.record(), s.sw.record(), s.held.record()) {
		case ledger.Won:
			s.won()
		case ledger.Again:
			runs, seats := s.sw.new.state == uint8(ledger.Running), s.stage == seating || s.stage == seatDoubt
			s.held = read
			switch {
			case runs && seats && !read.cancel && !read.waiting:
				s.stage = live // the write was applied, and the record changed since
			case runs && seats && !read.cancel:
				s.seat(m)
			case runs && !read.cancel:
				s.hand(m)
			default:
				s.end(m, s.want)
			}
		case ledger.ReadAgain:
			if s.stage == ending || s.stage == handing || s.stage == seating {
				s.stage++
			}
		case ledger.Lost:
			bad = m.drop(&w, n)
		default:
			bad = "no ending"
		}
		m.yield(st, w, bad)
	})
}

// cancelSteps: a client asks any worker to cancel; when that one dies it asks again.
func (m *model) cancelSteps(w world) {
	c := w.can
	switch c.stage {
	case none:
		if w.faults.cancel == 0 {
			return
		}
		w.faults.cancel--
		m.reads(w, "cancel", 0, m.askCancel)
		return
	case writing:
		v := w
		ok, bad := m.apply(&v, c.sw, true)
		if ok {
			bad = first(bad, v.cancelWon())
			m.yield(step{"cancel writes", 0, false}, v, bad)
		} else {
			m.settleCancel(w, "cancel's write conflicts")
		}
		m.doubt(w, c.sw, step{"cancel's write unanswered", 0, true}, func(v *world) { v.can.stage = writeDoubt })
	case writeDoubt:
		m.settleCancel(w, "cancel reads again")
	}
	if c.stage != publishing && w.faults.crash > 0 {
		w.faults.crash--
		w.faults.cancel++
		w.can = canceller{}
		m.yield(step{"canceller crashes", 0, true}, w, "")
	}
}

// askCancel decides about a cancel with the record that was read. Stage publishing is: answered.
func (m *model) askCancel(w world, read reg, st step) {
	c := m.rules.cancel(read.record())
	rec := c.Write
	if c.Step == ledger.CancelUnclaimed {
		rec = encode(c.Write, c.Outcome)
	}
	w.can.step = uint8(c.Step)
	switch {
	case c.Writes():
		w.can.stage, w.can.sw = writing, swap{uint16(rec.Rev), regOf(rec)}
		if m.rules.replyBeforeSwap {
			w.can.reply = cancelled
		}
	case c.Step == ledger.CancelMarked:
		w.can.stage, w.can.reply = publishing, cancelled
	default:
		w.can.stage, w.can.reply = publishing, regOf(rec).reason
	}
	m.yield(st, w, "")
}

// cancelWon answers a cancel whose swap won, and publishes the final of a turn that nobody had claimed.
func (w *world) cancelWon() string {
	w.can.stage, w.can.reply = publishing, cancelled
	if w.can.step == uint8(ledger.CancelUnclaimed) {
		return w.publish(w.can.sw.new)
	}
	return ""
}

func (m *model) settleCancel(w world, name string) {
	m.reads(w, name, 0, func(w world, read reg, st step) {
		switch m.rules.settle(read.record(), w.can.sw.record()) {
		case ledger.Won:
			bad := w.cancelWon()
			m.yield(st, w, bad)
		case ledger.Again:
			w.can.stage = writing
			m.yield(st, w, "")
		default:
			m.askCancel(w, read, st)
		}
	})
}
