package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

const (
	serviceName  = "meshnet-worker"
	serviceGroup = "workers"
)

// answer opens the endpoints: turns, which any worker answers for, and those of this node.
func (s *Service) answer() error {
	endpoints, err := micro.AddService(s.control, micro.Config{
		Name:        serviceName,
		Version:     s.cfg.Identity.Version,
		Description: "serves " + s.cfg.Model.String(),
		Metadata:    map[string]string{"node": s.cfg.Node.String(), "boot": s.cfg.Boot.String(), "model": s.cfg.Model.String()},
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			s.log.Warn("endpoint", "subject", err.Subject, "error", err.Description)
		},
	})
	if err != nil {
		return fmt.Errorf("open the endpoints: %w", err)
	}
	s.endpoints = endpoints
	prefix := s.cfg.Prefix
	if err := endpoints.AddEndpoint("turn", s.endpoint(&s.turnAsks, s.answerTurn),
		micro.WithEndpointSubject(prefix.Turns()), micro.WithEndpointQueueGroup(serviceGroup)); err != nil {
		return fmt.Errorf("open the endpoint of turns: %w", err)
	}
	for _, verb := range schemas.NodeVerbs() {
		answer := func(context.Context, *question) ([]byte, error) { return s.answerNode(verb) }
		if err := endpoints.AddEndpoint("node-"+string(verb), s.endpoint(&s.nodeAsks, answer),
			micro.WithEndpointSubject(prefix.Node(s.cfg.Node, verb)), micro.WithEndpointQueueGroupDisabled()); err != nil {
			return fmt.Errorf("open the endpoint %s: %w", verb, err)
		}
	}
	return nil
}

// answerTurn cancels a turn or tells where it stands.
func (s *Service) answerTurn(ctx context.Context, q *question) ([]byte, error) {
	return schemas.Encode(s.turnReply(ctx, q))
}

func (s *Service) turnReply(ctx context.Context, q *question) *schemas.TurnReply {
	ask, err := schemas.Decode[schemas.TurnRequest](q.data)
	if err != nil {
		s.metrics.guardReject(err)
		return &schemas.TurnReply{Error: invalid(err)}
	}
	tenant, err := s.cfg.Prefix.ParseTurn(q.subject)
	if err == nil {
		err = ask.Agrees(tenant)
	}
	if err != nil {
		return &schemas.TurnReply{Op: ask.Op, Error: invalid(err)}
	}
	var reply *schemas.TurnReply
	if ask.Op == schemas.OpCancel {
		reply, err = s.cancel(ctx, ask.ID())
	} else {
		var rec ledger.Record
		rec, err = s.read(ctx, ask.ID())
		reply = standing(rec)
	}
	if err != nil {
		return &schemas.TurnReply{Op: ask.Op, Error: &schemas.ErrorDetail{RetryAfterMS: s.cfg.Periods.Request.Milliseconds(),
			Message: "the ledger did not answer; ask again: " + err.Error()}}
	}
	reply.Op = ask.Op
	return reply
}

// standing is where a turn stands.
func standing(rec ledger.Record) *schemas.TurnReply {
	switch rec.State {
	case ledger.Running:
		node, _ := schemas.ParseNode(rec.Node) // it was one when it was read
		return &schemas.TurnReply{State: schemas.StateRunning, Attempt: rec.Attempt, Node: node, Cancel: rec.Cancel, DeadlineMS: rec.Deadline.UnixMilli()}
	case ledger.Done:
		return &schemas.TurnReply{State: schemas.StateDone, Attempt: rec.Attempt, Reason: schemas.EndReason(rec.Reason), Final: rec.Final}
	}
	return &schemas.TurnReply{State: schemas.StateAbsent}
}

// cancel asks the ledger to end a turn. What it answers binds everyone.
func (s *Service) cancel(ctx context.Context, id schemas.TurnID) (*schemas.TurnReply, error) {
	for {
		rec, err := s.read(ctx, id)
		if err != nil {
			return nil, err
		}
		c := ledger.Cancel(rec)
		write := c.Write
		if c.Step == ledger.CancelUnclaimed {
			if write, err = withBytes(write, s.bareFinal(c.Outcome), nil); err != nil {
				return nil, err
			}
		}
		if c.Writes() {
			won, err := s.ledger.settle(ctx, id, &write)
			if err != nil {
				return nil, err
			}
			if !won {
				continue
			}
		}
		reply := standing(write)
		switch c.Step {
		case ledger.CancelUnclaimed:
			reply.Outcome = schemas.CancelEnded
			s.metrics.sessions.WithLabelValues(string(schemas.Cancelled), "").Inc()
			if err := s.tell(ctx, nil, id, write); err != nil {
				s.log.Warn("the final of a cancelled turn is left to its request", "turn", id, "error", err)
			}
		case ledger.CancelTooLate:
			reply.Outcome = schemas.CancelTooLate
		default:
			reply.Outcome = schemas.CancelMarked
			s.poke(id)
		}
		return reply, nil
	}
}

// poke tells the owner of a turn that the ledger has news. It saves a wait for the next beat, and may be lost.
func (s *Service) poke(id schemas.TurnID) {
	if t := s.turns.get(id); t != nil {
		t.nudge() // the connection does not echo
	}
	data, err := schemas.Encode(&schemas.Control{Kind: schemas.ControlPoke})
	if err == nil {
		err = s.control.Publish(s.cfg.Prefix.Control(id), data)
	}
	if err != nil {
		s.log.Debug("an owner was not poked", "turn", id, "error", err)
	}
}

// answerNode does what an operator asks of this node.
func (s *Service) answerNode(verb schemas.NodeVerb) ([]byte, error) {
	reply := &schemas.NodeReply{Node: s.cfg.Node, Verb: verb}
	switch verb {
	case schemas.VerbStatus:
		reply.Advertisement = s.advertisement()
	case schemas.VerbSessions:
		reply.Sessions, reply.Truncated = s.sessions()
	case schemas.VerbDrain:
		s.Drain(true)
	case schemas.VerbUndrain:
		s.Drain(false)
	}
	reply.State = s.State()
	return schemas.Encode(reply)
}

// sessions are the live turns, oldest first.
func (s *Service) sessions() (list []schemas.SessionInfo, truncated bool) {
	all := s.turns.all()
	now := time.Now()
	for _, t := range all {
		phase, last := s.stream.progress(t.out)
		list = append(list, schemas.SessionInfo{Tenant: t.id.Tenant, Session: t.id.Session, Turn: t.id.Turn,
			Attempt: t.record().Attempt, Phase: phase, LastIndex: last, AgeMS: max(0, now.Sub(t.claimed).Milliseconds())})
	}
	slices.SortFunc(list, func(a, b schemas.SessionInfo) int { return cmp.Compare(b.AgeMS, a.AgeMS) })
	if len(list) > schemas.MaxSessions {
		return list[:schemas.MaxSessions], true
	}
	return list, false
}
