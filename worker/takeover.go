package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// plan is how an attempt runs: what is evaluated, and where its stream goes on.
type plan struct {
	prompt    []scheduler.Token // with the first prefilled tokens of the turn behind it
	promptLen int               // of the request's own
	prefilled int               // tokens of the turn that are part of prompt
	replay    []scheduler.Token // and those that follow them
	found     []scheduler.Token // all of them
	sampling  scheduler.Sampling
	grammar   string // what the turn's text may be; empty is any text
	adapter   scheduler.Adapter
	exact     bool
}

// newPlan plans an attempt of a request, given what earlier ones have told. A turn goes on where its readers are
// unless another model or adapter would; the seed stays whatever comes.
func (s *Service) newPlan(req *schemas.Request, adapter scheduler.Adapter, prompt []scheduler.Token, told *fold.Fold) *plan {
	p := &plan{prompt: prompt, promptLen: len(prompt), adapter: adapter, exact: true}
	wire := req.EffectiveSampling()
	p.sampling = wire.Params()
	p.sampling.MinNewTokens = req.MinNewTokens
	var before *schemas.Started
	if told != nil {
		before = told.Started()
	}
	switch {
	case wire.Seed != nil:
		p.sampling.Seed = *wire.Seed
	case before != nil && before.Seed != nil:
		p.sampling.Seed = *before.Seed
	default:
		p.sampling.Seed = rand.Uint64()
	}
	if before == nil || before.ModelFingerprint != adapter.Mark(s.cfg.ModelFingerprint) || told.Len() == 0 || told.Len() > req.MaxNewTokens {
		return p
	}
	found, err := scheduler.ParseTokens("token_ids", told.Tokens(), s.facts.VocabTokens)
	if err != nil {
		return p // not this model's after all
	}
	p.goOn(found, s.cfg.ReplayMax, s.facts.Exact)
	p.exact = p.prefilled == 0 && before.Exact && before.ExactFingerprint == adapter.Mark(s.prints.Exact)
	return p
}

// goOn makes the attempt go on after tokens of the turn. What is too much to replay is prefilled, but for the last
// token: by it the scheduler sees whether the turn was over already.
func (p *plan) goOn(found []scheduler.Token, most int, exact bool) {
	p.found, p.replay = found, found
	if most >= 0 && len(found) > most && !exact {
		p.prefilled = len(found) - 1
		p.prompt = slices.Concat(p.prompt, found[:p.prefilled])
		p.replay = found[p.prefilled:]
		p.sampling.FirstIndex = p.prefilled
	}
}

// told reads what has been said of a turn so far. Nothing is nil: the events may be lost.
func (s *Service) told(ctx context.Context, id schemas.TurnID) (*fold.Fold, error) {
	stream := s.cfg.Prefix.EventStream()
	subject := s.cfg.Prefix.Tokens(id)
	last, err := s.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the events of turn %s: %w", id, err)
	}
	end, err := last.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the events of turn %s: %w", id, err)
	}
	consumer, err := s.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, InactiveThreshold: 10 * time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("read the events of turn %s: %w", id, err)
	}
	return s.foldUntil(ctx, consumer, end.Sequence)
}

// foldUntil folds events until one of a stream sequence.
func (s *Service) foldUntil(ctx context.Context, consumer jetstream.Consumer, last uint64) (*fold.Fold, error) {
	messages, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read the events of a turn: %w", err)
	}
	defer messages.Stop()
	var told fold.Fold
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read the events of a turn: %w", err)
		}
		event, err := schemas.DecodeEvent(msg.Data())
		if err != nil {
			s.metrics.guardReject(err)
		} else {
			told.ApplyStored(event)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read the events of a turn: %w", err)
		}
		if meta.Sequence.Stream >= last {
			return &told, nil
		}
	}
}
