package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/schemas"
)

// ErrClosed is Next's error after Close.
var ErrClosed = errors.New("client: the stream was closed")

// Stream is a turn that is read. It works only while Next is called, but nothing is lost by a reader that is slow. Its methods are
// not safe for concurrent use, except Close.
type Stream struct {
	c    *Client
	id   schemas.TurnID
	lane schemas.Lane

	ctx     context.Context // of the stream's life, which Generate's and Attach's callers give
	cancel  context.CancelCauseFunc
	release func()      // all it holds; may be called again
	forget  func() bool // that release is called when ctx ends

	sub    *nats.Subscription
	msgs   chan *nats.Msg
	status chan nats.Status
	beats  sync.WaitGroup

	fold    *fold.Fold
	out     []Event // to be yielded
	err     error   // once it has ended: io.EOF or why
	attempt int     // last told of

	watch   watch
	alarm   <-chan time.Time // reused by the next wait; nil: none
	alarmAt time.Time
}

// subscribe makes the stream of a turn, which hears from now on whatever is published.
func (c *Client) subscribe(ctx context.Context, id schemas.TurnID) (*Stream, error) {
	s := &Stream{c: c, id: id, fold: fold.From(0), msgs: make(chan *nats.Msg, c.buffer)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	var err error
	if s.sub, err = c.nc.ChanSubscribe(c.prefix.Tokens(id), s.msgs); err != nil {
		return nil, fmt.Errorf("client: %w", &UnreachableError{ID: id, Doing: "subscribe to the events", Err: err})
	}
	s.status = c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	s.release = sync.OnceFunc(func() {
		s.cancel(ErrClosed)
		s.sub.Unsubscribe() //nolint:errcheck // the connection is closed, or it works
		c.nc.RemoveStatusListener(s.status)
		s.beats.Wait()
	})
	s.forget = context.AfterFunc(ctx, func() {
		s.cancel(context.Cause(ctx)) // it may not have come down yet
		s.release()
	})
	flush, cancel := context.WithTimeout(s.ctx, answer)
	defer cancel()
	if err := c.nc.FlushWithContext(flush); err != nil {
		if s.ctx.Err() != nil || c.nc.IsClosed() {
			s.Close()
			return nil, fmt.Errorf("client: %w", &UnreachableError{ID: id, Doing: "subscribe to the events", Err: err})
		}
		s.watch.lost() // it is subscribed on reconnect, and may have missed something by then
	}
	return s, nil
}

// Attach goes on with the stream of a turn that was submitted before, by this client or one that is gone. from is how
// many tokens its caller has: the stream yields what comes after, beginning with a Reset where those do not stand any
// more. Events are kept for a quarter of an hour; of older turns there is the final only. A turn that nobody knows
// cannot be told from one that waits: the stream is then silent until ctx ends, for at most an hour.
func (c *Client) Attach(ctx context.Context, tenant, session string, turn uint64, from int) (*Stream, error) {
	id, err := turnID(tenant, session, turn)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	s, err := c.subscribe(ctx, id)
	if err != nil {
		return nil, err
	}
	s.fold = fold.From(from)
	s.expect(c.clock.Now(), schemas.MaxDeadline)
	s.watch.lost()                // what there is
	s.watch.askAt = c.clock.Now() // and whether it has ended
	s.watch.believe = true
	return s, nil
}

// ID is the turn that is read.
func (s *Stream) ID() schemas.TurnID { return s.id }

// Lane is where the request went; that of all after Attach.
func (s *Stream) Lane() schemas.Lane { return s.lane }

// Close ends the reading, not the turn. It may be called again, and while Next waits. A stream that was read to its
// end needs none.
func (s *Stream) Close() {
	s.forget()
	s.release()
}

// Next waits for the next event. After the Final of a completed turn it returns io.EOF. Where the turn
// ended otherwise, or tokens of it are lost, a *TurnError or *IncompleteError follows the Final. It returns the error of the stream's
// context when that ends, an *UnreachableError when the mesh is silent, and the same error from then on.
func (s *Stream) Next() (Event, error) {
	for {
		if len(s.out) > 0 {
			event := s.out[0]
			s.out = s.out[1:]
			return event, nil
		}
		if s.err != nil {
			return nil, s.err
		}
		if err := s.step(); err != nil {
			s.err = err
			s.Close()
		}
	}
}

// Events is for range: the events of the stream, the last of which comes with an error if it did not end well. The
// stream is closed when the loop ends.
func (s *Stream) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		defer s.Close()
		for {
			event, err := s.Next()
			if errors.Is(err, io.EOF) || !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// Wait reads the stream to its end. With an error comes what there is, at least an empty Result.
func (s *Stream) Wait() (*Result, error) {
	var err error
	for _, err = range s.Events() {
	}
	r := &Result{Text: s.fold.Text(), TokenIDs: s.fold.Tokens(), Bytes: s.fold.Bytes(), Probs: s.fold.Probs()}
	if final := s.fold.Final(); final != nil {
		r.Final = *final
	}
	return r, err
}

// Cancel is the client's Cancel of this turn. The stream is to be read on: it ends with what the answer promises.
func (s *Stream) Cancel(ctx context.Context) (*Standing, error) {
	return s.c.ask(ctx, schemas.OpCancel, s.id)
}

// emit turns what is new into events.
func (s *Stream) emit() {
	if started := s.fold.Started(); started != nil && started.Attempt != s.attempt {
		s.attempt = started.Attempt
		s.out = append(s.out, Started{*started})
	}
	delta := s.fold.Take()
	if delta.Reset {
		s.out = append(s.out, Reset{delta.Index, delta.TextBytes, delta.RawBytes})
	}
	if len(delta.TokenIDs) > 0 {
		s.out = append(s.out, Text{delta.Index, delta.TokenIDs, delta.Text, delta.Bytes, delta.Probs})
	}
}

// finish ends the stream of a turn that ended.
func (s *Stream) finish(whole bool) error {
	s.emit()
	final := *s.fold.Final()
	s.out = append(s.out, Final{final})
	s.c.hot.ended(s.id, &final)
	var errs []error
	if final.Reason != schemas.Completed {
		errs = append(errs, &TurnError{ID: s.id, Final: final, Overdue: s.watch.over && final.Reason == schemas.Cancelled})
	}
	if !whole {
		errs = append(errs, &IncompleteError{ID: s.id, Tokens: s.fold.Len(), Final: final})
	}
	switch len(errs) {
	case 0:
		return io.EOF
	case 1:
		return errs[0]
	}
	return errors.Join(errs...)
}

// hear takes an event that was published just now.
func (s *Stream) hear(msg *nats.Msg) {
	event, err := schemas.DecodeEvent(msg.Data)
	if err != nil {
		s.c.log.Debug("event ignored", "turn", s.id, "error", err)
		return
	}
	s.fold.ApplyLive(event)
	s.watch.heard(s.c.clock.Now())
}

// fill reads what is stored of the turn.
func (s *Stream) fill() {
	before, began := s.watch.from, s.c.clock.Now()
	next, err := s.c.stored(s.ctx, s.id, before, func(payload []byte) {
		if event, err := schemas.DecodeEvent(payload); err == nil {
			s.fold.ApplyStored(event)
			s.watch.confirmed = s.watch.confirmed || event.EventKind() == schemas.KindFinal
		}
	})
	if next == before && before > 1 {
		next = 0 // nothing new, or a stream that was made again and counts anew
	}
	s.watch.from = next
	if err == nil {
		s.watch.readAt = began
	}
	s.watch.filled(s.c.clock.Now(), err == nil)
	if err != nil {
		s.c.log.Debug("stored events not read, will try again", "turn", s.id, "error", err)
	}
}

// heartbeat tells the turn's owner, until the stream ends, that its client is there.
func (s *Stream) heartbeat(every time.Duration) {
	payload, err := schemas.Encode(&schemas.Control{Kind: schemas.ControlHeartbeat})
	if err != nil {
		panic(err) // it holds a constant
	}
	subject := s.c.prefix.Control(s.id)
	s.beats.Go(func() {
		for {
			next := s.c.clock.After(every)
			if err := s.c.nc.Publish(subject, payload); err != nil {
				s.c.log.Debug("heartbeat not sent", "turn", s.id, "error", err)
			}
			select {
			case <-next:
			case <-s.ctx.Done():
				return
			}
		}
	})
}
