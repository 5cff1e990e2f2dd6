package ledger_test

import (
	"time"

	"github.com/meshnet/node/worker/ledger"
)

// The model's world: one turn, its register, the request stream, two or three workers that die and
// lose leases, a client that submits twice and cancels. Everything is a small comparable value, so
// that a whole world is a map key.

const (
	maxWorkers  = 3
	maxMessages = 4
)

// Reason codes of the model's outcomes.
const (
	completed uint8 = iota + 1
	cancelled
	overdue
	workerLost
	rejected
)

var reasons = [...]struct{ reason, cause string }{
	{}, {"completed", ""}, {ledger.ReasonCancelled, ""}, {ledger.ReasonFailed, ledger.CauseDeadline},
	{ledger.ReasonFailed, ledger.CauseWorkerLost}, {ledger.ReasonRejected, ""},
}

// reg is a record in the model: the same content, smaller.
type reg struct {
	state, node, boot, attempt, req uint8
	hash, deadline, stuck           uint8
	last                            int8
	cancel, handed, waiting         bool
	claimed                         bool
	reason                          uint8
}

// rev orders contents as the store's revisions would: a turn's register never returns to an older content.
func (r reg) rev() uint16 {
	rev := uint16(r.state)<<12 | uint16(r.attempt)<<7 | uint16(r.req)<<4
	if !r.waiting {
		rev |= 4
	}
	if r.handed {
		rev |= 2
	}
	if r.cancel {
		rev |= 1
	}
	if r.state == uint8(ledger.Done) {
		return uint16(ledger.Done) << 12
	}
	return rev
}

// swap is a write that replaces the content of revision exp.
type swap struct {
	exp uint16
	new reg
}

// record returns what the rules are given for the swap's write.
func (s swap) record() ledger.Record {
	rec := s.new.record()
	rec.Rev = uint64(s.exp)
	return rec
}

var (
	nodes  = [maxWorkers + 1]string{"", "a", "b", "c"}
	boots  = [8]string{"", "boot1", "boot2", "boot3", "boot4", "boot5", "boot6", "boot7"}
	epoch  = time.UnixMilli(1_700_000_000_000)
	clock  = [4]time.Time{epoch, epoch.Add(time.Minute), epoch.Add(2 * time.Minute), epoch.Add(time.Hour)}
	finals [6][maxWorkers + 1][16][2][]byte // by reason, node, attempt, claimed
	works  [6][maxWorkers + 1][16][]byte
	lines  [1 << (maxMessages + 1)][]uint64 // sequences in a lineage mask
)

func init() {
	for r := range finals {
		for n := range finals[r] {
			for a := range finals[r][n] {
				for c := range 2 {
					finals[r][n][a][c] = []byte{'f', byte(r), byte(n), byte(a), byte(c)}
				}
				works[r][n][a] = []byte{'w', byte(r), byte(n), byte(a)}
			}
		}
	}
	for mask := range lines {
		for seq := range maxMessages + 1 {
			if mask>>seq&1 == 1 {
				lines[mask] = append(lines[mask], uint64(seq))
			}
		}
	}
}

func (r reg) record() ledger.Record {
	rec := ledger.Record{State: ledger.State(r.state), Rev: uint64(r.rev()), Attempt: int(r.attempt)}
	rec.PayloadHash[0] = r.hash
	switch rec.State {
	case ledger.Running:
		rec.Node, rec.Boot, rec.ReqSeq = nodes[r.node], boots[r.boot], uint64(r.req)
		rec.Cancel, rec.HandedOver, rec.Waiting, rec.Deadline = r.cancel, r.handed, r.waiting, clock[r.deadline]
		rec.Stuck, rec.LastIndex = int(r.stuck), int(r.last)
	case ledger.Done:
		rec.Reason = reasons[r.reason].reason
		rec.Final, rec.Work = bytesOf(r.reason, r.node, r.attempt, r.claimed)
	}
	return rec
}

func bytesOf(reason, node, attempt uint8, claimed bool) (final, work []byte) {
	if claimed {
		return finals[reason][node][attempt][1], works[reason][node][attempt]
	}
	return finals[reason][node][attempt][0], nil
}

// encode gives a decision's record the bytes of its outcome, as a worker does.
func encode(rec ledger.Record, o ledger.Outcome) ledger.Record {
	code := uint8(0)
	for i, r := range reasons {
		if r.reason == o.Reason && r.cause == o.Cause {
			code = uint8(i)
		}
	}
	return rec.WithOutcome(bytesOf(code, indexOf(nodes[:], o.Node), uint8(o.Attempt), o.Claimed))
}

func indexOf(names []string, name string) uint8 {
	for i, n := range names {
		if n == name {
			return uint8(i)
		}
	}
	panic("no such name: " + name)
}

// regOf is the inverse of record.
func regOf(rec ledger.Record) reg {
	r := reg{state: uint8(rec.State), attempt: uint8(rec.Attempt), hash: rec.PayloadHash[0]}
	switch rec.State {
	case ledger.Running:
		r.node, r.boot, r.req = indexOf(nodes[:], rec.Node), indexOf(boots[:], rec.Boot), uint8(rec.ReqSeq)
		r.cancel, r.handed, r.waiting = rec.Cancel, rec.HandedOver, rec.Waiting
		r.stuck, r.last = uint8(rec.Stuck), int8(rec.LastIndex)
		for i, at := range clock {
			if at.Equal(rec.Deadline) {
				r.deadline = uint8(i)
			}
		}
	case ledger.Done:
		r.reason, r.node, r.claimed = rec.Final[1], rec.Final[2], rec.Final[4] == 1
	}
	return r
}

// Where a request is.
const (
	nowhere uint8 = iota
	ready         // in the stream, waiting for a worker
	out           // delivered, its AckWait running
	gone          // acked
)

type message struct {
	where, lineage, hash, deadline uint8
}

// Stages of a session and of an arrival.
const (
	none uint8 = iota
	live
	ending     // has an outcome to swap in
	endDoubt   // the outcome's swap got no clear answer
	handing    // drains: has the hand-over to swap in
	handDoubt  // the hand-over's swap got no clear answer
	seating    // may begin: has that to swap in
	seatDoubt  // its swap got no clear answer
	nakking    // handed over; the request is to be given back
	writing    // an arrival has a swap to make
	writeDoubt // the arrival's swap got no clear answer
	publishing
	acking
	moving // a copy was published; the old one is to be acked
)

type session struct {
	stage, seq, want uint8
	lost             bool // its request was delivered to another, which it does not know yet
	held             reg
	sw               swap
}

type arrival struct {
	stage, seq, action uint8
	lost               bool
	sw                 swap
}

type worker struct {
	boot uint8
	ses  session
	arr  arrival
}

type canceller struct {
	stage, step, reply uint8 // reply: the reason code that the client was told
	sw                 swap
}

// world is a whole state. What is below ghost is known to the checks only.
type world struct {
	cur, prev reg // the register, and what a lagging replica may still answer
	msgs      [maxMessages + 1]message
	workers   [maxWorkers]worker
	inflight  swap // a write whose answer is lost: applied late, or never
	can       canceller
	now       uint8
	last      int8 // last token index in the token stream
	faults    faults

	// ghost
	purged            bool // the stream lost a request by age or by an operator's hand
	finalOut, workOut bool
	newToken          bool  // since the current attempt began
	fruitless         uint8 // takeovers in a row without a new token, of attempts that ran and were not handed over
	losses            uint8 // takeovers that neither a hand-over nor waiting explains
}

// faults says how often each thing outside of the workers' control may still happen.
type faults struct {
	crash, lease, doubt, lag, move, dup, otherDup, cancel, tick, drain, reject, tokens, purge uint8
}

func newWorld(workers int, f faults) world {
	w := world{last: -1, faults: f}
	w.msgs[1] = message{where: ready, hash: 1, deadline: 1}
	for i := range workers {
		w.workers[i].boot = 1
	}
	return w
}

// message returns what a worker knows of a request.
func (w *world) message(seq uint8) ledger.Message {
	m := w.msgs[seq]
	msg := ledger.Message{
		Seq: uint64(seq), Lineage: lines[m.lineage], Deadline: clock[m.deadline],
		Deliveries: 1, LastIndex: int(w.last),
	}
	msg.PayloadHash[0] = m.hash
	return msg
}

// self returns what a worker knows of itself.
func (w *world) self(n int, held *ledger.Record) ledger.Self {
	s := w.workers[n].ses
	self := ledger.Self{Node: nodes[n+1], Boot: boots[w.workers[n].boot]}
	if s.stage != none {
		*held = s.held.record()
		self.Held = held
	}
	return self
}

// free returns a sequence for a new request, 0 for none.
func (w *world) free() uint8 {
	for seq := uint8(1); seq <= maxMessages; seq++ {
		if w.msgs[seq].where == nowhere {
			return seq
		}
	}
	return 0
}

// tracked reports whether any worker works with a request.
func (w *world) tracked(seq uint8) bool {
	for i := range w.workers {
		s, a := &w.workers[i].ses, &w.workers[i].arr
		if s.stage != none && s.seq == seq || a.stage != none && a.seq == seq {
			return true
		}
	}
	return false
}

// settled reports whether all is over: no request left, an outcome, and nobody at work. Of a turn whose
// last request was purged no outcome can be asked.
func (w *world) settled() bool {
	for _, m := range w.msgs {
		if m.where == ready || m.where == out {
			return false
		}
	}
	for i := range w.workers {
		if w.workers[i].ses.stage != none || w.workers[i].arr.stage != none {
			return false
		}
	}
	return w.cur.state == uint8(ledger.Done) || w.purged
}

// owns reports whether the register says that a session is the turn's owner.
func (w *world) owns(s session) bool {
	return w.cur.state == uint8(ledger.Running) && s.held.state == uint8(ledger.Running) &&
		w.cur.node == s.held.node && w.cur.boot == s.held.boot && w.cur.attempt == s.held.attempt
}
