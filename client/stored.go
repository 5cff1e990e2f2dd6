package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/meshnet/node/schemas"
)

// storedBatch is how many stored events are fetched at once.
const storedBatch = 256

// stored reads the events of a turn that the mesh keeps, from a stream sequence on, in their order, and returns the
// sequence after the last. A consumer rather than direct gets: a tenant's permission to make one can be held to its own turns.
func (c *Client) stored(ctx context.Context, id schemas.TurnID, from uint64, each func(payload []byte)) (next uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	next = from
	consumer, err := c.js.CreateConsumer(ctx, c.prefix.EventStream(), jetstream.ConsumerConfig{
		Name:              nuid.Next(), // its name is all that one needs to read from it
		FilterSubject:     c.prefix.Tokens(id),
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       max(1, from),
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: 2 * answer,
	})
	if err != nil {
		return next, fmt.Errorf("read stored events: %w", err)
	}
	for left := int(min(consumer.CachedInfo().NumPending, 1<<30)); left > 0; {
		batch, err := consumer.Fetch(min(left, storedBatch), jetstream.FetchContext(ctx))
		if err != nil {
			return next, fmt.Errorf("read stored events: %w", err)
		}
		got := 0
		for msg := range batch.Messages() {
			got++
			if meta, err := msg.Metadata(); err == nil {
				next = meta.Sequence.Stream + 1
			}
			each(msg.Data())
		}
		if got == 0 {
			return next, fmt.Errorf("read stored events: %w", errors.Join(batch.Error(), context.Cause(ctx)))
		}
		left -= got
	}
	// What is not deleted ends by itself soon.
	if err := c.js.DeleteConsumer(ctx, c.prefix.EventStream(), consumer.CachedInfo().Name); err != nil {
		c.log.Debug("consumer not deleted", "turn", id, "error", err)
	}
	return next, nil
}
