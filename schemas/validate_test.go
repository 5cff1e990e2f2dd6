package schemas_test

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/schemas"
)

// spoil gives the error of a valid message after one change, for a message on its way out and on its way in.
func spoil[T any](t *testing.T, name, field string, encode func(*T) ([]byte, error), m *T, change func(*T)) {
	t.Helper()
	change(m)
	_, err := encode(m)
	wantField(t, name, err, field)
}

// Values that other servers took for something else: llama.cpp#12178, vllm#26797, sglang#28153, llama.cpp#9933, llama.cpp#15812.
func TestRequestOutOfRangeIsRefusedWithItsField(t *testing.T) {
	tokens := func(ids ...int64) func(*schemas.Request) {
		return func(r *schemas.Request) { r.Prompt, r.TokenIDs = nil, ids }
	}
	for _, c := range []struct {
		name, field string
		change      func(*schemas.Request)
	}{
		{"token -1", "token_ids[1]", tokens(1, -1)},
		{"token 2^31", "token_ids[0]", tokens(1 << 31)},
		{"token beyond every vocabulary", "token_ids[0]", tokens(5279552648203111001)},
		{"no tokens", "token_ids", tokens([]int64{}...)},
		{"too many tokens", "token_ids", tokens(make([]int64, schemas.MaxPromptTokens+1)...)},
		{"empty prompt", "prompt", func(r *schemas.Request) { r.Prompt = ptr("") }},
		{"long prompt", "prompt", func(r *schemas.Request) { r.Prompt = ptr(strings.Repeat("x", schemas.MaxPromptBytes+1)) }},
		{"prompt not UTF-8", "prompt", func(r *schemas.Request) { r.Prompt = ptr("\xf0\x9f") }},
		{"no prompt", "prompt", func(r *schemas.Request) { r.Prompt = nil }},
		{"two prompts", "prompt", func(r *schemas.Request) { r.TokenIDs = []int64{1} }},
		{"17 stop strings", "stop", func(r *schemas.Request) { r.Stop = strings.Split(strings.Repeat("x", 17), "") }},
		{"empty stop string", "stop[1]", func(r *schemas.Request) { r.Stop = []string{"\n", ""} }},
		{"long stop string", "stop[0]", func(r *schemas.Request) { r.Stop = []string{strings.Repeat("x", 257)} }},
		{"stop string not UTF-8", "stop[0]", func(r *schemas.Request) { r.Stop = []string{"\xff"} }},
		{"stop string with NUL", "stop[0]", func(r *schemas.Request) { r.Stop = []string{"a\x00"} }},
		{"min -1", "min_new_tokens", func(r *schemas.Request) { r.MinNewTokens = -1 }},
		{"min above max", "min_new_tokens", func(r *schemas.Request) { r.MinNewTokens = r.MaxNewTokens + 1 }},
		{"max -1", "max_new_tokens", func(r *schemas.Request) { r.MaxNewTokens = -1 }},
		{"max 0", "max_new_tokens", func(r *schemas.Request) { r.MaxNewTokens = 0 }},
		{"max 2^31", "max_new_tokens", func(r *schemas.Request) { r.MaxNewTokens = math.MaxInt32 }},
		{"deadline -1", "deadline_ms", func(r *schemas.Request) { r.DeadlineMS = -1 }},
		{"deadline over 1 h", "deadline_ms", func(r *schemas.Request) { r.DeadlineMS = 3_600_001 }},
		{"heartbeat -1", "heartbeat_ms", func(r *schemas.Request) { r.HeartbeatMS = -1 }},
		{"heartbeat 1 ms", "heartbeat_ms", func(r *schemas.Request) { r.HeartbeatMS = 1 }},
		{"no tenant", "tenant", func(r *schemas.Request) { r.Tenant = schemas.Tenant{} }},
		{"no nonce", "nonce", func(r *schemas.Request) { r.Nonce = schemas.Nonce{} }},
	} {
		spoil(t, c.name, c.field, schemas.Encode[schemas.Request], textRequest(), c.change)
	}
}

func TestSamplingOutOfRangeIsRefusedWithItsField(t *testing.T) {
	sampling := func(change func(*schemas.Sampling)) func(*schemas.Request) {
		return func(r *schemas.Request) {
			s := schemas.DefaultSampling()
			change(&s)
			r.Sampling = &s
		}
	}
	for _, c := range []struct {
		name, field string
		change      func(*schemas.Request)
	}{
		{"temperature NaN", "sampling.temperature", sampling(func(s *schemas.Sampling) { s.Temperature = math.NaN() })},
		{"temperature +Inf", "sampling.temperature", sampling(func(s *schemas.Sampling) { s.Temperature = math.Inf(1) })},
		{"temperature -1", "sampling.temperature", sampling(func(s *schemas.Sampling) { s.Temperature = -1 })},
		{"top_p NaN", "sampling.top_p", sampling(func(s *schemas.Sampling) { s.TopP = math.NaN() })},
		{"top_p 0", "sampling.top_p", sampling(func(s *schemas.Sampling) { s.TopP = 0 })},
		{"top_p 2", "sampling.top_p", sampling(func(s *schemas.Sampling) { s.TopP = 2 })},
		{"top_k -5", "sampling.top_k", sampling(func(s *schemas.Sampling) { s.TopK = -5 })},
		{"min_p 2", "sampling.min_p", sampling(func(s *schemas.Sampling) { s.MinP = 2 })},
		{"repeat_penalty 10", "sampling.repeat_penalty", sampling(func(s *schemas.Sampling) { s.RepeatPenalty = 10 })},
		{"presence_penalty -10", "sampling.presence_penalty", sampling(func(s *schemas.Sampling) { s.PresencePenalty = -10 })},
		{"frequency_penalty 10", "sampling.frequency_penalty", sampling(func(s *schemas.Sampling) { s.FrequencyPenalty = 10 })},
		{"penalty_last_n -1", "sampling.penalty_last_n", sampling(func(s *schemas.Sampling) { s.PenaltyLastN = -1 })},
		{"typical_p 0", "sampling.typical_p", sampling(func(s *schemas.Sampling) { s.TypicalP = 0 })},
		{"dry_multiplier 6", "sampling.dry_multiplier", sampling(func(s *schemas.Sampling) { s.DRYMultiplier = 6 })},
		{"dry_base NaN", "sampling.dry_base", sampling(func(s *schemas.Sampling) { s.DRYBase = math.NaN() })},
		{"dry_allowed_length 0", "sampling.dry_allowed_length", sampling(func(s *schemas.Sampling) { s.DRYAllowedLength = 0 })},
		{"dry_penalty_last_n -1", "sampling.dry_penalty_last_n", sampling(func(s *schemas.Sampling) { s.DRYPenaltyLastN = -1 })},
		{"empty breaker", "sampling.dry_sequence_breakers[0]", sampling(func(s *schemas.Sampling) { s.DRYBreakers = []string{""} })},
		{"xtc_probability 2", "sampling.xtc_probability", sampling(func(s *schemas.Sampling) { s.XTCProbability = 2 })},
		{"xtc_threshold -1", "sampling.xtc_threshold", sampling(func(s *schemas.Sampling) { s.XTCThreshold = -1 })},
		{"n_probs 21", "sampling.n_probs", sampling(func(s *schemas.Sampling) { s.Probs = 21 })},
		{"bias NaN", "sampling.logit_bias[0]", sampling(func(s *schemas.Sampling) { s.LogitBias = []schemas.TokenBias{{Bias: math.NaN()}} })},
		{"bias +Inf", "sampling.logit_bias[0]", sampling(func(s *schemas.Sampling) { s.LogitBias = []schemas.TokenBias{{Bias: math.Inf(1)}} })},
		{"bias of 2^32", "sampling.logit_bias[0]", sampling(func(s *schemas.Sampling) { s.LogitBias = []schemas.TokenBias{{TokenID: 1 << 32}} })},
		{"two biases of a token", "sampling.logit_bias", sampling(func(s *schemas.Sampling) {
			s.LogitBias = []schemas.TokenBias{{3, 1}, {4, 1}, {3, 2}}
		})},
	} {
		spoil(t, c.name, c.field, schemas.Encode[schemas.Request], textRequest(), c.change)
	}
}

func TestConversationsAndAnswersOutOfRangeAreRefusedWithTheirField(t *testing.T) {
	chat := func(messages ...schemas.ChatMessage) func(*schemas.Request) {
		return func(r *schemas.Request) { r.Prompt, r.Messages = nil, append([]schemas.ChatMessage{}, messages...) }
	}
	for _, c := range []struct {
		name, field string
		change      func(*schemas.Request)
	}{
		{"no messages", "messages", chat()},
		{"1025 messages", "messages", chat(make([]schemas.ChatMessage, 1025)...)},
		{"prompt and messages", "prompt", func(r *schemas.Request) { r.Messages = []schemas.ChatMessage{{Role: "user"}} }},
		{"role root", "messages[1].role", chat(schemas.ChatMessage{Role: "user"}, schemas.ChatMessage{Role: "root"})},
		{"no role", "messages[0].role", chat(schemas.ChatMessage{Content: "hi"})},
		{"content not UTF-8", "messages[0].content", chat(schemas.ChatMessage{Role: "user", Content: "\xff"})},
		{"calls of a user", "messages[0].tool_calls", chat(schemas.ChatMessage{Role: "user", ToolCalls: []schemas.ToolCall{{Name: "f", Arguments: "{}"}}})},
		{"129 calls", "messages[0].tool_calls", chat(schemas.ChatMessage{Role: "assistant", ToolCalls: make([]schemas.ToolCall, 129)})},
		{"call without a name", "messages[0].tool_calls[0].name", chat(schemas.ChatMessage{Role: "assistant", ToolCalls: []schemas.ToolCall{{Arguments: "{}"}}})},
		{"call without arguments", "messages[0].tool_calls[0].arguments", chat(schemas.ChatMessage{Role: "assistant", ToolCalls: []schemas.ToolCall{{Name: "f"}}})},
		{"special messages", "special", func(r *schemas.Request) {
			r.Prompt, r.Special, r.Messages = nil, true, []schemas.ChatMessage{{Role: "user"}}
		}},
		{"tools without messages", "tools", func(r *schemas.Request) { r.Tools = "[]" }},
		{"schema and grammar", "grammar", func(r *schemas.Request) { r.JSONSchema, r.Grammar = "{}", "root ::= [a]" }},
		{"long schema", "json_schema", func(r *schemas.Request) { r.JSONSchema = strings.Repeat("x", schemas.MaxSchemaBytes+1) }},
		{"long grammar", "grammar", func(r *schemas.Request) { r.Grammar = strings.Repeat("x", schemas.MaxSchemaBytes+1) }},
		{"grammar not UTF-8", "grammar", func(r *schemas.Request) { r.Grammar = "\xff" }},
		{"tools that are no list", "tools", func(r *schemas.Request) {
			r.Prompt, r.Tools, r.Messages = nil, "{}", []schemas.ChatMessage{{Role: "user"}}
		}},
	} {
		spoil(t, c.name, c.field, schemas.Encode[schemas.Request], textRequest(), c.change)
	}
}

// The same from another language: the worker is no less strict than the Go client.
func TestWorkerRefusesWhatTheClientWould(t *testing.T) {
	for _, c := range []struct {
		field  string
		value  any
		want   schemas.RejectReason
		blamed string
	}{
		{"max_new_tokens", -2, schemas.RejectInvalid, "max_new_tokens"},
		{"max_new_tokens", int64(1) << 31, schemas.RejectInvalid, "max_new_tokens"},
		{"max_new_tokens", uint64(1) << 63, schemas.RejectInvalid, "max_new_tokens"},
		{"prompt", "", schemas.RejectInvalid, "prompt"},
		{"token_ids", []int{1}, schemas.RejectInvalid, "prompt"},
		{"sampling", map[string]any{"temperature": math.NaN()}, schemas.RejectInvalid, "sampling.temperature"},
		{"sampling", map[string]any{"top_p": 0}, schemas.RejectInvalid, "sampling.top_p"},
		{"sampling", map[string]any{"seed": -1}, schemas.RejectInvalid, "sampling.seed"},
		{"messages", []any{map[string]any{"role": "user", "content": "hi"}}, schemas.RejectInvalid, "prompt"},
		{"stop", []string{""}, schemas.RejectInvalid, "stop[0]"},
		{"min_new_tokens", 1 << 20, schemas.RejectInvalid, "min_new_tokens"},
		{"sampling", map[string]any{"logit_bias": []any{map[string]any{"token_id": -1, "bias": 1}}}, schemas.RejectInvalid, "sampling.logit_bias[0]"},
		{"sampling", map[string]any{"logit_bias": []any{map[string]any{"token_id": 1}}}, schemas.RejectInvalid, "sampling.logit_bias[0].bias"},
	} {
		m := asMap(t, mustEncode(schemas.Encode(textRequest())))
		m[c.field] = c.value
		_, err := schemas.Decode[schemas.Request](pack(t, m))
		wantReject(t, c.blamed, err, c.want)
		wantField(t, c.blamed, err, c.blamed)
	}
}

func TestAbsentSamplingFieldsHaveTheirDefaults(t *testing.T) {
	m := asMap(t, mustEncode(schemas.Encode(textRequest())))
	m["sampling"] = map[string]any{"temperature": 1}
	r, err := schemas.Decode[schemas.Request](pack(t, m))
	if err != nil {
		t.Fatal(err)
	}
	want := schemas.DefaultSampling()
	want.Temperature = 1
	if !reflect.DeepEqual(r.EffectiveSampling(), want) {
		t.Errorf("sampling is %+v, want %+v", r.EffectiveSampling(), want)
	}
	delete(m, "sampling")
	if r, err = schemas.Decode[schemas.Request](pack(t, m)); err != nil || !reflect.DeepEqual(r.EffectiveSampling(), schemas.DefaultSampling()) {
		t.Errorf("without sampling it is %+v, %v", r.EffectiveSampling(), err)
	}
}

func TestSubjectAndRequestMustAgree(t *testing.T) {
	r := textRequest()
	s := schemas.RequestSubject{Model: model, Tenant: tenant}
	if err := r.Agrees(s); err != nil {
		t.Error(err)
	}
	s.Tenant = schemas.Must(schemas.ParseTenant("other"))
	wantField(t, "tenant", r.Agrees(s), "tenant")
	s = schemas.RequestSubject{Model: schemas.Must(schemas.ParseModel("other")), Tenant: tenant}
	wantField(t, "model", r.Agrees(s), "model")
	q := schemas.TurnRequest{Tenant: tenant}
	wantField(t, "turn request", q.Agrees(schemas.Must(schemas.ParseTenant("other"))), "tenant")
}

func TestFinalSaysHowItEndedAndNothingElse(t *testing.T) {
	for name, c := range map[string]struct {
		field  string
		change func(*schemas.Final)
	}{
		"no reason":                 {"reason", func(f *schemas.Final) { f.Reason = "" }},
		"unknown reason":            {"reason", func(f *schemas.Final) { f.Reason = "done" }},
		"completed without finish":  {"finish", func(f *schemas.Final) { f.Finish = "" }},
		"unknown finish":            {"finish", func(f *schemas.Final) { f.Finish = "eos" }},
		"completed with cause":      {"cause", func(f *schemas.Final) { f.Cause = schemas.CauseEngine }},
		"cancelled with finish":     {"finish", func(f *schemas.Final) { f.Reason = schemas.Cancelled }},
		"failed without cause":      {"cause", func(f *schemas.Final) { f.Reason, f.Finish = schemas.Failed, "" }},
		"unknown cause":             {"cause", func(f *schemas.Final) { f.Reason, f.Finish, f.Cause = schemas.Failed, "", "oom" }},
		"rejected without error":    {"error", func(f *schemas.Final) { f.Reason, f.Finish = schemas.Rejected, "" }},
		"rejected though admitted":  {"error.reason", func(f *schemas.Final) { *f = *rejected(); f.Error.Reason = schemas.Admitted }},
		"unknown miss":              {"error.miss", func(f *schemas.Final) { f.Error = &schemas.ErrorDetail{Miss: "cold"} }},
		"no node":                   {"node", func(f *schemas.Final) { f.Node = schemas.Node{} }},
		"negative count":            {"count", func(f *schemas.Final) { f.Count = -1 }},
		"negative usage":            {"usage.new_tokens", func(f *schemas.Final) { f.Usage.NewTokens = -1 }},
		"endless time":              {"timings.total_ms", func(f *schemas.Final) { f.Timings.TotalMS = math.Inf(1) }},
		"a time that is no number":  {"timings.queued_ms", func(f *schemas.Final) { f.Timings.QueuedMS = math.NaN() }},
		"an attempt below its kind": {"attempt", func(f *schemas.Final) { f.Attempt = -1 }},
	} {
		spoil(t, name, c.field, schemas.Encode[schemas.Final], completed(), c.change)
	}
}

func TestLongOrBrokenErrorTextDoesNotKeepAnOutcomeFromBeingTold(t *testing.T) {
	f := rejected()
	f.Error.Message = "\xff" + strings.Repeat("ü", 5000)
	got, err := schemas.Decode[schemas.Final](mustEncode(schemas.Encode(f)))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.Error.Message); n < 4000 || n > 4096 || !strings.HasPrefix(got.Error.Message, "\uFFFDü") {
		t.Errorf("the message came as %d bytes, %.20q…", n, got.Error.Message)
	}
	if len(f.Error.Message) != 10001 {
		t.Error("encoding changed the caller's message")
	}
}

func TestEventsOutOfRangeAreRefused(t *testing.T) {
	started := &schemas.Started{Attempt: 1, Node: node, PromptTokens: 4, CachedTokens: 5}
	_, err := schemas.Encode(started)
	wantField(t, "cached beyond prompt", err, "cached_tokens")
	_, err = schemas.Encode(&schemas.Tokens{Attempt: 1, TokenIDs: make([]int64, schemas.MaxEventTokens+1)})
	wantField(t, "too many tokens", err, "token_ids")
	_, err = schemas.Encode(&schemas.Tokens{Attempt: 1})
	wantField(t, "no tokens", err, "token_ids")
	_, err = schemas.Encode(&schemas.Keepalive{Attempt: 1, LastIndex: -2})
	wantField(t, "index -2", err, "last_index")
	_, err = schemas.Encode(&schemas.Keepalive{LastIndex: -1})
	wantField(t, "attempt 0", err, "attempt")
	for _, kind := range []any{"FINAL", "", 3, nil} {
		m := asMap(t, mustEncode(schemas.Encode(completed())))
		m["kind"] = kind
		_, err = schemas.DecodeEvent(pack(t, m))
		wantField(t, "kind", err, "kind")
	}
	_, err = schemas.Decode[schemas.Final](mustEncode(schemas.Encode(&schemas.Keepalive{Attempt: 1})))
	wantReject(t, "a keepalive as final", err, schemas.RejectInvalid)
}

func TestLedgerRecordIsRunningOrDone(t *testing.T) {
	done := &schemas.DoneRecord{Reason: schemas.Cancelled, Final: []byte("f")}
	for name, c := range map[string]struct {
		field  string
		change func(*schemas.LedgerRecord)
	}{
		"neither":             {"running", func(r *schemas.LedgerRecord) { r.Running = nil }},
		"both":                {"running", func(r *schemas.LedgerRecord) { r.Done = done }},
		"no sequence":         {"running.req_seq", func(r *schemas.LedgerRecord) { r.Running.ReqSeq = 0 }},
		"attempt 0":           {"running.attempt", func(r *schemas.LedgerRecord) { r.Running.Attempt = 0 }},
		"no deadline":         {"running.deadline_ms", func(r *schemas.LedgerRecord) { r.Running.DeadlineMS = 0 }},
		"negative takeovers":  {"running.takeovers_without_token", func(r *schemas.LedgerRecord) { r.Running.TakeoversWithoutToken = -1 }},
		"no boot":             {"boot", func(r *schemas.LedgerRecord) { r.Running.Boot = schemas.Boot{} }},
		"done without final":  {"done.final", func(r *schemas.LedgerRecord) { r.Running, r.Done = nil, &schemas.DoneRecord{Reason: schemas.Failed} }},
		"done without reason": {"done.reason", func(r *schemas.LedgerRecord) { r.Running, r.Done = nil, &schemas.DoneRecord{Final: []byte("f")} }},
	} {
		spoil(t, name, c.field, schemas.Encode[schemas.LedgerRecord], running(), c.change)
	}
	m := asMap(t, mustEncode(schemas.Encode(running())))
	m["running"].(map[string]any)["payload_hash"] = []byte("short")
	_, err := schemas.Decode[schemas.LedgerRecord](pack(t, m))
	wantField(t, "short hash", err, "running.payload_hash")
}

func TestOnlyCompletedTurnsAreBillable(t *testing.T) {
	for _, reason := range schemas.EndReasons() {
		if got, want := reason.Billable(), reason == schemas.Completed; got != want {
			t.Errorf("%s: billable is %t", reason, got)
		}
	}
	w := workRecord()
	w.Billable = false
	_, err := schemas.Encode(w)
	wantField(t, "work record", err, "billable")
}

func TestReplySaysWhichSwapWon(t *testing.T) {
	reply := func() *schemas.TurnReply {
		return &schemas.TurnReply{Op: schemas.OpCancel, Outcome: schemas.CancelTooLate, State: schemas.StateDone, Reason: schemas.Completed, Final: []byte("f")}
	}
	for name, c := range map[string]struct {
		field  string
		change func(*schemas.TurnReply)
	}{
		"cancel without outcome": {"outcome", func(r *schemas.TurnReply) { r.Outcome = "" }},
		"status with outcome":    {"outcome", func(r *schemas.TurnReply) { r.Op = schemas.OpStatus }},
		"no state":               {"state", func(r *schemas.TurnReply) { r.State = "" }},
		"done without reason":    {"reason", func(r *schemas.TurnReply) { r.Reason = "" }},
		"done without final":     {"final", func(r *schemas.TurnReply) { r.Final = nil }},
		"unknown op":             {"op", func(r *schemas.TurnReply) { r.Op = "pause" }},
	} {
		spoil(t, name, c.field, schemas.Encode[schemas.TurnReply], reply(), c.change)
	}
}

func TestAdvertisementIsRoundedAndChecked(t *testing.T) {
	ad, err := schemas.Decode[schemas.Advertisement](mustEncode(schemas.Encode(advertisement())))
	if err != nil {
		t.Fatal(err)
	}
	if ad.Telemetry.BatchOccupancyAvg != 2.7183 {
		t.Errorf("average occupancy is %v, want 4 decimals", ad.Telemetry.BatchOccupancyAvg)
	}
	for name, c := range map[string]struct {
		field  string
		change func(*schemas.Advertisement)
	}{
		"rate NaN":         {"telemetry.kv_pressure", func(a *schemas.Advertisement) { a.Telemetry.KVPressure = math.NaN() }},
		"negative bytes":   {"telemetry.hot_bytes", func(a *schemas.Advertisement) { a.Telemetry.HotBytes = -1 }},
		"negative count":   {"telemetry.rejected_by_reason.x", func(a *schemas.Advertisement) { a.Telemetry.RejectedByReason = schemas.Counts{"x": -1} }},
		"key with a dot":   {"telemetry.hot_misses_total (a key)", func(a *schemas.Advertisement) { a.Telemetry.HotMissesTotal = schemas.Counts{"a.b": 1} }},
		"unknown state":    {"state", func(a *schemas.Advertisement) { a.State = "asleep" }},
		"no model":         {"model", func(a *schemas.Advertisement) { a.Model.Name = schemas.Model{} }},
		"long version":     {"version", func(a *schemas.Advertisement) { a.Version = strings.Repeat("1", 257) }},
		"no levels":        {"certificate.levels (their number)", func(a *schemas.Advertisement) { a.Certificate.Levels = nil }},
		"too many feature": {"features (their number)", func(a *schemas.Advertisement) { a.Features = slices.Repeat([]string{"x"}, 65) }},
	} {
		spoil(t, name, c.field, schemas.Encode[schemas.Advertisement], advertisement(), c.change)
	}
}
