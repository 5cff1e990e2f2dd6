package part_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/internal/part/parttest"
)

// supervised runs a function that fails after the given lengths of life, and returns the waits in between.
// After the last it returns nil.
func supervised(t *testing.T, s part.Supervisor, lives ...time.Duration) []time.Duration {
	t.Helper()
	clock := &parttest.Clock{}
	s.Clock = clock
	var waits []time.Duration
	s.Failed = func(err error, _ int, wait time.Duration) {
		if !errors.Is(err, errBroken) {
			t.Errorf("told of %v, want %v", err, errBroken)
		}
		waits = append(waits, wait)
		clock.Advance(wait)
	}
	run := 0
	err := s.Run(waitCtx(t), func(context.Context) error {
		if run == len(lives) {
			return nil
		}
		clock.Advance(lives[run])
		run++
		return errBroken
	})
	if err != nil {
		t.Fatalf("Run = %v, want nil", err)
	}
	return waits
}

func TestWaitsGrowUpToTheLongest(t *testing.T) {
	got := supervised(t, part.Supervisor{First: time.Second, Max: 5 * time.Second, Jitter: -1}, make([]time.Duration, 5)...)
	want := []time.Duration{1e9, 2e9, 4e9, 5e9, 5e9}
	if !slices.Equal(got, want) {
		t.Errorf("waits %v, want %v", got, want)
	}
}

func TestOnlyAHealthySpellBringsTheWaitBack(t *testing.T) {
	s := part.Supervisor{First: time.Second, Max: time.Minute, Healthy: 10 * time.Second, Jitter: -1}
	got := supervised(t, s, 0, 0, 10*time.Second-1, 10*time.Second, 0)
	want := []time.Duration{1e9, 2e9, 4e9, 1e9, 2e9}
	if !slices.Equal(got, want) {
		t.Errorf("waits %v, want %v", got, want)
	}
}

func TestJitterOnlyShortensAWait(t *testing.T) {
	for _, draw := range []float64{0, 0.5, 0.999} {
		s := part.Supervisor{First: time.Second, Max: time.Minute, Jitter: 0.5, Random: func() float64 { return draw }}
		got := supervised(t, s, 0, 0)
		want := []time.Duration{time.Duration((1 - draw/2) * 1e9), time.Duration((1 - draw/2) * 2e9)}
		for i := range want {
			if diff := got[i] - want[i]; diff < -1 || diff > 1 { // a nanosecond of rounding
				t.Errorf("draw %v: wait %d is %v, want %v", draw, i, got[i], want[i])
			}
		}
	}
}

func TestFailuresInARowAreCounted(t *testing.T) {
	clock := &parttest.Clock{}
	var rows []int
	s := part.Supervisor{Healthy: time.Second, Clock: clock, Failed: func(_ error, inARow int, wait time.Duration) {
		rows = append(rows, inARow)
		clock.Advance(wait)
	}}
	run := 0
	_ = s.Run(waitCtx(t), func(context.Context) error {
		run++
		switch run {
		case 3:
			clock.Advance(time.Second)
		case 5:
			return nil
		}
		return errBroken
	})
	if want := []int{1, 2, 1, 2}; !slices.Equal(rows, want) {
		t.Errorf("failures in a row %v, want %v", rows, want)
	}
}

func TestPermanentErrorIsNotTriedAgain(t *testing.T) {
	runs := 0
	err := part.Supervisor{}.Run(waitCtx(t), func(context.Context) error {
		runs++
		return fmt.Errorf("told by the server: %w", part.Permanent(errBroken))
	})
	if runs != 1 || !errors.Is(err, errBroken) {
		t.Errorf("%d runs, error %v; want 1 run and %v", runs, err, errBroken)
	}
	if part.Permanent(nil) != nil {
		t.Error("Permanent(nil) is an error")
	}
}

func TestEndOfContextEndsTheWait(t *testing.T) {
	clock := &parttest.Clock{}
	ctx, cancel := context.WithCancel(waitCtx(t))
	done := make(chan error, 1)
	go func() {
		done <- part.Supervisor{Clock: clock}.Run(ctx, func(context.Context) error { return errBroken })
	}()
	if err := clock.Await(waitCtx(t), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want %v", err, context.Canceled)
	}
}

func TestEndOfContextWaitsForTheFunction(t *testing.T) {
	ctx, cancel := context.WithCancel(waitCtx(t))
	ended := false
	err := part.Supervisor{}.Run(ctx, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		ended = true
		return errBroken
	})
	if !ended || !errors.Is(err, context.Canceled) {
		t.Errorf("function ended: %v, error %v; want true and %v", ended, err, context.Canceled)
	}
}
