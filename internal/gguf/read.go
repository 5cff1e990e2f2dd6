package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const windowBytes = 64 << 10

// reader walks a header front to back through a small window, so that small fields do not each cost a call to the source.
type reader struct {
	src   io.ReaderAt
	size  int64 // of the file
	limit int64 // no header byte lies at or beyond it
	pos   int64

	buf   [windowBytes]byte
	start int64 // file range in buf
	end   int64
}

func newReader(src io.ReaderAt, size int64) *reader {
	return &reader{src: src, size: size, limit: max(0, min(size, MaxHeaderBytes))}
}

func (r *reader) invalid(field, format string, args ...any) error {
	return &FormatError{Offset: r.pos, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// claim checks that count items of at least each bytes can follow, in the form that cannot overflow.
func (r *reader) claim(field string, count uint64, each int64) error {
	remain := r.limit - r.pos
	switch {
	case count <= uint64(remain)/uint64(each):
		return nil
	case r.limit < r.size:
		return r.invalid(field, "needs %d × %d bytes, beyond the limit of %d bytes for a header", count, each, r.limit)
	default:
		return r.invalid(field, "needs %d × %d bytes, but only %d remain in the file: it is damaged or cut short", count, each, remain)
	}
}

// next returns the next n bytes, n at most windowBytes. The slice is valid until the next call.
func (r *reader) next(field string, n int64) ([]byte, error) {
	if err := r.claim(field, uint64(n), 1); err != nil {
		return nil, err
	}
	if r.pos < r.start || r.pos+n > r.end {
		length := min(windowBytes, r.limit-r.pos)
		if err := r.readAt(r.buf[:length], r.pos); err != nil {
			return nil, fmt.Errorf("gguf: read %s: %w", field, err)
		}
		r.start, r.end = r.pos, r.pos+length
	}
	b := r.buf[r.pos-r.start:][:n]
	r.pos += n
	return b, nil
}

// readAt fills dst. A source shorter than the size it was announced with is an error, never a short read.
func (r *reader) readAt(dst []byte, at int64) error {
	n, err := r.src.ReadAt(dst, at)
	switch {
	case n == len(dst):
		return nil
	case err == nil, errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	default:
		return err
	}
}

func (r *reader) u32(field string) (uint32, error) {
	b, err := r.next(field, 4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (r *reader) u64(field string) (uint64, error) {
	b, err := r.next(field, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (r *reader) text(field string, maxBytes uint64) (string, error) {
	n, err := r.u64(field)
	if err != nil {
		return "", err
	}
	if n > maxBytes {
		return "", r.invalid(field, "is %d bytes long; the limit is %d", n, maxBytes)
	}
	if err := r.claim(field, n, 1); err != nil {
		return "", err
	}
	if n <= windowBytes {
		b, err := r.next(field, int64(n))
		return string(b), err
	}
	b := make([]byte, n)
	if err := r.readAt(b, r.pos); err != nil {
		return "", fmt.Errorf("gguf: read %s: %w", field, err)
	}
	r.pos += int64(n)
	return string(b), nil
}

// preamble reads magic, version and the two counts.
func (r *reader) preamble(h *Header) (tensors, entries uint64, err error) {
	magic, err := r.next("magic", 4)
	if err != nil {
		return 0, 0, err
	}
	if string(magic) != "GGUF" {
		r.pos = 0
		return 0, 0, r.invalid("magic", "is %q, not \"GGUF\": this is not a GGUF model file", magic)
	}
	if h.Version, err = r.u32("version"); err != nil {
		return 0, 0, err
	}
	if h.Version < minVersion || h.Version > maxVersion {
		if h.Version&0xffff == 0 && h.Version != 0 {
			return 0, 0, r.invalid("version", "is %#x: the file is big-endian; convert it for little-endian machines", h.Version)
		}
		return 0, 0, r.invalid("version", "is %d; versions %d to %d are supported", h.Version, minVersion, maxVersion)
	}
	if tensors, err = r.count("tensor count", MaxTensors); err != nil {
		return 0, 0, err
	}
	entries, err = r.count("metadata count", MaxMetadata)
	return tensors, entries, err
}

func (r *reader) count(field string, limit uint64) (uint64, error) {
	n, err := r.u64(field)
	if err != nil {
		return 0, err
	}
	if n > limit {
		return 0, r.invalid(field, "is %d; the limit is %d", n, limit)
	}
	return n, nil
}

func (r *reader) metadata(h *Header, count uint64) error {
	const smallestEntry = 8 + 1 + 4 + 1 // key length, key, type, value
	if err := r.claim("metadata count", count, smallestEntry); err != nil {
		return err
	}
	h.index = make(map[string]int)
	for i := range count {
		field := fmt.Sprintf("key of metadata entry %d", i)
		key, err := r.text(field, MaxKeyBytes)
		if err != nil {
			return err
		}
		if key == "" {
			return r.invalid(field, "is empty")
		}
		if _, twice := h.index[key]; twice {
			return r.invalid(field, "%q appears twice", key)
		}
		value, err := r.value(fmt.Sprintf("metadata %q", key))
		if err != nil {
			return err
		}
		h.index[key] = len(h.Metadata)
		h.Metadata = append(h.Metadata, Entry{key, value})
	}
	return nil
}

func (r *reader) value(field string) (Value, error) {
	kind, err := r.u32(field)
	if err != nil {
		return Value{}, err
	}
	v := Value{Type: Type(kind)}
	switch v.Type {
	case Array:
		v.Elem, v.Len, err = r.skipArray(field)
	case String:
		v.Scalar, err = r.text(field, MaxHeaderBytes)
	default:
		v.Scalar, err = r.scalar(field, v.Type)
	}
	return v, err
}

func (r *reader) scalar(field string, t Type) (any, error) {
	n, ok := scalarBytes[t]
	if !ok {
		return nil, r.invalid(field, "has unknown value %v", t)
	}
	b, err := r.next(field, n)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	switch t {
	case Uint8:
		return b[0], nil
	case Int8:
		return int8(b[0]), nil
	case Bool:
		return b[0] != 0, nil
	case Uint16:
		return le.Uint16(b), nil
	case Int16:
		return int16(le.Uint16(b)), nil
	case Uint32:
		return le.Uint32(b), nil
	case Int32:
		return int32(le.Uint32(b)), nil
	case Float32:
		return math.Float32frombits(le.Uint32(b)), nil
	case Uint64:
		return le.Uint64(b), nil
	case Int64:
		return int64(le.Uint64(b)), nil
	default: // Float64: scalarBytes holds no other
		return math.Float64frombits(le.Uint64(b)), nil
	}
}

// skipArray steps over an array without keeping its elements. Arrays of arrays are refused, as llama.cpp does.
func (r *reader) skipArray(field string) (Type, uint64, error) {
	kind, err := r.u32(field)
	if err != nil {
		return 0, 0, err
	}
	n, err := r.u64(field)
	if err != nil {
		return 0, 0, err
	}
	elem := Type(kind)
	if elem != String {
		size, ok := scalarBytes[elem]
		if !ok {
			return 0, 0, r.invalid(field, "is an array of %v, which is not supported", elem)
		}
		if err := r.claim(field, n, size); err != nil {
			return 0, 0, err
		}
		r.pos += int64(n) * size
		return elem, n, nil
	}
	if err := r.claim(field, n, 8); err != nil {
		return 0, 0, err
	}
	for range n {
		length, err := r.u64(field)
		if err != nil {
			return 0, 0, err
		}
		if err := r.claim(field, length, 1); err != nil {
			return 0, 0, err
		}
		r.pos += int64(length)
	}
	return elem, n, nil
}
