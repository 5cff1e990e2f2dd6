package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

// machine drives a scheduler at random and remembers what it was promised.
type machine struct {
	*rig
	cfg      goengine.Config
	turns    map[string]uint64 // last turn of each session
	epochs   map[string]uint64
	accepted map[scheduler.TurnKey]scheduler.Request
	spoiled  map[scheduler.TurnKey]bool // cancelled, superseded or late: it may end early

	suspendBudget int64
}

func newMachine(t *rapid.T) *machine {
	cfg := goengine.Config{Slots: rapid.IntRange(1, 5).Draw(t, "slots"), ContextTokens: 64, PrefillChunk: 8, Vocab: 256, Seed: 7,
		EOGBias: -1000, Layers: 1, Dim: 16, Heads: 2, KVHeads: 1, FFN: 16,
		Mode:  rapid.SampledFrom([]goengine.Mode{goengine.Attention, goengine.Window, goengine.Recurrent}).Draw(t, "mode"),
		Exact: rapid.Bool().Draw(t, "exact"), Window: 16, Adapters: []string{"bard", "clerk"}}
	m := &machine{cfg: cfg, turns: map[string]uint64{}, epochs: map[string]uint64{},
		accepted: map[scheduler.TurnKey]scheduler.Request{}, spoiled: map[scheduler.TurnKey]bool{}}
	m.rig = newRig(t, cfg, budget(func(b *scheduler.NodeBudget) {
		slot := b.KVBudgetBytes / int64(cfg.Slots)
		b.KVBudgetBytes = slot + rapid.Int64Range(0, b.KVBudgetBytes).Draw(t, "kv budget")
		b.HotBudgetBytes = rapid.Int64Range(0, 3*slot).Draw(t, "hot budget")
		b.SuspendBudgetBytes = rapid.Int64Range(0, 3*slot).Draw(t, "suspend budget")
		b.MaxQueueDepth = rapid.IntRange(0, 6).Draw(t, "depth")
		b.MaxBatchSize = rapid.IntRange(1, 5).Draw(t, "batch")
		b.MaxOvertakings = rapid.IntRange(0, 3).Draw(t, "overtakings")
		b.MaxPrefillTokensPerTick = rapid.SampledFrom([]int{0, 1, 20}).Draw(t, "prefill")
		m.suspendBudget = b.SuspendBudgetBytes
	}), func(c *scheduler.Config) {
		c.Sharing = rapid.SampledFrom([]scheduler.Sharing{scheduler.ShareNothing, scheduler.ShareTenant, scheduler.ShareAll}).Draw(t, "sharing")
	})
	return m
}

var anyAdapter = rapid.SampledFrom([]string{"", "bard", "clerk"})

func (m *machine) submitAny(t *rapid.T) {
	number := rapid.IntRange(0, 5).Draw(t, "session")
	session := fmt.Sprintf("s%d", number)
	n := rapid.IntRange(1, 40).Draw(t, "prompt")
	// Prompts share long prefixes, so that kept KV is reused in part.
	req := request(session, rapid.IntRange(0, 1).Draw(t, "seed"), n, rapid.IntRange(1, 12).Draw(t, "new"))
	if rapid.Bool().Draw(t, "lazy") {
		tokens := req.Prompt
		req = lazily(req, func() ([]scheduler.Token, error) { return tokens, nil })
	}
	req.Tenant = fmt.Sprintf("t%d", number%4)
	req.Adapter = anyAdapter.Draw(t, "adapter")
	req.Priority = rapid.IntRange(-1, 1).Draw(t, "priority")
	req.Turn = m.turns[session] + 1
	req.Epoch = m.epochs[session]
	req.Keep = rapid.Bool().Draw(t, "keep")
	if rapid.IntRange(0, 9).Draw(t, "new epoch") == 0 {
		req.Epoch++
	}
	late := rapid.IntRange(0, 9).Draw(t, "deadline") == 0
	if late {
		req.Deadline = m.clock.Now().Add(time.Second)
	}
	d := m.submit(req)
	if !d.Accepted() {
		if d.Reason != scheduler.RejectedQueueFull && d.Reason != scheduler.RejectedKVBudget {
			t.Fatalf("%s", d)
		}
		return
	}
	for k := range m.accepted {
		if _, ended := m.ends[k]; !ended && k.Session == session && req.Epoch > m.epochs[session] {
			m.spoiled[k] = true
		}
	}
	m.turns[session], m.epochs[session] = req.Turn, req.Epoch
	m.accepted[req.Key()] = req
	if late {
		m.spoiled[req.Key()] = true
	}
	m.check(t)
}

func (m *machine) cancelAny(t *rapid.T) {
	live := []scheduler.TurnKey{}
	for k := range m.accepted {
		if _, ended := m.ends[k]; !ended {
			live = append(live, k)
		}
	}
	if len(live) == 0 {
		return
	}
	slices.SortFunc(live, func(a, b scheduler.TurnKey) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	k := rapid.SampledFrom(live).Draw(t, "victim")
	if _, err := m.sched.Cancel(k, scheduler.Cancelled, "", ""); err != nil {
		t.Fatal(err)
	}
	m.spoiled[k] = true
	m.check(t)
}

// check holds after every step.
func (m *machine) check(t *rapid.T) {
	m.take()
	tele := m.sched.Telemetry()
	if tele.KVReservedBytes > tele.KVBudgetBytes || tele.ActiveSessions > m.sched.ActiveCap() || tele.HotBytes < 0 || tele.KVReservedBytes < 0 {
		t.Fatalf("bounds: %+v", tele)
	}
	if tele.SuspendedBytes > m.suspendBudget || tele.SuspendedSessions > tele.QueueDepth {
		t.Fatalf("%d bytes of %d suspended sessions, the budget is %d", tele.SuspendedBytes, tele.SuspendedSessions, m.suspendBudget)
	}
	if live := tele.ActiveSessions + tele.QueueDepth; live != m.sched.Pending() || live+len(m.ends) != len(m.accepted) {
		t.Fatalf("%d live, %d pending, %d ended, %d accepted", live, m.sched.Pending(), len(m.ends), len(m.accepted))
	}
}

func TestWhateverHappensEveryTurnEndsOnceAndComesOutTheSame(t *testing.T) {
	want := map[string][]scheduler.Token{}
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"":       m.check,
			"submit": m.submitAny,
			"cancel": m.cancelAny,
			"tick":   func(*rapid.T) { m.tick() },
			"ticks": func(*rapid.T) {
				for range 5 {
					m.tick()
				}
			},
			"wait": func(*rapid.T) { m.clock.Advance(300 * time.Millisecond) },
		})
		m.finish()
		m.check(t)
		m.wantIdle()
		for k, end := range m.ends {
			full := m.alone(t, want, m.accepted[k])
			switch {
			case end.Reason == scheduler.Completed && slices.Equal(end.Tokens, full):
			case m.spoiled[k] && end.Reason != scheduler.Completed && slices.Equal(end.Tokens, full[:len(end.Tokens)]):
			default:
				t.Fatalf("turn %s ended %s %s (%s) with %v, alone it yields %v", k, end.Reason, end.Cause, end.Detail, end.Tokens, full)
			}
			if !slices.Equal(m.news[k], end.Tokens) {
				t.Fatalf("turn %s reported %v and ended with %v", k, m.news[k], end.Tokens)
			}
		}
	})
}

// alone is the request's baseline, computed once.
func (m *machine) alone(t *rapid.T, known map[string][]scheduler.Token, req scheduler.Request) []scheduler.Token {
	if req.Tokenize != nil {
		req.Prompt, _ = req.Tokenize()
		req.Tokenize = nil
	}
	id := fmt.Sprint(m.cfg.Mode, req.Adapter, req.Prompt, req.MaxNewTokens)
	if known[id] == nil {
		cfg := m.cfg
		cfg.Slots = 1
		known[id] = baseline(t, cfg, req)
	}
	return known[id]
}
