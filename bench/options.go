package bench

import (
	"fmt"
	"strconv"
	"time"
)

// Options say what load to make. The zero value is not valid: see Validate.
type Options struct {
	Concurrency []int     `json:"concurrency,omitempty"`        // closed loop: requests in flight, a phase each
	Rates       []float64 `json:"rates_per_second,omitempty"`   // or open loop: mean arrivals a second, a phase each
	Requests    int       `json:"requests_per_phase,omitempty"` // 0: as Phase says
	Warmup      int       `json:"warmup_requests"`              // before all, not counted
	Rounds      int       `json:"rounds"`                       // how often every phase is run
	Seed        uint64    `json:"seed"`                         // of prompts, lengths, arrivals and the requests' own seeds

	Output      Lengths       `json:"output_tokens"` // at most so many, and exactly so many with IgnoreEOS
	Temperature float64       `json:"temperature"`
	IgnoreEOS   bool          `json:"ignore_eos"`
	Timeout     time.Duration `json:"timeout_ns"` // of a request as a whole
	Stall       time.Duration `json:"stall_ns"`   // without text, once the first has come
	SLO         SLO           `json:"slo,omitzero"`
}

// Limits of Options. They bound what a run keeps in memory.
const (
	MaxInFlight  = 4096
	MaxRate      = 10_000.0
	MaxRequests  = 1_000_000  // of all phases, rounds and systems
	MaxGaps      = 20_000_000 // tokens of all of them
	leastDefault = 16         // requests of a phase
	openDefault  = 64
)

// Validate refuses what cannot be run, against so many systems. The error names the flag, and both numbers.
func (o *Options) Validate(systems int) error {
	for _, n := range o.Concurrency {
		switch {
		case n < 1 || n > MaxInFlight:
			return fmt.Errorf("--concurrency has %d; use 1 to %d", n, MaxInFlight)
		case o.Requests != 0 && o.Requests < n:
			return fmt.Errorf("--requests is %d, less than the %d of --concurrency, which would never be in flight; use at least %d", o.Requests, n, n)
		}
	}
	for _, rate := range o.Rates {
		if !(rate > 0 && rate <= MaxRate) {
			return fmt.Errorf("--rate has %g; use more than 0, and at most %g a second", rate, MaxRate)
		}
	}
	switch {
	case (len(o.Concurrency) == 0) == (len(o.Rates) == 0):
		return fmt.Errorf("--concurrency has %d phases and --rate has %d; give one of the two", len(o.Concurrency), len(o.Rates))
	case o.Requests < 0 || o.Requests > MaxRequests:
		return fmt.Errorf("--requests is %d; use 1 to %d", o.Requests, MaxRequests)
	case o.Warmup < 0 || o.Warmup > 10_000:
		return fmt.Errorf("--warmup is %d; use 0 to 10000", o.Warmup)
	case o.Rounds < 1 || o.Rounds > 1000:
		return fmt.Errorf("--rounds is %d; use 1 to 1000", o.Rounds)
	case !(o.Temperature >= 0 && o.Temperature <= 100):
		return fmt.Errorf("--temperature is %g; use 0 to 100", o.Temperature)
	case o.Timeout < time.Second || o.Timeout > MaxTimeout:
		return fmt.Errorf("--timeout is %s; use 1s to %s", o.Timeout, MaxTimeout)
	case o.Stall < 100*time.Millisecond || o.Stall > MaxTimeout:
		return fmt.Errorf("--stall is %s; use 100ms to %s", o.Stall, MaxTimeout)
	}
	total := o.requests(systems)
	if total > MaxRequests {
		return fmt.Errorf("phases, --rounds and systems make %d requests; use at most %d", total, MaxRequests)
	}
	return checkTokens(total, o.Output.Max)
}

// checkTokens bounds the times that are kept.
func checkTokens(requests, longest int) error {
	if tokens := requests * longest; tokens > MaxGaps {
		return fmt.Errorf("%d requests with answers of up to %d tokens make %d tokens to time; use at most %d", requests, longest, tokens, MaxGaps)
	}
	return nil
}

// requests are those of the whole run, without the warm-up.
func (o *Options) requests(systems int) int {
	total := 0
	for _, phase := range o.phases() {
		total += phase.Requests * o.Rounds * systems
	}
	return total
}

// Phase is a load that is held.
type Phase struct {
	Concurrency int     `json:"concurrency,omitempty"`     // of a closed loop
	Rate        float64 `json:"rate_per_second,omitempty"` // of an open one
	Requests    int     `json:"requests"`
}

func (p Phase) String() string {
	if p.Rate > 0 {
		return strconv.FormatFloat(p.Rate, 'g', 6, 64) + " a second"
	}
	return strconv.Itoa(p.Concurrency) + " at once"
}

// load is where a phase stands on an axis.
func (p Phase) load() float64 {
	if p.Rate > 0 {
		return p.Rate
	}
	return float64(p.Concurrency)
}

// phases are those of one round. Where the number of requests is not given, a closed loop has four for each that is
// in flight, and an open one 64.
func (o *Options) phases() []Phase {
	var phases []Phase
	for _, n := range o.Concurrency {
		phases = append(phases, Phase{Concurrency: n, Requests: orElse(o.Requests, max(leastDefault, 4*n))})
	}
	for _, rate := range o.Rates {
		phases = append(phases, Phase{Rate: rate, Requests: orElse(o.Requests, openDefault)})
	}
	return phases
}

func orElse(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}
