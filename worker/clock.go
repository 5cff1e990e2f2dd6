package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// meshClock tells the server's time, by which deadlines are measured. It is safe for concurrent use.
type meshClock struct {
	offset atomic.Int64 // server minus this machine, nanoseconds
}

// now is the server's time.
func (c *meshClock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

// ahead is how far the server's clock is ahead of this machine's.
func (c *meshClock) ahead() time.Duration { return time.Duration(c.offset.Load()) }

// until is how long it is until then.
func (c *meshClock) until(server time.Time) time.Duration { return server.Sub(c.now()) }

// measure reads the server's clock. The answer is believed to have been made half way.
func (c *meshClock) measure(ctx context.Context, stream jetstream.Stream) error {
	sent := time.Now()
	info, err := stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	if info.TimeStamp.IsZero() {
		return fmt.Errorf("read the server's clock: the server tells no time; it is older than 2.10")
	}
	middle := sent.Add(time.Since(sent) / 2)
	c.offset.Store(int64(info.TimeStamp.Sub(middle)))
	return nil
}
