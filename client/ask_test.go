package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
)

func TestCancelTellsWhichCameFirst(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(q *schemas.TurnRequest) *schemas.TurnReply {
		if q.Op != schemas.OpCancel {
			t.Errorf("asked for %s", q.Op)
		}
		switch q.Turn {
		case 1:
			r := done(&schemas.Final{Reason: schemas.Cancelled, Node: node1})
			r.Outcome = schemas.CancelEnded
			return r
		case 2:
			return &schemas.TurnReply{Outcome: schemas.CancelMarked, State: schemas.StateRunning, Attempt: 2, Node: node1, Cancel: true, DeadlineMS: 5000}
		}
		r := done(completed(1, 3))
		r.Outcome = schemas.CancelTooLate
		return r
	})
	c := b.connect(t)
	for turn, want := range map[uint64]client.Standing{
		1: {Outcome: schemas.CancelEnded, State: schemas.StateDone},
		2: {Outcome: schemas.CancelMarked, State: schemas.StateRunning, Attempt: 2, Node: node1, Cancelling: true, Deadline: time.UnixMilli(5000)},
		3: {Outcome: schemas.CancelTooLate, State: schemas.StateDone},
	} {
		got, err := c.Cancel(waitCtx(t), "acme", "s1", turn)
		if err != nil {
			t.Fatal(err)
		}
		if (got.Final != nil) != (want.State == schemas.StateDone) {
			t.Errorf("turn %d: final %v", turn, got.Final)
		}
		got.Final = nil
		if *got != want {
			t.Errorf("turn %d: %+v, want %+v", turn, *got, want)
		}
	}
}

func TestStreamThatIsCancelledEndsAsTheAnswerSays(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply {
		final := &schemas.Final{Reason: schemas.Cancelled, Attempt: 1, Node: node1}
		b.tell(t, turn1, final)
		r := done(final)
		r.Outcome = schemas.CancelEnded
		return r
	})
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, started(1, 0))
	standing, err := s.Cancel(waitCtx(t))
	if err != nil || standing.Outcome != schemas.CancelEnded {
		t.Fatalf("%+v, %v", standing, err)
	}
	_, err = read(s)
	if turn := (*client.TurnError)(nil); !errors.As(err, &turn) || turn.Final.Reason != standing.Final.Reason {
		t.Errorf("%v", err)
	}
}

func TestStatusOfATurnThatEndedHasItsFinal(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply { return done(completed(1, 3)) })
	got, err := b.connect(t).Status(waitCtx(t), "acme", "s1", 1)
	if err != nil || got.State != schemas.StateDone || got.Final.Count != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWorkersRefusalIsATypedError(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply {
		return &schemas.TurnReply{Error: &schemas.ErrorDetail{Message: "the ledger does not answer"}}
	})
	_, err := b.connect(t).Cancel(waitCtx(t), "acme", "s1", 1)
	if detail := (*schemas.ErrorDetail)(nil); !errors.As(err, &detail) || detail.Message != "the ledger does not answer" {
		t.Errorf("%v", err)
	}
}

func TestAnswerThatSaysAskAgainIsAskedAgain(t *testing.T) {
	b := newBed(t)
	asked := 0
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply {
		if asked++; asked < 3 {
			return &schemas.TurnReply{Error: &schemas.ErrorDetail{Message: "the ledger did not answer", RetryAfterMS: 2}}
		}
		return done(completed(1, 3))
	})
	got, err := b.connect(t).Status(waitCtx(t), "acme", "s1", 1)
	if err != nil || got.State != schemas.StateDone || asked != 3 {
		t.Errorf("%+v, %v after %d questions", got, err, asked)
	}
}

func TestAnswerThatCannotBeReadIsATypedError(t *testing.T) {
	b := newBed(t)
	_, err := b.conn.Subscribe(mesh.Turns(), func(msg *nats.Msg) { _ = msg.Respond([]byte{0xc1}) })
	b.settle(t, err)
	_, err = b.connect(t).Status(waitCtx(t), "acme", "s1", 1)
	if decode := (*schemas.DecodeError)(nil); !errors.As(err, &decode) {
		t.Errorf("%v", err)
	}
}

func TestNobodyAnsweringIsUnreachable(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	c := b.connect(t, client.WithClock(clock))
	stop := goOn(t, clock)
	defer stop()
	_, err := c.Cancel(waitCtx(t), "acme", "s1", 1)
	if unreachable := (*client.UnreachableError)(nil); !errors.As(err, &unreachable) || unreachable.Doing != "cancel" || !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("%v", err)
	}
}

func TestSilentTurnIsAskedAboutAfterFifteenSeconds(t *testing.T) {
	b := newBed(t)
	asked := newCounter()
	b.answer(t, func(q *schemas.TurnRequest) *schemas.TurnReply {
		if q.Op != schemas.OpStatus || q.ID() != turn1 {
			t.Errorf("asked for %s of %s", q.Op, q.ID())
		}
		switch asked.add() {
		case 1: // it waits for a worker
			return &schemas.TurnReply{State: schemas.StateAbsent}
		default: // its final was lost
			return done(&schemas.Final{Reason: schemas.Cancelled, Node: node1})
		}
	})
	clock := &parttest.Clock{}
	s := generate(t, b.connect(t, client.WithClock(clock)), request())
	ended := make(chan error, 1)
	go func() { ended <- second(read(s)) }()
	for range 2 {
		if err := clock.Await(waitCtx(t), 1); err != nil {
			t.Fatal(err)
		}
		clock.Advance(15*time.Second - 1)
		select {
		case <-asked.c:
			t.Fatal("asked before 15 s of silence")
		default:
		}
		clock.Advance(1)
		asked.await(t)
	}
	if turn := (*client.TurnError)(nil); !errors.As(<-ended, &turn) || turn.Final.Reason != schemas.Cancelled {
		t.Error("the final that the ledger has does not end the stream")
	}
}

func TestKeepalivesAreNoSilence(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply {
		t.Error("asked about a turn that was heard")
		return nil
	})
	clock := &parttest.Clock{}
	s := generate(t, b.connect(t, client.WithClock(clock)), request())
	b.say(t, turn1, started(1, 0))
	next(t, s)
	for i := range 4 {
		clock.Advance(14 * time.Second)
		b.say(t, turn1, tokens(1, i, "a", 1))
		next(t, s)
	}
	b.say(t, turn1, completed(1, 4))
	if got, err := read(s); err != nil || got != "final" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestMeshWithoutWorkersIsUnreachable(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	s := generate(t, b.connect(t, client.WithClock(clock)), request())
	stop := goOn(t, clock)
	defer stop()
	_, err := read(s)
	if unreachable := (*client.UnreachableError)(nil); !errors.As(err, &unreachable) || unreachable.Doing != "status" {
		t.Errorf("%v", err)
	}
}

func TestOverdueTurnIsCancelledAndItsOutcomeTaken(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	var at time.Time
	b.answer(t, func(q *schemas.TurnRequest) *schemas.TurnReply {
		if q.Op == schemas.OpStatus {
			return &schemas.TurnReply{State: schemas.StateAbsent}
		}
		at = clock.Now()
		r := done(&schemas.Final{Reason: schemas.Cancelled, Node: node1})
		r.Outcome = schemas.CancelEnded
		return r
	})
	r := request()
	r.Deadline = 10 * time.Second
	s := generate(t, b.connect(t, client.WithClock(clock)), r)
	ended := make(chan error, 1)
	go func() { ended <- second(read(s)) }()
	if err := clock.Await(waitCtx(t), 1); err != nil {
		t.Fatal(err)
	}
	clock.Advance(15 * time.Second) // deadline and 5 s
	err := <-ended
	if turn := (*client.TurnError)(nil); !errors.As(err, &turn) || turn.Final.Reason != schemas.Cancelled || !turn.Overdue {
		t.Errorf("%v", err)
	}
	if got := at.Sub(time.Time{}); got != 15*time.Second {
		t.Errorf("cancelled after %s, want deadline and 5 s", got)
	}
}

func TestOverdueTurnThatDoesNotEndIsUnreachable(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	b.answer(t, func(q *schemas.TurnRequest) *schemas.TurnReply {
		r := &schemas.TurnReply{State: schemas.StateRunning, Attempt: 1, Node: node1}
		if q.Op == schemas.OpCancel {
			r.Outcome, r.Cancel = schemas.CancelMarked, true
		}
		return r
	})
	r := request()
	r.Deadline = time.Second
	s := generate(t, b.connect(t, client.WithClock(clock)), r)
	stop := goOn(t, clock)
	defer stop()
	_, err := read(s)
	if unreachable := (*client.UnreachableError)(nil); !errors.As(err, &unreachable) || unreachable.Doing != "wait for the end" {
		t.Errorf("%v", err)
	}
}

func TestAttachToATurnWhoseEventsAreGoneHasItsFinal(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply { return done(completed(1, 3)) })
	clock := &parttest.Clock{}
	s, err := b.connect(t, client.WithClock(clock)).Attach(waitCtx(t), "acme", "s1", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	stop := goOn(t, clock)
	defer stop()
	got, err := read(s)
	if lost := (*client.IncompleteError)(nil); got != "final" || !errors.As(err, &lost) || lost.Final.Count != 3 {
		t.Errorf("%s, %v", got, err)
	}
}
