package llama

// rowShape says how the rows of a decode call are laid out over the streams. llama.cpp makes one piece only of
// adjacent ascending streams; every further piece reads all weights again and may run another attention kernel.
type rowShape struct {
	streams  int  // streams of the context, those for padding included
	exact    bool // every call is one piece of at least least rows, a multiple of multiple
	least    int
	multiple int
}

// newRowShape decides how many streams the context needs. Under Exact a lone row is padded to two, because below two
// attention takes another path once the context reaches 512; and to a multiple of four for repacked weights whose matrix
// kernels take rows by fours.
func newRowShape(m *Model, o Options) rowShape {
	s := rowShape{streams: o.Slots, exact: o.Exact, least: 1, multiple: 1}
	if !o.Exact {
		return s
	}
	s.least = 2
	if m.repacked && m.header.needsRowsByFour() {
		s.least, s.multiple = 4, 4
	}
	s.streams = s.rows(o.Slots)
	return s
}

// rows is how many rows a call over so many adjacent streams has under exact.
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
	if !s.exact {
		return low, high, gaps <= max(1, count/4)
	}
	want := s.rows(high - low + 1)
	last = min(low+want-1, s.streams-1)
	return last - want + 1, last, true
}

// needsRowsByFour says whether a tensor of the model is of a type whose kernel for repacked weights takes rows by fours, so
// that the remainder of a row count takes another kernel and rounds differently. Measured to be free of that: F32, F16,
// Q4_0, Q8_0.
func (h *header) needsRowsByFour() bool {
	for _, t := range h.Tensors {
		switch t.Type {
		case typeF32, typeF16, typeQ4_0, typeQ8_0:
		default:
			return true
		}
	}
	return false
}

// ggml tensor types, as in ggml.h.
const (
	typeF32  = 0
	typeF16  = 1
	typeQ4_0 = 2
	typeQ8_0 = 8
)
