package schemas

import (
	"errors"
	"fmt"
	"math"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/meshnet/node/sampling"
)

// Sampling is how tokens are chosen. The zero value is not valid; start from DefaultSampling. On the wire an
// absent field has its default.
type Sampling struct {
	Temperature      float64     `msgpack:"temperature" json:"temperature" wire:"default"`                     // 0 is greedy
	TopK             int         `msgpack:"top_k" json:"top_k" wire:"default"`                                 // 0 is off
	TopP             float64     `msgpack:"top_p" json:"top_p" wire:"default"`                                 // 1 is off
	MinP             float64     `msgpack:"min_p" json:"min_p" wire:"default"`                                 // 0 is off
	TypicalP         float64     `msgpack:"typical_p" json:"typical_p" wire:"default"`                         // 1 is off
	RepeatPenalty    float64     `msgpack:"repeat_penalty" json:"repeat_penalty" wire:"default"`               // 1 is off
	PresencePenalty  float64     `msgpack:"presence_penalty" json:"presence_penalty" wire:"default"`           // 0 is off
	FrequencyPenalty float64     `msgpack:"frequency_penalty" json:"frequency_penalty" wire:"default"`         // 0 is off
	PenaltyLastN     int         `msgpack:"penalty_last_n" json:"penalty_last_n" wire:"default"`               // tokens
	DRYMultiplier    float64     `msgpack:"dry_multiplier" json:"dry_multiplier" wire:"default"`               // 0 is off
	DRYBase          float64     `msgpack:"dry_base" json:"dry_base" wire:"default"`                           // of a power
	DRYAllowedLength int         `msgpack:"dry_allowed_length" json:"dry_allowed_length" wire:"default"`       // tokens
	DRYPenaltyLastN  int         `msgpack:"dry_penalty_last_n" json:"dry_penalty_last_n" wire:"default"`       // tokens
	DRYBreakers      []string    `msgpack:"dry_sequence_breakers" json:"dry_sequence_breakers" wire:"default"` // nil is the default, empty is none
	XTCProbability   float64     `msgpack:"xtc_probability" json:"xtc_probability" wire:"default"`             // 0 is off
	XTCThreshold     float64     `msgpack:"xtc_threshold" json:"xtc_threshold" wire:"default"`                 // above 0.5 is off
	LogitBias        []TokenBias `msgpack:"logit_bias,omitempty" json:"logit_bias,omitempty"`                  // a token at most once
	Probs            int         `msgpack:"n_probs" json:"n_probs" wire:"default"`                             // 0 is off
	Seed             *uint64     `msgpack:"seed,omitempty" json:"seed,omitempty"`                              // nil: the worker draws one and tells it in Started
	IgnoreEOS        bool        `msgpack:"ignore_eos,omitempty" json:"ignore_eos,omitempty"`                  // end-of-generation tokens are never chosen
}

// TokenBias is added to the logit of a token. Minus infinity bans it.
type TokenBias struct {
	TokenID int64   `msgpack:"token_id" json:"token_id"`
	Bias    float64 `msgpack:"bias" json:"bias"`
}

// DefaultSampling is greedy, with every filter and penalty off.
func DefaultSampling() Sampling {
	p := sampling.Default()
	return SamplingOf(&p, nil)
}

// SamplingOf is the wire's form of parameters. Where seed is nil, the worker draws one.
func SamplingOf(p *sampling.Params, seed *uint64) Sampling {
	s := Sampling{
		Temperature: p.Temperature, TopK: p.TopK, TopP: p.TopP, MinP: p.MinP, TypicalP: p.TypicalP,
		RepeatPenalty: p.RepeatPenalty, PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty, PenaltyLastN: p.PenaltyLastN,
		DRYMultiplier: p.DRYMultiplier, DRYBase: p.DRYBase, DRYAllowedLength: p.DRYAllowedLength, DRYPenaltyLastN: p.DRYPenaltyLastN,
		DRYBreakers: p.DRYBreakers, XTCProbability: p.XTCProbability, XTCThreshold: p.XTCThreshold,
		Probs: p.Probs, Seed: seed, IgnoreEOS: p.IgnoreEOG,
	}
	for _, b := range p.LogitBias {
		s.LogitBias = append(s.LogitBias, TokenBias{int64(b.Token), b.Bias})
	}
	return s
}

// Params are the parameters that a valid Sampling stands for. A Seed of nil is 0.
func (s *Sampling) Params() sampling.Params {
	p := sampling.Params{
		Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, TypicalP: s.TypicalP,
		RepeatPenalty: s.RepeatPenalty, PresencePenalty: s.PresencePenalty, FrequencyPenalty: s.FrequencyPenalty, PenaltyLastN: s.PenaltyLastN,
		DRYMultiplier: s.DRYMultiplier, DRYBase: s.DRYBase, DRYAllowedLength: s.DRYAllowedLength, DRYPenaltyLastN: s.DRYPenaltyLastN,
		DRYBreakers: s.DRYBreakers, XTCProbability: s.XTCProbability, XTCThreshold: s.XTCThreshold,
		Probs: s.Probs, IgnoreEOG: s.IgnoreEOS,
	}
	if s.DRYBreakers == nil {
		p.DRYBreakers = sampling.DefaultBreakers()
	}
	if s.Seed != nil {
		p.Seed = *s.Seed
	}
	for _, b := range s.LogitBias {
		p.LogitBias = append(p.LogitBias, sampling.Bias{Token: int32(min(max(b.TokenID, -1), math.MaxInt32)), Bias: b.Bias})
	}
	return p
}

// EncodeMsgpack writes what is nil as its default.
func (s *Sampling) EncodeMsgpack(e *msgpack.Encoder) error {
	type plain Sampling
	p := plain(*s)
	if p.DRYBreakers == nil {
		p.DRYBreakers = sampling.DefaultBreakers()
	}
	return e.Encode(&p)
}

// DecodeMsgpack gives absent fields their defaults.
func (s *Sampling) DecodeMsgpack(d *msgpack.Decoder) error {
	type plain Sampling
	p := plain(DefaultSampling())
	if err := d.Decode(&p); err != nil {
		return err
	}
	*s = Sampling(p)
	return nil
}

// Validate says which field is out of its range. The error is a *FieldError. NaN is out of every range.
func (s *Sampling) Validate() error {
	for i, b := range s.LogitBias {
		if !(b.TokenID >= 0 && b.TokenID <= MaxTokenID) {
			return fieldError(fmt.Sprintf("sampling.logit_bias[%d]", i), b.TokenID, "a token id in [0, %d]", int64(MaxTokenID))
		}
	}
	return outOfRange("sampling.", s.Params().Validate())
}

// outOfRange is an error of the sampling options as one of a field below path.
func outOfRange(path string, err error) error {
	var out *sampling.Error
	if !errors.As(err, &out) {
		return nil
	}
	return &FieldError{Field: path + out.Field, Value: out.Value, Limit: out.Limit}
}
