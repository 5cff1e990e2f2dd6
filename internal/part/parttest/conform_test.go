package parttest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/internal/part/parttest"
)

// good keeps the contract; each broken part below changes one method of it.
type good struct{ part.Life }

func (g *good) Start(ctx context.Context) error {
	return g.Launch(ctx, nil, func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return ctx.Err()
	})
}

type restartable struct{ good }

func (p *restartable) Start(ctx context.Context) error {
	if err := p.good.Start(ctx); errors.Is(err, part.ErrStarted) {
		return nil
	}
	return nil
}

type deaf struct{ good } // to the end of its context

func (p *deaf) Start(context.Context) error { return p.good.Start(context.Background()) }

type hasty struct { // does not wait for its end, which takes a while
	good
	hold <-chan struct{}
}

func (p *hasty) Stop() {
	go func() {
		<-p.hold
		p.good.Stop()
	}()
}

type shortlived struct{ good }

func (p *shortlived) Start(ctx context.Context) error {
	return p.Launch(ctx, nil, func(context.Context, func()) error { return nil })
}

type sore struct{ good } // reports that it was asked to end

func (p *sore) Start(ctx context.Context) error {
	return p.Launch(ctx, nil, func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return errors.New("stopped")
	})
}

type mute struct{ good } // never says that it has stopped

func (p *mute) Stopped() <-chan struct{} { return nil }

func TestChecksFindPartsThatBreakTheContract(t *testing.T) {
	parttest.SetPatience(t, 100*time.Millisecond)
	hold := make(chan struct{})
	defer close(hold)
	for name, broken := range map[string]struct {
		fresh func() part.Part
		check string // which finds it
	}{
		"starts twice":                   {func() part.Part { return &restartable{} }, "a second Start is refused and harms nothing"},
		"outlives its context":           {func() part.Part { return &deaf{} }, "the end of its context ends it without an error"},
		"does not wait in Stop":          {func() part.Part { return &hasty{hold: hold} }, "Stop is safe twice and from several goroutines"},
		"ends by itself":                 {func() part.Part { return &shortlived{} }, "starts, is ready, and stops without an error"},
		"has an error when asked to end": {func() part.Part { return &sore{} }, "starts, is ready, and stops without an error"},
		"never says that it has stopped": {func() part.Part { return &mute{} }, "Stop before Start is final"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, check := range parttest.Checks {
				if check.Name == broken.check {
					if check.Run(broken.fresh) == nil {
						t.Errorf("%q passes it", check.Name)
					}
					return
				}
			}
			t.Fatalf("there is no check %q", broken.check)
		})
	}
}

func TestChecksPassAPartThatKeepsTheContract(t *testing.T) {
	parttest.Conform(t, func() part.Part { return &good{} })
}
