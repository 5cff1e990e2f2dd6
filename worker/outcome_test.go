package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// step lets n held engine calls through.
func (m *mesh) step(gate *goengine.Gate, n int) {
	m.t.Helper()
	for range n {
		select {
		case <-gate.Arrived():
			gate.Pass()
		case <-m.ctx.Done():
			m.t.Fatal("the engine was not called")
		}
	}
}

func (m *mesh) wantOutcome(r *reader, final *schemas.Final, reason schemas.EndReason, cause schemas.Cause, works int) {
	m.t.Helper()
	if final.Reason != reason || final.Cause != cause {
		m.t.Fatalf("%s ended %s %s (%v), not %s %s", r.id, final.Reason, final.Cause, final.Error, reason, cause)
	}
	m.empty()
	rec := m.ledger(r.id)
	if rec == nil || rec.Done == nil || rec.Done.Reason != reason {
		m.t.Errorf("%s: the ledger holds %+v, not %s", r.id, rec, reason)
	}
	if got := m.works(r.id); len(got) != works {
		m.t.Errorf("%s has %d work records, not %d", r.id, len(got), works)
	} else if works > 0 && (got[0].Reason != reason || got[0].Billable) {
		m.t.Errorf("%s: work record says %s, billable %t", r.id, got[0].Reason, got[0].Billable)
	}
}

func TestCancelOfARunningTurnIsMarkedAndItsOwnerEndsIt(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1")
	req := request("s1", 1, 50)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 3)
	r.untilTokens(4)
	if reply := m.ask(schemas.OpCancel, req.ID()); reply.Outcome != schemas.CancelMarked || !reply.Cancel || reply.State != schemas.StateRunning || reply.Node != n.id {
		t.Errorf("reply is %+v", reply)
	}
	gate.Open()
	final := r.final()
	m.wantOutcome(r, final, schemas.Cancelled, "", 1)
	if final.Count != r.fold.Len() {
		t.Errorf("final counts %d tokens, the reader has %d", final.Count, r.fold.Len())
	}
	reply := m.ask(schemas.OpCancel, req.ID())
	if reply.Outcome != schemas.CancelTooLate || reply.Reason != schemas.Cancelled || len(reply.Final) == 0 {
		t.Errorf("a second cancel is answered %+v", reply)
	}
}

// inPairs spells two tokens as one character. It is for one turn, whose tokens come in order.
func inPairs(c *worker.Config, _ *goengine.Config) {
	var tokens atomic.Int32
	c.Text.Piece = func(dst []byte, _ int32) ([]byte, error) {
		const pair = "é"
		return append(dst, pair[(tokens.Add(1)-1)%2]), nil
	}
}

func TestCompletedTurnEndsAnUnfinishedCharacterVisibly(t *testing.T) {
	m := newMesh(t)
	m.start("n1", inPairs)
	req := request("s1", 1, 5)
	r := m.follow(req, schemas.AnyLane)
	if final := r.final(); final.Count != 5 || r.fold.Len() != 5 || r.fold.Text() != "éé\ufffd" {
		t.Errorf("final counts %d; the reader has %d tokens and %q", final.Count, r.fold.Len(), r.fold.Text())
	}
}

func TestCancelledTurnLeavesAnUnfinishedCharacterOutAndCountsItsTokens(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1", inPairs)
	req := request("s1", 1, 50)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 4) // with that of the prefill, five tokens
	<-gate.Arrived()
	r.untilTokens(5)
	m.ask(schemas.OpCancel, req.ID())
	gate.Open()
	if final := r.final(); final.Reason != schemas.Cancelled || final.Count != r.fold.Len() ||
		r.fold.Text() != strings.Repeat("é", final.Count/2) {
		t.Errorf("%s, count %d; the reader has %d tokens and %q", final.Reason, final.Count, r.fold.Len(), r.fold.Text())
	}
}

func TestCancelOfATurnThatNobodyClaimedEndsItForEver(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 5)
	r := m.read(req.ID())
	if reply := m.ask(schemas.OpCancel, req.ID()); reply.Outcome != schemas.CancelEnded || reply.State != schemas.StateDone || reply.Reason != schemas.Cancelled {
		t.Errorf("reply is %+v", reply)
	}
	first := r.final()
	m.submit(req, schemas.AnyLane)
	m.wantOutcome(r, r.final(), schemas.Cancelled, "", 0)
	if first.Attempt != 0 || len(r.events) != 2 {
		t.Errorf("events are %s", r.story())
	}
}

func TestStatusTellsWhereATurnStands(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 5)
	if reply := m.ask(schemas.OpStatus, req.ID()); reply.State != schemas.StateAbsent {
		t.Errorf("before: %+v", reply)
	}
	r := m.follow(req, schemas.AnyLane)
	final := r.final()
	reply := m.ask(schemas.OpStatus, req.ID())
	told, err := schemas.Decode[schemas.Final](reply.Final)
	m.check(err)
	if reply.State != schemas.StateDone || reply.Reason != schemas.Completed || *told != *final {
		t.Errorf("after: %+v with %+v", reply, told)
	}
}

func TestDeadlineThatPassesInTheLaneEndsTheTurnUnclaimed(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1", slots(1))
	first := request("s1", 1, 5)
	m.submit(first, schemas.AnyLane)
	<-gate.Arrived() // the only slot is taken, and held
	late := request("s2", 1, 5)
	late.DeadlineMS = 50
	r := m.follow(late, schemas.AnyLane)
	passed := time.Now().Add(100 * time.Millisecond)
	m.poll("the deadline passes", func() bool { return time.Now().After(passed) })
	gate.Open()
	m.wantOutcome(r, r.final(), schemas.Failed, schemas.CauseDeadline, 0)
}

func TestDeadlineThatPassesWhileTheTurnRunsEndsIt(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1")
	req := request("s1", 1, 400)
	req.DeadlineMS = 2000 // a busy machine takes that long at times to get it to the engine
	r := m.read(req.ID())
	submitted := time.Now()
	m.submit(req, schemas.AnyLane)
	m.step(gate, 1)
	<-gate.Arrived()
	passed := submitted.Add(req.Deadline() + 100*time.Millisecond)
	m.poll("the deadline passes", func() bool { return time.Now().After(passed) })
	gate.Open()
	m.wantOutcome(r, r.final(), schemas.Failed, schemas.CauseDeadline, 1)
}

func TestTurnEndsWhenItsClientsHeartbeatsStop(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1")
	req := request("s1", 1, 400)
	req.HeartbeatMS = 150
	r := m.follow(req, schemas.AnyLane)
	<-gate.Arrived()
	beat, err := schemas.Encode(&schemas.Control{Kind: schemas.ControlHeartbeat})
	m.check(err)
	began := time.Now()
	m.poll("heartbeats keep it alive", func() bool {
		m.check(m.conn.Publish(prefix.Control(req.ID()), beat))
		return time.Since(began) > 400*time.Millisecond
	})
	if rec := m.ledger(req.ID()); rec.Running == nil {
		t.Fatalf("with heartbeats the turn is %+v", rec)
	}
	gate.Pass()
	stopped := time.Now()
	m.poll("silence", func() bool { return time.Since(stopped) > 300*time.Millisecond })
	gate.Open()
	m.wantOutcome(r, r.final(), schemas.Failed, schemas.CauseHeartbeatLost, 1)
}

func TestInvalidRequestIsRejectedWithItsField(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	for name, c := range map[string]struct {
		change func(*schemas.Request)
		reason schemas.Reason
		field  string
	}{
		"token beyond the vocabulary": {func(r *schemas.Request) { r.Prompt, r.TokenIDs = nil, []int64{5, 5000} }, schemas.RejectedInvalid, "token_ids[1]"},
		"more than the context":       {func(r *schemas.Request) { r.MaxNewTokens = 1000 }, schemas.RejectedContext, "max_new_tokens"},
	} {
		req := request(strings.ReplaceAll(name, " ", "-"), 1, 5)
		c.change(req)
		r := m.follow(req, schemas.AnyLane)
		final := r.final()
		m.wantOutcome(r, final, schemas.Rejected, "", 0)
		if final.Error.Reason != c.reason || final.Error.Field != c.field {
			t.Errorf("%s: %+v", name, final.Error)
		}
	}
}

// nats-server#5564: a poison request must be gone for ever, and its tenant's quota free.
func TestRequestWithoutAnIdentityIsDroppedAndNeverDeliveredAgain(t *testing.T) {
	m := newMesh(t)
	m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.TenantQuota = 1 })
	other := request("s1", 1, 5)
	other.Tenant = schemas.Must(schemas.ParseTenant("other"))
	foreign, err := schemas.Encode(other)
	m.check(err)
	hostile := map[string][]byte{
		"no msgpack":          []byte("hello"),
		"empty":               {},
		"a map of 4 G":        {0xdf, 0xff, 0xff, 0xff, 0xff},
		"a string of 2 GiB":   {0x81, 0xa1, 'v', 0xdb, 0x7f, 0xff, 0xff, 0xff},
		"another's identity":  foreign,
		"session with a dot":  []byte("\x83\xa6tenant\xa4acme\xa7session\xa3a.b\xa4turn\x01"),
		"session with a star": []byte("\x83\xa6tenant\xa4acme\xa7session\xa1*\xa4turn\x01"),
		"nested arrays":       slices.Repeat([]byte{0x91}, 100_000),
	}
	for name, payload := range hostile {
		_, err := m.js.Publish(m.ctx, prefix.Request(model, schemas.AnyLane, acme), payload)
		m.check(err)
		m.empty()
		if keys, err := m.bucket().ListKeys(m.ctx); err != nil {
			t.Fatal(err)
		} else if key, ok := <-keys.Keys(); ok {
			t.Errorf("%s: the ledger has a turn %s", name, key)
		}
	}
	req := request("s1", 1, 5)
	r := m.follow(req, schemas.AnyLane)
	r.whole(req)
}

// A request of which only the turn can be read is refused, with its field.
func TestUnsupportedRequestIsRejected(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	id := request("s1", 1, 5).ID()
	r := m.read(id)
	payload := []byte("\x84\xa1v\x09\xa6tenant\xa4acme\xa7session\xa2s1\xa4turn\x01")
	_, err := m.js.Publish(m.ctx, prefix.Request(model, schemas.AnyLane, acme), payload)
	m.check(err)
	final := r.final()
	m.wantOutcome(r, final, schemas.Rejected, "", 0)
	if final.Error.Reason != schemas.RejectedInvalid {
		t.Errorf("error is %+v", final.Error)
	}
}

// vllm#10583: the same turn twice is one generation.
func TestSameTurnTwiceIsOneGenerationAndOneWorkRecord(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1")
	req := request("s1", 1, 8)
	r := m.follow(req, schemas.AnyLane)
	<-gate.Arrived()
	again := request("s1", 1, 8)
	again.Nonce = schemas.Must(schemas.ParseNonce("n2"))
	m.submit(again, schemas.AnyLane)
	other := m.start("n2")
	_ = other
	gate.Open()
	r.whole(req)
	m.empty() // the second copy waits its delay, and is then answered with the same final
	final := r.final()
	if r.events[len(r.events)-1].EventAttempt() != 1 || final.Count != 8 {
		t.Errorf("the copy's final is %+v", final)
	}
	m.onlyWork(req.ID())
	starts := 0
	for _, e := range r.events {
		if e.EventKind() == schemas.KindStarted {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("%d generations: %s", starts, r.story())
	}
}

func TestDoneTurnIsAnsweredWithTheSameBytesAgain(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	req := request("s1", 1, 8)
	r := m.follow(req, schemas.AnyLane)
	first := r.whole(req)
	m.empty()
	changed := request("s1", 1, 9) // another payload changes nothing
	changed.Nonce = schemas.Must(schemas.ParseNonce("n2"))
	m.submit(changed, schemas.AnyLane)
	if second := r.final(); *second != *first {
		t.Errorf("the second final is %+v, the first was %+v", second, first)
	}
	m.empty()
	m.onlyWork(req.ID())
}

// vllm#23697: a cancel must not spill into the session's next turn.
func TestNextTurnAfterACancelCompletes(t *testing.T) {
	m := newMesh(t)
	m.start("n1", slots(2))
	for i := range 15 {
		first, second := request("s1", schemas.Turn(2*i), 200), request("s1", schemas.Turn(2*i+1), 5)
		a, b := m.read(first.ID()), m.read(second.ID())
		m.submit(first, schemas.AnyLane)
		a.next()
		m.ask(schemas.OpCancel, first.ID())
		m.submit(second, schemas.AnyLane)
		b.whole(second)
		if final := a.final(); final.Reason != schemas.Cancelled && final.Reason != schemas.Completed {
			t.Fatalf("the cancelled turn ended %s", final.Reason)
		}
	}
	m.empty()
}

func TestCancelsThatRaceClaimsAndEndsHaveOneOutcomeEach(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	m.start("n2")
	for i := range 30 {
		req := request(fmt.Sprintf("s%d", i), 1, 1+i%10)
		r := m.follow(req, schemas.AnyLane)
		if i%3 == 1 {
			r.next()
		}
		reply := m.ask(schemas.OpCancel, req.ID())
		final := r.final()
		m.empty()
		rec := m.ledger(req.ID())
		if rec == nil || rec.Done == nil || rec.Done.Reason != final.Reason {
			t.Fatalf("final says %s, ledger %+v", final.Reason, rec)
		}
		if promised := reply.Outcome != schemas.CancelTooLate; promised != (final.Reason == schemas.Cancelled) {
			t.Fatalf("reply is %s, final %s", reply.Outcome, final.Reason)
		}
		for _, work := range m.works(req.ID()) {
			if work.Reason != final.Reason {
				t.Fatalf("final says %s, work record %s", final.Reason, work.Reason)
			}
		}
	}
}
