package schemas

import "github.com/vmihailenco/msgpack/v5"

// Limits of Sampling.
const (
	MaxTopK         = 1 << 20
	MaxPenaltyLastN = 4096
)

// Sampling is how tokens are chosen. The zero value is not valid; start from DefaultSampling. On the wire an
// absent field has its default.
type Sampling struct {
	Temperature      float64 `msgpack:"temperature" json:"temperature" wire:"default"`             // 0 is greedy; [0, 2]
	TopK             int     `msgpack:"top_k" json:"top_k" wire:"default"`                         // 0 is off; [0, MaxTopK]
	TopP             float64 `msgpack:"top_p" json:"top_p" wire:"default"`                         // 1 is off; (0, 1]
	MinP             float64 `msgpack:"min_p" json:"min_p" wire:"default"`                         // 0 is off; [0, 1]
	RepeatPenalty    float64 `msgpack:"repeat_penalty" json:"repeat_penalty" wire:"default"`       // 1 is off; (0, 2]
	PresencePenalty  float64 `msgpack:"presence_penalty" json:"presence_penalty" wire:"default"`   // 0 is off; [-2, 2]
	FrequencyPenalty float64 `msgpack:"frequency_penalty" json:"frequency_penalty" wire:"default"` // 0 is off; [-2, 2]
	PenaltyLastN     int     `msgpack:"penalty_last_n" json:"penalty_last_n" wire:"default"`       // tokens; [0, MaxPenaltyLastN]
	Seed             *uint64 `msgpack:"seed,omitempty" json:"seed,omitempty"`                      // nil: the worker draws one and tells it in Started
	IgnoreEOS        bool    `msgpack:"ignore_eos,omitempty" json:"ignore_eos,omitempty"`          // end-of-generation tokens are never chosen
}

// DefaultSampling is greedy, with every filter and penalty off.
func DefaultSampling() Sampling {
	return Sampling{TopP: 1, RepeatPenalty: 1, PenaltyLastN: 64}
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
	switch {
	case !(s.Temperature >= 0 && s.Temperature <= 2):
		return fieldError("sampling.temperature", s.Temperature, "in [0, 2]")
	case !(s.TopK >= 0 && s.TopK <= MaxTopK):
		return fieldError("sampling.top_k", s.TopK, "in [0, %d]", MaxTopK)
	case !(s.TopP > 0 && s.TopP <= 1):
		return fieldError("sampling.top_p", s.TopP, "in (0, 1]")
	case !(s.MinP >= 0 && s.MinP <= 1):
		return fieldError("sampling.min_p", s.MinP, "in [0, 1]")
	case !(s.RepeatPenalty > 0 && s.RepeatPenalty <= 2):
		return fieldError("sampling.repeat_penalty", s.RepeatPenalty, "in (0, 2]")
	case !(s.PresencePenalty >= -2 && s.PresencePenalty <= 2):
		return fieldError("sampling.presence_penalty", s.PresencePenalty, "in [-2, 2]")
	case !(s.FrequencyPenalty >= -2 && s.FrequencyPenalty <= 2):
		return fieldError("sampling.frequency_penalty", s.FrequencyPenalty, "in [-2, 2]")
	case !(s.PenaltyLastN >= 0 && s.PenaltyLastN <= MaxPenaltyLastN):
		return fieldError("sampling.penalty_last_n", s.PenaltyLastN, "in [0, %d]", MaxPenaltyLastN)
	}
	return nil
}
