package testmodel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/meshnet/node/internal/gguf"
)

// generation is part of every cached model's name. It changes whenever Write gives other bytes for the same shape and seed.
const generation = 1

const alignment = 32

// Write writes a model of the shape with F16 weights to path, replacing what is there. It holds one row of
// weights in memory at a time. After an error nothing usable is left at path.
func Write(path string, shape Shape, seed uint64) error {
	p, err := newPlan(shape)
	if err != nil {
		return err
	}
	return p.write(path, seed)
}

// write writes the planned file with random weights. After an error nothing usable is left at path.
func (p *plan) write(path string, seed uint64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("testmodel: write %s: %w", path, errors.Join(err, os.Remove(path)))
		}
	}()
	w := &writer{out: bufio.NewWriterSize(f, 1<<20)}
	w.header(p)
	for _, t := range p.tensors {
		w.weights(t, seed)
	}
	return errors.Join(w.err, w.out.Flush())
}

// writer encodes GGUF version 3. The first error stays and makes all else void.
type writer struct {
	out     *bufio.Writer
	written int64
	err     error
}

func (w *writer) bytes(b []byte) {
	if w.err == nil {
		_, w.err = w.out.Write(b)
	}
	w.written += int64(len(b))
}

func (w *writer) u32(v uint32) { w.bytes(binary.LittleEndian.AppendUint32(nil, v)) }
func (w *writer) u64(v uint64) { w.bytes(binary.LittleEndian.AppendUint64(nil, v)) }

func (w *writer) text(s string) {
	w.u64(uint64(len(s)))
	w.bytes([]byte(s))
}

func (w *writer) pad() { w.bytes(make([]byte, (alignment-w.written%alignment)%alignment)) }

func (w *writer) header(p *plan) {
	w.bytes([]byte("GGUF"))
	w.u32(3)
	w.u64(uint64(len(p.tensors)))
	w.u64(uint64(len(p.meta)))
	for _, m := range p.meta {
		w.text(m.key)
		w.value(m.value)
	}
	offset := uint64(0)
	for _, t := range p.tensors {
		w.text(t.name)
		w.u32(uint32(len(t.dims)))
		row := gguf.Tensor{Type: t.kind}
		for _, d := range t.dims {
			w.u64(uint64(d))
			row.Dims = append(row.Dims, uint64(d))
		}
		w.u32(uint32(t.kind))
		w.u64(offset)
		size, _ := row.Bytes() // both types are known
		offset += (size + alignment - 1) / alignment * alignment
	}
	w.pad()
}

func (w *writer) value(value any) {
	switch v := value.(type) {
	case string:
		w.u32(uint32(gguf.String))
		w.text(v)
	case uint32:
		w.u32(uint32(gguf.Uint32))
		w.u32(v)
	case float32:
		w.u32(uint32(gguf.Float32))
		w.u32(math.Float32bits(v))
	case bool:
		w.u32(uint32(gguf.Bool))
		if v {
			w.bytes([]byte{1})
		} else {
			w.bytes([]byte{0})
		}
	case []string:
		writeArray(w, gguf.String, v, w.text)
	case []float32:
		writeArray(w, gguf.Float32, v, func(f float32) { w.u32(math.Float32bits(f)) })
	case []int32:
		writeArray(w, gguf.Int32, v, func(n int32) { w.u32(uint32(n)) })
	case []uint32:
		writeArray(w, gguf.Uint32, v, w.u32)
	default:
		w.err = errors.Join(w.err, fmt.Errorf("metadata of type %T cannot be written", value))
	}
}

func writeArray[T any](w *writer, elem gguf.Type, values []T, write func(T)) {
	w.u32(uint32(gguf.Array))
	w.u32(uint32(elem))
	w.u64(uint64(len(values)))
	for _, v := range values {
		write(v)
	}
}

// weights writes a tensor's data, a row at a time, and pads it.
func (w *writer) weights(t tensor, seed uint64) {
	values := make([]float32, t.dims[0])
	encoded := make([]byte, 0, 4*len(values))
	for row := range t.rows() {
		random := rowStream(seed, t.name, row)
		t.fill(row, values, &random)
		encoded = encoded[:0]
		for _, v := range values {
			if t.kind == gguf.TensorF16 {
				encoded = binary.LittleEndian.AppendUint16(encoded, half(v))
			} else {
				encoded = binary.LittleEndian.AppendUint32(encoded, math.Float32bits(v))
			}
		}
		w.bytes(encoded)
	}
	w.pad()
}
