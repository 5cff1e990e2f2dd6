package worker_test

import (
	"testing"
	"time"

	"github.com/meshnet/node/schemas"
)

// garble overwrites a turn's record, as the server does when it is told to answer there.
func (m *mesh) garble(id schemas.TurnID) {
	m.t.Helper()
	_, err := m.bucket().PutString(m.ctx, id.Key(), `{"type":"io.nats.jetstream.api.v1.stream_info_response"}`)
	m.check(err)
}

// again submits a request that was submitted before.
func (m *mesh) again(req *schemas.Request) {
	m.t.Helper()
	repeat := *req
	repeat.Nonce = schemas.Must(schemas.ParseNonce("n2"))
	m.submit(&repeat, schemas.AnyLane)
}

func TestTurnWhoseRecordIsOverwrittenBeforeItIsClaimedRunsOnce(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	req := request("s1", 1, 5)
	m.garble(req.ID())
	if reply := m.ask(schemas.OpStatus, req.ID()); reply.State != schemas.StateAbsent {
		t.Errorf("status is %+v", reply)
	}
	r := m.follow(req, schemas.AnyLane)
	r.whole(req)
	m.empty()
	if rec := m.ledger(req.ID()); rec == nil || rec.Done == nil || rec.Done.Reason != schemas.Completed {
		t.Errorf("the ledger holds %+v", rec)
	}
	m.onlyWork(req.ID())
	if refused := m.counter(n, `meshnet_guard_rejects_total{reason="trailing-bytes"}`); refused == 0 {
		t.Error("it was not counted")
	}
}

func TestTurnThatHasEndedNeverRunsAgainWhateverBecomesOfItsRecord(t *testing.T) {
	for name, lost := range map[string]func(*mesh, *schemas.Request){
		"record": func(*mesh, *schemas.Request) {},
		"record and final": func(m *mesh, req *schemas.Request) {
			stream, err := m.js.Stream(m.ctx, prefix.EventStream())
			m.check(err)
			m.check(stream.Purge(m.ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			m.start("n1")
			req := request("s1", 1, 5)
			r := m.follow(req, schemas.AnyLane)
			want := r.whole(req)
			m.empty()
			m.garble(req.ID())
			lost(m, req)
			m.again(req)
			got := r.final()
			if got.Attempt != want.Attempt || got.Reason != want.Reason || got.Finish != want.Finish || got.Count != want.Count || got.Usage != want.Usage {
				t.Errorf("final is %+v, then %+v", want, got)
			}
			m.empty()
			m.onlyWork(req.ID())
			if len(r.starts()) != 1 {
				t.Errorf("it ran again: %s", r.story())
			}
			reply := m.ask(schemas.OpCancel, req.ID())
			if reply.Outcome != schemas.CancelTooLate || reply.Reason != schemas.Completed {
				t.Errorf("cancel is %+v", reply)
			}
		})
	}
}

func TestRunningTurnWhoseRecordIsOverwrittenGoesOnAsItsNextAttempt(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1")
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	m.garble(req.ID())
	m.poll("its owner finds out", func() bool { return m.counter(n, "meshnet_leases_lost_total") == 1 })
	gate.Open()
	final := r.whole(req)
	if starts := r.starts(); final.Attempt != 2 || len(starts) != 2 || starts[1].Attempt != 2 || starts[1].ResumeIndex < 6 {
		t.Errorf("final is %+v; %s", final, r.story())
	}
	m.empty()
	m.onlyWork(req.ID())
}

func TestOverwrittenRecordOfATurnThatNobodyHasIsCancelled(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 5)
	m.garble(req.ID())
	r := m.read(req.ID())
	if reply := m.ask(schemas.OpCancel, req.ID()); reply.Outcome != schemas.CancelEnded {
		t.Errorf("cancel is %+v", reply)
	}
	m.submit(req, schemas.AnyLane)
	m.wantOutcome(r, r.final(), schemas.Cancelled, "", 0)
	if len(r.starts()) != 0 {
		t.Errorf("it ran: %s", r.story())
	}
}

func TestOverwrittenRecordEndsAtTheRequestsDeadline(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1", slots(1))
	m.submit(request("busy", 1, 5), schemas.AnyLane)
	<-gate.Arrived()
	req := request("s1", 1, 5)
	req.DeadlineMS = 1
	m.garble(req.ID())
	r := m.follow(req, schemas.AnyLane)
	passed := time.Now().Add(10 * time.Millisecond)
	m.poll("the deadline passes", func() bool { return time.Now().After(passed) })
	gate.Open()
	m.wantOutcome(r, r.final(), schemas.Failed, schemas.CauseDeadline, 0)
}
