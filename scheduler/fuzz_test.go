package scheduler_test

import (
	"errors"
	"testing"

	"github.com/meshnet/node/scheduler"
)

// FuzzRequestValidation: whatever is asked, the answer is a field's error or a request that is within every limit.
func FuzzRequestValidation(f *testing.F) {
	f.Add("t", "s", 4, int32(5), int32(7), 0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 64, 256)
	f.Add("", "s", -1, int32(-1), int32(256), -1.0, -5, 2.0, 2.0, 10.0, -10.0, 10.0, -1, 1)
	f.Fuzz(func(t *testing.T, tenant, session string, newTokens int, first, replayed int32,
		temperature float64, topK int, topP, minP, repeat, presence, frequency float64, lastN, vocab int) {
		sampling := scheduler.DefaultSampling()
		sampling.Temperature, sampling.TopK, sampling.TopP, sampling.MinP = temperature, topK, topP, minP
		sampling.RepeatPenalty, sampling.PresencePenalty, sampling.FrequencyPenalty, sampling.PenaltyLastN = repeat, presence, frequency, lastN
		req := scheduler.Request{Tenant: tenant, Session: session, MaxNewTokens: newTokens,
			Prompt: []scheduler.Token{first, 1}, Replay: []scheduler.Token{replayed}, Sampling: sampling}
		err := req.Validate(vocab)
		var field *scheduler.FieldError
		if err != nil {
			if !errors.As(err, &field) || field.Field == "" || field.Value == "" || field.Limit == "" {
				t.Fatalf("%v names no field, value or limit", err)
			}
			return
		}
		s := req.Sampling
		within := len(tenant) >= 1 && len(tenant) <= 64 && len(session) >= 1 && len(session) <= 64 &&
			newTokens >= 1 && newTokens <= scheduler.MaxNewTokensLimit && first >= 0 && int(first) < vocab && replayed >= 0 && int(replayed) < vocab &&
			s.Temperature >= 0 && s.Temperature <= 2 && s.TopK >= 0 && s.TopK <= 1<<20 && s.TopP > 0 && s.TopP <= 1 && s.MinP >= 0 && s.MinP <= 1 &&
			s.RepeatPenalty > 0 && s.RepeatPenalty <= 2 && s.PresencePenalty >= -2 && s.PresencePenalty <= 2 &&
			s.FrequencyPenalty >= -2 && s.FrequencyPenalty <= 2 && s.PenaltyLastN >= 0 && s.PenaltyLastN <= 4096
		if !within {
			t.Fatalf("accepted %+v with a vocabulary of %d", req, vocab)
		}
	})
}

// FuzzTokenIDs: no id outside the vocabulary survives the narrowing, and none inside it changes.
func FuzzTokenIDs(f *testing.F) {
	for _, id := range []int64{-1, 0, 255, 256, 1 << 31, 1 << 32, 5279552648203111001} {
		f.Add(id, 256)
	}
	f.Fuzz(func(t *testing.T, id int64, vocab int) {
		tokens, err := scheduler.ParseTokens("prompt", []int64{id}, vocab)
		inside := id >= 0 && id < int64(vocab) && id <= 1<<31-1
		switch {
		case err == nil && (!inside || int64(tokens[0]) != id):
			t.Fatalf("id %d became %v with a vocabulary of %d", id, tokens, vocab)
		case err != nil && inside:
			t.Fatalf("id %d of %d refused: %v", id, vocab, err)
		}
	})
}
