package scheduler_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func TestBudgetNamesEveryFieldOutOfRange(t *testing.T) {
	bad := scheduler.NodeBudget{WeightBytes: -1, HotBudgetBytes: -1, MaxQueueDepth: -1, MaxPrefillTokensPerTick: -1, MaxOvertakings: -1}
	err := bad.Validate()
	for _, field := range []string{
		"weight_bytes", "kv_budget_bytes", "scratch_bytes_per_session", "scratch_budget_bytes", "hot_budget_bytes",
		"max_active_sessions", "max_queue_depth", "max_batch_size", "max_prefill_tokens_per_tick", "max_overtakings",
	} {
		if n := strings.Count(err.Error(), field+" is "); n != 1 {
			t.Errorf("%s named %d times in %q, want once", field, n, err)
		}
	}
	var one *scheduler.FieldError
	if !errors.As(err, &one) {
		t.Errorf("%v is no FieldError", err)
	}
	good := scheduler.DefaultBudget(scheduler.Facts{Slots: 2, ContextTokens: 10, BytesPerToken: 3})
	good.MaxQueueDepth, good.HotBudgetBytes = 0, 0
	if err := good.Validate(); err != nil || good.KVBudgetBytes != 60 {
		t.Errorf("default budget %+v: %v", good, err)
	}
}

func TestActiveCapIsTheTightestBound(t *testing.T) {
	b := scheduler.NodeBudget{ScratchBytesPerSession: 10, ScratchBudgetBytes: 35, MaxActiveSessions: 8}
	for slots, want := range map[int]int{2: 2, 3: 3, 8: 3} {
		if got := b.EffectiveActiveCap(slots); got != want {
			t.Errorf("%d slots: cap %d, want %d", slots, got, want)
		}
	}
	b.MaxActiveSessions = 1
	if got := b.EffectiveActiveCap(8); got != 1 {
		t.Errorf("cap %d, want 1", got)
	}
	b.ScratchBudgetBytes = 1
	if got := b.EffectiveActiveCap(8); got != 1 {
		t.Errorf("scratch for none: cap %d, want 1", got)
	}
}

func TestScratchForNotEvenOneSessionIsRefused(t *testing.T) {
	r := newRig(t, small(), budget(func(b *scheduler.NodeBudget) { b.ScratchBytesPerSession, b.ScratchBudgetBytes = 10, 9 }))
	d := r.submit(request("s", 1, 4, 1))
	if d.Reason != scheduler.RejectedScratchBudget || d.Detail.Needed != 10 || d.Detail.Available != 9 {
		t.Errorf("%s %+v, want rejected-scratch-budget, 10 of 9", d, d.Detail)
	}
}

// partial is an engine that lacks one end of the model.
type partial struct {
	scheduler.Engine
	head, tail bool
}

func (p partial) Facts() scheduler.Facts {
	facts := p.Engine.Facts()
	facts.Head, facts.Tail = p.head, p.tail
	return facts
}

func TestEngineWithoutTheWholeModelIsRefused(t *testing.T) {
	engine, err := goengine.New(small())
	if err != nil {
		t.Fatal(err)
	}
	cfg := scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())}
	for _, p := range []partial{{engine, true, false}, {engine, false, true}, {engine, false, false}} {
		if _, err := scheduler.New(p, cfg); err == nil || !strings.Contains(err.Error(), "whole model") {
			t.Errorf("head %t, tail %t: %v, want a refusal", p.head, p.tail, err)
		}
	}
	if _, err := scheduler.New(partial{engine, true, true}, cfg); err != nil {
		t.Error(err)
	}
}
