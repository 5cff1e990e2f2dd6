package llama

import (
	"slices"

	"github.com/meshnet/node/internal/gguf"
)

// rowShape says how the rows of a decode call are laid out over the streams. llama.cpp makes one piece only of
// adjacent ascending streams; every further piece reads all weights again and may run another attention kernel.
type rowShape struct {
	streams  int  // streams of the context, those for padding included
	whole    bool // every call is one piece of at least least rows, a multiple of multiple
	least    int
	multiple int
	fills    bool // every gap between members is filled with padding
}

// newRowShapes are the shapes of calls without an adapter and with one. A model without adapters has the same for both.
func newRowShapes(m *Model, o Options) (plain, adapted rowShape) {
	plain = newRowShape(m, o)
	if len(m.adapters) == 0 {
		return plain, plain
	}
	adapted = rowShapeOf(m, o, true)
	plain.streams = max(plain.streams, adapted.streams)
	adapted.streams = plain.streams
	// The slots of other adapters' sessions lie between those of a call. With padding in them it has at most as many rows as
	// a call of all sessions; cut at each it would read all weights for every piece.
	plain.fills, adapted.fills = true, true
	return plain, adapted
}

// newRowShape decides how rows are padded, and with that how many streams the context needs. Kernels that round differently
// for another number of rows would make a session's tokens depend on the crowd:
//   - matrices of floats have one kernel for a lone row and another for more, so a lone row is padded to two, unless the model
//     is Fast;
//   - under Exact so are all lone rows: below two, attention takes another path once the context reaches 512;
//   - repacked weights of most types have kernels that take rows by fours and another for the remainder; under Exact they
//     are padded to a multiple of four.
func newRowShape(m *Model, o Options) rowShape { return rowShapeOf(m, o, m.header.hasFloatMatrices()) }

func rowShapeOf(m *Model, o Options, floats bool) rowShape {
	s := rowShape{streams: o.Slots, least: 1, multiple: 1}
	s.whole = o.Exact || !m.fast && floats
	if !s.whole {
		return s
	}
	s.least = 2
	if o.Exact && m.fast && m.header.needsRowsByFour() {
		s.least, s.multiple = 4, 4
	}
	s.streams = s.rows(o.Slots)
	return s
}

// rows is how many rows a call over so many adjacent streams has where it is to be whole.
func (s rowShape) rows(streams int) int {
	return (max(streams, s.least) + s.multiple - 1) / s.multiple * s.multiple
}

// span returns the range [first, last] of streams that a call over members in [low, high] should cover with
// padding, and whether gaps in it are to be filled. count is the number of members.
func (s rowShape) span(low, high, count int, canPad bool) (first, last int, fill bool) {
	if !canPad {
		return low, high, false
	}
	gaps := high - low + 1 - count
	if !s.whole {
		return low, high, s.fills || gaps <= max(1, count/4)
	}
	want := s.rows(high - low + 1)
	last = min(low+want-1, s.streams-1)
	return last - want + 1, last, true
}

// repacks says whether llama.cpp shall rearrange the weights for its own kernels. Ours take them as they are in the file.
func (h *header) repacks(fast bool) bool {
	if !rowKernels {
		return fast || !h.needsRowsByFour()
	}
	return fast && h.needsRowsByFour() && !h.mostlyForRowKernels()
}

// mostlyForRowKernels says whether more of the quantised weights are of types with a kernel of ours than of others.
func (h *header) mostlyForRowKernels() bool {
	var balance int64
	for _, t := range h.Tensors {
		switch {
		case !isMatrix(t) || isFloat(t.Type):
		case t.Type == typeQ4_0 || t.Type == typeQ5_0 || t.Type == typeQ8_0:
			balance += elements(t)
		default:
			balance -= elements(t)
		}
	}
	return balance > 0
}

// needsRowsByFour says whether a tensor of the model is of a type whose kernel for repacked weights takes rows by fours, so
// that the remainder of a row count takes another kernel and rounds differently. Measured to be free of that: Q4_0, Q8_0.
func (h *header) needsRowsByFour() bool {
	for _, t := range h.Tensors {
		if !isFloat(t.Type) && t.Type != typeQ4_0 && t.Type != typeQ8_0 {
			return true
		}
	}
	return false
}

// hasFloatMatrices says whether the model multiplies by a matrix of unquantised weights. An embedding table is looked up only,
// where there is an output matrix beside it.
func (h *header) hasFloatMatrices() bool {
	hasOutput := h.hasOutputMatrix()
	for _, t := range h.Tensors {
		if isFloat(t.Type) && isMatrix(t) && !(hasOutput && t.Name == embeddingTable) {
			return true
		}
	}
	return false
}

const embeddingTable = "token_embd.weight"

// hasOutputMatrix says whether the output has a matrix of its own; else it is the embedding table.
func (h *header) hasOutputMatrix() bool {
	return slices.ContainsFunc(h.Tensors, func(t gguf.Tensor) bool { return t.Name == "output.weight" })
}

func isMatrix(t gguf.Tensor) bool { return len(t.Dims) >= 2 && t.Dims[0] > 1 && t.Dims[1] > 1 }

func elements(t gguf.Tensor) int64 {
	n := int64(1)
	for _, d := range t.Dims {
		n *= int64(d)
	}
	return n
}

func isFloat(t gguf.TensorType) bool { return t == typeF32 || t == typeF16 || t == typeBF16 }

// ggml tensor types, as in ggml.h.
const (
	typeF32  = 0
	typeF16  = 1
	typeQ4_0 = 2
	typeQ5_0 = 6
	typeQ8_0 = 8
	typeBF16 = 30

	typeNVFP4 = 40
)
