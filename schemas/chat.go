package schemas

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of a conversation of chat messages, which the request bounds in all, and of what the answer may be.
const (
	MaxMessages       = 1024
	MaxToolCalls      = 128 // of a message
	MaxToolNameBytes  = 256 // of a tool's name, and of a call's id
	MaxToolsBytes     = 256 << 10
	MaxArgumentsBytes = 64 << 10
	MaxSchemaBytes    = 64 << 10 // of a JSON Schema, and of a grammar
)

// ChatRole is who says a message. The set is closed.
type ChatRole string

// The roles.
const (
	RoleSystem    ChatRole = "system"
	RoleUser      ChatRole = "user"
	RoleAssistant ChatRole = "assistant"
	RoleTool      ChatRole = "tool" // the result of a call that the assistant made
)

// ChatRoles lists every role.
func ChatRoles() []ChatRole { return []ChatRole{RoleSystem, RoleUser, RoleAssistant, RoleTool} }

// ChatMessage is one message of a conversation.
type ChatMessage struct {
	Role       ChatRole   `msgpack:"role" json:"role"`
	Content    string     `msgpack:"content,omitempty" json:"content,omitempty"` // text; what it spells never becomes a control token
	Name       string     `msgpack:"name,omitempty" json:"name,omitempty"`       // of the tool, where the role is tool
	ToolCallID string     `msgpack:"tool_call_id,omitempty" json:"tool_call_id,omitempty"`
	ToolCalls  []ToolCall `msgpack:"tool_calls,omitempty" json:"tool_calls,omitempty"` // of the assistant
}

// ToolCall is a call of a tool.
type ToolCall struct {
	ID        string `msgpack:"id,omitempty" json:"id,omitempty"`
	Name      string `msgpack:"name" json:"name"`
	Arguments string `msgpack:"arguments" json:"arguments"` // a JSON object
}

func (r *Request) validateChat() error {
	if n := len(r.Messages); !(n >= 1 && n <= MaxMessages) {
		return fieldError("messages", fmt.Sprintf("%d messages", n), "1 to %d messages", MaxMessages)
	}
	if r.Special {
		return fieldError("special", true, "absent: in messages only the model's own template writes control tokens")
	}
	for i := range r.Messages {
		if err := r.Messages[i].validate(fmt.Sprintf("messages[%d].", i)); err != nil {
			return err
		}
	}
	return nil
}

func (m *ChatMessage) validate(path string) error {
	if !slices.Contains(ChatRoles(), m.Role) {
		return fieldError(path+"role", shown(string(m.Role)), "system, user, assistant or tool")
	}
	if n := len(m.ToolCalls); n > MaxToolCalls {
		return fieldError(path+"tool_calls", fmt.Sprintf("%d calls", n), "at most %d calls", MaxToolCalls)
	}
	if len(m.ToolCalls) > 0 && m.Role != RoleAssistant {
		return fieldError(path+"tool_calls", fmt.Sprintf("%d calls", len(m.ToolCalls)), "absent: only the assistant calls tools")
	}
	if err := first(
		checkText(path+"content", m.Content, 0, MaxPromptBytes),
		checkText(path+"name", m.Name, 0, MaxToolNameBytes),
		checkText(path+"tool_call_id", m.ToolCallID, 0, MaxToolNameBytes),
	); err != nil {
		return err
	}
	for i, call := range m.ToolCalls {
		at := fmt.Sprintf("%stool_calls[%d].", path, i)
		if err := first(
			checkText(at+"id", call.ID, 0, MaxToolNameBytes),
			checkText(at+"name", call.Name, 1, MaxToolNameBytes),
			checkText(at+"arguments", call.Arguments, 2, MaxArgumentsBytes),
		); err != nil {
			return err
		}
	}
	return nil
}

// validateTools leaves the JSON to whoever has the model's template.
func (r *Request) validateTools() error {
	if r.Tools == "" {
		return nil
	}
	if r.Messages == nil {
		return fieldError("tools", fmt.Sprintf("%d bytes long", len(r.Tools)), "absent where there are no messages")
	}
	if !strings.HasPrefix(strings.TrimLeft(r.Tools, " \t\r\n"), "[") {
		return fieldError("tools", "no JSON list", "a JSON list of tools")
	}
	return checkText("tools", r.Tools, 0, MaxToolsBytes)
}

// validateAnswer leaves the JSON Schema and the grammar themselves to the worker.
func (r *Request) validateAnswer() error {
	switch {
	case r.JSONSchema != "" && r.Grammar != "":
		return fieldError("grammar", fmt.Sprintf("%d bytes long", len(r.Grammar)), "absent beside json_schema")
	case r.JSONSchema != "":
		return checkText("json_schema", r.JSONSchema, 1, MaxSchemaBytes)
	}
	return checkText("grammar", r.Grammar, 0, MaxSchemaBytes)
}
