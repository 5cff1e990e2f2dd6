// Package gguf reads the header of a GGUF model file: its metadata and its table of tensors. It never
// reads tensor data and never trusts the file: every count and length is checked against the bytes that
// remain before anything is allocated for it, so that a damaged or hostile file costs an error, not memory.
package gguf

import (
	"fmt"
	"io"
	"math"
)

// Limits of what ReadHeader accepts. They are far above what real models need (a vocabulary of a quarter
// million pieces makes a header of some 10 MB) and keep the cost of a hostile file small.
const (
	MaxHeaderBytes    = 256 << 20
	MaxMetadata       = 8192
	MaxTensors        = 65536
	MaxKeyBytes       = 65535
	MaxTensorName     = 63
	MaxDims           = 4
	MaxAlignmentBytes = 1 << 20

	defaultAlignment = 32
	minVersion       = 2
	maxVersion       = 3
)

// Header is what precedes the tensor data of a GGUF file.
type Header struct {
	Version   uint32
	Metadata  []Entry  // in file order, keys unique
	Tensors   []Tensor // in file order, names unique
	Alignment int64    // bytes; tensor offsets are multiples of it

	// DataOffset is the file position of the tensor data: all of [0, DataOffset) is header and padding. In a
	// file without tensors it is at most the size of the file.
	DataOffset int64

	index map[string]int
}

// Entry is one metadata pair.
type Entry struct {
	Key   string
	Value Value
}

// Value is a metadata value. Of an array only the element type and the length are kept.
type Value struct {
	Type Type

	// Scalar is nil for an array, else a uint8, int8, uint16, int16, uint32, int32, float32, bool, string,
	// uint64, int64 or float64, as Type says.
	Scalar any

	Elem Type   // of an array
	Len  uint64 // of an array, in elements
}

// Tensor is one row of the tensor table.
type Tensor struct {
	Name   string
	Dims   []uint64 // fastest-varying first
	Type   TensorType
	Offset uint64 // bytes from DataOffset
}

// FormatError says where and why a file is not a usable GGUF file. Errors of reading are not of this type.
type FormatError struct {
	Offset  int64  // file position at which the problem was seen
	Field   string // which part of the header
	Problem string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("gguf: byte %d: %s: %s", e.Offset, e.Field, e.Problem)
}

// ReadHeader reads and checks the header of a GGUF file of size bytes. The file must be little-endian and
// of version 2 or 3. What is wrong with the file itself comes back as a *FormatError.
func ReadHeader(src io.ReaderAt, size int64) (*Header, error) {
	r := newReader(src, size)
	h := &Header{Alignment: defaultAlignment}
	tensors, entries, err := r.preamble(h)
	if err != nil {
		return nil, err
	}
	if err := r.metadata(h, entries); err != nil {
		return nil, err
	}
	if err := r.alignment(h); err != nil {
		return nil, err
	}
	if err := r.tensors(h, tensors); err != nil {
		return nil, err
	}
	if err := r.dataSection(h); err != nil {
		return nil, err
	}
	return h, nil
}

// Lookup returns the metadata value of a key.
func (h *Header) Lookup(key string) (Value, bool) {
	i, ok := h.index[key]
	if !ok {
		return Value{}, false
	}
	return h.Metadata[i].Value, true
}

// Text returns a string value; false if the key is missing or not a string.
func (h *Header) Text(key string) (string, bool) {
	v, _ := h.Lookup(key)
	s, ok := v.Scalar.(string)
	return s, ok
}

// Uint returns a value of any integer type; false if the key is missing, not an integer or negative.
func (h *Header) Uint(key string) (uint64, bool) {
	v, _ := h.Lookup(key)
	switch n := v.Scalar.(type) {
	case uint8:
		return uint64(n), true
	case uint16:
		return uint64(n), true
	case uint32:
		return uint64(n), true
	case uint64:
		return n, true
	case int8:
		return uint64(n), n >= 0
	case int16:
		return uint64(n), n >= 0
	case int32:
		return uint64(n), n >= 0
	case int64:
		return uint64(n), n >= 0
	default:
		return 0, false
	}
}

// Architecture returns general.architecture, or "" where the file does not say.
func (h *Header) Architecture() string {
	s, _ := h.Text("general.architecture")
	return s
}

// Parameters returns the number of weights in the tensors of this file.
func (h *Header) Parameters() uint64 {
	var n uint64
	for _, t := range h.Tensors {
		if n > math.MaxUint64-t.Elements() {
			return math.MaxUint64
		}
		n += t.Elements()
	}
	return n
}

// Elements returns the number of weights in the tensor; ReadHeader made sure that it fits an int64.
func (t Tensor) Elements() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Bytes returns the size of the tensor's data; false where this package does not know the type.
func (t Tensor) Bytes() (uint64, bool) {
	f, ok := tensorFormats[t.Type]
	if !ok {
		return 0, false
	}
	return t.Elements() / f.blockElements * f.blockBytes, true
}
