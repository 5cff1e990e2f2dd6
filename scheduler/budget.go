package scheduler

import (
	"errors"
	"fmt"
)

// NodeBudget bounds what a node admits and what it does in one tick. Start from DefaultBudget.
type NodeBudget struct {
	WeightBytes            int64 // what the loaded weights occupy; reported, not scheduled
	KVBudgetBytes          int64 // what active sessions may reserve together
	ScratchBytesPerSession int64 // activation scratch of one active session
	ScratchBudgetBytes     int64 // of all active sessions
	HotBudgetBytes         int64 // KV of idle sessions, parked and saved; 0 keeps none
	SuspendBudgetBytes     int64 // saved KV of sessions that gave their place to another tenant; 0 suspends none

	MaxActiveSessions int // sessions that hold a slot at once
	MaxQueueDepth     int // turns that wait; 0 refuses what cannot run at once
	MaxBatchSize      int // rows of one decode batch

	// MaxPrefillTokensPerTick bounds the prompt tokens of one tick; one chunk is always allowed. 0 is
	// adaptive: one chunk while anyone decodes, else four.
	MaxPrefillTokensPerTick int

	// MaxOvertakings is how often a queued turn whose KV does not fit yet may be overtaken by later ones
	// that fit; then everything behind it waits. 0 is strictly first come, first served.
	MaxOvertakings int
}

const (
	defaultScratchPerSession = 1 << 20
	savedOverhead            = 64 << 10 // of a saved state, beside its KV
	defaultQueueDepth        = 64
	defaultOvertakings       = 16
)

// DefaultBudget is what an engine's own allocation allows: every slot active to the end of its context,
// and as many bytes again for idle sessions.
func DefaultBudget(f Facts) NodeBudget {
	slotBytes := max(1, f.KVBytes(f.ContextTokens))
	slots := max(1, f.Slots)
	return NodeBudget{
		WeightBytes:            f.WeightBytes,
		KVBudgetBytes:          int64(slots) * slotBytes,
		ScratchBytesPerSession: defaultScratchPerSession,
		ScratchBudgetBytes:     int64(slots) * defaultScratchPerSession,
		HotBudgetBytes:         int64(slots) * slotBytes,
		SuspendBudgetBytes:     int64(slots) * (slotBytes + savedOverhead),
		MaxActiveSessions:      slots,
		MaxQueueDepth:          defaultQueueDepth,
		MaxBatchSize:           slots,
		MaxOvertakings:         defaultOvertakings,
	}
}

// Validate joins one *FieldError for each field that is out of its range.
func (b NodeBudget) Validate() error {
	var errs []error
	for _, field := range []struct {
		name       string
		value, min int64
	}{
		{"weight_bytes", b.WeightBytes, 0},
		{"kv_budget_bytes", b.KVBudgetBytes, 1},
		{"scratch_bytes_per_session", b.ScratchBytesPerSession, 1},
		{"scratch_budget_bytes", b.ScratchBudgetBytes, 1},
		{"hot_budget_bytes", b.HotBudgetBytes, 0},
		{"suspend_budget_bytes", b.SuspendBudgetBytes, 0},
		{"max_active_sessions", int64(b.MaxActiveSessions), 1},
		{"max_queue_depth", int64(b.MaxQueueDepth), 0},
		{"max_batch_size", int64(b.MaxBatchSize), 1},
		{"max_prefill_tokens_per_tick", int64(b.MaxPrefillTokensPerTick), 0},
		{"max_overtakings", int64(b.MaxOvertakings), 0},
	} {
		if field.value < field.min {
			errs = append(errs, fieldError(field.name, field.value, "at least %d", field.min))
		}
	}
	return errors.Join(errs...)
}

// MaxScratchSessions is how many sessions the scratch budget alone allows.
func (b NodeBudget) MaxScratchSessions() int64 {
	return b.ScratchBudgetBytes / b.ScratchBytesPerSession
}

// EffectiveActiveCap is how many sessions may be active at once on an engine with that many slots: the
// tightest of the cap, the scratch budget and the slots, at least 1.
func (b NodeBudget) EffectiveActiveCap(slots int) int {
	return int(max(1, min(int64(b.MaxActiveSessions), b.MaxScratchSessions(), int64(slots))))
}

// checkFacts says why an engine cannot be scheduled.
func checkFacts(f Facts) error {
	if !f.Head || !f.Tail {
		return fmt.Errorf("engine owns layers %d to %d without the whole model (head %t, tail %t): sampling needs both ends; load the full model",
			f.FirstLayer, f.LastLayer, f.Head, f.Tail)
	}
	var errs []error
	for _, field := range []struct {
		name  string
		value int
	}{
		{"slots", f.Slots}, {"context_tokens", f.ContextTokens}, {"vocab_tokens", f.VocabTokens}, {"prefill_chunk", f.PrefillChunk},
	} {
		if field.value < 1 {
			errs = append(errs, fieldError("engine "+field.name, field.value, "at least 1"))
		}
	}
	if f.LeastChunk < 0 || f.LeastChunk > (f.PrefillChunk+1)/2 {
		errs = append(errs, fieldError("engine least_chunk", f.LeastChunk, "0, or at most half a prefill_chunk of %d", f.PrefillChunk))
	}
	return errors.Join(append(errs, checkAdapters(f.Adapters))...)
}
