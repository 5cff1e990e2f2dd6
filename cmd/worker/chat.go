package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// chatFlags give the prompt as messages, for the model's own chat template.
type chatFlags struct {
	Chat   string `help:"The conversation as messages: a JSON file with a list of them, or an object with messages and tools, as OpenAI's API has it; - reads standard input." placeholder:"FILE"`
	System string `help:"What the system says before the text or the messages; the text is then the user's message." placeholder:"TEXT"`
}

// chatFile is a conversation as OpenAI's API has it.
type chatFile struct {
	Messages []chatMessage   `json:"messages"`
	Tools    json.RawMessage `json:"tools,omitempty"`
}

type chatMessage struct {
	Role       schemas.ChatRole `json:"role"`
	Content    *string          `json:"content"`
	Name       string           `json:"name,omitempty"`
	ToolCallID string           `json:"tool_call_id,omitempty"`
	ToolCalls  []chatCall       `json:"tool_calls,omitempty"`
}

type chatCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// wanted says whether the prompt is given as messages.
func (f *chatFlags) wanted() bool { return f.Chat != "" || f.System != "" }

// messages reads what the flags give, with the text of the command line.
func (f *chatFlags) messages(env *environment, text string, tokens int) (messages []schemas.ChatMessage, tools string, err error) {
	if f.Chat != "" && text != "" || tokens > 0 {
		return nil, "", usageError("give the prompt as text, as --tokens or as --chat")
	}
	if f.System != "" {
		messages = append(messages, schemas.ChatMessage{Role: schemas.RoleSystem, Content: f.System})
	}
	if f.Chat == "" {
		if text == "-" {
			if text, err = readPrompt(env); err != nil {
				return nil, "", err
			}
		}
		return append(messages, schemas.ChatMessage{Role: schemas.RoleUser, Content: text}), "", nil
	}
	file, err := readChat(env, f.Chat)
	if err != nil {
		return nil, "", err
	}
	for _, m := range file.Messages {
		messages = append(messages, m.wire())
	}
	return messages, string(file.Tools), nil
}

func readChat(env *environment, name string) (*chatFile, error) {
	data, err := readInput(env, name)
	if err != nil {
		return nil, err
	}
	var file chatFile
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		err = decodeChat(data, &file.Messages)
	} else {
		err = decodeChat(data, &file)
	}
	if err == nil && len(file.Messages) == 0 {
		err = errors.New("it has none")
	}
	if err != nil {
		return nil, usageError("--chat %s is not a list of messages: %v", name, err)
	}
	return &file, nil
}

// decodeChat reads JSON that is of one form and nothing else: what is not known, a template would not see.
func decodeChat(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	var bent *json.UnmarshalTypeError
	switch {
	case errors.As(err, &bent):
		return fmt.Errorf("at byte %d there is a JSON %s in the place of a %s", bent.Offset, bent.Value, bent.Type)
	case err != nil:
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("at byte %d there is something behind it", decoder.InputOffset())
	}
	return nil
}

// readInput reads a file, or standard input where it is named -.
func readInput(env *environment, name string) ([]byte, error) {
	if name == "-" {
		text, err := readPrompt(env)
		return []byte(text), err
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, usageError("%v", err)
	}
	return data, nil
}

func (m *chatMessage) wire() schemas.ChatMessage {
	wire := schemas.ChatMessage{Role: m.Role, Name: m.Name, ToolCallID: m.ToolCallID}
	if m.Content != nil {
		wire.Content = *m.Content
	}
	for _, call := range m.ToolCalls {
		wire.ToolCalls = append(wire.ToolCalls, schemas.ToolCall{ID: call.ID, Name: call.Function.Name, Arguments: call.Function.Arguments})
	}
	return wire
}

// conversation is messages as the model's template takes them.
func conversation(messages []schemas.ChatMessage, tools string, now time.Time) llama.Conversation {
	conv := llama.Conversation{Tools: tools, Now: now}
	for _, m := range messages {
		turned := llama.Message{Role: string(m.Role), Content: m.Content, Name: m.Name, CallID: m.ToolCallID}
		for _, call := range m.ToolCalls {
			turned.ToolCalls = append(turned.ToolCalls, llama.ToolCall{ID: call.ID, Name: call.Name, Arguments: call.Arguments})
		}
		conv.Messages = append(conv.Messages, turned)
	}
	return conv
}

// serveChat makes the service take messages, where the model has a template that works. Free it when the service has ended.
func serveChat(text *worker.Text, model *llama.Model) (free func()) {
	chat, err := model.NewChat()
	if err != nil {
		text.NoChat = err
		return func() {}
	}
	text.Chat = func(ctx context.Context, limit int, messages []schemas.ChatMessage, tools string, now time.Time) ([]int32, error) {
		tokens, err := chat.Tokenize(ctx, limit, conversation(messages, tools, now))
		var wrong *llama.ConversationError
		switch {
		case errors.As(err, &wrong):
			err = &worker.FieldError{Field: wrong.Field, Reason: wrong.Reason}
		case err != nil && ctx.Err() == nil && !errors.Is(err, llama.ErrChatLost):
			err = &worker.FieldError{Field: "messages", Reason: err.Error()}
		}
		return tokens, err
	}
	return chat.Free
}

// chatTokens is the prompt of messages, for a command that has the model itself.
func chatTokens(ctx context.Context, model *llama.Model, limit int, messages []schemas.ChatMessage, tools string) ([]int32, error) {
	chat, err := model.NewChat()
	if err != nil {
		return nil, err
	}
	defer chat.Free()
	tokens, err := chat.Tokenize(ctx, limit, conversation(messages, tools, time.Now()))
	if err != nil {
		return nil, fmt.Errorf("the conversation: %w", err)
	}
	return tokens, nil
}
