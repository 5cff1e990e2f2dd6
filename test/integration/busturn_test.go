package integration

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
)

// ear hears all events of a turn, past every proxy.
type ear struct {
	b      *bus
	sub    *nats.Subscription
	events []schemas.Event
	tokens int // beyond the last one heard, whatever its attempt
}

func (b *bus) listen(r client.Request) *ear {
	b.t.Helper()
	sub, err := b.conn.SubscribeSync(busPrefix.Tokens(busID(r)))
	b.check(err)
	b.check(b.conn.Flush())
	return &ear{b: b, sub: sub}
}

func (e *ear) take(msg *nats.Msg) {
	event, err := schemas.DecodeEvent(msg.Data)
	e.b.check(err)
	e.events = append(e.events, event)
	if t, ok := event.(*schemas.Tokens); ok {
		e.tokens = max(e.tokens, t.Index+len(t.TokenIDs))
	}
}

// until waits for so many tokens.
func (e *ear) until(tokens int) {
	e.b.t.Helper()
	for e.tokens < tokens {
		msg, err := e.sub.NextMsgWithContext(e.b.ctx)
		if err != nil {
			e.b.t.Fatalf("waiting for token %d, %d were heard: %v", tokens, e.tokens, err)
		}
		e.take(msg)
	}
}

// all takes whatever the server has said by now, and returns the attempt of each event and how many finals there are.
func (e *ear) all() (attempts []int, finals int) {
	e.b.t.Helper()
	e.b.check(e.b.conn.Flush())
	for {
		if n, _, err := e.sub.Pending(); err != nil || n == 0 {
			e.b.check(err)
			break
		}
		msg, err := e.sub.NextMsgWithContext(e.b.ctx)
		e.b.check(err)
		e.take(msg)
	}
	for _, event := range e.events {
		attempts = append(attempts, event.EventAttempt())
		if event.EventKind() == schemas.KindFinal {
			finals++
		}
	}
	return attempts, finals
}

// pass lets so many engine calls through.
func (b *bus) pass(gate *goengine.Gate, calls int) {
	b.t.Helper()
	for i := range calls {
		select {
		case <-gate.Arrived():
			gate.Pass()
		case <-b.ctx.Done():
			b.t.Fatalf("call %d of %d does not come: the engine waits", i+1, calls)
		}
	}
}

// pending is a turn that a client reads.
type pending struct {
	b      *bus
	req    client.Request
	result *client.Result
	resets int
	err    error
	done   chan struct{}
}

// generate begins to read a turn.
func (b *bus) generate(c *client.Client, req client.Request) *pending {
	b.t.Helper()
	stream, err := c.Generate(b.ctx, req)
	b.check(err)
	p := &pending{b: b, req: req, done: make(chan struct{}), result: &client.Result{}}
	go func() {
		defer close(p.done)
		for event, err := range stream.Events() {
			p.err = err
			switch e := event.(type) {
			case client.Text:
				p.result.Text += e.Text
			case client.Reset:
				p.resets++
			case client.Final:
				p.result.Final = e.Final
			}
		}
	}()
	b.t.Cleanup(func() {
		stream.Close()
		<-p.done
	})
	return p
}

// whole waits for the end of a turn, and checks that its text is the undisturbed one, of which nothing was taken back.
func (p *pending) whole() schemas.Final {
	p.b.t.Helper()
	<-p.done
	want := undisturbed(p.b.t, p.req)
	if got := strings.ReplaceAll(p.result.Text, " ", ""); p.err != nil || got != want || p.resets != 0 {
		p.b.t.Fatalf("turn %s: %v, text taken back %d times, %.200q; undisturbed %.200q", busID(p.req), p.err, p.resets, got, want)
	}
	return p.result.Final
}

// inLane runs a turn in a node's own lane.
func (b *bus) inLane(node schemas.Node, req client.Request) schemas.Final {
	b.t.Helper()
	wire := &schemas.Request{Tenant: busID(req).Tenant, Session: busID(req).Session, Turn: busID(req).Turn, Model: busModel,
		Nonce: schemas.Must(schemas.ParseNonce("n")), Prompt: &req.Prompt, MaxNewTokens: req.MaxNewTokens}
	data, err := schemas.Encode(wire)
	b.check(err)
	_, err = b.js.Publish(b.ctx, busPrefix.Request(busModel, schemas.NodeLane(node), wire.Tenant), data)
	b.check(err)
	stream, err := b.client(b.url).Attach(b.ctx, req.Tenant, req.Session, req.Turn, 0)
	b.check(err)
	result, err := stream.Wait()
	b.check(err)
	return result.Final
}

// metric is the value of a worker's counter.
func (b *bus) metric(w *busWorker, name string) float64 {
	b.t.Helper()
	answer := httptest.NewRecorder()
	w.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			b.check(err)
			return f
		}
	}
	b.t.Fatalf("no metric %s", name)
	return 0
}

// decodes is an engine whose decode steps a gate holds.
func decodes(t *testing.T) *goengine.Gate {
	gate := goengine.NewGate(goengine.OpDecode)
	t.Cleanup(gate.Open)
	return gate
}
