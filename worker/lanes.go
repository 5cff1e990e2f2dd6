package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// move is where a request goes instead of running here, and why.
type move struct {
	to    schemas.Lane
	fit   bool // it fits only there
	cause string
}

// The causes of moves.
const (
	moveModel  = "model"  // another model than is served here
	moveFit    = "fit"    // too large for this node, or of an adapter that it has not loaded
	moveFull   = "full"   // no room here
	moveDrain  = "drain"  // this node is shutting down
	moveRescue = "rescue" // its node is dead
)

func moveCauses() []string { return []string{moveModel, moveFit, moveFull, moveDrain, moveRescue} }

// mine says whether a request waits in this node's own lane.
func (s *Service) mine(d *delivery) bool { return d.subject.Lane == schemas.NodeLane(s.cfg.Node) }

// elsewhere is where a request goes that this node does not serve at all; nil if it does.
func (s *Service) elsewhere(d *delivery) *move {
	switch {
	case d.rescue:
		return &move{to: schemas.AnyLane, cause: moveRescue}
	case d.subject.Model != s.cfg.Model:
		return &move{to: schemas.AnyLane, cause: moveModel}
	}
	return nil
}

// fitting is the lane of a live node that could run what this one cannot; nil if there is none, or the request was moved
// too often already.
func (s *Service) fitting(d *delivery, p *plan) *move {
	if s.cfg.Peers == nil || d.route.Hops >= schemas.MaxHops || p.promptLen == 0 {
		return nil
	}
	node, ok := s.cfg.Peers.Fitting(s.cfg.Model, d.req.Adapter, p.promptLen+d.req.MaxNewTokens-1, s.cfg.Node)
	if !ok {
		return nil
	}
	return &move{to: schemas.NodeLane(node), fit: true, cause: moveFit}
}

// giveBack is what becomes of a request that could run here, but not now: from the lane of all it is nak'd, from
// this node's own it goes to all, unless it came there because it fits nowhere else.
func (s *Service) giveBack(ctx context.Context, d *delivery) error {
	draining := s.draining.Load()
	switch {
	case s.mine(d) && (draining || !d.route.Fit) && d.route.Hops < schemas.MaxHops:
		cause := moveFull
		if draining {
			cause = moveDrain
		}
		return s.move(ctx, d, &move{to: schemas.AnyLane, cause: cause})
	case s.mine(d) && !draining:
		return d.lease.nak(ledger.Delay(int(d.meta.NumDelivered)))
	}
	return d.lease.nak(0) // there is no fetch here that would bring it back to where it cannot run
}

// move publishes a copy of a request into another lane, then acks this one. Where the copy finds no room or its
// answer does not come, this one stays: a copy too many is harmless, one too few is not.
func (s *Service) move(ctx context.Context, d *delivery, m *move) error {
	return s.moveLeased(ctx, d, d.lease, m)
}

// moveLeased is move for a request whose lease is another's: of the turn that adopted it.
func (s *Service) moveLeased(ctx context.Context, d *delivery, l *lease, m *move) error {
	if d.route.Hops >= schemas.MaxHops {
		return l.nak(ledger.Delay(int(d.meta.NumDelivered)))
	}
	route := d.route.Moved(d.meta.Sequence.Stream, d.meta.Timestamp, m.fit)
	msg := &nats.Msg{Subject: s.cfg.Prefix.Request(d.subject.Model, m.to, d.id.Tenant), Header: nats.Header{}, Data: d.payload}
	maps.Copy(msg.Header, d.header)
	msg.Header.Del(jetstream.MsgIDHeader) // else the server drops the copy as a repeat of the original
	route.Set(msg.Header)
	short, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	if _, err := s.js.PublishMsg(short, msg); err != nil {
		s.metrics.publishErrors.WithLabelValues("move").Inc()
		return errors.Join(fmt.Errorf("move a request: %w", err), l.nak(ledger.Delay(int(d.meta.NumDelivered))))
	}
	s.metrics.moves.WithLabelValues(m.cause).Inc()
	s.log.Info("request moved", "turn", d.id, "to", m.to, "cause", m.cause)
	return l.ack(ctx)
}

// rescueRuns looks for lanes of dead nodes now and then, until ctx ends.
func (s *Service) rescueRuns(ctx context.Context) {
	if s.cfg.Peers == nil {
		return
	}
	period := s.cfg.Periods.Rescue
	for wait(ctx, period*3/4+rand.N(period/2)) { // so that the workers of a mesh do not all look at once
		if err := s.rescue(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("rescue pass failed", "error", err)
		}
	}
}

// rescue is one pass over the subjects of waiting requests: lanes of dead nodes are emptied, through those nodes'
// own consumers. It acts only on a watch that has been healthy throughout.
func (s *Service) rescue(ctx context.Context) error {
	if !s.cfg.Peers.Sighted(s.cfg.Periods.DeadAfter) || s.draining.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Periods.Rescue)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Prefix.RequestStream())
	if err != nil {
		return fmt.Errorf("rescue: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(s.cfg.Prefix.Requests()))
	if err != nil {
		return fmt.Errorf("rescue: %w", err)
	}
	for _, node := range s.deadLanes(info.State.Subjects) {
		if err := s.empty(ctx, node); err != nil {
			return fmt.Errorf("rescue the lane of %s: %w", node, err)
		}
	}
	return s.forget(ctx, stream)
}

// deadLanes are the nodes, among those that requests wait for, that are not alive.
func (s *Service) deadLanes(subjects map[string]uint64) []schemas.Node {
	dead := map[schemas.Node]struct{}{}
	for subject := range subjects {
		parsed, err := s.cfg.Prefix.ParseRequest(subject)
		if err != nil {
			continue
		}
		if node, ok := parsed.Lane.Node(); ok && node != s.cfg.Node && !s.cfg.Peers.Live(node, s.cfg.Periods.DeadAfter) {
			dead[node] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(dead))
}

// empty moves what waits in the lane of a dead node to all. Requests whose turns that node was running come
// back to its lane when their leases run out, and go with a later pass.
func (s *Service) empty(ctx context.Context, node schemas.Node) error {
	consumer, err := s.provision.durable(ctx, s.provision.ownConsumer(node))
	if err != nil {
		return err
	}
	return s.fetchAndMove(ctx, consumer, true)
}

// laneBatch is how many requests are moved at once.
const laneBatch = 32

// fetchAndMove takes what waits at a consumer, without a place for it unless it is a guest's.
func (s *Service) fetchAndMove(ctx context.Context, consumer jetstream.Consumer, rescue bool) error {
	for ctx.Err() == nil {
		sent := time.Now()
		batch, err := consumer.FetchNoWait(laneBatch)
		if err != nil {
			return err
		}
		n := 0
		for msg := range batch.Messages() {
			n++
			if !rescue {
				if place := s.admit(msg); place != nil {
					s.tasks.Go(func() { s.accept(msg, sent, place, false) })
					continue
				}
			}
			s.accept(msg, sent, nil, rescue)
		}
		if n < laneBatch || batch.Error() != nil {
			return batch.Error()
		}
	}
	return ctx.Err()
}

// forget deletes the consumers of nodes that have been absent for long and have nothing waiting.
func (s *Service) forget(ctx context.Context, stream jetstream.Stream) error {
	if s.cfg.Provision != ProvisionAuto || !s.cfg.Peers.Sighted(s.cfg.Periods.ForgetAfter) {
		return nil
	}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		node, ok := schemas.ParseOwnConsumer(info.Name)
		idle := info.NumPending == 0 && info.NumAckPending == 0 && info.NumWaiting == 0
		if !ok || !idle || node == s.cfg.Node || s.cfg.Peers.Live(node, s.cfg.Periods.ForgetAfter) {
			continue
		}
		if err := stream.DeleteConsumer(ctx, info.Name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("delete the consumer of an absent node: %w", err)
		}
		s.log.Info("consumer of an absent node deleted", "node", node)
	}
	return list.Err()
}
