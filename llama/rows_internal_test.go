package llama

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/meshnet/node/internal/gguf"
)

const typeQ4K = 12

// fastOf is a fast model with matrices of these types.
func fastOf(types ...gguf.TensorType) *Model {
	h := &header{Header: &gguf.Header{}}
	for _, t := range types {
		h.Tensors = append(h.Tensors, gguf.Tensor{Type: t, Dims: []uint64{2, 2}})
	}
	return &Model{header: h, fast: true}
}

func TestStreamsOfAContext(t *testing.T) {
	plain, byFour := fastOf(typeF32, typeF16, typeQ4_0, typeQ8_0), fastOf(typeF32, typeQ4_0, typeQ4K)
	floats := fastOf(typeQ8_0, typeF16)
	floats.fast = false
	asInFile := fastOf(typeQ4K)
	asInFile.fast = false
	for _, c := range []struct {
		m     *Model
		exact bool
		slots int
		want  int
	}{
		{plain, false, 1, 1}, {plain, false, 5, 5}, {plain, true, 1, 2}, {plain, true, 2, 2}, {plain, true, 5, 5},
		{byFour, false, 1, 1}, {byFour, true, 1, 4}, {byFour, true, 4, 4}, {byFour, true, 5, 8},
		{asInFile, false, 1, 1}, {asInFile, true, 1, 2}, {asInFile, true, 5, 5},
		{floats, false, 1, 2}, {floats, false, 5, 5}, {floats, true, 1, 2},
	} {
		if got := newRowShape(c.m, Options{Slots: c.slots, Exact: c.exact}).streams; got != c.want {
			t.Errorf("rows by four %t, fast %t, exact %t, %d slots: %d streams, want %d", c.m.header.needsRowsByFour(), c.m.fast, c.exact, c.slots, got, c.want)
		}
	}
}

func TestSpanOfKnownBatches(t *testing.T) {
	plain := newRowShape(fastOf(typeQ8_0), Options{Slots: 8})
	exact := newRowShape(fastOf(typeQ8_0), Options{Slots: 8, Exact: true})
	byFour := newRowShape(fastOf(typeQ4K), Options{Slots: 6, Exact: true})
	type span struct {
		first, last int
		fill        bool
	}
	for _, c := range []struct {
		what             string
		shape            rowShape
		low, high, count int
		want             span
	}{
		{"alone", plain, 3, 3, 1, span{3, 3, true}},
		{"one gap", plain, 0, 2, 2, span{0, 2, true}},
		{"two gaps of two members", plain, 0, 3, 2, span{0, 3, false}},
		{"exact, alone", exact, 3, 3, 1, span{3, 4, true}},
		{"exact, alone in the last slot", exact, 7, 7, 1, span{6, 7, true}},
		{"exact, gaps", exact, 0, 7, 2, span{0, 7, true}},
		{"by four, alone", byFour, 0, 0, 1, span{0, 3, true}},
		{"by four, five rows", byFour, 0, 4, 5, span{0, 7, true}},
		{"by four, at the end", byFour, 5, 5, 1, span{4, 7, true}},
	} {
		first, last, fill := c.shape.span(c.low, c.high, c.count, true)
		if got := (span{first, last, fill}); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.what, got, c.want)
		}
	}
}

func TestSpanHoldsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SampledFrom([]gguf.TensorType{typeF16, typeQ8_0, typeQ4K}).Draw(t, "weights")
		o := Options{Slots: rapid.IntRange(1, 64).Draw(t, "slots"), Exact: rapid.Bool().Draw(t, "exact")}
		s := newRowShape(fastOf(weights), o)
		low := rapid.IntRange(0, o.Slots-1).Draw(t, "low")
		high := rapid.IntRange(low, o.Slots-1).Draw(t, "high")
		count := rapid.IntRange(min(2, high-low+1), high-low+1).Draw(t, "count")
		canPad := rapid.Bool().Draw(t, "can pad")
		first, last, fill := s.span(low, high, count, canPad)

		rows := last - first + 1
		if first < 0 || first > low || last < high || last >= s.streams {
			t.Fatalf("[%d, %d] of %d streams does not cover [%d, %d]", first, last, s.streams, low, high)
		}
		switch {
		case !canPad && (fill || first != low || last != high):
			t.Fatalf("[%d, %d] filled %t: a model that cannot pad is padded", first, last, fill)
		case canPad && o.Exact && (!fill || rows%s.multiple != 0 || rows < s.least || rows >= max(high-low+1, s.least)+s.multiple):
			t.Fatalf("[%d, %d] filled %t: not the least multiple of %d from %d rows on", first, last, fill, s.multiple, s.least)
		case canPad && !o.Exact && (first != low || last != high || fill != (high-low+1-count <= max(1, count/4))):
			t.Fatalf("[%d, %d] filled %t for %d members in [%d, %d]", first, last, fill, count, low, high)
		}
	})
}
