package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// sweepCommand runs the same requests alone and in crowds and compares them.
type sweepCommand struct {
	modelFlags `embed:"" group:"Model:"`

	Levels       []int `help:"Sessions at once; the lowest is the reference." default:"1,2,4,8" placeholder:"N"`
	Requests     int   `help:"Requests to run at each level; default: twice the highest level." placeholder:"N"`
	PromptTokens int   `help:"Longest prompt in tokens; the prompts have all lengths up to it." default:"48" placeholder:"N"`
	MaxTokens    int   `help:"Tokens to generate for each request." default:"32" placeholder:"N"`
	Sampled      bool  `help:"Draw each token by a seed with every sampler on, rather than take the likeliest."`
	JSON         bool  `help:"Print one JSON document, and nothing else." name:"json"`
}

// Help is the long help of the command.
func (sweepCommand) Help() string {
	return `Runs the same requests at each level, with a fresh engine each time: cold, from restored KV, and beside a
session that is cancelled midway. "hot vs afresh" compares turns on restored KV with the same turns on none.
Exits 1 when a session's tokens depend on the crowd; with --exact also when a single bit of its logits does, or
differs from the same turn without restored KV or without a neighbour; and when there was too little of a
crowd to say so. With --exact the prefill chunk is half the longest prompt, at most 256, so that there are whole chunks to restore.

Examples:
  worker sweep
  worker sweep --exact --json
  worker sweep --model qwen.gguf --levels 1,4,16 --prompt-tokens 600 --exact`
}

// Run is called by the command-line parser.
func (c *sweepCommand) Run(env *environment) error {
	if err := c.check(); err != nil {
		return err
	}
	adapters, err := c.adapterFiles()
	if err != nil {
		return err
	}
	model, err := c.load(env)
	if err != nil {
		return err
	}
	defer model.Free()
	factory, err := c.factory(env, model)
	if err != nil {
		return err
	}
	report, err := scheduler.Sweep(env.ctx, factory, scheduler.SweepOptions{
		Requests: c.requests(model.Facts(), adapters),
		Levels:   c.Levels,
		Progress: func(setting scheduler.Setting, level int) {
			env.status.set("%s, %d at once", setting, level)
		},
	})
	env.status.clear()
	if env.ctx.Err() != nil {
		return errCancelled
	}
	if err != nil {
		return err
	}
	return c.print(env, model.Facts(), report)
}

// check refuses what Sweep would refuse, but before a model is loaded.
func (c *sweepCommand) check() error {
	for _, level := range c.Levels {
		if level < 1 || level > llama.MaxSlots {
			return usageError("--levels has %d; use 1 to %d", level, llama.MaxSlots)
		}
	}
	switch {
	case len(c.Levels) == 0 || slices.Min(c.Levels) == slices.Max(c.Levels):
		return usageError("--levels is %v; give at least two, which can be compared", c.Levels)
	case c.Requests != 0 && (c.Requests < slices.Max(c.Levels) || c.Requests > mostRequests):
		return usageError("--requests is %d; use %d, the highest level, to %d", c.Requests, slices.Max(c.Levels), mostRequests)
	case c.PromptTokens < 1 || c.PromptTokens > scheduler.MaxNewTokensLimit:
		return usageError("--prompt-tokens is %d; use 1 to %d", c.PromptTokens, scheduler.MaxNewTokensLimit)
	case c.MaxTokens < 2 || c.MaxTokens > scheduler.MaxNewTokensLimit:
		return usageError("--max-tokens is %d; use 2 to %d", c.MaxTokens, scheduler.MaxNewTokensLimit)
	}
	return nil
}

// mostRequests bounds the memory that a sweep's prompts take.
const mostRequests = 4096

// checkLength refuses sessions longer than the context, before prompts are made for them.
func (c *sweepCommand) checkLength(contextTokens int) error {
	if need := c.PromptTokens + c.MaxTokens - 1; need > contextTokens {
		return usageError("--prompt-tokens %d and --max-tokens %d take %d positions, the context has %d; use fewer", c.PromptTokens, c.MaxTokens, need, contextTokens)
	}
	return nil
}

// factory makes engines that differ in nothing but their number of slots; in particular all have the thread count
// that is fastest for the largest.
func (c *sweepCommand) factory(env *environment, model *llama.Model) (scheduler.EngineFactory, error) {
	o := c.engineOptions(env)
	o.Audit = true
	if o.ContextTokens == 0 {
		o.ContextTokens = min(model.Facts().ContextTokens, max(c.PromptTokens+c.MaxTokens, 256))
	}
	if err := c.checkLength(o.ContextTokens); err != nil {
		return nil, err
	}
	if o.Exact && o.PrefillChunk == 0 { // an exact engine reuses whole chunks only: prompts must be longer than one
		o.PrefillChunk = min(llama.DefaultPrefillChunk, max(1, c.PromptTokens/2))
	}
	if o.Threads == 0 {
		for _, level := range c.Levels {
			o.Slots = max(o.Slots, level)
		}
		engine, err := newEngine(env, model, o)
		if err != nil {
			return nil, err
		}
		o.Threads = engine.Facts().Threads
		engine.Free()
	}
	return func(level int) (scheduler.Engine, func(), error) {
		o := o
		o.Slots = level
		engine, err := newEngine(env, model, o)
		if err != nil {
			return nil, nil, err
		}
		return engine, engine.Free, nil
	}, nil
}

// requests are random prompts, the same in every run: lengths spread evenly up to the longest, in an order that mixes
// short and long. Those of all adapters are mixed.
func (c *sweepCommand) requests(facts llama.ModelFacts, adapters []llama.AdapterFile) []scheduler.Request {
	n := c.Requests
	if n == 0 {
		for _, level := range c.Levels {
			n = max(n, 2*level)
		}
	}
	sampling := scheduler.DefaultSampling()
	if c.Sampled {
		sampling = everySampler()
	}
	sampling.IgnoreEOG = true // every request is as long as it can be
	random := rand.New(rand.NewPCG(1, 2))
	order := random.Perm(n)
	requests := make([]scheduler.Request, n)
	for i := range requests {
		prompt := make([]scheduler.Token, max(1, c.PromptTokens*(order[i]+1)/n))
		for t := range prompt {
			prompt[t] = scheduler.Token(random.IntN(facts.VocabTokens))
		}
		requests[i] = scheduler.Request{
			Tenant: "sweep", Session: "s" + strconv.Itoa(i), Prompt: prompt, MaxNewTokens: c.MaxTokens, Sampling: sampling,
		}
		if a := i % (len(adapters) + 1); a > 0 { // without an adapter and with each of them in turn
			requests[i].Adapter = adapters[a-1].Name
		}
	}
	return requests
}

// everySampler is sampling with all that has a memory, a filter or a random choice.
func everySampler() scheduler.Sampling {
	s := scheduler.DefaultSampling()
	s.Temperature, s.TopK, s.TypicalP, s.TopP, s.MinP, s.Seed = 1, 200, 0.98, 0.95, 0.001, 1
	s.RepeatPenalty, s.PresencePenalty, s.FrequencyPenalty = 1.1, 0.1, 0.1
	s.DRYMultiplier, s.XTCProbability = 0.8, 0.5
	return s
}

// sweepDocument is what --json prints: the report, and of what.
type sweepDocument struct {
	*scheduler.SweepReport
	Model     string `json:"model"`
	Exact     bool   `json:"exact"`
	LlamaCPP  string `json:"llama_cpp"`
	Certified bool   `json:"certified"`          // what the exit code says
	Unproven  string `json:"unproven,omitempty"` // why equal tokens and bits prove nothing
}

// The ways to fail a sweep.
var (
	errCorrupt      = errors.New("tokens depend on the crowd: the report's first difference shows where")
	errKeptNotExact = errors.New("no crowd changes a bit, but with --exact kept KV or a cancelled neighbour should not either; " +
		"the report says which does, and setting_differences where")
	errNotExact = errors.New("tokens are the same in every crowd, but with --exact their logits should be so to the bit; " +
		"the report's first difference shows where (F16 weights never are)")
)

func (c *sweepCommand) print(env *environment, facts llama.ModelFacts, report *scheduler.SweepReport) error {
	exact := func(bits *bool) bool { return !c.Exact || bits != nil && *bits }
	same := report.CorruptionFree && exact(report.BitExact) && exact(report.SettingsExact)
	unproven := report.Unproven()
	certified := same && unproven == ""
	var err error
	if c.JSON {
		err = json.NewEncoder(env.stdout).Encode(sweepDocument{
			SweepReport: report, Model: facts.Name, Exact: c.Exact, LlamaCPP: llama.Version(), Certified: certified, Unproven: unproven,
		})
	} else {
		err = printSweep(env.stdout, facts, c.Exact, report)
	}
	switch {
	case err != nil || certified:
		return err
	case !report.CorruptionFree:
		return errCorrupt
	case same:
		return fmt.Errorf("no difference, but no proof either: %s", unproven)
	case !exact(report.BitExact):
		return errNotExact
	default:
		return errKeptNotExact
	}
}
