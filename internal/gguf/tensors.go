package gguf

import (
	"fmt"
	"math"
)

// alignment takes general.alignment into the header. It must be a power of two.
func (r *reader) alignment(h *Header) error {
	const key = "general.alignment"
	v, ok := h.Lookup(key)
	if !ok {
		return nil
	}
	n, ok := v.Scalar.(uint32)
	if !ok {
		return r.invalid(key, "is a %v, not a uint32", v.Type)
	}
	if n == 0 || n&(n-1) != 0 || n > MaxAlignmentBytes {
		return r.invalid(key, "is %d, not a power of two up to %d", n, MaxAlignmentBytes)
	}
	h.Alignment = int64(n)
	return nil
}

func (r *reader) tensors(h *Header, count uint64) error {
	const smallestEntry = 8 + 4 + 4 + 8 // name length, number of dimensions, type, offset
	if err := r.claim("tensor count", count, smallestEntry); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for i := range count {
		field := fmt.Sprintf("name of tensor %d", i)
		name, err := r.text(field, MaxTensorName)
		if err != nil {
			return err
		}
		if seen[name] {
			return r.invalid(field, "%q appears twice", name)
		}
		seen[name] = true
		t, err := r.tensor(name)
		if err != nil {
			return err
		}
		h.Tensors = append(h.Tensors, t)
	}
	return nil
}

// tensor reads one row of the table after its name, and makes sure that its size can be computed without overflow.
func (r *reader) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	field := fmt.Sprintf("tensor %q", name)
	dims, err := r.u32(field)
	if err != nil {
		return t, err
	}
	if dims > MaxDims {
		return t, r.invalid(field, "has %d dimensions; the limit is %d", dims, MaxDims)
	}
	elements := uint64(1)
	for range dims {
		d, err := r.u64(field)
		if err != nil {
			return t, err
		}
		if d > math.MaxInt64/max(elements, 1) {
			return t, r.invalid(field, "has more than 2⁶³ elements")
		}
		elements *= d
		t.Dims = append(t.Dims, d)
	}
	kind, err := r.u32(field)
	if err != nil {
		return t, err
	}
	t.Type = TensorType(kind)
	if t.Offset, err = r.u64(field); err != nil {
		return t, err
	}
	f, known := tensorFormats[t.Type]
	if !known {
		return t, nil
	}
	row := uint64(1)
	if len(t.Dims) > 0 {
		row = t.Dims[0]
	}
	if row%f.blockElements != 0 {
		return t, r.invalid(field, "has rows of %d elements, not a multiple of %d as %s needs", row, f.blockElements, f.name)
	}
	if elements/f.blockElements > math.MaxInt64/f.blockBytes {
		return t, r.invalid(field, "has more than 2⁶³ bytes")
	}
	return t, nil
}

// dataSection places the tensor data and makes sure that every tensor lies within the file.
func (r *reader) dataSection(h *Header) error {
	aligned := (r.pos + h.Alignment - 1) / h.Alignment * h.Alignment
	h.DataOffset = min(aligned, r.size)
	if len(h.Tensors) > 0 && aligned > r.size {
		return r.invalid("tensor data", "should start at byte %d, but the file has %d bytes: it is cut short", aligned, r.size)
	}
	room := uint64(r.size - h.DataOffset)
	for _, t := range h.Tensors {
		field := fmt.Sprintf("tensor %q", t.Name)
		if t.Offset%uint64(h.Alignment) != 0 {
			return r.invalid(field, "starts at data offset %d, not a multiple of the alignment %d", t.Offset, h.Alignment)
		}
		n, _ := t.Bytes()
		if t.Offset > room || n > room-t.Offset {
			return r.invalid(field, "has %d bytes from data offset %d, but the file has only %d bytes of tensor data: it is damaged or cut short",
				n, t.Offset, room)
		}
	}
	return nil
}
