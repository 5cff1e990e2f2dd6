package worker_test

import (
	"testing"

	"github.com/meshnet/node/schemas"
)

func TestRequestBecomesStartedTokensFinalWorkRecordAndAck(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	req := request("s1", 1, 12)
	r := m.follow(req, schemas.AnyLane)
	final := r.whole(req)
	started, ok := r.events[0].(*schemas.Started)
	if !ok || started.Attempt != 1 || started.Node != n.id || started.ResumeIndex != 0 || started.PromptTokens != len(*req.Prompt) || !started.Exact {
		t.Errorf("first event is %+v", r.events[0])
	}
	if final.Attempt != 1 || final.Node != n.id || final.Count != 12 || final.Finish != schemas.FinishLength || final.Usage.NewTokens != 12 {
		t.Errorf("final is %+v", final)
	}
	m.empty()
	work := m.onlyWork(req.ID())
	if work.Node != n.id || work.Attempt != 1 || !work.Billable || work.Usage != final.Usage || work.FinishedMS < work.StartedMS {
		t.Errorf("work record is %+v", work)
	}
	if rec := m.ledger(req.ID()); rec == nil || rec.Done == nil || rec.Done.Reason != schemas.Completed {
		t.Errorf("ledger holds %+v", rec)
	}
}
