// Package part is the one contract of everything in a worker that lives longer than a call: pull loop,
// advertiser, registry, endpoints, HTTP. A part embeds Life and keeps its goroutines under it, so that
// each has an owner that waits for it. Package parttest checks that a part keeps the contract.
//
// A part has one life. It is never started again: whoever wants another one makes another part, or runs
// a function under a Supervisor.
package part

import (
	"context"
	"errors"
)

// Part is something that runs in the background between Start and Stop. All methods are safe for
// concurrent use.
type Part interface {
	// Start begins the part's life and returns soon, before the part is ready. It reports only what is
	// known at once; the part is then stopped, with that error. ErrStarted and ErrStopped say that it had
	// its life already, or was stopped before. The end of ctx is a call of Stop that does not wait.
	Start(ctx context.Context) error

	// Stop ends the part, and waits until nothing of it runs. It is safe before Start (which then answers
	// ErrStopped), twice, and from several goroutines, but not from a goroutine of the part itself.
	Stop()

	// Started is closed once the part does what it is for. A part that ends before that never closes it,
	// so wait with Ready, or on Stopped too.
	Started() <-chan struct{}

	// Stopped is closed when nothing of the part runs any more.
	Stopped() <-chan struct{}

	// Err is why the part ended by itself. It is nil until Stopped, and nil for a part that was asked to
	// end and could do so cleanly.
	Err() error
}

var (
	// ErrStarted answers a second Start.
	ErrStarted = errors.New("this part was started already, and a part is started only once")
	// ErrStopped answers a Start after Stop.
	ErrStopped = errors.New("this part was stopped already, and a part is started only once")
	// ErrEndedEarly is Ready's answer for a part that ended without an error before it was ready.
	ErrEndedEarly = errors.New("the part ended before it was ready")
)

// Ready waits until a started part does what it is for. It returns the part's error, or ErrEndedEarly, if it
// ended before that, and ctx's error if ctx ends first.
func Ready(ctx context.Context, p Part) error {
	select {
	case <-p.Started():
		return nil
	case <-p.Stopped():
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.Started(): // it was ready, and ended since
		return nil
	default:
	}
	if err := p.Err(); err != nil {
		return err
	}
	return ErrEndedEarly
}
