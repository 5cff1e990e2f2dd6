package parttest

import (
	"context"
	"sync"
	"time"

	"github.com/meshnet/node/internal/part"
)

// Clock is a part.Clock that stands still until it is moved. It is safe for concurrent use; the zero value
// is ready to use.
type Clock struct {
	mu     sync.Mutex // guards what follows
	now    time.Time
	alarms []alarm
	more   chan struct{} // closed and replaced when an alarm is set
}

type alarm struct {
	at   time.Time
	ring chan time.Time // has room for its one value
}

var _ part.Clock = (*Clock)(nil)

// Now implements part.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After implements part.Clock.
func (c *Clock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ring := make(chan time.Time, 1)
	if d <= 0 {
		ring <- c.now
		return ring
	}
	c.alarms = append(c.alarms, alarm{c.now.Add(d), ring})
	if c.more != nil {
		close(c.more)
		c.more = nil
	}
	return ring
}

// Advance moves the clock on, and rings what is due by then.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	waiting := c.alarms[:0]
	for _, a := range c.alarms {
		if a.at.After(c.now) {
			waiting = append(waiting, a)
		} else {
			a.ring <- c.now
		}
	}
	c.alarms = waiting
}

// Await waits until n alarms are set, so that a test moves the clock only when somebody waits for it. It
// returns ctx's error if that ends first.
func (c *Clock) Await(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		if len(c.alarms) >= n {
			c.mu.Unlock()
			return nil
		}
		if c.more == nil {
			c.more = make(chan struct{})
		}
		more := c.more
		c.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
