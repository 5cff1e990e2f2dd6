package client

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/schemas"
)

// watch is when a stream has to do something by itself.
type watch struct {
	askAt    time.Time // a worker is asked where the turn stands, unless something is heard before
	cancelAt time.Time // the turn should have ended by itself before
	giveUpAt time.Time // after that, too

	over       bool // cancelAt has come
	believe    bool // the deadline that a worker tells: this client did not submit the turn
	unanswered int  // questions in a row to which there was nobody

	dropped   int           // events for which the reader was too slow
	looks     int           // how often stored events are to be read though no gap is known
	confirmed bool          // they were read up to the final
	fillAt    time.Time     // when they are read; zero: there is no need
	fillWait  time.Duration // after the next time
	from      uint64        // the stream sequence from which on

	finalAt time.Time // when the final was seen; zero: not yet
	readAt  time.Time // when the last reading of stored events that succeeded began
}

// expect begins the watch on a turn that has so long.
func (s *Stream) expect(now time.Time, deadline time.Duration) {
	s.watch.askAt = now.Add(silence)
	s.watch.due(now.Add(deadline))
}

func (w *watch) due(deadline time.Time) {
	w.cancelAt = deadline.Add(overdue)
	w.giveUpAt = w.cancelAt.Add(lastWait)
}

func (w *watch) heard(now time.Time) {
	w.unanswered = 0
	if !w.over {
		w.askAt = now.Add(silence)
	}
}

// looksAfterLoss are as many as make a second and a half: what was heard is stored a little later.
const looksAfterLoss = 5

// lost says that events may be missing, the last ones perhaps, so that no later one shows the gap.
func (w *watch) lost() { w.looks = looksAfterLoss }

// filled plans the next reading.
func (w *watch) filled(now time.Time, ok bool) {
	if ok && w.looks > 0 {
		w.looks--
	}
	w.fillAt = now.Add(w.fillWait)
	w.fillWait = min(2*w.fillWait, lastRetry)
}

// step makes one round: take what has come, do what is due, wait for more. It returns an error at the stream's end.
func (s *Stream) step() error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	for range cap(s.msgs) { // what is there, but not for ever
		select {
		case msg := <-s.msgs:
			s.hear(msg)
			continue
		default:
		}
		break
	}
	if dropped, err := s.sub.Dropped(); err == nil && dropped > s.watch.dropped {
		s.watch.dropped = dropped
		s.watch.lost()
	}
	now := s.c.clock.Now()
	s.planFill(now)
	if w := &s.watch; !w.fillAt.IsZero() && !now.Before(w.fillAt) {
		s.fill()
		s.planFill(now)
	}
	if s.fold.Final() != nil {
		if done, err := s.ended(now); done {
			return err
		}
	} else if did, err := s.inquire(now); did {
		return err
	}
	s.emit()
	if len(s.out) > 0 {
		return nil
	}
	return s.wait()
}

// planFill decides whether stored events are to be read.
func (s *Stream) planFill(now time.Time) {
	w, status := &s.watch, s.fold.Status()
	switch {
	case w.looks == 0 && status != fold.Gap && (status != fold.Doubt || w.confirmed):
		w.fillAt = time.Time{}
	case w.fillAt.IsZero():
		w.fillAt, w.fillWait = now, firstRetry
	}
}

// ended says whether a turn whose final came is read to its end.
func (s *Stream) ended(now time.Time) (bool, error) {
	w := &s.watch
	if w.finalAt.IsZero() {
		w.finalAt = now
	}
	switch status := s.fold.Status(); {
	case status == fold.Whole, status == fold.Doubt && w.confirmed:
		return true, s.finish(true)
	case !now.Before(w.gapEnds()):
		return true, s.finish(status == fold.Doubt && s.fold.Final().Reason != schemas.Completed)
	}
	return false, nil
}

// gapEnds is until when a gap may stay open after the final. Where the store does not answer, nothing is known to be lost.
func (w *watch) gapEnds() time.Time {
	if w.readAt.Before(w.finalAt) {
		return w.finalAt.Add(unreadGap)
	}
	return w.finalAt.Add(openGap)
}

// inquire asks a worker about a turn that is silent, and ends one that is overdue. It says whether it did anything.
func (s *Stream) inquire(now time.Time) (bool, error) {
	w := &s.watch
	if !w.over && !now.Before(w.cancelAt) {
		w.over, w.askAt = true, now
	}
	if w.over && !now.Before(w.giveUpAt) {
		return true, s.unreachable("wait for the end", errNoEnd)
	}
	if now.Before(w.askAt) {
		return false, nil
	}
	op := schemas.OpStatus
	if w.over {
		op = schemas.OpCancel
	}
	standing, err := s.c.askOnce(s.ctx, op, s.id)
	switch {
	case s.ctx.Err() != nil:
		return true, context.Cause(s.ctx)
	case errors.Is(err, nats.ErrConnectionClosed):
		return true, s.unreachable(string(op), err)
	case errors.Is(err, nats.ErrNoResponders):
		if w.unanswered++; w.unanswered > 1 { // once may be a server that was just restarted
			return true, s.unreachable(string(op), err)
		}
		w.askIn(now, askAgain)
	case err != nil:
		s.c.log.Debug("turn not asked about, will try again", "turn", s.id, "error", err)
		w.askIn(now, askAgain)
	default:
		w.unanswered = 0
		w.askIn(now, silence)
		s.stands(standing)
	}
	return true, nil
}

var errNoEnd = errors.New("it was cancelled after its deadline, and does not end")

func (s *Stream) unreachable(doing string, err error) error {
	return &UnreachableError{ID: s.id, Doing: doing, Err: err}
}

// askIn plans the next question; a turn that is overdue is asked about more often.
func (w *watch) askIn(now time.Time, d time.Duration) {
	if w.over {
		d = lastRetry
	}
	w.askAt = now.Add(d)
}

// stands takes a worker's answer.
func (s *Stream) stands(standing *Standing) {
	w := &s.watch
	if standing.State != schemas.StateAbsent {
		w.lost() // something was said of it, and silence may be ours
	}
	if standing.Final != nil {
		s.fold.ApplyLive(standing.Final)
	}
	if w.believe && !standing.Deadline.IsZero() && !w.over {
		w.due(standing.Deadline)
	}
}

// wait waits until something is to be done.
func (s *Stream) wait() error {
	at := s.watch.next()
	left := at.Sub(s.c.clock.Now())
	if left <= 0 {
		return nil
	}
	if s.alarm == nil || at.Before(s.alarmAt) { // an earlier alarm only makes a round for nothing
		s.alarm, s.alarmAt = s.c.clock.After(left), at
	}
	select {
	case msg := <-s.msgs:
		s.hear(msg)
	case <-s.alarm:
		s.alarm = nil
	case status := <-s.status:
		if status == nats.CLOSED {
			return s.unreachable("wait for events", nats.ErrConnectionClosed)
		}
		// What was published meanwhile is missed, the final perhaps. Workers may come back later than we.
		s.watch.lost()
		s.watch.askAt = earlier(s.watch.askAt, s.c.clock.Now().Add(lastRetry))
	case <-s.ctx.Done():
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return nil
}

// next is when something is to be done, if nothing is heard.
func (w *watch) next() time.Time {
	var at time.Time
	switch {
	case !w.finalAt.IsZero():
		at = w.gapEnds()
	case w.over:
		at = earlier(w.askAt, w.giveUpAt)
	default:
		at = earlier(w.askAt, w.cancelAt)
	}
	if !w.fillAt.IsZero() {
		at = earlier(at, w.fillAt)
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
