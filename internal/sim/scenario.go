package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Range is both ends of what is drawn, all as likely.
type Range struct{ Least, Most int }

func (r Range) draw(rng *rand.Rand) int { return r.Least + rng.IntN(r.Most-r.Least+1) }
func (r Range) mean() float64           { return float64(r.Least+r.Most) / 2 }

// DefaultQuota is how many requests a tenant may have in one lane.
const DefaultQuota = 64

// Scenario is a load on a mesh, and what happens to it. Zero fields have the defaults given here.
type Scenario struct {
	Name     string
	Seed     uint64
	Workers  int
	Slots    int       // 8
	Factors  []float64 // how many times longer the nodes take than Speeds, in turns; 1
	Sessions int
	Tenants  int
	Quota    int // requests of a tenant in one lane; DefaultQuota

	Load  float64 // arriving turns, as a part of Capacity; 0: all sessions begin at once
	Flood float64 // part of the sessions that are of the first tenant, and begin at once; Load is that of the others

	Turns int           // of each session; 1
	Think time.Duration // between a turn's end and the next one, on average; 5 s

	Prompt    Range // tokens that a turn adds to the conversation; 64 to 512
	NewTokens Range // 16 to 128

	Deaths float64       // part of the workers that die in each minute
	Back   time.Duration // until one that died is there again, with nothing hot; 30 s
}

func (c *Scenario) complete() error {
	if c.Slots == 0 {
		c.Slots = 8
	}
	if len(c.Factors) == 0 {
		c.Factors = []float64{1}
	}
	if c.Quota == 0 {
		c.Quota = DefaultQuota
	}
	if c.Turns == 0 {
		c.Turns = 1
	}
	if c.Think == 0 {
		c.Think = 5 * time.Second
	}
	if c.Prompt == (Range{}) {
		c.Prompt = Range{64, 512}
	}
	if c.NewTokens == (Range{}) {
		c.NewTokens = Range{16, 128}
	}
	if c.Back == 0 {
		c.Back = 30 * time.Second
	}
	return c.check()
}

func (c *Scenario) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("scenario: "+format, args...)) }
	if c.Workers < 1 || c.Slots < 1 || c.Sessions < 1 || c.Tenants < 1 || c.Turns < 1 || c.Quota < 1 {
		fail("workers, slots, sessions, tenants, turns and quota must be at least 1")
	}
	if c.Flood > 0 && c.Tenants < 2 {
		fail("a flood needs a second tenant")
	}
	if c.Load < 0 || c.Flood < 0 || c.Flood > 1 || c.Deaths < 0 || c.Deaths > 1 {
		fail("load must not be below 0, flood and deaths must be in [0, 1]")
	}
	for _, factor := range c.Factors {
		if factor <= 0 {
			fail("a factor is %g; it must be above 0", factor)
		}
	}
	if most := c.Turns * (c.Prompt.Most + c.NewTokens.Most); c.Prompt.Least < 1 || c.NewTokens.Least < 1 ||
		c.Prompt.Most < c.Prompt.Least || c.NewTokens.Most < c.NewTokens.Least || most > contextTokens {
		fail("a session may come to %d tokens, the context has %d; ranges must rise from at least 1", most, contextTokens)
	}
	return errors.Join(errs...)
}

// Capacity is how many turns a second the mesh could end if all slots were always full, nothing were hot, and steps and prompts did
// not wait for each other.
func (c *Scenario) Capacity(speeds *Speeds) (turns float64) {
	prompt := speeds.prefill(1).Seconds() * c.Prompt.mean()
	step := speeds.step(c.Slots).Seconds() * (c.NewTokens.mean() - 1) / float64(c.Slots)
	for id := range c.Workers {
		turns += 1 / (c.Factors[id%len(c.Factors)] * (prompt + step))
	}
	return turns
}

// Scenarios are the ones of docs/scale.md, for a mesh of so many workers and sessions.
func Scenarios(workers, sessions int, seed uint64) []Scenario {
	base := Scenario{Seed: seed, Workers: workers, Sessions: sessions, Tenants: 1000}
	with := func(name string, change func(*Scenario)) Scenario {
		c := base
		c.Name = name
		change(&c)
		return c
	}
	load := func(part float64) func(*Scenario) { return func(c *Scenario) { c.Load = part } }
	return []Scenario{
		with("uniform-50", load(0.5)),
		with("uniform-80", load(0.8)),
		with("uniform-95", load(0.95)),
		with("uniform-110", load(1.1)),
		with("returning", func(c *Scenario) {
			c.Load, c.Turns, c.Sessions = 0.8, 3, sessions/3
			c.Prompt = Range{64, 384}
		}),
		with("mixed-nodes", func(c *Scenario) {
			c.Load, c.Factors = 0.8, []float64{1, 1.3, 1.7, 2.2, 3, 4, 5.5, 8}
		}),
		with("flood", func(c *Scenario) {
			c.Load, c.Flood, c.Tenants = 0.2, 0.8, 21
		}),
		with("flood-no-quota", func(c *Scenario) {
			c.Load, c.Flood, c.Tenants, c.Quota = 0.2, 0.8, 21, sessions
		}),
		with("deaths", func(c *Scenario) { c.Load, c.Deaths = 0.7, 0.1 }),
		with("burst", func(*Scenario) {}),
	}
}
