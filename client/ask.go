package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/meshnet/node/schemas"
)

// Standing is where a turn stands.
type Standing struct {
	// Outcome, of Cancel: which came first, the cancel or the turn's end.
	Outcome schemas.CancelOutcome
	State   schemas.TurnState // absent: it waits, or there is no such turn

	Attempt    int
	Node       schemas.Node // that runs it
	Cancelling bool
	Deadline   time.Time // zero where it is not running

	Final *schemas.Final // of a done turn
}

// Cancel ends a turn, wherever it is: waiting, running, or not even arrived. It may be called again, and while a
// Stream of the turn is read. The answer holds for everybody.
func (c *Client) Cancel(ctx context.Context, tenant, session string, turn uint64) (*Standing, error) {
	id, err := turnID(tenant, session, turn)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c.ask(ctx, schemas.OpCancel, id)
}

// Status says where a turn stands.
func (c *Client) Status(ctx context.Context, tenant, session string, turn uint64) (*Standing, error) {
	id, err := turnID(tenant, session, turn)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c.ask(ctx, schemas.OpStatus, id)
}

// ask tries for a while: either question may be asked twice.
func (c *Client) ask(ctx context.Context, op schemas.TurnOp, id schemas.TurnID) (*Standing, error) {
	until := c.clock.Now().Add(askPatience)
	wait := firstRetry
	for {
		standing, err := c.askOnce(ctx, op, id)
		var refused *schemas.ErrorDetail
		var unreadable *schemas.DecodeError
		switch {
		case err == nil:
			return standing, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &unreadable), errors.As(err, &refused) && refused.RetryAfterMS == 0:
			return nil, fmt.Errorf("client: %s of turn %s: %w", op, id, err)
		case refused != nil: // the ledger did not answer that worker
			wait = max(wait, time.Duration(refused.RetryAfterMS)*time.Millisecond)
		}
		switch {
		case c.clock.Now().Add(wait).After(until), errors.Is(err, nats.ErrConnectionClosed):
			return nil, fmt.Errorf("client: %w", &UnreachableError{ID: id, Doing: string(op), Err: err})
		}
		select {
		case <-c.clock.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		wait = min(2*wait, lastRetry)
	}
}

// askOnce asks any worker.
func (c *Client) askOnce(ctx context.Context, op schemas.TurnOp, id schemas.TurnID) (*Standing, error) {
	payload, err := schemas.Encode(&schemas.TurnRequest{Op: op, Tenant: id.Tenant, Session: id.Session, Turn: id.Turn})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	msg, err := c.nc.RequestWithContext(ctx, c.prefix.Turn(id.Tenant), payload)
	if err != nil {
		return nil, err
	}
	if text := msg.Header.Get(micro.ErrorHeader); text != "" {
		return nil, fmt.Errorf("the worker could not answer: %s (%s)", text, msg.Header.Get(micro.ErrorCodeHeader))
	}
	return readStanding(msg.Data)
}

func readStanding(payload []byte) (*Standing, error) {
	reply, err := schemas.Decode[schemas.TurnReply](payload)
	if err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	s := &Standing{Outcome: reply.Outcome, State: reply.State, Attempt: reply.Attempt, Node: reply.Node, Cancelling: reply.Cancel}
	if reply.DeadlineMS > 0 {
		s.Deadline = time.UnixMilli(reply.DeadlineMS)
	}
	if len(reply.Final) > 0 {
		if s.Final, err = schemas.Decode[schemas.Final](reply.Final); err != nil {
			return nil, err
		}
	}
	return s, nil
}
