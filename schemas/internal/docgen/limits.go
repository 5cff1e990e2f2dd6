package main

import (
	"reflect"

	"github.com/meshnet/node/sampling"
	"github.com/meshnet/node/schemas"
)

// reserved fields are known and refused.
var reserved []string

// oneOf names fields of which exactly one is there.
var oneOf = map[reflect.Type][]string{
	reflect.TypeFor[schemas.Request]():      {"prompt", "token_ids", "messages"},
	reflect.TypeFor[schemas.LedgerRecord](): {"running", "done"},
}

// limits are the ranges that whoever writes a client meets; [] is for the elements. A test holds those of a
// Request against the validation.
var limits = map[string]object{
	"Request.prompt":                   {{"minLength", 1}},
	"Request.max_new_tokens":           between(1, schemas.MaxNewTokens),
	"Request.deadline_ms":              between(0, schemas.MaxDeadline.Milliseconds()),
	"Request.heartbeat_ms":             {{"anyOf", []object{{{"const", 0}}, between(schemas.MinHeartbeat.Milliseconds(), schemas.MaxHeartbeat.Milliseconds())}}},
	"Request.token_ids":                {{"minItems", 1}, {"maxItems", schemas.MaxPromptTokens}},
	"Request.token_ids[]":              between(0, schemas.MaxTokenID),
	"Request.priority":                 between(schemas.MinPriority, schemas.MaxPriority),
	"Request.messages":                 {{"minItems", 1}, {"maxItems", schemas.MaxMessages}},
	"ChatMessage.tool_calls":           {{"maxItems", schemas.MaxToolCalls}},
	"ToolCall.name":                    {{"minLength", 1}},
	"ToolCall.arguments":               {{"minLength", 2}},
	"Request.min_new_tokens":           {{"minimum", 0}},
	"Request.stop":                     {{"maxItems", sampling.MaxStops}},
	"Request.stop[]":                   {{"minLength", 1}, {"maxLength", sampling.MaxStopBytes}},
	"Sampling.dry_sequence_breakers":   {{"maxItems", sampling.MaxBreakers}},
	"Sampling.dry_sequence_breakers[]": {{"minLength", 1}, {"maxLength", sampling.MaxBreakerBytes}},
	"Sampling.logit_bias":              {{"maxItems", sampling.MaxLogitBias}},
	"TokenBias.token_id":               between(0, schemas.MaxTokenID),
	"TokenBias.bias":                   {{"description", "In [-100, 100], or minus infinity, which bans the token."}},
	"Tokens.token_ids":                 {{"minItems", 1}, {"maxItems", schemas.MaxEventTokens}},
	"Tokens.token_ids[]":               between(0, schemas.MaxTokenID),
	"Keepalive.last_index":             {{"minimum", -1}},
	"NodeReply.sessions":               {{"maxItems", schemas.MaxSessions}},
}

func init() {
	for _, n := range sampling.Numbers() {
		least := "minimum"
		if n.Above {
			least = "exclusiveMinimum"
		}
		limits["Sampling."+n.Name] = object{{least, n.Min}, {"maximum", n.Max}}
	}
}

func between(least, most int64) object { return object{{"minimum", least}, {"maximum", most}} }
