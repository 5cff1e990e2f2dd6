package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// errLeaseLost: the request may have been delivered to another worker. Acks act by stream sequence, whoever
// sends them, so nothing may be sent for it any more.
var errLeaseLost = errors.New("the lease on the request is lost")

var inProgress = []byte("+WPI")

// lease is the right to act on one delivered request. Everything that acknowledges a request is here. It runs from
// when its last answered renewal was sent, at first from when its fetch was: the server cannot have begun to
// count earlier. Safe for concurrent use.
type lease struct {
	conn    *nats.Conn
	ackWait time.Duration
	timeout time.Duration // of one answer
	gone    chan struct{} // closed when it is lost

	mu    sync.Mutex // guards what follows
	msg   jetstream.Msg
	until time.Time
	lost  bool
	spent bool // acked, nak'd or terminated
}

func newLease(conn *nats.Conn, msg jetstream.Msg, since time.Time, ackWait, timeout time.Duration) *lease {
	return &lease{conn: conn, ackWait: ackWait, timeout: timeout, gone: make(chan struct{}), msg: msg, until: since.Add(ackWait)}
}

// valid says whether something may be sent for the request.
func (l *lease) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.validLocked()
}

func (l *lease) validLocked() bool { return !l.lost && !l.spent && time.Now().Before(l.until) }

// left is how long the lease still runs.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.until)
}

// lose gives the right up. Idempotent; it says whether it was this call that did.
func (l *lease) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	l.lost = true
	close(l.gone)
	return true
}

// adopt goes on with another delivery, whose lease is spent from then on. It fails where this one is lost.
func (l *lease) adopt(other *lease) bool {
	other.mu.Lock()
	msg, until := other.msg, other.until
	other.spent = true
	other.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost || l.spent || !time.Now().Before(until) {
		return false
	}
	l.msg, l.until = msg, until
	return true
}

// ask renews the lease at the server, and says when that was asked. It counts only once extend is told, because the
// server answers whoever asks.
func (l *lease) ask(ctx context.Context) (sent time.Time, msg jetstream.Msg, err error) {
	l.mu.Lock()
	msg = l.msg
	valid := l.validLocked()
	l.mu.Unlock()
	if !valid {
		return time.Time{}, nil, errLeaseLost
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	sent = time.Now()
	if _, err := l.conn.RequestWithContext(ctx, msg.Reply(), inProgress); err != nil {
		return time.Time{}, nil, fmt.Errorf("renew the lease on a request: %w", err)
	}
	return sent, msg, nil
}

// extend lets the lease run from when its renewal was asked, unless another delivery was adopted since.
func (l *lease) extend(sent time.Time, msg jetstream.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := sent.Add(l.ackWait); !l.lost && msg == l.msg && until.After(l.until) {
		l.until = until
	}
}

// freshen makes sure that more than half of the lease is left, so that there is time to decide.
func (l *lease) freshen(ctx context.Context) error {
	if l.left() > l.ackWait/2 {
		return nil
	}
	sent, msg, err := l.ask(ctx)
	if err != nil {
		return err
	}
	l.extend(sent, msg)
	return nil
}

// spend ends the lease by what send does with the request. It is done only while the lease is valid and connected.
func (l *lease) spend(send func(jetstream.Msg) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.validLocked() || !l.conn.IsConnected() {
		return errLeaseLost
	}
	l.spent = true
	return send(l.msg)
}

// nak gives the request back, to be delivered again after a delay; 0 is at once.
func (l *lease) nak(delay time.Duration) error {
	return l.spend(func(msg jetstream.Msg) error {
		if delay <= 0 {
			return msg.Nak()
		}
		return msg.NakWithDelay(delay)
	})
}

// term ends the request for ever, without an outcome.
func (l *lease) term(reason string) error {
	return l.spend(func(msg jetstream.Msg) error { return msg.TermWithReason(reason) })
}

// ack ends the request, and waits until the server says that it is gone. It tries again while the lease runs.
func (l *lease) ack(ctx context.Context) error {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		l.mu.Lock()
		msg, valid := l.msg, l.validLocked()
		l.mu.Unlock()
		if !valid {
			return errLeaseLost
		}
		err := l.confirm(ctx, msg)
		if err == nil {
			l.mu.Lock()
			l.spent = true
			l.mu.Unlock()
			return nil
		}
		if !wait(ctx, pause) {
			return fmt.Errorf("ack a request: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// confirm is one double ack. The library's own refuses to send the same ack twice, even where the first one
// got no answer.
func (l *lease) confirm(ctx context.Context, msg jetstream.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	_, err := l.conn.RequestWithContext(ctx, msg.Reply(), []byte("+ACK"))
	return err
}
