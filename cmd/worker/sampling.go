package main

import (
	"math/rand/v2"

	"github.com/meshnet/node/scheduler"
)

// samplingFlags choose how tokens are drawn.
type samplingFlags struct {
	Temperature      float64 `help:"Randomness, 0 to 2; 0 always takes the likeliest token." default:"0" placeholder:"T"`
	TopK             int     `help:"Draw from the K likeliest tokens; 0 is off." default:"0" placeholder:"K"`
	TopP             float64 `help:"Draw from the likeliest tokens that add up to P; 1 is off." default:"1" placeholder:"P"`
	MinP             float64 `help:"Draw from tokens at least P times as likely as the likeliest; 0 is off." default:"0" placeholder:"P"`
	RepeatPenalty    float64 `help:"Divide the logits of recent tokens; 1 is off." default:"1" placeholder:"X"`
	PresencePenalty  float64 `help:"Lower the logits of recent tokens once; 0 is off." default:"0" placeholder:"X"`
	FrequencyPenalty float64 `help:"Lower the logits of recent tokens each time; 0 is off." default:"0" placeholder:"X"`
	PenaltyLastN     int     `help:"How many tokens the penalties look back." default:"64" placeholder:"N"`
	Seed             *uint64 `help:"Seed of the draws; chosen and reported where it is not given." placeholder:"N"`
	IgnoreEOS        bool    `help:"Never end before --max-tokens." name:"ignore-eos"`
}

// sampling turns the flags into a valid or invalid Sampling; the scheduler is the one that checks it.
func (f *samplingFlags) sampling() scheduler.Sampling {
	s := scheduler.Sampling{
		Temperature: f.Temperature, TopK: f.TopK, TopP: f.TopP, MinP: f.MinP,
		RepeatPenalty: f.RepeatPenalty, PresencePenalty: f.PresencePenalty, FrequencyPenalty: f.FrequencyPenalty,
		PenaltyLastN: f.PenaltyLastN, IgnoreEOG: f.IgnoreEOS,
	}
	if f.Seed != nil {
		s.Seed = *f.Seed
	} else {
		const exactInJSON = 53 // bits of an integer that every JSON reader keeps
		s.Seed = rand.Uint64() >> (64 - exactInJSON)
	}
	return s
}
