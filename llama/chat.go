package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
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
	// renderTime bounds how long a template may read the messages; a usual conversation takes a millisecond.
	renderTime = 2 * time.Second
)

// ErrNoChat says why a model takes no chat messages.
var ErrNoChat = errors.New("this model takes no chat messages; send a prompt")

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

// Chat renders conversations by the template of its model. Safe for concurrent use, except Free.
type Chat struct {
	c        *C.mn_chat
	model    *Model
	facts    C.mn_chat_facts
	bos, eos string
	controls *spellings
}

// NewChat prepares the model's own template. The error wraps ErrNoChat and says why there is no chat: the model has no
// template, it cannot be parsed, or the linked llama.cpp came without its common library.
func (m *Model) NewChat() (*Chat, error) {
	if m.facts.ChatTemplate == "" {
		return nil, fmt.Errorf("%w: model %s has no chat template", ErrNoChat, m.facts.Name)
	}
	source := C.CString(m.facts.ChatTemplate)
	defer C.free(unsafe.Pointer(source))
	var cerr C.mn_error
	c := C.mn_chat_new(source, &cerr)
	if c == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoChat, errText(&cerr))
	}
	chat := &Chat{c: c, model: m, controls: newSpellings(m.controlTexts())}
	C.mn_chat_facts_get(c, &chat.facts)
	chat.bos, chat.eos = m.controlText(m.facts.BOS), m.controlText(m.facts.EOS)
	return chat, nil
}

// Free gives back what the template holds.
func (c *Chat) Free() {
	C.mn_chat_free(c.c)
	c.c = nil
}

// Tokenize renders a conversation, up to where the assistant is to go on, and turns it into tokens. Only the template's
// own text becomes control tokens: whatever a conversation spells stays text. A prompt that cannot have limit tokens or fewer is
// ErrTextTooLong. A conversation that the template does not take is a *ConversationError.
func (c *Chat) Tokenize(limit int, conv Conversation) ([]int32, error) {
	text, err := c.render(conv)
	if err != nil {
		return nil, err
	}
	if most := limit * c.model.facts.LongestPiece; len(text.bytes) > most {
		return nil, fmt.Errorf("%w: %d bytes; %d tokens of this model have %d at most", ErrTextTooLong, len(text.bytes), limit, most)
	}
	return c.model.tokenizePieces(c.controls.cut(text))
}

// render runs the template. Fences are still in its text.
func (c *Chat) render(conv Conversation) (*rendered, error) {
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
	bos, eos := C.CString(c.bos), C.CString(c.eos)
	defer C.free(unsafe.Pointer(bos))
	defer C.free(unsafe.Pointer(eos))
	conversation := C.CBytes(encoded)
	defer C.free(conversation)
	in := C.mn_chat_input{conversation: (*C.char)(conversation), conversation_len: C.size_t(len(encoded)), limit_bytes: MaxTextBytes,
		bos: bos, eos: eos, now: C.int64_t(conv.Now.Unix()), limit_ms: C.int64_t(renderTime.Milliseconds())}
	var out C.mn_text
	var cerr C.mn_error
	if !C.mn_chat_render(c.c, &in, &out, &cerr) { //nolint:gocritic // what it dislikes is cgo's own code
		return nil, &ConversationError{Field: "messages", Reason: errText(&cerr)}
	}
	defer C.mn_text_free(&out) //nolint:gocritic // what it dislikes is cgo's own code
	text := &rendered{fence: fence, bytes: C.GoBytes(unsafe.Pointer(out.bytes), C.int(out.len))}
	text.input = make([]bool, len(text.bytes))
	copy(text.input, unsafe.Slice((*bool)(unsafe.Pointer(out.input)), len(text.bytes)))
	return text, nil
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
