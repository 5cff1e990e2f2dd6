package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/internal/text"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// delivery is a request as it was delivered to this worker.
type delivery struct {
	lease   *lease
	place   *place // nil: it can be decided on, but not run here
	rescue  bool   // it waits in the lane of a dead node
	subject schemas.RequestSubject
	route   schemas.Route
	meta    *jetstream.MsgMetadata
	header  map[string][]string
	payload []byte

	id   schemas.TurnID
	req  *schemas.Request // nil: it is not valid
	flaw error            // why
}

// born is when the first copy of the request was stored.
func (d *delivery) born() time.Time { return d.route.BornAt(d.meta.Timestamp) }

// deadline is when the turn has to be over. What is not valid has the default.
func (d *delivery) deadline() time.Time {
	if d.req == nil {
		return d.born().Add(schemas.DefaultDeadline)
	}
	return d.born().Add(d.req.Deadline())
}

// accept decides on a request that was delivered, and returns its place unless its turn runs. Since is when the fetch
// that brought it was sent.
func (s *Service) accept(msg jetstream.Msg, since time.Time, p *place, rescue bool) {
	d := &delivery{place: p, rescue: rescue, payload: msg.Data(), header: msg.Headers(),
		lease: newLease(s.control, msg, since, s.cfg.Periods.AckWait, s.cfg.Periods.Request)}
	ctx, cancel := context.WithTimeout(s.hard, s.cfg.Periods.AckWait)
	defer cancel()
	if !s.identify(d, msg) {
		d.place.release()
		return
	}
	if d.meta.NumDelivered > 1 {
		s.metrics.redeliveries.Inc()
	}
	running, err := s.decide(ctx, d)
	if !running {
		d.place.release()
	}
	switch {
	case err == nil, errors.Is(err, errLeaseLost), s.hard.Err() != nil:
	default:
		s.log.Warn("a request is put off", "turn", d.id, "error", err)
		if err := d.lease.nak(ledger.Delay(int(d.meta.NumDelivered))); err != nil {
			s.log.Debug("a request is left to its redelivery", "turn", d.id, "error", err)
		}
	}
}

// identify reads whose turn a request is about. What has no identity that can be read is ended without an outcome:
// there is nobody to tell.
func (s *Service) identify(d *delivery, msg jetstream.Msg) bool {
	meta, err := msg.Metadata()
	if err != nil {
		s.log.Error("a message that is no request", "subject", msg.Subject(), "error", err)
		return false
	}
	d.meta = meta
	if d.subject, err = s.cfg.Prefix.ParseRequest(msg.Subject()); err == nil {
		d.req, d.flaw = schemas.Decode[schemas.Request](d.payload)
		if d.flaw != nil {
			s.metrics.guardReject(d.flaw)
			d.id, err = schemas.DecodeTurnID(d.payload)
		} else {
			d.id = d.req.ID()
		}
	}
	if err == nil && d.id.Tenant != d.subject.Tenant {
		err = errors.New("the payload names another tenant than the subject")
	}
	if err != nil {
		s.metrics.terminated.Inc()
		s.log.Warn("a request without an identity is dropped", "sequence", meta.Sequence.Stream, "error", err)
		if err := d.lease.term("no identity: " + err.Error()); err != nil {
			s.log.Debug("it is left to its redelivery", "error", err)
		}
		return false
	}
	if d.flaw == nil {
		d.flaw = d.req.Agrees(d.subject)
	}
	if d.route, err = schemas.ParseRoute(d.header); err != nil && d.flaw == nil {
		d.flaw = err
	}
	return true
}

// decide does what the ledger's rules say about a request, and says whether its turn runs here now.
func (s *Service) decide(ctx context.Context, d *delivery) (running bool, err error) {
	if err := d.lease.freshen(ctx); err != nil {
		return false, err
	}
	unlock, err := s.turns.lock(ctx, d.id)
	if err != nil {
		return false, err
	}
	defer unlock()
	for {
		live, err := s.awaitAbandoned(ctx, d.id)
		if err != nil {
			return false, err
		}
		rec, err := s.readFor(ctx, d)
		if err != nil {
			return false, err
		}
		msg, self, told, err := s.facing(ctx, d, rec, live)
		if err != nil {
			return false, err
		}
		decision := ledger.Arrive(rec, msg, self, s.clock.now())
		if decision.Duplicate {
			s.metrics.duplicates.Inc()
		}
		if decision.BeatNow {
			live.nudge()
		}
		done, running, err := s.act(ctx, d, decision, live, told)
		if done || err != nil {
			return running, err
		}
	}
}

// awaitAbandoned is the turn's live session here, if any. One that has lost its lease is waited for: nothing of
// it may be left when the turn begins anew.
func (s *Service) awaitAbandoned(ctx context.Context, id schemas.TurnID) (*turn, error) {
	for {
		live := s.turns.get(id)
		if live == nil || live.ctx.Err() == nil {
			return live, nil
		}
		select {
		case <-live.gone:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// facing is what the rules need to know. What has been told of the turn is read only where they ask for it.
func (s *Service) facing(ctx context.Context, d *delivery, rec ledger.Record, live *turn) (ledger.Message, ledger.Self, *fold.Fold, error) {
	msg := ledger.Message{
		Seq:         d.meta.Sequence.Stream,
		Lineage:     d.route.From,
		PayloadHash: ledger.Hash(schemas.PayloadHash(d.payload)),
		Deadline:    d.deadline(),
		Deliveries:  int(d.meta.NumDelivered),
		LastIndex:   -1,
	}
	self := ledger.Self{Node: s.cfg.Node.String(), Boot: s.cfg.Boot.String()}
	if live != nil {
		held := live.record()
		self.Held = &held
	}
	if rec.State != ledger.Running || live != nil {
		return msg, self, nil, nil
	}
	if !ledger.MayTakeOver(rec, msg, self) && s.clock.now().Before(rec.Deadline) {
		return msg, self, nil, nil
	}
	told, err := s.told(ctx, d.id)
	if told != nil {
		msg.LastIndex = told.Len() - 1
	}
	return msg, self, told, err
}

// act carries a decision out. It is not done where another's swap won: then the turn is decided on again.
func (s *Service) act(ctx context.Context, d *delivery, decision ledger.Decision, live *turn, told *fold.Fold) (done, running bool, err error) {
	switch decision.Action {
	case ledger.Claim, ledger.Takeover:
		return s.runHere(ctx, d, decision, told)
	case ledger.Adopt:
		done, err := s.adopt(ctx, d, decision, live)
		return done, false, err
	case ledger.Wait:
		return true, false, d.lease.nak(decision.Delay)
	case ledger.Finish:
		done, err := s.end(ctx, d, decision, nil, told)
		return done, false, err
	default:
		return true, false, s.republish(ctx, d, decision.Write)
	}
}

// adopt gives a live session the new delivery of its request.
func (s *Service) adopt(ctx context.Context, d *delivery, decision ledger.Decision, live *turn) (done bool, err error) {
	if decision.Writes {
		live.swapping.Lock()
		won, err := s.ledger.settle(ctx, d.id, &decision.Write)
		if won {
			live.hold(decision.Write)
		}
		live.swapping.Unlock()
		if !won || err != nil {
			return false, err
		}
	}
	if !live.adopt(d) {
		return true, nil // the session is over or lost its lease: the next delivery finds out what became of it
	}
	live.nudge()
	return true, nil
}

// runHere claims a turn or takes it over, unless it belongs elsewhere or fits nowhere.
func (s *Service) runHere(ctx context.Context, d *delivery, decision ledger.Decision, told *fold.Fold) (done, running bool, err error) {
	if d.flaw != nil {
		done, err := s.reject(ctx, d, decision, told, invalid(d.flaw))
		return done, false, err
	}
	if move := s.elsewhere(d); move != nil && d.route.Hops >= schemas.MaxHops {
		done, err := s.reject(ctx, d, decision, told, &schemas.ErrorDetail{Reason: schemas.RejectedModel, Field: schemas.HeaderHops,
			Needed: int64(d.route.Hops) + 1, Available: schemas.MaxHops, Message: "the request was moved too often: no node that serves its model took it"})
		return done, false, err
	} else if move != nil {
		return true, false, s.move(ctx, d, move)
	}
	if d.place == nil || s.draining.Load() {
		return true, false, s.giveBack(ctx, d)
	}
	plan, refusal, err := s.prepare(ctx, d, told)
	if err != nil {
		return false, false, err
	}
	if refusal != nil {
		if move := s.fitting(d, plan); move != nil {
			return true, false, s.move(ctx, d, move)
		}
		done, err := s.reject(ctx, d, decision, told, refusal)
		return done, false, err
	}
	t, err := s.newTurn(d, plan, decision.Write)
	if err != nil {
		return false, false, err
	}
	t.control = t.listen() // before anyone can learn who owns the turn
	s.turns.add(t)
	won, err := s.ledger.settle(ctx, d.id, &decision.Write)
	if !won {
		t.cancel()
		t.deafen()
		s.turns.remove(t)
		close(t.gone)
		return false, false, err
	}
	t.hold(decision.Write)
	if decision.Action == ledger.Takeover {
		s.metrics.takeovers.Inc()
		s.log.Info("turn taken over", "turn", d.id, "attempt", decision.Write.Attempt, "index", len(plan.found))
	}
	t.begin()
	return true, true, nil
}

func (s *Service) newTurn(d *delivery, p *plan, held ledger.Record) (*turn, error) {
	out, err := newOutput(s.cfg.Prefix.Tokens(d.id), held.Attempt, d.lease, text.New(s.textOptions(d.req)), p.found)
	if err != nil {
		return nil, err
	}
	t := &turn{s: s, claimed: time.Now(), id: d.id, key: turnKey(d.id), req: d.req, plan: p, delivery: d, lease: d.lease, place: d.place, out: out, held: held,
		nudges: make(chan struct{}, 1), heard: make(chan struct{}, 1), ended: make(chan ending, 1), gone: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(s.hard)
	return t, nil
}

// textOptions are those of a turn's text. Every attempt's are the same.
func (s *Service) textOptions(req *schemas.Request) text.Options {
	return text.Options{Piece: s.cfg.Text.Piece, Stops: req.Stop, Least: req.MinNewTokens, Raw: req.Raw}
}

// prepare makes the prompt and the plan, and refuses what could never run here. The plan of a refused request says only
// how long its prompt is.
func (s *Service) prepare(ctx context.Context, d *delivery, told *fold.Fold) (*plan, *schemas.ErrorDetail, error) {
	req := d.req
	prompt, flaw, err := s.prompt(ctx, req, d.born())
	switch {
	case err != nil:
		return nil, nil, err
	case flaw != nil:
		return &plan{}, invalid(flaw), nil
	}
	adapter, err := s.facts.Adapter(req.Adapter.String())
	if err != nil {
		return &plan{promptLen: len(prompt)}, invalid(err), nil
	}
	if refusal := s.infeasible(len(prompt), req.MaxNewTokens); refusal != nil {
		return &plan{promptLen: len(prompt)}, refusal, nil
	}
	grammar, err := s.grammar(ctx, req)
	var wrong *FieldError
	switch {
	case errors.As(err, &wrong):
		return &plan{}, invalid(err), nil
	case err != nil:
		return nil, nil, err
	}
	p := s.newPlan(req, adapter, prompt, told)
	p.grammar = grammar
	return p, nil, nil
}

// grammar is what the request's text may be; empty where it may be any.
func (s *Service) grammar(ctx context.Context, req *schemas.Request) (string, error) {
	switch {
	case req.JSONSchema != "" && s.cfg.Text.JSONSchema == nil:
		return "", &FieldError{Field: "json_schema", Reason: "this node holds no turn to a JSON Schema"}
	case req.JSONSchema != "":
		return s.cfg.Text.JSONSchema(ctx, req.JSONSchema)
	case req.Grammar != "" && s.cfg.Text.Grammar == nil:
		return "", &FieldError{Field: "grammar", Reason: "this node takes no grammars of clients; send a json_schema, or ask its operator to allow them"}
	case req.Grammar != "":
		return req.Grammar, s.cfg.Text.Grammar(req.Grammar)
	}
	return "", nil
}

// prompt is the request's as tokens, or what is wrong with the request. It is the same whenever it is made: a template that
// prints the time prints that of the request's first copy.
func (s *Service) prompt(ctx context.Context, req *schemas.Request, born time.Time) (tokens []scheduler.Token, flaw, err error) {
	switch {
	case req.Messages != nil:
		return s.chat(ctx, req, born)
	case req.Prompt == nil:
		tokens, flaw = scheduler.ParseTokens("token_ids", req.TokenIDs, s.facts.VocabTokens)
		return tokens, flaw, nil
	}
	tokens, flaw = s.cfg.Text.Tokenize(s.facts.ContextTokens, *req.Prompt, req.Special)
	if flaw == nil && len(tokens) == 0 {
		flaw = errors.New("the prompt has no tokens; send some text")
	}
	return tokens, flaw, nil
}

func (s *Service) chat(ctx context.Context, req *schemas.Request, born time.Time) (tokens []scheduler.Token, flaw, err error) {
	if s.cfg.Text.Chat == nil {
		return nil, &FieldError{Field: "messages", Reason: cmp.Or(s.cfg.Text.NoChat, errNoChat).Error()}, nil
	}
	tokens, err = s.cfg.Text.Chat(ctx, s.facts.ContextTokens, req.Messages, req.Tools, born)
	var field *FieldError
	switch {
	case errors.As(err, &field):
		return nil, err, nil
	case err != nil:
		return nil, nil, fmt.Errorf("rendering the messages: %w", err)
	case len(tokens) == 0:
		return nil, &FieldError{Field: "messages", Reason: "the model's template makes no tokens of them"}, nil
	}
	return tokens, nil, nil
}

var errNoChat = errors.New("this node takes no chat messages; send a prompt")

// infeasible is why a turn could not run here however idle the node is.
func (s *Service) infeasible(prompt, newTokens int) *schemas.ErrorDetail {
	need, have := int64(prompt)+int64(newTokens)-1, int64(s.facts.ContextTokens)
	if need > have {
		return &schemas.ErrorDetail{Reason: schemas.RejectedContext, Field: "max_new_tokens", Needed: need, Available: have,
			Message: "prompt and new tokens need more positions than the context has; shorten the prompt or ask for fewer tokens"}
	}
	if bytes, budget := s.facts.KVBytes(int(need)), s.cfg.Scheduler.Budget.KVBudgetBytes; bytes > budget {
		return &schemas.ErrorDetail{Reason: schemas.RejectedKVBudget, Field: "kv_budget_bytes", Needed: bytes, Available: budget,
			Message: "the turn needs more KV bytes than the node's budget; shorten the prompt or ask for fewer tokens"}
	}
	return nil
}

// invalid tells a client what is wrong with its request.
func invalid(err error) *schemas.ErrorDetail {
	detail := &schemas.ErrorDetail{Reason: schemas.RejectedInvalid, Field: "prompt", Message: err.Error()}
	var wire *schemas.FieldError
	var field *scheduler.FieldError
	var model *FieldError
	switch {
	case errors.As(err, &model):
		detail.Field, detail.Message = model.Field, model.Reason
	case errors.As(err, &wire):
		detail.Field = wire.Field
	case errors.As(err, &field):
		detail.Field = field.Field
	}
	return detail
}

// reject ends a turn that can run nowhere.
func (s *Service) reject(ctx context.Context, d *delivery, decision ledger.Decision, told *fold.Fold, why *schemas.ErrorDetail) (done bool, err error) {
	s.metrics.admission(scheduler.Reason(why.Reason))
	return s.end(ctx, d, decision.Reject(), why, told)
}
