// Package parttest tests that a part keeps the contract of package part, and moves time for tests of
// supervised functions.
package parttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshnet/node/internal/part"
)

// patience is how long a part may take for what should take milliseconds. This package's own tests, which
// wait for parts that never come, shorten it.
var patience = 10 * time.Second

// Check is one claim of the contract.
type Check struct {
	Name string
	Run  func(fresh func() part.Part) error
}

// Checks are all claims of the contract that can be tested from outside.
var Checks = []Check{
	{"starts, is ready, and stops without an error", startsAndStops},
	{"is neither started nor stopped when it is made", beginsNeither},
	{"Stop is safe twice and from several goroutines", stopsTwice},
	{"Stop before Start is final", stopsBeforeStart},
	{"a second Start is refused and harms nothing", startsOnce},
	{"the end of its context ends it without an error", endsWithContext},
	{"stops while it is still starting", stopsWhileStarting},
	{"a context that has ended already does not keep it alive", startsWithEndedContext},
	{"Start and Stop may race", startsAndStopsAtOnce},
}

// Conform runs every check as a subtest, each on parts of its own, and looks for goroutines that they left
// behind. What fresh needs besides the part, such as a server, outlives all of them: pass goleak options
// where it starts goroutines while a check runs.
func Conform(t *testing.T, fresh func() part.Part, ignored ...goleak.Option) {
	t.Helper()
	for _, check := range Checks {
		t.Run(check.Name, func(t *testing.T) {
			before := append([]goleak.Option{goleak.IgnoreCurrent()}, ignored...)
			if err := check.Run(fresh); err != nil {
				t.Fatal(err)
			}
			if err := goleak.Find(before...); err != nil {
				t.Fatalf("the part left goroutines behind: %v", err)
			}
		})
	}
}

// within runs f, and gives up on it when patience ends.
func within(what string, f func()) error {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	return closes(what, done)
}

// closes waits for a channel.
func closes(what string, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: not within %s", what, patience)
	}
}

// closed is whether a channel is closed now.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// start starts a part and sees that Start returns.
func start(ctx context.Context, p part.Part) error {
	var err error
	if late := within("Start returns", func() { err = p.Start(ctx) }); late != nil {
		return late
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// running starts a part and waits until it is ready.
func running(ctx context.Context, p part.Part) error {
	if err := start(ctx, p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := part.Ready(ctx, p); err != nil {
		return fmt.Errorf("is ready after Start: %w", err)
	}
	if closed(p.Stopped()) {
		return errors.New("says stopped though nobody stopped it")
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("its error while it runs is %w, want nil", err)
	}
	return nil
}

// stopped stops a part and sees that it says so at once.
func stopped(p part.Part) error {
	if err := within("Stop returns", p.Stop); err != nil {
		return err
	}
	return saysStopped(p)
}

func saysStopped(p part.Part) error {
	if !closed(p.Stopped()) {
		return errors.New("does not say stopped after Stop has returned")
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("its error after Stop is %w, want nil", err)
	}
	return nil
}

func startsAndStops(fresh func() part.Part) error {
	p := fresh()
	return errors.Join(running(context.Background(), p), stopped(p))
}

func beginsNeither(fresh func() part.Part) error {
	p := fresh()
	if closed(p.Started()) || closed(p.Stopped()) || p.Err() != nil {
		return errors.New("a part that was only made says that it was started, is stopped, or has an error")
	}
	return stopped(p)
}

func stopsTwice(fresh func() part.Part) error {
	p := fresh()
	if err := running(context.Background(), p); err != nil {
		return errors.Join(err, stopped(p))
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(p.Stop)
	}
	if err := within("four calls of Stop at once return", all.Wait); err != nil {
		return err
	}
	return stopped(p)
}

func stopsBeforeStart(fresh func() part.Part) error {
	p := fresh()
	if err := stopped(p); err != nil {
		return err
	}
	if err := start(context.Background(), p); !errors.Is(err, part.ErrStopped) {
		return errors.Join(fmt.Errorf("answers Start after Stop with %q, want ErrStopped", fmt.Sprint(err)), stopped(p))
	}
	if closed(p.Started()) {
		return errors.New("says started though it was stopped before Start")
	}
	return saysStopped(p)
}

func startsOnce(fresh func() part.Part) error {
	p := fresh()
	if err := running(context.Background(), p); err != nil {
		return errors.Join(err, stopped(p))
	}
	if err := start(context.Background(), p); !errors.Is(err, part.ErrStarted) {
		return errors.Join(fmt.Errorf("answers the second Start with %q, want ErrStarted", fmt.Sprint(err)), stopped(p))
	}
	if closed(p.Stopped()) {
		return errors.New("the second Start stopped it")
	}
	if err := stopped(p); err != nil {
		return err
	}
	if err := start(context.Background(), p); !errors.Is(err, part.ErrStarted) && !errors.Is(err, part.ErrStopped) {
		return fmt.Errorf("answers Start after its life with %q, want ErrStarted or ErrStopped", fmt.Sprint(err))
	}
	return nil
}

func endsWithContext(fresh func() part.Part) error {
	p := fresh()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := running(ctx, p); err != nil {
		return errors.Join(err, stopped(p))
	}
	cancel()
	if err := closes("stops after its context has ended", p.Stopped()); err != nil {
		return err
	}
	return stopped(p)
}

func stopsWhileStarting(fresh func() part.Part) error {
	p := fresh()
	return errors.Join(start(context.Background(), p), stopped(p))
}

func startsWithEndedContext(fresh func() part.Part) error {
	p := fresh()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := start(ctx, p); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("with a context that has ended: %w", err)
	}
	if err := closes("stops though nobody called Stop", p.Stopped()); err != nil {
		return err
	}
	return within("Stop returns", p.Stop)
}

func startsAndStopsAtOnce(fresh func() part.Part) error {
	for range 8 {
		p := fresh()
		var err error
		var both sync.WaitGroup
		both.Go(func() { err = p.Start(context.Background()) })
		both.Go(p.Stop)
		if late := within("Start and Stop return", both.Wait); late != nil {
			return late
		}
		if err != nil && !errors.Is(err, part.ErrStopped) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("start beside Stop: %w", err)
		}
		if late := closes("is stopped", p.Stopped()); late != nil {
			return late
		}
	}
	return nil
}
