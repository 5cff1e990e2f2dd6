package llama

import (
	"testing"

	"github.com/meshnet/node/internal/gguf"
)

func TestPairsOfTensorsMustFitTheModelsMatrix(t *testing.T) {
	tensor := func(name string, kind gguf.TensorType, dims ...uint64) gguf.Tensor {
		return gguf.Tensor{Name: name, Type: kind, Dims: dims}
	}
	base := &header{Header: &gguf.Header{Tensors: []gguf.Tensor{
		tensor("token_embd.weight", typeF16, 64, 512), tensor("output.weight", typeF16, 64, 512),
		tensor("q.weight", typeQ8_0, 64, 96), tensor("norm.weight", typeF32, 64),
		tensor("experts.weight", typeQ4_0, 64, 96, 8), tensor("fp4.weight", typeNVFP4, 64, 96),
	}}}
	tied := &header{Header: &gguf.Header{Tensors: base.Tensors[:1]}}
	const experts = "its matrices for tensor \"experts.weight\" are of [64 4 8] and [4 96], which do not fit the model's of [64 96 8]: it was made for another"
	for claim, c := range map[string]struct {
		name string
		a, b gguf.Tensor
		base *header
		want string
	}{
		"a matrix":                     {"q.weight", tensor("a", typeF16, 64, 4), tensor("b", typeF32, 4, 96), base, ""},
		"the largest rank":             {"q.weight", tensor("a", typeBF16, 64, 96), tensor("b", typeQ8_0, 96, 96), base, ""},
		"an embedding is transposed":   {"token_embd.weight", tensor("a", typeF32, 4, 512), tensor("b", typeF32, 4, 64), base, ""},
		"experts":                      {"experts.weight", tensor("a", typeF32, 64, 4, 8), tensor("b", typeF32, 4, 96, 8), base, ""},
		"experts, one of the two flat": {"experts.weight", tensor("a", typeF32, 64, 4, 8), tensor("b", typeF32, 4, 96), base, experts},
		"two ranks": {"q.weight", tensor("a", typeF32, 64, 4), tensor("b", typeF32, 8, 96), base,
			`its matrices for tensor "q.weight" are of [64 4] and [8 96], which do not fit the model's of [64 96]: it was made for another`},
		"an embedding that is the output": {"token_embd.weight", tensor("a", typeF32, 4, 512), tensor("b", typeF32, 4, 64), tied,
			`it adapts tensor "token_embd.weight", which is the output matrix of this model too; that is not served`},
		"a vector": {"norm.weight", tensor("a", typeF32, 64, 4), tensor("b", typeF32, 4, 1), base,
			`it adapts tensor "norm.weight", which is no matrix`},
		"scaled four-bit floats": {"fp4.weight", tensor("a", typeF32, 64, 4), tensor("b", typeF32, 4, 96), base,
			`it adapts tensor "fp4.weight", which is of type NVFP4; llama.cpp has no adapters for that`},
		"integers": {"q.weight", tensor("a", 24, 64, 4), tensor("b", typeF32, 4, 96), base,
			`tensor "a" is of type I8; use F32, F16, BF16 or Q8_0`},
		"a tensor that is not there": {"k.weight", tensor("a", typeF32, 64, 4), tensor("b", typeF32, 4, 96), base,
			`it adapts tensor "k.weight", which the model does not have: it was made for another`},
		"rank 0": {"q.weight", tensor("a", typeF32, 64, 0), tensor("b", typeF32, 0, 96), base,
			`its rank for tensor "q.weight" is 0; the matrix has 96 rows of 64, beyond which a rank says nothing`},
	} {
		if got := pairFlaw(c.name, c.a, c.b, c.base); got != c.want {
			t.Errorf("%s: %q, want %q", claim, got, c.want)
		}
	}
}

func TestCallsOfAModelWithAdaptersAreOnePieceAndNoLoneRowHasAnAdapter(t *testing.T) {
	m := fastOf(typeQ8_0)
	m.fast = false
	plain, adapted := newRowShapes(m, Options{Slots: 1})
	if plain != adapted || plain != newRowShape(m, Options{Slots: 1}) {
		t.Errorf("shapes without adapters are %+v and %+v, want that of the model for both", plain, adapted)
	}
	m.adapters = []*adapter{{}}
	plain, adapted = newRowShapes(m, Options{Slots: 1})
	if plain.streams != 2 || adapted.streams != 2 {
		t.Errorf("%d and %d streams, want 2: an adapter's lone row is padded", plain.streams, adapted.streams)
	}
	type span struct {
		first, last int
		fill        bool
	}
	plain, adapted = newRowShapes(m, Options{Slots: 8})
	for _, c := range []struct {
		claim            string
		shape            rowShape
		low, high, count int
		want             span
	}{
		{"every second slot is filled up", plain, 0, 6, 4, span{0, 6, true}},
		{"so it is with an adapter", adapted, 1, 7, 4, span{1, 7, true}},
		{"a lone row stays alone", plain, 3, 3, 1, span{3, 3, true}},
		{"with an adapter it is padded", adapted, 3, 3, 1, span{3, 4, true}},
		{"also in the last slot", adapted, 7, 7, 1, span{6, 7, true}},
	} {
		first, last, fill := c.shape.span(c.low, c.high, c.count, true)
		if got := (span{first, last, fill}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.claim, got, c.want)
		}
	}
}
