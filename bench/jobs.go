package bench

import (
	"math/rand/v2"
	"time"
)

// Job is one request to be sent, the same to every system.
type Job struct {
	Number    int // in the run, from 0; a system may name its requests by it
	Prompt    Prompt
	MaxTokens int
	Seed      uint64        // below 2^31
	At        time.Duration // of an open loop: when it is sent, after the phase began
}

// What random choices are for. Each has its own stream, so that a change of one leaves the others as they were.
const (
	forPrompts = iota
	forLengths
	forArrivals
	forSeeds
	forPrefix
	purposes
)

// warmupRound is the round of what is not counted.
const warmupRound = -1

// stream is the random numbers of a purpose in one phase of one round: a function of these alone.
func stream(seed uint64, round, phase, purpose int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(round+1)<<32|uint64(phase)*purposes+uint64(purpose)))
}

// arrivals are n times of a Poisson process with a mean of so many a second, from the first gap on.
func arrivals(random *rand.Rand, rate float64, n int) []time.Duration {
	at := make([]time.Duration, n)
	seconds := 0.0
	for i := range at {
		seconds += random.ExpFloat64() / rate
		at[i] = time.Duration(seconds * float64(time.Second))
	}
	return at
}

// plan makes the requests of a phase. first is the number of the first one.
func (o *Options) plan(prompts *Prompts, round, index int, phase Phase, first int) []Job {
	of := func(purpose int) *rand.Rand { return stream(o.Seed, round, index, purpose) }
	texts, lengths, seeds := of(forPrompts), of(forLengths), of(forSeeds)
	jobs := make([]Job, phase.Requests)
	for i := range jobs {
		prompt, most := prompts.make(texts, first+i)
		if drawn := o.Output.draw(lengths); most == 0 {
			most = drawn
		}
		jobs[i] = Job{Number: first + i, Prompt: prompt, MaxTokens: most, Seed: uint64(seeds.Uint32() >> 1)}
	}
	if phase.Rate > 0 {
		for i, at := range arrivals(of(forArrivals), phase.Rate, len(jobs)) {
			jobs[i].At = at
		}
	}
	return jobs
}
