package llama_test

import (
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// What a tick of 8 sessions costs, by how many adapters they have among them. The engine changes as often as under the
// scheduler, which begins a tick with the adapter that the one before ended with. Their slots alternate.
func BenchmarkDecode8NoAdapter(b *testing.B)   { benchmarkAdapters(b, "") }
func BenchmarkDecode8OneAdapter(b *testing.B)  { benchmarkAdapters(b, "bard") }
func BenchmarkDecode8TwoAdapters(b *testing.B) { benchmarkAdapters(b, "bard", "clerk") }

func benchmarkAdapters(b *testing.B, adapters ...string) {
	const sessions, depth, end = 8, 64, 256
	r := newRig(b, adaptedModel(b, "135m", "q4_0"), llama.Options{Slots: sessions, ContextTokens: end})
	groups := make([][]scheduler.Row, len(adapters))
	prompt := r.prompt(tale, depth)
	for slot := range sessions {
		group := slot % len(adapters)
		r.Bind(slot, adapters[group])
		if err := r.Open(slot, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(slot, 0, prompt, false, noToken)
		groups[group] = append(groups[group], scheduler.Row{Slot: slot, Pos: depth, Token: 5, Forced: noToken})
	}
	quickest := time.Hour
	for b.Loop() {
		began := time.Now()
		for _, rows := range groups {
			for i, res := range r.Decode(rows) {
				if res.Outcome != scheduler.OutcomeToken {
					b.Fatal(res.Err)
				}
				rows[i].Token = res.Token
				rows[i].Pos++
				if rows[i].Pos < end {
					continue
				}
				if err := r.Trim(rows[i].Slot, depth); err != nil {
					b.Fatal(err)
				}
				rows[i].Pos = depth
			}
		}
		quickest = min(quickest, time.Since(began))
		slices.Reverse(groups)
	}
	b.ReportMetric(float64(quickest.Microseconds())/1000, "ms-quickest")
}

// BenchmarkAdapterChange times steps of a lone session, with another adapter than the step before and with the same. The
// quickest of each are compared: whatever else the machine does only adds to a step.
func BenchmarkAdapterChange(b *testing.B) {
	const depth, end = 64, 256
	r := newRig(b, adaptedModel(b, "135m", "q4_0"), llama.Options{Slots: 4, ContextTokens: end})
	prompt := r.prompt(tale, depth)
	var rows [2]scheduler.Row
	for i, adapter := range []string{"bard", "clerk"} {
		slot := 2 * i
		r.Bind(slot, adapter)
		if err := r.Open(slot, greedy(), prompt); err != nil {
			b.Fatal(err)
		}
		r.prefill(slot, 0, prompt, false, noToken)
		rows[i] = scheduler.Row{Slot: slot, Pos: depth, Token: 5, Forced: noToken}
	}
	step := func(row *scheduler.Row) time.Duration {
		began := time.Now()
		res := r.Decode([]scheduler.Row{*row})[0]
		took := time.Since(began)
		if res.Outcome != scheduler.OutcomeToken {
			b.Fatal(res.Err)
		}
		if err := r.Trim(row.Slot, depth); err != nil {
			b.Fatal(err)
		}
		return took
	}
	changed, same := time.Hour, time.Hour
	for b.Loop() {
		for i := range rows {
			changed = min(changed, step(&rows[i]))
			same = min(same, step(&rows[i]))
		}
	}
	b.ReportMetric(float64(changed.Microseconds())/1000, "ms-changed")
	b.ReportMetric(float64(same.Microseconds())/1000, "ms-same")
}

// BenchmarkMixedAdaptersUnderTheScheduler runs 8 sessions of two adapters, which came in turns, and 8 of one, a tick of each in turns:
// how much longer a tick of the former takes.
func BenchmarkMixedAdaptersUnderTheScheduler(b *testing.B) {
	m := adaptedModel(b, "135m", "q4_0")
	one, two := newSteady(b, m, "bard"), newSteady(b, m, "bard", "clerk")
	var ofOne, ofTwo []time.Duration
	for b.Loop() {
		ofOne, ofTwo = append(ofOne, one.tick(b)), append(ofTwo, two.tick(b))
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(ofOne), "ms-one")
	b.ReportMetric(median(ofTwo), "ms-two")
	b.ReportMetric(median(ofTwo)/median(ofOne), "ratio")
}

// steady is a scheduler with 8 sessions that decode for ever.
type steady struct {
	sched    *scheduler.Scheduler
	prompt   []scheduler.Token
	adapters []string
	turns    uint64
}

const steadySize = 8

func newSteady(b *testing.B, m *llama.Model, adapters ...string) *steady {
	r := newRig(b, m, llama.Options{Slots: steadySize, ContextTokens: 512})
	sched, err := scheduler.New(r.Engine, scheduler.Config{Budget: scheduler.DefaultBudget(r.Facts())})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(sched.Close)
	return &steady{sched: sched, prompt: r.prompt(tale, 64), adapters: adapters}
}

// tick is how long a tick with a row for each of the sessions takes. Those that ended were begun anew before.
func (c *steady) tick(b *testing.B) time.Duration {
	for {
		if c.sched.Pending() < steadySize {
			c.begin(b)
		}
		began := time.Now()
		report, err := c.sched.Tick()
		if err != nil {
			b.Fatal(err)
		}
		for _, end := range c.sched.TakeResults(nil) {
			if end.Reason != scheduler.Completed {
				b.Fatal(end)
			}
		}
		if report.Occupancy == steadySize && report.PrefillTokens == 0 {
			return time.Since(began)
		}
	}
}

func (c *steady) begin(b *testing.B) {
	sampling := greedy()
	sampling.IgnoreEOG = true
	c.turns++
	for i := range steadySize {
		key := scheduler.TurnKey{Tenant: "t", Session: string(rune('a' + i)), Turn: c.turns}
		if c.sched.Live(key) {
			continue
		}
		if d := c.sched.Submit(scheduler.Request{Tenant: key.Tenant, Session: key.Session, Turn: key.Turn, Prompt: c.prompt,
			MaxNewTokens: 400, Adapter: c.adapters[i%len(c.adapters)], Sampling: sampling}); !d.Accepted() {
			b.Fatal(d)
		}
	}
}
