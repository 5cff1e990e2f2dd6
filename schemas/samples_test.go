package schemas_test

import (
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/meshnet/node/schemas"
)

var (
	tenant  = schemas.Must(schemas.ParseTenant("acme"))
	session = schemas.Must(schemas.ParseSession("story-1"))
	node    = schemas.Must(schemas.ParseNode("node_A"))
	boot    = schemas.Must(schemas.ParseBoot("b-2f"))
	model   = schemas.Must(schemas.ParseModel("stories"))
	adapter = schemas.Must(schemas.ParseAdapter("bard"))
	nonce   = schemas.Must(schemas.ParseNonce("n1"))
	turnID  = schemas.TurnID{Tenant: tenant, Session: session, Turn: 7}
)

func ptr[T any](v T) *T { return &v }

func textRequest() *schemas.Request {
	return &schemas.Request{Tenant: tenant, Session: session, Turn: 7, Epoch: 3, Model: model, Adapter: adapter, Nonce: nonce, Prompt: ptr("Once upon a time, ü"),
		MaxNewTokens: 64, Keep: true, DeadlineMS: 60_000, Priority: 2, HeartbeatMS: 5000}
}

func tokenRequest() *schemas.Request {
	sampling := schemas.DefaultSampling()
	sampling.Temperature, sampling.Seed = 0.8, ptr(uint64(1)<<63)
	sampling.LogitBias, sampling.DRYBreakers = []schemas.TokenBias{{TokenID: 5, Bias: -1.5}}, []string{}
	return &schemas.Request{Tenant: tenant, Session: session, Turn: 1<<64 - 1, Model: model, Nonce: nonce, TokenIDs: []int64{0, 1, 500, 1<<31 - 1},
		MaxNewTokens: 1, MinNewTokens: 1, Sampling: &sampling, Stop: []string{"\n", "é"}, Raw: true, RequireHot: true, Grammar: `root ::= "a"`}
}

func chatRequest() *schemas.Request {
	return &schemas.Request{Tenant: tenant, Session: session, Turn: 8, Model: model, Nonce: nonce, MaxNewTokens: 9, JSONSchema: `{"type":"object"}`, Tools: `[{"type":"function"}]`,
		Messages: []schemas.ChatMessage{{Role: schemas.RoleSystem, Content: "Be brief."}, {Role: schemas.RoleUser, Content: "Rain in Oslo, ü?"},
			{Role: schemas.RoleAssistant, ToolCalls: []schemas.ToolCall{{ID: "c1", Name: "weather", Arguments: `{"place":"Oslo"}`}}},
			{Role: schemas.RoleTool, Name: "weather", ToolCallID: "c1", Content: "yes"}}}
}

func completed() *schemas.Final {
	return &schemas.Final{Reason: schemas.Completed, Finish: schemas.FinishLength, Attempt: 2, Node: node, Kept: true, Count: 64,
		Usage:   schemas.Usage{PromptTokens: 10, CachedTokens: 4, PrefilledTokens: 6, ReplayedTokens: 5, NewTokens: 59},
		Timings: schemas.Timings{QueuedMS: 0.25, FirstTokenMS: 12.5, TotalMS: 900}}
}

func rejected() *schemas.Final {
	return &schemas.Final{Reason: schemas.Rejected, Node: node, Error: &schemas.ErrorDetail{Reason: schemas.RejectedContext, Field: "max_new_tokens",
		Needed: 300, Available: 256, Message: "300 tokens do not fit a context of 256: ask for fewer", RetryAfterMS: 100}}
}

func workRecord() *schemas.WorkRecord {
	return &schemas.WorkRecord{Tenant: tenant, Session: session, Turn: 7, Node: node, Model: model, Attempt: 2, Reason: schemas.Completed,
		Finish: schemas.FinishStop, Billable: true, Usage: completed().Usage, Timings: completed().Timings,
		StartedMS: 1_700_000_000_000, FinishedMS: 1_700_000_000_900, PayloadHash: schemas.PayloadHash([]byte("x"))}
}

func running() *schemas.LedgerRecord {
	return &schemas.LedgerRecord{Running: &schemas.RunningRecord{Node: node, Boot: boot, Attempt: 1, ReqSeq: 99, DeadlineMS: 1_700_000_600_000,
		PayloadHash: schemas.PayloadHash([]byte("x")), LastIndex: -1}}
}

func advertisement() *schemas.Advertisement {
	return &schemas.Advertisement{Node: node, Boot: boot, Generation: 12, State: schemas.NodeReady, Version: "v1.2.3",
		Model: schemas.ModelInfo{Name: model, Fingerprints: schemas.Fingerprints{Restore: "r1", Exact: "e1"}, Architecture: "llama", Parameters: 1 << 40,
			Quantisation: "Q4_0", ContextTokens: 256, VocabTokens: 512, LastLayer: 5, Head: true, Tail: true,
			Probes:   schemas.Probes{Trim: "any", CanPad: true, BytesPerToken: 1536, FlashAttention: "on"},
			Adapters: []schemas.AdapterInfo{{Name: adapter, Fingerprint: "a1"}}},
		MaxSessionTokens: 256, Features: []string{"hot-kv", "exact"},
		Telemetry: schemas.Telemetry{ActiveSessions: 3, MaxActiveSessions: 8, FreeSlots: 5, BatchOccupancyAvg: 2.71828, KVPressure: 0.5,
			RejectedByReason: schemas.Counts{"rejected-queue-full": 2, "rejected-context": 1}, HotMissesTotal: schemas.Counts{"never": 4}, Ticks: 1 << 40},
		Certificate: &schemas.Certificate{MadeMS: 1_700_000_000_000, Levels: []int{1, 2, 4, 8}, Requests: 8, CorruptionFree: true, BitExact: ptr(false),
			ExactFingerprint: "e1"}}
}

func nodeReply() *schemas.NodeReply {
	return &schemas.NodeReply{Node: node, Verb: schemas.VerbSessions, State: schemas.NodeDraining, Advertisement: advertisement(), Truncated: true,
		Sessions: []schemas.SessionInfo{{Tenant: tenant, Session: session, Turn: 7, Attempt: 1, Phase: schemas.PhaseActive, LastIndex: 4, AgeMS: 20}},
		Error:    &schemas.ErrorDetail{Message: "no"}}
}

// codec is one decoder, with the encoder of what it yields.
type codec struct {
	decode  func(data []byte) (any, error)
	encode  func(m any) ([]byte, error)
	samples [][]byte
}

// recode decodes and encodes again.
func (c codec) recode(data []byte) ([]byte, any, error) {
	m, err := c.decode(data)
	if err != nil {
		return nil, nil, err
	}
	again, err := c.encode(m)
	return again, m, err
}

func mustEncode(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

// codecs are all decoders of messages, with samples of each.
func codecs() map[string]codec {
	final := mustEncode(schemas.Encode(completed()))
	return map[string]codec{
		"Request": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.Request](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.Request)) },
			[][]byte{mustEncode(schemas.Encode(textRequest())), mustEncode(schemas.Encode(tokenRequest())), mustEncode(schemas.Encode(chatRequest()))},
		},
		"Event": {
			func(b []byte) (any, error) { return schemas.DecodeEvent(b) },
			encodeEvent,
			eventSamples(),
		},
		"WorkRecord": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.WorkRecord](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.WorkRecord)) },
			[][]byte{mustEncode(schemas.Encode(workRecord()))},
		},
		"LedgerRecord": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.LedgerRecord](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.LedgerRecord)) },
			[][]byte{mustEncode(schemas.Encode(running())), mustEncode(schemas.Encode(&schemas.LedgerRecord{Done: &schemas.DoneRecord{
				Reason: schemas.Completed, Attempt: 2, Final: final, Work: mustEncode(schemas.Encode(workRecord()))}}))},
		},
		"Control": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.Control](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.Control)) },
			[][]byte{mustEncode(schemas.Encode(&schemas.Control{Kind: schemas.ControlPoke}))},
		},
		"TurnRequest": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.TurnRequest](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.TurnRequest)) },
			[][]byte{mustEncode(schemas.Encode(&schemas.TurnRequest{Op: schemas.OpCancel, Tenant: tenant, Session: session, Turn: 7}))},
		},
		"TurnReply": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.TurnReply](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.TurnReply)) },
			[][]byte{
				mustEncode(schemas.Encode(&schemas.TurnReply{Op: schemas.OpCancel, Outcome: schemas.CancelTooLate, State: schemas.StateDone, Attempt: 2,
					Reason: schemas.Completed, Final: final})),
				mustEncode(schemas.Encode(&schemas.TurnReply{Op: schemas.OpStatus, State: schemas.StateRunning, Attempt: 1, Node: node, Cancel: true,
					DeadlineMS: 1_700_000_600_000})),
				mustEncode(schemas.Encode(&schemas.TurnReply{Op: schemas.OpStatus, Error: &schemas.ErrorDetail{Message: "the ledger did not answer"}})),
			},
		},
		"Advertisement": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.Advertisement](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.Advertisement)) },
			[][]byte{mustEncode(schemas.Encode(advertisement()))},
		},
		"NodeReply": {
			func(b []byte) (any, error) { return schemas.Decode[schemas.NodeReply](b) },
			func(m any) ([]byte, error) { return schemas.Encode(m.(*schemas.NodeReply)) },
			[][]byte{mustEncode(schemas.Encode(nodeReply()))},
		},
	}
}

func eventSamples() [][]byte {
	return [][]byte{
		mustEncode(schemas.Encode(&schemas.Started{Attempt: 1, Node: node, ResumeIndex: 3, PromptTokens: 9, CachedTokens: 8, Exact: true, Seed: ptr(uint64(5))})),
		mustEncode(schemas.Encode(&schemas.Started{Attempt: 1, Node: node, Miss: schemas.MissEvicted})),
		mustEncode(schemas.Encode(&schemas.Tokens{Attempt: 1, Index: 0, TokenIDs: []int64{3}, Text: ""})),
		mustEncode(schemas.Encode(&schemas.Tokens{Attempt: 1, Index: 1, TokenIDs: []int64{3, 4}, Text: "x", Bytes: []byte{'x', 0xc3}, Probs: []schemas.TokenProbs{
			{LogProb: -0.5, TopIDs: []int64{3, 9}, TopProbs: []float64{-0.5, -2}}, {LogProb: schemas.LeastLogProb, TopIDs: []int64{}, TopProbs: []float64{}}}})),
		mustEncode(schemas.Encode(&schemas.Keepalive{Attempt: 1, LastIndex: -1})),
		mustEncode(schemas.Encode(rejected())),
		mustEncode(schemas.Encode(completed())),
		mustEncode(schemas.Encode(&schemas.Final{Reason: schemas.Failed, Cause: schemas.CauseWorkerLost, Attempt: 3, Node: node})),
	}
}

func encodeEvent(m any) ([]byte, error) {
	switch e := m.(type) {
	case *schemas.Started:
		return schemas.Encode(e)
	case *schemas.Tokens:
		return schemas.Encode(e)
	case *schemas.Keepalive:
		return schemas.Encode(e)
	case *schemas.Final:
		return schemas.Encode(e)
	}
	panic("an event of another type")
}

// asMap is a sample as loose data, for tests that spoil it.
func asMap(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := msgpack.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func pack(t *testing.T, v any) []byte {
	t.Helper()
	data, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
