package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// spelt is a chat template: roles and contents one after another.
func spelt(_ context.Context, _ int, messages []schemas.ChatMessage, tools string, now time.Time) ([]int32, error) {
	text := tools
	for i, m := range messages {
		if m.Content == "bad" {
			return nil, &worker.FieldError{Field: fmt.Sprintf("messages[%d].content", i), Reason: "the template does not like it"}
		}
		text += string(m.Role) + ":" + m.Content + ";"
	}
	if now.IsZero() {
		return nil, errors.New("no time was given")
	}
	tokens, err := tokenize(1000, text, false)
	if err != nil {
		err = &worker.FieldError{Field: "messages", Reason: err.Error()}
	}
	return tokens, err
}

// chatting turns the prompt of a request into messages.
func chatting(r *schemas.Request, messages ...schemas.ChatMessage) *schemas.Request {
	r.Prompt, r.Messages = nil, messages
	return r
}

func TestMessagesRunAsThePromptThatTheTemplateMakesOfThem(t *testing.T) {
	m := newMesh(t)
	m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.Text.Chat = spelt })
	req := chatting(request("s1", 1, 8), schemas.ChatMessage{Role: schemas.RoleUser, Content: "hi"})
	req.Tools = "[]"
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	same := request("s1", 1, 8)
	*same.Prompt = "[]user:hi;"
	r.whole(same)
}

func TestMessagesThatTheModelCannotTakeAreRejectedWithTheirField(t *testing.T) {
	why := errors.New("the model has no chat template")
	for name, c := range map[string]struct {
		change         setup
		content        string
		field, message string
	}{
		"no template":      {func(c *worker.Config, _ *goengine.Config) { c.Text.NoChat = why }, "hi", "messages", "the model has no chat template"},
		"no chat":          {func(*worker.Config, *goengine.Config) {}, "hi", "messages", "this node takes no chat messages"},
		"template refuses": {func(c *worker.Config, _ *goengine.Config) { c.Text.Chat = spelt }, "bad", "messages[0].content", "the template does not like it"},
		"too long":         {func(c *worker.Config, _ *goengine.Config) { c.Text.Chat = spelt }, strings.Repeat("x", 5000), "messages", "is too long"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			m.start("n1", c.change)
			req := chatting(request("s1", 1, 8), schemas.ChatMessage{Role: schemas.RoleUser, Content: c.content})
			r := m.read(req.ID())
			m.submit(req, schemas.AnyLane)
			final := r.final()
			m.wantOutcome(r, final, schemas.Rejected, "", 0)
			if final.Error.Reason != schemas.RejectedInvalid || final.Error.Field != c.field || !strings.Contains(final.Error.Message, c.message) {
				t.Errorf("error is %+v, want field %s and %q", final.Error, c.field, c.message)
			}
		})
	}
}
