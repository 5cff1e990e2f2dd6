package worker_test

import (
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
)

// A turn that may be what kills workers waits to be alone. Who dies with it meanwhile was not killed by it.
func TestTurnThatOnlyWaitedToBeAloneIsNotPoison(t *testing.T) {
	m := newMesh(t)
	unlucky, long := request("unlucky", 1, 20), request("long", 1, 20)
	u, l := m.read(unlucky.ID()), m.read(long.ID())
	third, busy := m.untilItWaits(unlucky, long)
	third.Abort()
	busy.Open()

	last, gate := m.startGatedAt(goengine.OpPrefill, "n4")
	m.arrived(gate)
	gate.Open()
	l.whole(long)
	if final := u.whole(unlucky); final.Attempt != 4 || final.Node != last.id {
		t.Errorf("final is %+v", final)
	}
	m.empty()
	m.onlyWork(unlucky.ID())
}

// A cancel reaches a turn that waits to be alone, and it never runs again.
func TestTurnThatWaitsToBeAloneIsCancelled(t *testing.T) {
	m := newMesh(t)
	unlucky, long := request("unlucky", 1, 20), request("long", 1, 20)
	u, l := m.read(unlucky.ID()), m.read(long.ID())
	_, busy := m.untilItWaits(unlucky, long)
	if reply := m.ask(schemas.OpCancel, unlucky.ID()); reply.Outcome != schemas.CancelMarked {
		t.Fatalf("the cancel was answered %+v", reply)
	}
	final := u.final()
	if starts := u.starts(); len(starts) != 0 {
		t.Errorf("it ran: %s", u.story())
	}
	busy.Open()
	l.whole(long)
	m.wantOutcome(u, final, schemas.Cancelled, "", 1)
}

func (m *mesh) arrived(gate *goengine.Gate) {
	m.t.Helper()
	select {
	case <-gate.Arrived():
	case <-m.ctx.Done():
		m.t.Fatal("the engine was not called")
	}
}

// untilItWaits loses two workers with a turn, and makes the third worker hold it while that is busy with another one. It
// returns that worker and the gate before its decode steps.
func (m *mesh) untilItWaits(unlucky, other *schemas.Request) (third *node, busy *goengine.Gate) {
	m.t.Helper()
	first, gate := m.startGatedAt(goengine.OpPrefill, "n1")
	m.submit(unlucky, schemas.AnyLane)
	m.arrived(gate)
	first.Abort()
	gate.Open()
	second, gate := m.startGatedAt(goengine.OpPrefill, "n2", slots(1)) // so that it takes nothing else
	m.arrived(gate)
	third, busy = m.startGated("n3")
	m.submit(other, schemas.AnyLane)
	m.arrived(busy)
	second.Abort()
	gate.Open()
	m.poll("the third attempt waits for the other turn", func() bool {
		rec := m.ledger(unlucky.ID())
		return rec.Running != nil && rec.Running.Attempt == 3 && rec.Running.Waiting
	})
	return third, busy
}
