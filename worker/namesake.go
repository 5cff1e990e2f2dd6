package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/schemas"
)

// NameTakenError is a node whose name another process serves under. Both would take what is meant for one of them, and
// each would overwrite what the other advertises.
type NameTakenError struct {
	Node  schemas.Node
	Boot  schemas.Boot  // of the other
	Model schemas.Model // that the other serves
}

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("node %s is there already, serving model %s (boot %s): give this one another name, or stop that one", e.Node, e.Model, e.Boot)
}

// aloneInName waits until nobody else answers for this node: its former process may still drain. One that does
// not is a *NameTakenError. Where nothing comes in time, or the question is not permitted, nobody is taken to be there.
func (s *Service) aloneInName(ctx context.Context) error {
	for said := false; ; said = true {
		other, state, err := s.namesake(ctx)
		if err != nil || other == nil {
			return err
		}
		if state != schemas.NodeDraining {
			return other
		}
		if !said {
			s.log.Info("waiting for the process that drains under this node's name", "boot", other.Boot)
		}
		if !wait(ctx, maxPause) {
			return ctx.Err()
		}
	}
}

// namesake asks who answers for this node, which does not do so itself yet; nil for nobody.
func (s *Service) namesake(ctx context.Context) (*NameTakenError, schemas.NodeState, error) {
	short, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	msg, err := s.control.RequestWithContext(short, s.cfg.Prefix.Node(s.cfg.Node, schemas.VerbStatus), nil)
	if err != nil {
		if !errors.Is(err, nats.ErrNoResponders) {
			s.log.Debug("nobody says whether the node's name is free", "error", err)
		}
		return nil, "", ctx.Err()
	}
	reply, err := schemas.Decode[schemas.NodeReply](msg.Data)
	if err != nil || reply.Advertisement == nil {
		s.log.Debug("what answers for this node is no worker", "error", err)
		return nil, "", nil
	}
	ad := reply.Advertisement
	return &NameTakenError{Node: s.cfg.Node, Boot: ad.Boot, Model: ad.Model.Name}, reply.State, nil
}
