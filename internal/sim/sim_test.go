package sim_test

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/meshnet/node/internal/sim"
)

// lone is one turn on one worker: a prompt of 100 tokens and 3 new ones.
func lone() sim.Scenario {
	return sim.Scenario{Workers: 1, Sessions: 1, Tenants: 1, Prompt: sim.Range{Least: 100, Most: 100}, NewTokens: sim.Range{Least: 3, Most: 3}}
}

// even are speeds with which figures can be worked out.
func even() *sim.Speeds {
	return &sim.Speeds{Steps: []sim.Step{{Rows: 1, MS: 10}, {Rows: 8, MS: 24}}, PrefillMS: 1, CopyMS: 0.01, BytesPerToken: 1000}
}

func run(t *testing.T, c sim.Scenario, speeds *sim.Speeds) *sim.Result {
	t.Helper()
	r, err := sim.Run(c, speeds)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLoneTurnTakesWhatItsStepsAndTheBusTake(t *testing.T) {
	r := run(t, lone(), even())
	// 300 µs to be delivered, 600 to be claimed, 100 tokens of prompt, 150 µs to be read.
	if want := 101050 * time.Microsecond; r.FirstP50 != want || r.FirstP99 != want {
		t.Errorf("first token after %s and %s, want %s", r.FirstP50, r.FirstP99, want)
	}
	// The first token comes of the prompt, and two of steps of 10 ms.
	if want := 120900 * time.Microsecond; r.Virtual != want {
		t.Errorf("it took %s, want %s", r.Virtual, want)
	}
	if r.Lost != 0 || r.Occupancy != 1 || r.Outcomes["completed"] != 1 {
		t.Errorf("lost %v, occupancy %v, outcomes %v", r.Lost, r.Occupancy, r.Outcomes)
	}
	want := map[string]int64{
		"requests": 3,                 // published, confirmed, delivered
		"fetches":  1,                 // for eight; it has not expired
		"ledger":   2 + 2*2,           // a read and two swaps
		"events":   2 + 3*2 + 3*1 + 3, // started, three tokens, three rounds confirmed, the final
		"leases":   2,                 // the ack
		"guests":   0,
		"records":  2,
	}
	if !maps.Equal(r.Messages, want) {
		t.Errorf("messages %v, want %v", r.Messages, want)
	}
}

func TestSlowerNodeTakesAsMuchLonger(t *testing.T) {
	c := lone()
	c.Factors = []float64{3}
	if r, want := run(t, c, even()), 301050*time.Microsecond; r.FirstP50 != want {
		t.Errorf("first token after %s, want %s", r.FirstP50, want)
	}
}

func TestSameSeedSameResult(t *testing.T) {
	for _, c := range sim.Scenarios(10, 300, 7) {
		t.Run(c.Name, func(t *testing.T) {
			first := run(t, c, sim.Measured())
			if again := run(t, c, sim.Measured()); !reflect.DeepEqual(first, again) {
				t.Errorf("two runs differ:\n%+v\n%+v", first, again)
			}
			c.Seed++
			if other := run(t, c, sim.Measured()); reflect.DeepEqual(first, other) {
				t.Error("another seed makes no difference")
			}
		})
	}
}

// Run fails where a turn ends twice, and where a request, a place, a seat, a lease or a turn is left.
func TestEveryTurnEndsOnceAndNothingIsLeft(t *testing.T) {
	for _, c := range sim.Scenarios(12, 800, 1) {
		t.Run(c.Name, func(t *testing.T) {
			c.Deaths = max(c.Deaths, 0.05)
			r := run(t, c, sim.Measured())
			ended := 0
			for _, n := range r.Outcomes {
				ended += n
			}
			if ended != r.Turns || r.Turns != c.Sessions*max(1, c.Turns) {
				t.Errorf("%d of %d turns ended: %v", ended, r.Turns, r.Outcomes)
			}
		})
	}
}

func TestOnlyDeathsCostWork(t *testing.T) {
	for _, c := range sim.Scenarios(10, 500, 3) {
		t.Run(c.Name, func(t *testing.T) {
			r := run(t, c, sim.Measured())
			if lost := r.Lost > 0; lost != (c.Deaths > 0) || lost != (r.Takeovers > 0) {
				t.Errorf("%v of the work lost, %d takeovers, %d deaths", r.Lost, r.Takeovers, r.Deaths)
			}
		})
	}
}

func TestReturningSessionsFindTheirKV(t *testing.T) {
	c := sim.Scenario{Workers: 1, Sessions: 1, Tenants: 1, Turns: 3, Think: time.Second}
	if r := run(t, c, even()); r.HotHits != 1 || r.Outcomes["completed"] != 3 {
		t.Errorf("%v of two returns hot, outcomes %v", r.HotHits, r.Outcomes)
	}
	c.Deaths, c.Back, c.Think = 1, time.Millisecond, time.Minute
	if r := run(t, c, even()); r.HotHits != 0 || r.Deaths == 0 {
		t.Errorf("%v of two returns hot though the node began anew %d times", r.HotHits, r.Deaths)
	}
}

func TestQuotaHoldsATenantBackAndNobodyElse(t *testing.T) {
	c := sim.Scenario{Workers: 1, Sessions: 101, Tenants: 2, Flood: 0.99, Load: 0.1, Quota: 10}
	r := run(t, c, sim.Measured())
	if r.Refusals == 0 || r.Outcomes["completed"] != 101 {
		t.Errorf("%d refusals, outcomes %v", r.Refusals, r.Outcomes)
	}
}

func TestScenarioThatCannotBeIsRefused(t *testing.T) {
	for name, change := range map[string]func(*sim.Scenario){
		"no workers":              func(c *sim.Scenario) { c.Workers = 0 },
		"a flood beside nobody":   func(c *sim.Scenario) { c.Flood = 0.5 },
		"more than the context":   func(c *sim.Scenario) { c.Turns = 100 },
		"a factor of 0":           func(c *sim.Scenario) { c.Factors = []float64{0} },
		"more deaths than nodes":  func(c *sim.Scenario) { c.Deaths = 1.1 },
		"a range that falls":      func(c *sim.Scenario) { c.Prompt = sim.Range{Least: 2, Most: 1} },
		"a turn without a prompt": func(c *sim.Scenario) { c.Prompt = sim.Range{Least: 0, Most: 1} },
	} {
		c := lone()
		change(&c)
		if _, err := sim.Run(c, even()); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}

func TestSpeedsThatCannotBeAreRefused(t *testing.T) {
	for name, data := range map[string]string{
		"no JSON":           `{`,
		"no steps":          `{"prefill_ms_per_token": 1, "kv_bytes_per_token": 1}`,
		"rows that fall":    `{"steps": [{"rows": 2, "ms": 1}, {"rows": 1, "ms": 1}], "prefill_ms_per_token": 1, "kv_bytes_per_token": 1}`,
		"a step of no time": `{"steps": [{"rows": 1, "ms": 0}], "prefill_ms_per_token": 1, "kv_bytes_per_token": 1}`,
	} {
		if _, err := sim.ParseSpeeds([]byte(data)); err == nil {
			t.Errorf("%s: they were taken", name)
		}
	}
}

// Capacity is worked out: 100 ms of prompt, and two steps of 24 ms for eight, a turn.
func TestCapacity(t *testing.T) {
	c := lone()
	c.Slots, c.Workers, c.Factors = 8, 3, []float64{1, 2}
	if got, want := c.Capacity(even()), 2.5/0.106; got < 0.999*want || got > 1.001*want {
		t.Errorf("%v turns a second, want %v", got, want)
	}
}

// BenchmarkMesh is a burst on 100 workers; an operation is a turn.
func BenchmarkMesh(b *testing.B) {
	c := sim.Scenario{Workers: 100, Sessions: b.N, Tenants: 1000}
	if _, err := sim.Run(c, sim.Measured()); err != nil {
		b.Fatal(err)
	}
}
