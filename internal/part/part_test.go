package part_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/internal/part/parttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// worker is a part as the product has them: it embeds Life and starts a goroutine beside run.
type worker struct {
	part.Life
	open  func(context.Context) error
	run   func(ctx context.Context, ready func()) error
	aside func(context.Context) error
}

func (w *worker) Start(ctx context.Context) error {
	run := w.run
	if run == nil {
		run = untilEnd
	}
	return w.Launch(ctx, w.open, func(ctx context.Context, ready func()) error {
		if w.aside != nil {
			w.Go(w.aside)
		}
		return run(ctx, ready)
	})
}

func untilEnd(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return ctx.Err()
}

// waitCtx ends a test that waits for what does not come.
func waitCtx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-waitCtx(t).Done():
		t.Fatalf("%s does not happen", what)
	}
}

func TestLifeConforms(t *testing.T) {
	parttest.Conform(t, func() part.Part {
		return &worker{
			open: func(ctx context.Context) error { return ctx.Err() },
			aside: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			},
		}
	})
}

func TestFailedOpenIsTheAnswerOfStartAndThePartsError(t *testing.T) {
	w := &worker{open: func(context.Context) error { return errBroken }}
	if err := w.Start(t.Context()); !errors.Is(err, errBroken) {
		t.Fatalf("Start = %v, want %v", err, errBroken)
	}
	await(t, "stopped", w.Stopped())
	if err := w.Err(); !errors.Is(err, errBroken) {
		t.Errorf("Err = %v, want %v", err, errBroken)
	}
	if err := part.Ready(waitCtx(t), w); !errors.Is(err, errBroken) {
		t.Errorf("Ready = %v, want %v", err, errBroken)
	}
	w.Stop()
}

func TestErrorOfOneGoroutineEndsThemAllAndIsThePartsError(t *testing.T) {
	for name, w := range map[string]*worker{
		"run":   {run: func(context.Context, func()) error { return errBroken }, aside: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		"aside": {aside: func(context.Context) error { return errBroken }},
	} {
		t.Run(name, func(t *testing.T) {
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			await(t, "stopped", w.Stopped())
			if err := w.Err(); !errors.Is(err, errBroken) {
				t.Errorf("Err = %v, want %v", err, errBroken)
			}
		})
	}
}

func TestErrorIsHiddenUntilEveryGoroutineHasEnded(t *testing.T) {
	release, failed := make(chan struct{}), make(chan struct{})
	w := &worker{
		run: func(context.Context, func()) error { defer close(failed); return errBroken },
		aside: func(ctx context.Context) error {
			<-ctx.Done()
			<-release
			return nil
		},
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "run's end", failed)
	select {
	case <-w.Stopped():
		t.Error("it says stopped while a goroutine of it runs")
	default:
	}
	if err := w.Err(); err != nil {
		t.Errorf("Err = %v while a goroutine of it runs, want nil", err)
	}
	close(release)
	w.Stop()
	if err := w.Err(); !errors.Is(err, errBroken) {
		t.Errorf("Err = %v, want %v", err, errBroken)
	}
}

func TestErrorWhileStoppingIsThePartsError(t *testing.T) {
	w := &worker{run: func(ctx context.Context, ready func()) error {
		_ = untilEnd(ctx, ready)
		return context.DeadlineExceeded // a flush that took too long; nobody's deadline ended the part
	}}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if err := w.Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Err = %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestNothingIsStartedInAPartThatIsEnding(t *testing.T) {
	late := false
	w := &worker{}
	w.run = func(ctx context.Context, ready func()) error {
		err := untilEnd(ctx, ready)
		w.Go(func(context.Context) error { late = true; return nil })
		return err
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if late {
		t.Error("a function given to Go after Stop was run")
	}
}

func TestReadyTellsWhatCameFirst(t *testing.T) {
	t.Run("ended before it was ready", func(t *testing.T) {
		w := &worker{run: func(context.Context, func()) error { return nil }}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := part.Ready(waitCtx(t), w); !errors.Is(err, part.ErrEndedEarly) {
			t.Errorf("Ready = %v, want %v", err, part.ErrEndedEarly)
		}
	})
	t.Run("was ready and ended since", func(t *testing.T) {
		w := &worker{}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, "ready", w.Started())
		w.Stop()
		for range 20 { // both channels are closed now, and select draws
			if err := part.Ready(waitCtx(t), w); err != nil {
				t.Fatalf("Ready = %v, want nil", err)
			}
		}
	})
	t.Run("the caller's context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := part.Ready(ctx, &worker{}); !errors.Is(err, context.Canceled) {
			t.Errorf("Ready = %v, want %v", err, context.Canceled)
		}
	})
}
