package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
)

// storeFailed is the server's code for a message that a limit of the stream keeps out; which one is in the text only.
const storeFailed = 10077

// submission is one call of Generate on its way into the stream of requests.
type submission struct {
	c          *Client
	request    *schemas.Request
	lane       schemas.Lane
	payload    []byte
	until      time.Time // the deadline, as far as this client can tell
	retryQuota bool
}

// publish puts the request into its lane, once: each try has the same message id, by which the server knows it again.
func (s *submission) publish(ctx context.Context) error {
	wait := firstRetry
	var aloneSince time.Time // since when nobody takes requests
	for {
		err := s.try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := s.c.clock.Now()
		if !errors.Is(err, jetstream.ErrNoStreamResponse) {
			aloneSince = time.Time{}
		} else if aloneSince.IsZero() {
			aloneSince = now
		}
		var quota *QuotaError
		var large *schemas.TooLargeError
		switch {
		case errors.As(err, &large):
			return err
		case errors.As(err, &quota) && s.lane != schemas.AnyLane:
			s.lane = schemas.AnyLane // that one has a quota of its own, and this request was refused for good
			continue
		case errors.As(err, &quota) && !s.retryQuota:
			return err
		case errors.Is(err, nats.ErrConnectionClosed), !aloneSince.IsZero() && now.Sub(aloneSince) >= noStream:
			return s.unreachable(err)
		case now.Add(wait).After(s.until):
			if quota != nil {
				return err
			}
			return s.unreachable(err)
		}
		s.c.log.Debug("request not published, will try again", "turn", s.request.ID(), "error", err)
		select {
		case <-s.c.clock.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		wait = min(2*wait, lastRetry)
	}
}

func (s *submission) unreachable(err error) error {
	return &UnreachableError{ID: s.request.ID(), Doing: "publish", Err: err}
}

// try publishes once, and reads what the refusal means.
func (s *submission) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, publishAttempt)
	defer cancel()
	msg := &nats.Msg{Subject: s.c.prefix.Request(s.request.Model, s.lane, s.request.Tenant), Data: s.payload}
	_, err := s.c.js.PublishMsg(ctx, msg, jetstream.WithMsgID(s.request.MsgID()), jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		return s.tooLarge(int(s.c.nc.MaxPayload()))
	case !errors.As(err, &api):
		return err
	case api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return s.tooLarge(schemas.MaxRequestBytes)
	case api.ErrorCode == storeFailed && strings.Contains(api.Description, "per subject"):
		return &QuotaError{s.request.Tenant, s.request.Model, s.lane}
	}
	return err
}

func (s *submission) tooLarge(limit int) error {
	return &schemas.TooLargeError{Message: "Request", Bytes: len(s.payload), Limit: limit}
}

// headerRoom is for the message id and the header's frame, which count to a message's size.
const headerRoom = 512

// encode makes the payload, and refuses what the server would.
func (s *submission) encode() error {
	payload, err := schemas.Encode(s.request)
	if err != nil {
		return err
	}
	s.payload = payload
	if limit := int(s.c.nc.MaxPayload()) - headerRoom; limit > 0 && len(payload) > limit {
		return s.tooLarge(limit)
	}
	return nil
}

// Generate submits a turn and returns its stream once the mesh has taken the request. The stream lives until its
// end, its Close, or the end of ctx, whichever is first; the turn itself is ended only by Cancel.
//
// Nothing is sent where the request is not valid (*schemas.FieldError) or too large (*schemas.TooLargeError). After
// an *UnreachableError, or the end of ctx, the turn may run.
func (c *Client) Generate(ctx context.Context, r Request) (*Stream, error) {
	request, err := r.wire()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	hint, err := r.hint()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	sub := &submission{c: c, request: request, retryQuota: r.RetryQuota}
	if err := sub.encode(); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if r.Keep {
		if _, err := c.nodes(); err != nil { // so that they are known by the next turn
			return nil, err
		}
	}
	sub.lane = c.lane(ctx, request, hint)
	sub.until = c.clock.Now().Add(request.Deadline())
	stream, err := c.subscribe(ctx, request.ID())
	if err != nil {
		return nil, err
	}
	if err := sub.publish(ctx); err != nil {
		stream.Close()
		return nil, fmt.Errorf("client: %w", err)
	}
	stream.lane = sub.lane
	stream.expect(c.clock.Now(), request.Deadline())
	if request.Heartbeat() > 0 {
		stream.heartbeat(request.Heartbeat() / 3)
	}
	return stream, nil
}
