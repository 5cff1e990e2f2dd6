package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/meshnet/node/schemas"
)

// slowLedger holds the answers about the turns of one session.
type slowLedger struct {
	jetstream.KeyValue
	session schemas.Session
	asked   chan struct{} // one for each answer that is held
	open    chan struct{} // closed to let them through
}

func (l *slowLedger) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	if id, err := schemas.ParseTurnKey(key); err == nil && id.Session == l.session {
		l.asked <- struct{}{}
		<-l.open
	}
	return l.KeyValue.Get(ctx, key)
}

// slowLedger makes the ledger slow, for a worker that has nothing to do yet, about the turns of session slow.
func (m *mesh) slowLedger(n *node) *slowLedger {
	slow := &slowLedger{session: schemas.Must(schemas.ParseSession("slow")), asked: make(chan struct{}), open: make(chan struct{})}
	n.WrapLedger(func(kv jetstream.KeyValue) jetstream.KeyValue {
		slow.KeyValue = kv
		return slow
	})
	return slow
}

// held waits until so many answers are held.
func (m *mesh) held(slow *slowLedger, answers int) {
	m.t.Helper()
	for range answers {
		select {
		case <-slow.asked:
		case <-m.ctx.Done():
			m.t.Fatal("the ledger was not asked")
		}
	}
}

// wonder asks for the status of turns of session slow, and returns where the answers come.
func (m *mesh) wonder(questions int) *nats.Subscription {
	m.t.Helper()
	answers, err := m.conn.SubscribeSync(m.conn.NewInbox())
	m.check(err)
	for turn := range questions {
		id := request("slow", schemas.Turn(turn), 1).ID()
		data, err := schemas.Encode(&schemas.TurnRequest{Op: schemas.OpStatus, Tenant: id.Tenant, Session: id.Session, Turn: id.Turn})
		m.check(err)
		m.check(m.conn.PublishRequest(prefix.Turn(id.Tenant), answers.Subject, data))
	}
	return answers
}

// absent reads so many answers, all of which say that the turn is absent.
func (m *mesh) absent(answers *nats.Subscription, n int) {
	m.t.Helper()
	for range n {
		msg, err := answers.NextMsgWithContext(m.ctx)
		m.check(err)
		reply, err := schemas.Decode[schemas.TurnReply](msg.Data)
		m.check(err)
		if reply.State != schemas.StateAbsent {
			m.t.Errorf("the answer is %+v", reply)
		}
	}
}

func TestQuestionThatWaitsForTheLedgerHoldsUpNoOther(t *testing.T) {
	m := newMesh(t)
	slow := m.slowLedger(m.start("n1"))
	answers := m.wonder(1)
	m.held(slow, 1)
	if reply := m.ask(schemas.OpStatus, request("quick", 1, 1).ID()); reply.State != schemas.StateAbsent {
		t.Errorf("status is %+v", reply)
	}
	if reply := m.ask(schemas.OpCancel, request("quick", 2, 1).ID()); reply.Outcome != schemas.CancelEnded {
		t.Errorf("cancel is %+v", reply)
	}
	close(slow.open)
	m.absent(answers, 1)
}

func TestQuestionTooManyIsToldToAskAgain(t *testing.T) {
	m := newMesh(t)
	slow := m.slowLedger(m.start("n1"))
	const most = 256
	answers := m.wonder(most)
	m.held(slow, most)
	refusals := m.wonder(1)
	msg, err := refusals.NextMsgWithContext(m.ctx)
	m.check(err)
	if code := msg.Header.Get(micro.ErrorCodeHeader); code != "503" || msg.Header.Get(micro.ErrorHeader) == "" {
		t.Errorf("the answer is %v", msg.Header)
	}
	close(slow.open)
	m.absent(answers, most)
	if reply := m.ask(schemas.OpStatus, request("quick", 1, 1).ID()); reply.State != schemas.StateAbsent {
		t.Errorf("afterwards status is %+v", reply)
	}
}

func TestStopWaitsForAnswersAndAnswersNothingMore(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	slow := m.slowLedger(n)
	answers := m.wonder(1)
	m.held(slow, 1)
	stopped := make(chan struct{})
	go func() {
		n.Stop()
		close(stopped)
	}()
	m.poll("the endpoint is closed", func() bool {
		_, err := m.conn.RequestWithContext(m.ctx, prefix.Turn(acme), nil)
		return errors.Is(err, nats.ErrNoResponders)
	})
	select {
	case <-n.Stopped():
		t.Error("it has stopped, and still answers")
	default:
	}
	close(slow.open)
	m.absent(answers, 1)
	<-stopped
}
