package worker

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// maxAsks is how many questions of a kind are answered at once. Each holds a goroutine and a request to the ledger.
const maxAsks = 256

// asks answers questions, each in a goroutine of its own: one that waits for the ledger holds up no other. Safe for
// concurrent use.
type asks struct {
	answering sync.WaitGroup

	mu      sync.Mutex // guards what follows
	running int
	closed  bool
}

// begin answers a question, or says that it cannot: there are too many, or it is closed.
func (a *asks) begin(answer func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.running == maxAsks {
		return false
	}
	a.running++
	a.answering.Go(func() {
		defer a.end()
		answer()
	})
	return true
}

func (a *asks) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
}

// close takes no more questions and waits for the answers to the others.
func (a *asks) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.answering.Wait()
}

// question is what an endpoint was asked. The endpoint's own request must not outlive its handler: micro looks at it
// afterwards.
type question struct {
	subject, inbox string
	data           []byte
}

// endpoint answers what comes to an endpoint. A question that is too many is answered at once: ask again, of another
// worker if there is one.
func (s *Service) endpoint(a *asks, answer func(ctx context.Context, q *question) ([]byte, error)) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		q := &question{subject: r.Subject(), inbox: r.Reply(), data: r.Data()}
		begun := a.begin(func() {
			ctx, cancel := context.WithTimeout(s.hard, 2*s.cfg.Periods.Request)
			defer cancel()
			data, err := answer(ctx, q)
			if err != nil {
				s.respond(q, failure("500", err.Error()))
				return
			}
			s.respond(q, &nats.Msg{Data: data})
		})
		if !begun {
			s.respond(q, failure("503", "the node answers as many questions as it can, or is shutting down; ask again"))
		}
	})
}

// failure is an answer as micro marks it that has no reply in it.
func failure(code, why string) *nats.Msg {
	return &nats.Msg{Header: nats.Header{micro.ErrorHeader: {why}, micro.ErrorCodeHeader: {code}}}
}

// respond sends an answer. Who asked has gone, or will ask again, where that fails.
func (s *Service) respond(q *question, msg *nats.Msg) {
	msg.Subject = q.inbox
	if err := s.control.PublishMsg(msg); err != nil {
		s.log.Debug("a reply was not sent", "subject", q.subject, "error", err)
	}
}
