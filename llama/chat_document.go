package llama

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// document is a conversation as templates read it. Field order is the order of the JSON that they may print.
type document struct {
	Messages []docMessage    `json:"messages"`
	Tools    json.RawMessage `json:"tools,omitempty"`
}

type docMessage struct {
	Role      string    `json:"role"`
	Content   any       `json:"content"` // a string, or a list of parts
	Name      string    `json:"name,omitempty"`
	CallID    string    `json:"tool_call_id,omitempty"`
	ToolCalls []docCall `json:"tool_calls,omitempty"`
}

type docPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type docCall struct {
	ID       string      `json:"id,omitempty"`
	Type     string      `json:"type"`
	Function docFunction `json:"function"`
}

type docFunction struct {
	Name      string `json:"name"`
	Arguments any    `json:"arguments"` // JSON text, or a json.RawMessage of it
}

// document checks a conversation, and shapes it as the template takes it.
func (c *Chat) document(conv Conversation) (*document, error) {
	messages := conv.Messages
	if n := len(messages); n < 1 || n > MaxMessages {
		return nil, &ConversationError{Field: "messages", Reason: fmt.Sprintf("%d messages; send 1 to %d", n, MaxMessages)}
	}
	if !c.facts.SystemRole {
		messages = mergeSystem(messages)
	}
	doc := &document{}
	for i, m := range messages {
		d, err := c.message(m)
		if err != nil {
			return nil, &ConversationError{Field: fmt.Sprintf("messages[%d].%s", i, err.Field), Reason: err.Reason}
		}
		doc.Messages = append(doc.Messages, d)
	}
	if conv.Tools == "" {
		return doc, nil
	}
	if !c.facts.Tools {
		return nil, &ConversationError{Field: "tools", Reason: "this model's chat template has no place for tools; put them into a message"}
	}
	if reason := checkJSON(conv.Tools, '['); reason != "" {
		return nil, &ConversationError{Field: "tools", Reason: reason}
	}
	doc.Tools = json.RawMessage(conv.Tools)
	return doc, nil
}

func (c *Chat) message(m Message) (docMessage, *ConversationError) {
	switch m.Role {
	case "system", "user", "assistant", "tool":
	default:
		return docMessage{}, &ConversationError{Field: "role", Reason: fmt.Sprintf("%q; it must be system, user, assistant or tool", m.Role)}
	}
	d := docMessage{Role: m.Role, Content: m.Content, Name: m.Name, CallID: m.CallID}
	if c.facts.OnlyParts {
		d.Content = []docPart{{"text", m.Content}}
	}
	if len(m.ToolCalls) > 0 && !c.facts.ToolCalls {
		return d, &ConversationError{Field: "tool_calls", Reason: "this model's chat template has no place for calls of tools"}
	}
	for i, call := range m.ToolCalls {
		if reason := checkJSON(call.Arguments, '{'); reason != "" {
			return d, &ConversationError{Field: fmt.Sprintf("tool_calls[%d].arguments", i), Reason: reason}
		}
		made := docCall{ID: call.ID, Type: "function", Function: docFunction{Name: call.Name, Arguments: call.Arguments}}
		if c.facts.ObjectArguments {
			made.Function.Arguments = json.RawMessage(call.Arguments)
		}
		d.ToolCalls = append(d.ToolCalls, made)
	}
	return d, nil
}

// mergeSystem puts what the system says before what comes next, for templates that have no place for it.
func mergeSystem(messages []Message) []Message {
	if len(messages) < 2 || messages[0].Role != "system" {
		return messages
	}
	merged := append([]Message(nil), messages[1:]...)
	merged[0].Content = messages[0].Content + "\n\n" + merged[0].Content
	return merged
}

// checkJSON says why a text is not one JSON value that begins with a bracket. The reason is empty where it is.
func checkJSON(text string, begin byte) (reason string) {
	if depth := jsonDepth(text); depth > MaxJSONDepth {
		return fmt.Sprintf("nested %d deep; the limit is %d", depth, MaxJSONDepth)
	}
	var value json.RawMessage
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return fmt.Sprintf("not valid JSON at byte %d: %s", syntax.Offset, err)
		}
		return "not valid JSON: " + err.Error()
	}
	if trimmed := strings.TrimLeft(text, " \t\r\n"); trimmed[0] != begin {
		return map[byte]string{'[': "it must be a JSON list", '{': "it must be a JSON object"}[begin]
	}
	return ""
}

// jsonDepth is how deep a JSON text nests. It looks at brackets outside strings, and takes any text.
func jsonDepth(text string) int {
	depth, most, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			most = max(most, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return most
}

// eachText replaces every text of the conversation but the roles, the names of fields included.
func (d *document) eachText(replace func(string) string) {
	for i := range d.Messages {
		m := &d.Messages[i]
		m.Content = replaceTexts(m.Content, replace)
		m.Name, m.CallID = replace(m.Name), replace(m.CallID)
		for j := range m.ToolCalls {
			call := &m.ToolCalls[j]
			call.ID, call.Function.Name = replace(call.ID), replace(call.Function.Name)
			call.Function.Arguments = replaceTexts(call.Function.Arguments, replace)
		}
	}
	d.Tools = replaceInJSON(d.Tools, replace)
}

func replaceTexts(value any, replace func(string) string) any {
	switch v := value.(type) {
	case string:
		return replace(v)
	case []docPart:
		for i := range v {
			v[i].Text = replace(v[i].Text)
		}
	case json.RawMessage:
		return replaceInJSON(v, replace)
	}
	return value
}

// replaceInJSON replaces every text in valid JSON, names of fields included. Their order stays: templates print it.
func replaceInJSON(value json.RawMessage, replace func(string) string) json.RawMessage {
	if value == nil {
		return nil
	}
	out := make([]byte, 0, len(value))
	for i := 0; i < len(value); {
		if value[i] != '"' {
			out = append(out, value[i])
			i++
			continue
		}
		end := i + 1
		for value[end] != '"' {
			if value[end] == '\\' {
				end++
			}
			end++
		}
		var text string
		_ = json.Unmarshal(value[i:end+1], &text) // it is a string of valid JSON
		encoded, _ := json.Marshal(replace(text)) // strings always encode
		out = append(out, encoded...)
		i = end + 1
	}
	return out
}
