package part

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Clock is the time of a Supervisor. A test gives parttest.Clock.
type Clock interface {
	Now() time.Time
	// After is time.After: a channel that gets the time once d has passed.
	After(d time.Duration) <-chan time.Time
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now implements Clock.
func (SystemClock) Now() time.Time { return time.Now() }

// After implements Clock.
func (SystemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Supervisor runs a function again after it failed, waiting longer each time. Zero fields have the
// defaults named with them.
type Supervisor struct {
	First   time.Duration // wait after the first failure; 100 ms
	Max     time.Duration // longest wait; 30 s
	Factor  float64       // by which the wait grows with each failure in a row; 2
	Jitter  float64       // part of the wait that is drawn at random, from 0 to 1; 0 means 0.25, negative none
	Healthy time.Duration // a run that lasted this long ends the row of failures; Max

	// Failed is told of each failure that is followed by another run: how many came in a row, and the wait
	// before the next one. It is called from Run's goroutine; nil is nobody.
	Failed func(err error, inARow int, wait time.Duration)

	Clock  Clock          // SystemClock
	Random func() float64 // from [0, 1); math/rand/v2
}

// Run calls f until it returns nil, which Run then does too, or an error marked Permanent, which Run returns as
// it was before it was marked. When ctx ends, Run waits for f and returns ctx's error.
//
// Only a run of Healthy's length brings the wait back to First. To have begun is not enough: what connects and
// is thrown out at once would be retried at full speed for ever.
func (s Supervisor) Run(ctx context.Context, f func(context.Context) error) error {
	s.setDefaults()
	wait, inARow := s.First, 0
	for {
		began := s.Clock.Now()
		err := f(ctx)
		var permanent *permanentError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case errors.As(err, &permanent):
			return permanent.err
		}
		if s.Clock.Now().Sub(began) >= s.Healthy {
			wait, inARow = s.First, 0
		}
		inARow++
		pause := wait - time.Duration(s.Jitter*s.Random()*float64(wait))
		wait = min(s.Max, time.Duration(s.Factor*float64(wait)))
		over := s.Clock.After(pause)
		if s.Failed != nil {
			s.Failed(err, inARow, pause)
		}
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Supervisor) setDefaults() {
	if s.First <= 0 {
		s.First = 100 * time.Millisecond
	}
	if s.Max <= 0 {
		s.Max = 30 * time.Second
	}
	s.First = min(s.First, s.Max)
	if s.Factor < 1 {
		s.Factor = 2
	}
	if s.Jitter == 0 {
		s.Jitter = 0.25
	}
	s.Jitter = min(max(s.Jitter, 0), 1)
	if s.Healthy <= 0 {
		s.Healthy = s.Max
	}
	if s.Clock == nil {
		s.Clock = SystemClock{}
	}
	if s.Random == nil {
		s.Random = rand.Float64
	}
}

// Permanent marks an error after which a Supervisor does not run its function again. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }
