package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"
)

// Limits of a conversation.
const (
	MaxMessages = 1024
	// MaxJSONDepth bounds how deep tools and the arguments of calls nest.
	MaxJSONDepth = 32
	// renderTime bounds how long a template may run; a usual conversation takes a millisecond.
	renderTime = 2 * time.Second
	// renderAtOnce is how many run at once: the others wait, so that slow ones do not take the machine.
	renderAtOnce = 2
)

// ErrNoChat says why a model takes no chat messages.
var ErrNoChat = errors.New("this model takes no chat messages; send a prompt")

// ErrChatLost says that the process in which the template ran is gone for a reason of its own. Try again.
var ErrChatLost = errors.New("the process of the chat template was lost")

// Message is one message of a conversation.
type Message struct {
	Role      string // system, user, assistant or tool
	Content   string
	Name      string // of the tool, where the role is tool; may be empty
	CallID    string // of the call that a message of a tool answers; may be empty
	ToolCalls []ToolCall
}

// ToolCall is a call that the assistant made.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string // a JSON object
}

// Conversation is what a chat template turns into a prompt.
type Conversation struct {
	Messages []Message
	Tools    string    // a JSON list, as OpenAI's API has it; empty is none
	Now      time.Time // what a template takes for the present
}

// ConversationError says which part of a conversation a template cannot take.
type ConversationError struct {
	Field  string // such as messages[2].content
	Reason string
}

func (e *ConversationError) Error() string { return e.Field + ": " + e.Reason }

// Chat renders conversations by the template of its model. The template runs in children, which are kept: it may crash, loop
// or take all memory there. Safe for concurrent use, except Free.
type Chat struct {
	model    *Model
	facts    templateFacts
	bos, eos string
	controls *spellings
	places   chan *templateChild // as many as may run at once; nil is one that is to be started
}

// NewChat prepares the model's own template, in this program run again: its main has to call ServeIfChild before all else. The
// error wraps ErrNoChat and says why there is no chat: the model has no template, it cannot be parsed or does not end, or the linked
// llama.cpp came without its common library.
func (m *Model) NewChat() (*Chat, error) {
	if m.facts.ChatTemplate == "" {
		return nil, fmt.Errorf("%w: model %s has no chat template", ErrNoChat, m.facts.Name)
	}
	if !bool(C.mn_has_common()) {
		return nil, fmt.Errorf("%w: the llama.cpp that is linked came without its common library", ErrNoChat)
	}
	child, facts, err := startTemplate(context.Background(), m.facts.ChatTemplate)
	if err != nil {
		return nil, fmt.Errorf("%w: chat template: %w", ErrNoChat, err)
	}
	chat := &Chat{model: m, facts: facts, controls: newSpellings(m.controlTexts()), places: make(chan *templateChild, renderAtOnce)}
	chat.places <- child
	for range renderAtOnce - 1 {
		chat.places <- nil
	}
	chat.controls.seek(m.facts.ChatTemplate)
	chat.bos, chat.eos = m.controlText(m.facts.BOS), m.controlText(m.facts.EOS)
	return chat, nil
}

// Free ends the children.
func (c *Chat) Free() {
	for range renderAtOnce {
		if child := <-c.places; child != nil {
			child.end()
		}
	}
}

// Tokenize renders a conversation, up to where the assistant is to go on, and turns it into tokens. Only the template's
// own text becomes control tokens: whatever a conversation spells stays text. A prompt that cannot have limit tokens or fewer is
// ErrTextTooLong. A conversation that the template does not take is a *ConversationError. An error that is not the
// conversation's is ErrChatLost, or that of the context.
func (c *Chat) Tokenize(ctx context.Context, limit int, conv Conversation) ([]int32, error) {
	text, err := c.render(ctx, conv)
	if err != nil {
		return nil, err
	}
	n := len(text.bytes) - len(text.fence)*bytes.Count(text.bytes, []byte(text.fence))
	if n > MaxTextBytes {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrTextTooLong, n, MaxTextBytes)
	}
	if most := limit * c.model.facts.LongestPiece; n > most {
		return nil, fmt.Errorf("%w: %d bytes; %d tokens of this model have %d at most", ErrTextTooLong, n, limit, most)
	}
	return c.model.tokenizePieces(c.controls.cut(text))
}

// render runs the template. Fences are still in its text.
func (c *Chat) render(ctx context.Context, conv Conversation) (*rendered, error) {
	doc, err := c.document(conv)
	if err != nil {
		return nil, err
	}
	fence, err := c.controls.fence(doc, c.model.facts.ChatTemplate)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(doc)
	if err != nil {
		return nil, &ConversationError{Field: "messages", Reason: err.Error()}
	}
	said, err := c.ask(ctx, &templateAsk{Conversation: encoded, BOS: c.bos, EOS: c.eos, Now: conv.Now.Unix()})
	var refused *templateError
	if errors.As(err, &refused) {
		return nil, &ConversationError{Field: "messages", Reason: "chat template: " + refused.reason}
	}
	if err != nil {
		return nil, err
	}
	return &rendered{fence: fence, bytes: said.Text, input: said.Input}, nil
}

// ask has a child run the template.
func (c *Chat) ask(ctx context.Context, ask *templateAsk) (said *templateSaid, err error) {
	var child *templateChild
	select {
	case child = <-c.places:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { c.places <- child }()
	if child == nil {
		if child, _, err = startTemplate(ctx, c.model.facts.ChatTemplate); err != nil {
			return nil, err
		}
	}
	said, err = child.ask(ctx, ask)
	if child.ended {
		child = nil
	}
	return said, err
}

// tokenizePieces turns a text that was cut into tokens. Controls are tokens within a piece, and never across a cut.
func (m *Model) tokenizePieces(pieces []string) ([]int32, error) {
	var tokens []int32
	if m.facts.AddsBOS {
		tokens = append(tokens, m.facts.BOS)
	}
	for i, piece := range pieces {
		more, err := m.tokenizeAfter(i > 0, piece)
		if err != nil {
			return nil, err
		}
		if i == 0 && m.facts.AddsBOS && len(more) > 0 && more[0] == m.facts.BOS {
			more = more[1:] // the template wrote it too
		}
		tokens = append(tokens, more...)
	}
	return tokens, nil
}

// guard is put before a text that goes on from another, where the tokenizer would put a space. It has a token of its own: no
// vocabulary joins it with what follows.
const guard = "\x02"

// tokenizeAfter turns a piece of text into tokens, after another piece or at the start of the text.
func (m *Model) tokenizeAfter(another bool, piece string) ([]int32, error) {
	if !another || !bool(C.mn_space_before_text(m.c)) {
		return m.tokenize(piece, false, true)
	}
	alone, err := m.tokenize(guard, false, true)
	if err != nil {
		return nil, err
	}
	tokens, err := m.tokenize(guard+piece, false, true)
	if err != nil {
		return nil, err
	}
	return tokens[min(len(alone), len(tokens)):], nil
}

// controlTexts are the spellings that a tokenizer turns into control tokens.
func (m *Model) controlTexts() []string {
	var texts []string
	for token := range int32(m.facts.VocabTokens) {
		if text := m.controlText(token); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// controlText is the spelling of a control token; empty for every other one.
func (m *Model) controlText(token int32) string {
	if m.checkToken(token) != nil {
		return ""
	}
	const usual = 64
	out := make([]byte, usual)
	n := C.mn_control_text(m.c, C.int32_t(token), (*C.char)(unsafe.Pointer(&out[0])), usual)
	if n < 0 {
		out = make([]byte, -n)
		n = C.mn_control_text(m.c, C.int32_t(token), (*C.char)(unsafe.Pointer(&out[0])), -n)
	}
	return strings.Clone(string(out[:max(n, 0)]))
}
