package ledger_test

import "github.com/meshnet/node/worker/ledger"

// What must hold. Each check returns what was violated, or nothing.

// apply makes a swap, if its revision is still there, and checks the step of the register.
// onTime is false for a write that lands after its writer stopped waiting for it, or whose writer has lost
// the request meanwhile: such a one may hit a session that is well again.
func (w *world) apply(sw swap, onTime bool) (ok bool, bad string) {
	if w.cur.rev() != sw.exp {
		return false, ""
	}
	old := w.cur
	w.prev, w.cur = w.cur, sw.new
	switch {
	case old.state == uint8(ledger.Done):
		return true, "a done record was replaced"
	case sw.new.rev() <= old.rev():
		return true, "the register went backwards"
	case old.hash != 0 && old.hash != sw.new.hash:
		return true, "the payload of a claimed turn was replaced"
	case sw.new.state == uint8(ledger.Done):
		return true, w.checkDone(old)
	case old.state == uint8(ledger.Running) && old.attempt != sw.new.attempt:
		return true, w.checkTakeover(old, onTime)
	}
	return true, ""
}

func (w *world) checkDone(old reg) string {
	done := w.cur
	switch {
	case old.cancel && done.reason != cancelled:
		return "a cancel that won was overruled"
	case done.claimed != (old.state == uint8(ledger.Running)):
		return "there must be a work record exactly where the turn was claimed"
	case done.claimed && (done.node != old.node || done.attempt != old.attempt):
		return "the outcome names another owner than the one it ends"
	case done.reason == workerLost && (old.handed || old.waiting || w.newToken || w.fruitless+1 < ledger.MaxStuck):
		return "ended as poison, though it made tokens, was handed over or never ran"
	case done.reason == workerLost && w.losses+1 < ledger.MaxStuck:
		return "ended as poison before three workers were lost"
	}
	return ""
}

func (w *world) checkTakeover(old reg, onTime bool) string {
	switch {
	case w.newToken:
		w.fruitless = 0
	case !old.handed && !old.waiting:
		w.fruitless++
	}
	if !old.handed && !old.waiting {
		w.losses++
	}
	w.newToken = false
	switch {
	case old.cancel:
		return "a cancelled turn was taken over"
	case w.fruitless >= ledger.MaxStuck:
		return "taken over three times without a new token, and still running"
	case w.cur.attempt != old.attempt+1:
		return "a takeover is attempt + 1"
	case onTime && w.well(old) && w.msgs[w.cur.req].lineage>>old.req&1 == 0:
		return "a session that was well lost its turn"
	}
	return ""
}

// well reports whether the owner in a record lives and has not lost its request. One that is just
// changing to another copy of it may have lost that one.
func (w *world) well(old reg) bool {
	wk := &w.workers[old.node-1]
	s := &wk.ses
	if wk.arr.stage != none && ledger.Action(wk.arr.action) == ledger.Adopt {
		return false
	}
	return s.stage >= live && s.stage <= seatDoubt && !s.lost && wk.boot == old.boot &&
		s.held.attempt == old.attempt
}

// publish checks that a final and a work record which go out are the register's.
func (w *world) publish(done reg) string {
	if w.cur.state != uint8(ledger.Done) || w.cur != done {
		return "a final was published that is not the record's"
	}
	w.finalOut = true
	w.workOut = w.workOut || done.claimed
	return ""
}

// ack removes a request, whoever has it, and checks that it is not needed any more.
func (w *world) ack(seq uint8) string {
	w.msgs[seq].where = gone
	if w.cur.state == uint8(ledger.Done) || w.purged {
		return ""
	}
	for _, m := range w.msgs {
		if (m.where == ready || m.where == out) && m.lineage>>seq&1 == 1 {
			return ""
		}
	}
	return "the last copy of a request was acked before its turn was done"
}

// checkAck is for an ack after an outcome.
func (w *world) checkAck(seq uint8) string {
	switch bad := w.ack(seq); {
	case bad != "":
		return bad
	case w.cur.state == uint8(ledger.Done) && !w.finalOut:
		return "a request was acked before any final was published"
	case w.cur.claimed && !w.workOut:
		return "a request was acked before the work record was published"
	}
	return ""
}

// checkReply checks what the client of a cancel was told, now and for ever.
func (w *world) checkReply() string {
	reply := w.can.reply
	switch {
	case reply == 0:
	case w.cur.state == uint8(ledger.Absent):
		return "a cancel was answered that no record holds"
	case w.cur.state == uint8(ledger.Running) && !w.cur.cancel:
		return "a cancel was answered that does not bind the owner"
	case w.cur.state == uint8(ledger.Done) && reasons[w.cur.reason].reason != reasons[reply].reason:
		return "the answer to a cancel differs from the outcome"
	}
	return ""
}

// checkDrop checks that a session which is given up is not the turn's owner, nor its winner.
func (w *world) checkDrop(s session) string {
	switch {
	case w.owns(s):
		return "a session gave up a turn that is its own"
	case s.stage >= ending && w.cur == s.sw.new && w.cur.reason == completed:
		// Any worker may write the same failure; but a completion is nobody else's.
		return "a session stopped silently though its outcome won"
	}
	return ""
}
