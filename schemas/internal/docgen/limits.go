package main

import (
	"reflect"

	"github.com/meshnet/node/schemas"
)

// reserved fields are known and refused.
var reserved = []string{"Request.stop"}

// oneOf names fields of which exactly one is there.
var oneOf = map[reflect.Type][]string{
	reflect.TypeFor[schemas.Request]():      {"prompt", "token_ids", "messages"},
	reflect.TypeFor[schemas.LedgerRecord](): {"running", "done"},
}

// limits are the ranges that whoever writes a client meets; [] is for the elements. A test holds those of a
// Request against the validation.
var limits = map[string]object{
	"Request.prompt":             {{"minLength", 1}},
	"Request.max_new_tokens":     between(1, schemas.MaxNewTokens),
	"Request.deadline_ms":        between(0, schemas.MaxDeadline.Milliseconds()),
	"Request.priority":           between(schemas.MinPriority, schemas.MaxPriority),
	"Request.heartbeat_ms":       {{"anyOf", []object{{{"const", 0}}, between(schemas.MinHeartbeat.Milliseconds(), schemas.MaxHeartbeat.Milliseconds())}}},
	"Request.token_ids":          {{"minItems", 1}, {"maxItems", schemas.MaxPromptTokens}},
	"Request.token_ids[]":        between(0, schemas.MaxTokenID),
	"Request.messages":           {{"minItems", 1}, {"maxItems", schemas.MaxMessages}},
	"ChatMessage.tool_calls":     {{"maxItems", schemas.MaxToolCalls}},
	"ToolCall.name":              {{"minLength", 1}},
	"ToolCall.arguments":         {{"minLength", 2}},
	"Sampling.temperature":       between(0, 2),
	"Sampling.top_k":             between(0, schemas.MaxTopK),
	"Sampling.top_p":             {{"exclusiveMinimum", 0}, {"maximum", 1}},
	"Sampling.min_p":             between(0, 1),
	"Sampling.repeat_penalty":    {{"exclusiveMinimum", 0}, {"maximum", 2}},
	"Sampling.presence_penalty":  between(-2, 2),
	"Sampling.frequency_penalty": between(-2, 2),
	"Sampling.penalty_last_n":    between(0, schemas.MaxPenaltyLastN),
	"Tokens.token_ids":           {{"minItems", 1}, {"maxItems", schemas.MaxEventTokens}},
	"Tokens.token_ids[]":         between(0, schemas.MaxTokenID),
	"Keepalive.last_index":       {{"minimum", -1}},
	"NodeReply.sessions":         {{"maxItems", schemas.MaxSessions}},
}

func between(least, most int64) object { return object{{"minimum", least}, {"maximum", most}} }
