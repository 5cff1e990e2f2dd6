package scheduler

import (
	"errors"

	"github.com/meshnet/node/sampling"
)

// Sampling is how tokens are chosen from logits. The zero value is not valid; start from DefaultSampling.
type Sampling = sampling.Params

// Bias is added to a token's logit.
type Bias = sampling.Bias

// Probs are a token's log-probabilities, and those of the likeliest ones.
type Probs = sampling.Probs

// Prob is one token's.
type Prob = sampling.Prob

// DefaultSampling is greedy, with every filter and penalty off.
func DefaultSampling() Sampling { return sampling.Default() }

// validateSampling makes the checks that need the model and the request, too.
func (r *Request) validateSampling(vocab int) error {
	var out *sampling.Error
	if errors.As(r.Sampling.Validate(), &out) {
		return &FieldError{Field: "sampling." + out.Field, Value: out.Value, Limit: out.Limit}
	}
	for i, b := range r.Sampling.LogitBias {
		if int64(b.Token) >= int64(vocab) {
			return tokenError("sampling.logit_bias", i, int64(b.Token), vocab)
		}
	}
	first := r.Sampling.FirstIndex
	if !(first >= 0 && first <= MaxNewTokensLimit) {
		return fieldError("first_index", first, "in [0, %d]", MaxNewTokensLimit)
	}
	if least := r.Sampling.MinNewTokens; !(least >= 0 && least <= first+r.MaxNewTokens) {
		return fieldError("min_new_tokens", least, "in [0, max_new_tokens (%d)]", first+r.MaxNewTokens)
	}
	return nil
}
