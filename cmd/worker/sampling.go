package main

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/meshnet/node/sampling"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// samplingFlags choose how tokens are drawn, and what ends a turn but its length. Defaults, ranges and help of the numbers
// are those of the package sampling: see samplingVars.
type samplingFlags struct {
	Temperature      float64           `help:"${temperature_help}" default:"${temperature_default}" placeholder:"T"`
	TopK             int               `help:"${top_k_help}" default:"${top_k_default}" placeholder:"K"`
	TopP             float64           `help:"${top_p_help}" default:"${top_p_default}" placeholder:"P"`
	MinP             float64           `help:"${min_p_help}" default:"${min_p_default}" placeholder:"P"`
	TypicalP         float64           `help:"${typical_p_help}" default:"${typical_p_default}" placeholder:"P"`
	RepeatPenalty    float64           `help:"${repeat_penalty_help}" default:"${repeat_penalty_default}" placeholder:"X"`
	PresencePenalty  float64           `help:"${presence_penalty_help}" default:"${presence_penalty_default}" placeholder:"X"`
	FrequencyPenalty float64           `help:"${frequency_penalty_help}" default:"${frequency_penalty_default}" placeholder:"X"`
	PenaltyLastN     int               `help:"${penalty_last_n_help}" default:"${penalty_last_n_default}" placeholder:"N"`
	DRYMultiplier    float64           `help:"${dry_multiplier_help}" default:"${dry_multiplier_default}" placeholder:"X" name:"dry-multiplier"`
	DRYBase          float64           `help:"${dry_base_help}" default:"${dry_base_default}" placeholder:"X" name:"dry-base"`
	DRYAllowedLength int               `help:"${dry_allowed_length_help}" default:"${dry_allowed_length_default}" placeholder:"N" name:"dry-allowed-length"`
	DRYPenaltyLastN  int               `help:"${dry_penalty_last_n_help}" default:"${dry_penalty_last_n_default}" placeholder:"N" name:"dry-penalty-last-n"`
	DRYBreakers      []string          `help:"A text at which DRY begins anew; may be repeated. Without it newline, colon, double quote and asterisk." placeholder:"TEXT" name:"dry-sequence-breaker" sep:"none"`
	XTCProbability   float64           `help:"${xtc_probability_help}" default:"${xtc_probability_default}" placeholder:"P" name:"xtc-probability"`
	XTCThreshold     float64           `help:"${xtc_threshold_help}" default:"${xtc_threshold_default}" placeholder:"P" name:"xtc-threshold"`
	LogitBias        map[int32]float64 `help:"Add BIAS, in [-100, 100], to the logit of a token; -inf bans it. May be repeated." placeholder:"ID=BIAS"`
	Probs            int               `help:"${n_probs_help} With --json." default:"${n_probs_default}" placeholder:"N" name:"n-probs"`
	Seed             *uint64           `help:"Seed of the draws; chosen and reported where it is not given." placeholder:"N"`
	IgnoreEOS        bool              `help:"Never end before --max-tokens." name:"ignore-eos"`
	MinTokens        int               `help:"Tokens before which neither the model nor --stop ends the turn." default:"0" placeholder:"N"`
	Stop             []string          `help:"A text that ends the turn, and is no part of its text; may be repeated." placeholder:"TEXT" sep:"none"`
}

// samplingVars are the help and the defaults that samplingFlags refers to.
func samplingVars() kong.Vars {
	vars := kong.Vars{}
	for _, n := range sampling.Numbers() {
		vars[n.Name+"_help"] = n.Help + " In " + n.Range() + "."
		vars[n.Name+"_default"] = sampling.Text(n.Default)
	}
	return vars
}

// params turns the flags into valid or invalid parameters; whoever takes them checks them.
func (f *samplingFlags) params() scheduler.Sampling {
	p := scheduler.Sampling{
		Temperature: f.Temperature, TopK: f.TopK, TopP: f.TopP, MinP: f.MinP, TypicalP: f.TypicalP,
		RepeatPenalty: f.RepeatPenalty, PresencePenalty: f.PresencePenalty, FrequencyPenalty: f.FrequencyPenalty, PenaltyLastN: f.PenaltyLastN,
		DRYMultiplier: f.DRYMultiplier, DRYBase: f.DRYBase, DRYAllowedLength: f.DRYAllowedLength, DRYPenaltyLastN: f.DRYPenaltyLastN,
		DRYBreakers: f.DRYBreakers, XTCProbability: f.XTCProbability, XTCThreshold: f.XTCThreshold,
		Probs: f.Probs, IgnoreEOG: f.IgnoreEOS,
	}
	if p.DRYBreakers == nil {
		p.DRYBreakers = sampling.DefaultBreakers()
	}
	for _, token := range slices.Sorted(maps.Keys(f.LogitBias)) {
		p.LogitBias = append(p.LogitBias, scheduler.Bias{Token: token, Bias: f.LogitBias[token]})
	}
	return p
}

// greedyFlags are the flags' defaults.
func greedyFlags() samplingFlags {
	p := sampling.Default()
	return samplingFlags{Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP, TypicalP: p.TypicalP,
		RepeatPenalty: p.RepeatPenalty, PenaltyLastN: p.PenaltyLastN, DRYBase: p.DRYBase, DRYAllowedLength: p.DRYAllowedLength,
		DRYPenaltyLastN: p.DRYPenaltyLastN, XTCThreshold: p.XTCThreshold}
}

// sampling is for a turn of this process: without --seed it draws one.
func (f *samplingFlags) sampling() scheduler.Sampling {
	p := f.params()
	p.MinNewTokens = f.MinTokens
	if f.Seed != nil {
		p.Seed = *f.Seed
	} else {
		const exactInJSON = 53 // bits of an integer that every JSON reader keeps
		p.Seed = rand.Uint64() >> (64 - exactInJSON)
	}
	return p
}

// wire is the sampling as the mesh takes it. Without --seed the worker draws one.
func (f *samplingFlags) wire() *schemas.Sampling {
	p := f.params()
	s := schemas.SamplingOf(&p, f.Seed)
	return &s
}
