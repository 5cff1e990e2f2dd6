package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/gguf"
)

// file assembles GGUF bytes by hand, right or wrong.
type file struct{ b []byte }

func (f *file) u32(v uint32) *file { f.b = binary.LittleEndian.AppendUint32(f.b, v); return f }
func (f *file) u64(v uint64) *file { f.b = binary.LittleEndian.AppendUint64(f.b, v); return f }
func (f *file) raw(b ...byte) *file {
	f.b = append(f.b, b...)
	return f
}
func (f *file) str(s string) *file {
	f.u64(uint64(len(s)))
	f.b = append(f.b, s...)
	return f
}
func (f *file) pad(to int) *file {
	for len(f.b)%to != 0 {
		f.b = append(f.b, 0)
	}
	return f
}

func start(tensors, entries uint64) *file {
	return (&file{b: []byte("GGUF")}).u32(3).u64(tensors).u64(entries)
}

func (f *file) entry(key string, t gguf.Type) *file { return f.str(key).u32(uint32(t)) }

func (f *file) array(key string, elem gguf.Type, n uint64) *file {
	return f.entry(key, gguf.Array).u32(uint32(elem)).u64(n)
}

func (f *file) tensor(name string, t gguf.TensorType, offset uint64, dims ...uint64) *file {
	f.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		f.u64(d)
	}
	return f.u32(uint32(t)).u64(offset)
}

func read(b []byte) (*gguf.Header, error) { return gguf.ReadHeader(bytes.NewReader(b), int64(len(b))) }

// everyType is a small valid file with one entry of every metadata type.
func everyType() []byte {
	f := start(2, 15)
	f.entry("general.architecture", gguf.String).str("llama")
	f.entry("u8", gguf.Uint8).raw(200)
	f.entry("i8", gguf.Int8).raw(0xff)
	f.entry("u16", gguf.Uint16).raw(1, 2)
	f.entry("i16", gguf.Int16).raw(0xfe, 0xff)
	f.entry("u32", gguf.Uint32).u32(7)
	f.entry("i32", gguf.Int32).u32(math.MaxUint32)
	f.entry("f32", gguf.Float32).u32(math.Float32bits(1.5))
	f.entry("yes", gguf.Bool).raw(1)
	f.entry("u64", gguf.Uint64).u64(1 << 40)
	f.entry("i64", gguf.Int64).u64(math.MaxUint64)
	f.entry("f64", gguf.Float64).u64(math.Float64bits(-2.25))
	f.array("strings", gguf.String, 3).str("a").str("").str("cde")
	f.array("floats", gguf.Float32, 2).u32(1).u32(2)
	f.array("nothing", gguf.Int64, 0)
	f.tensor("a", gguf.TensorF32, 0, 2, 3)
	f.tensor("b", gguf.TensorF16, 32, 8)
	f.pad(32)
	f.raw(make([]byte, 32+16)...)
	return f.b
}

func TestHeaderHoldsWhatTheFileSays(t *testing.T) {
	b := everyType()
	h, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"general.architecture": "llama", "u8": uint8(200), "i8": int8(-1), "u16": uint16(0x201), "i16": int16(-2),
		"u32": uint32(7), "i32": int32(-1), "f32": float32(1.5), "yes": true, "u64": uint64(1 << 40), "i64": int64(-1), "f64": -2.25}
	for key, scalar := range want {
		if v, ok := h.Lookup(key); !ok || v.Scalar != scalar {
			t.Errorf("%s = %#v, want %#v", key, v.Scalar, scalar)
		}
	}
	arrays := map[string]gguf.Value{"strings": {Type: gguf.Array, Elem: gguf.String, Len: 3},
		"floats": {Type: gguf.Array, Elem: gguf.Float32, Len: 2}, "nothing": {Type: gguf.Array, Elem: gguf.Int64}}
	for key, want := range arrays {
		if v, _ := h.Lookup(key); v != want {
			t.Errorf("%s = %+v, want %+v", key, v, want)
		}
	}
	tensors := []gguf.Tensor{{"a", []uint64{2, 3}, gguf.TensorF32, 0}, {"b", []uint64{8}, gguf.TensorF16, 32}}
	if !reflect.DeepEqual(h.Tensors, tensors) {
		t.Errorf("tensors = %+v, want %+v", h.Tensors, tensors)
	}
	if h.Version != 3 || h.Alignment != 32 || h.DataOffset != int64(len(b))-48 || h.Parameters() != 14 || h.Architecture() != "llama" {
		t.Errorf("version %d alignment %d data offset %d of %d parameters %d architecture %q",
			h.Version, h.Alignment, h.DataOffset, len(b), h.Parameters(), h.Architecture())
	}
}

func TestUintTakesEveryIntegerTypeButNoNegative(t *testing.T) {
	h, err := read(everyType())
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]uint64{"u8": 200, "u16": 0x201, "u32": 7, "u64": 1 << 40} {
		if n, ok := h.Uint(key); !ok || n != want {
			t.Errorf("Uint(%s) = %d, %v, want %d", key, n, ok, want)
		}
	}
	for _, key := range []string{"i8", "i16", "i32", "i64", "f32", "yes", "strings", "missing"} {
		if n, ok := h.Uint(key); ok {
			t.Errorf("Uint(%s) = %d, want none", key, n)
		}
	}
}

func TestStoryModelHeader(t *testing.T) {
	f, err := os.Open("../../models/stories1m-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	h, err := gguf.ReadHeader(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	context, _ := h.Uint("llama.context_length")
	vocab, _ := h.Lookup("tokenizer.ggml.tokens")
	if h.Architecture() != "llama" || context != 2048 || vocab.Len != 1024 || len(h.Tensors) != 2+4*9 {
		t.Errorf("architecture %q context %d vocabulary %d tensors %d", h.Architecture(), context, vocab.Len, len(h.Tensors))
	}
	last := h.Tensors[len(h.Tensors)-1]
	n, ok := last.Bytes()
	if end := h.DataOffset + int64(last.Offset+n); !ok || end > info.Size() || end+h.Alignment <= info.Size() {
		t.Errorf("the last tensor ends at %d of %d bytes", end, info.Size())
	}
}

// brokenFiles name the field and a word of the problem that the error must hold.
var brokenFiles = []struct {
	name, field, problem string
	b                    []byte
}{
	{"empty", "magic", "cut short", nil},
	{"wrong magic", "magic", "not a GGUF", []byte("GGML12345678901234567890")},
	{"old version", "version", "is 1;", (&file{b: []byte("GGUF")}).u32(1).u64(0).u64(0).b},
	{"future version", "version", "is 4;", (&file{b: []byte("GGUF")}).u32(4).u64(0).u64(0).b},
	{"big-endian", "version", "big-endian", (&file{b: []byte("GGUF")}).raw(0, 0, 0, 3).u64(0).u64(0).b},
	{"negative tensor count", "tensor count", "limit is 65536", start(math.MaxUint64, 0).b},
	{"tensor count beyond the file", "tensor count", "remain", start(65536, 0).b},
	{"metadata count beyond the limit", "metadata count", "limit is 8192", start(0, 8193).b},
	{"metadata count beyond the file", "metadata count", "remain", start(0, 8192).b},
	{"key longer than the file", "key of metadata entry 0", "remain", start(0, 1).u64(65535).raw(make([]byte, 40)...).b},
	{"key of 2⁶⁴-1 bytes", "key of metadata entry 0", "limit is 65535", start(0, 1).u64(math.MaxUint64).raw(make([]byte, 40)...).b},
	{"empty key", "key of metadata entry 0", "empty", start(0, 1).entry("", gguf.Uint8).raw(1, 2).b},
	{"the same key twice", "key of metadata entry 1", "twice", start(0, 2).entry("k", gguf.Bool).raw(1).entry("k", gguf.Bool).raw(1).b},
	{"unknown value type", `metadata "k"`, "type 13", start(0, 1).entry("k", 13).u64(0).b},
	{"string of 2⁶³ bytes", `metadata "k"`, "limit", start(0, 1).entry("k", gguf.String).u64(1 << 63).b},
	{"string longer than the file", `metadata "k"`, "remain", start(0, 1).entry("k", gguf.String).u64(1 << 20).b},
	{"array of 2⁶² words", `metadata "k"`, "remain", start(0, 1).array("k", gguf.Uint32, 1<<62).b},
	{"array of 2⁶¹ strings", `metadata "k"`, "remain", start(0, 1).array("k", gguf.String, 1<<61).b},
	{"string in array longer than the file", `metadata "k"`, "remain", start(0, 1).array("k", gguf.String, 1).u64(1 << 62).b},
	{"array of arrays", `metadata "k"`, "array of array", start(0, 1).array("k", gguf.Array, 1).u32(9).u64(1).b},
	{"alignment not a power of two", "general.alignment", "is 24", start(0, 1).entry("general.alignment", gguf.Uint32).u32(24).b},
	{"alignment zero", "general.alignment", "is 0", start(0, 1).entry("general.alignment", gguf.Uint32).u32(0).b},
	{"alignment of 2 GiB", "general.alignment", "up to 1048576", start(0, 1).entry("general.alignment", gguf.Uint32).u32(1 << 31).b},
	{"alignment of another type", "general.alignment", "uint64", start(0, 1).entry("general.alignment", gguf.Uint64).u64(32).b},
	{"tensor name too long", "name of tensor 0", "limit is 63", start(1, 0).tensor(strings.Repeat("x", 64), 0, 0, 1).b},
	{"the same tensor twice", "name of tensor 1", "twice", start(2, 0).tensor("t", 0, 0, 1).tensor("t", 0, 32, 1).b},
	{"five dimensions", `tensor "t"`, "limit is 4", start(1, 0).tensor("t", 0, 0, 1, 1, 1, 1, 1).b},
	{"2¹²⁸ elements", `tensor "t"`, "elements", start(1, 0).tensor("t", 0, 0, 1<<62, 1<<62).b},
	{"negative dimension", `tensor "t"`, "elements", start(1, 0).tensor("t", 0, 0, math.MaxUint64).b},
	{"2⁶⁴ bytes", `tensor "t"`, "bytes", start(1, 0).tensor("t", 0, 0, 1<<62).b},
	{"half a block", `tensor "t"`, "multiple of 32", start(1, 0).tensor("t", 2, 0, 48).pad(32).raw(make([]byte, 64)...).b},
	{"data cut off before it starts", "tensor data", "cut short", start(1, 0).tensor("t", 0, 0, 1).b},
	{"tensor beyond the end", `tensor "t"`, "cut short", start(1, 0).tensor("t", 0, 0, 9).pad(32).raw(make([]byte, 32)...).b},
	{"offset beyond the end", `tensor "t"`, "cut short", start(1, 0).tensor("t", 0, 1<<63, 1).pad(32).raw(make([]byte, 32)...).b},
	{"offset not aligned", `tensor "t"`, "alignment 32", start(1, 0).tensor("t", 0, 4, 1).pad(32).raw(make([]byte, 32)...).b},
}

func TestBrokenFileIsRefusedWithFieldAndReason(t *testing.T) {
	for _, c := range brokenFiles {
		_, err := read(c.b)
		var format *gguf.FormatError
		if !errors.As(err, &format) || format.Field != c.field || !strings.Contains(format.Problem, c.problem) {
			t.Errorf("%s: got %v, want %s: …%s…", c.name, err, c.field, c.problem)
		}
	}
}

func TestEveryTruncationIsRefused(t *testing.T) {
	whole := everyType()
	for n := range whole {
		var format *gguf.FormatError
		if _, err := read(whole[:n]); !errors.As(err, &format) {
			t.Fatalf("cut at %d of %d: %v", n, len(whole), err)
		}
	}
}

func TestTensorOfUnknownTypeIsLeftToTheLoader(t *testing.T) {
	h, err := read(start(1, 0).tensor("t", 99, 0, 5).pad(32).raw(1).b)
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := h.Tensors[0].Bytes(); ok {
		t.Errorf("size of an unknown type = %d", n)
	}
}

func TestStringsBeyondTheReadingWindowAreWhole(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000)
	f := start(0, 3).entry("before", gguf.String).str(long[1:]).array("skipped", gguf.String, 1).str(long).entry("after", gguf.String).str("end")
	h, err := read(f.b)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := h.Text("before")
	after, _ := h.Text("after")
	if before != long[1:] || after != "end" {
		t.Errorf("read %d bytes before and %q after the array", len(before), after)
	}
}

func TestFileWithoutTensorsNeedsNoPadding(t *testing.T) {
	b := start(0, 0).b
	h, err := read(b)
	if err != nil || h.DataOffset != int64(len(b)) {
		t.Fatalf("%+v, %v", h, err)
	}
}

// sparse is a file of zeros behind a real beginning.
type sparse struct{ head []byte }

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(s.head)) {
		copy(p, s.head[off:])
	}
	return len(p), nil
}

func TestHeaderBeyondItsLimitIsRefusedInAFileOfAnySize(t *testing.T) {
	head := start(0, 1).array("k", gguf.Uint8, 1<<40).b
	_, err := gguf.ReadHeader(sparse{head}, 1<<50)
	if err == nil || !strings.Contains(err.Error(), "limit of 268435456 bytes for a header") {
		t.Fatal(err)
	}
}

func TestHostileClaimsCostNoMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, c := range brokenFiles {
		if _, err := read(c.b); err == nil {
			t.Fatalf("%s was accepted", c.name)
		}
	}
	runtime.ReadMemStats(&after)
	const window = 96 << 10 // the reader's own buffer and a little
	if spent := after.TotalAlloc - before.TotalAlloc; spent > uint64(len(brokenFiles))*window {
		t.Errorf("%d broken files cost %d bytes", len(brokenFiles), spent)
	}
}

func TestSourceShorterThanItsSizeIsAnErrorOfReading(t *testing.T) {
	b := everyType()
	_, err := gguf.ReadHeader(bytes.NewReader(b[:100]), int64(len(b)))
	var format *gguf.FormatError
	if !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &format) {
		t.Fatal(err)
	}
}

func FuzzReadHeader(f *testing.F) {
	f.Add(everyType())
	for _, c := range brokenFiles {
		f.Add(c.b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := read(b)
		if err != nil {
			return
		}
		if h.DataOffset > int64(len(b)) {
			t.Fatalf("data starts at %d of %d bytes", h.DataOffset, len(b))
		}
		for _, tensor := range h.Tensors {
			n, _ := tensor.Bytes()
			if room := uint64(int64(len(b)) - h.DataOffset); tensor.Offset > room || n > room-tensor.Offset {
				t.Fatalf("%+v lies outside of %d bytes", tensor, room)
			}
		}
		for _, e := range h.Metadata {
			if v, ok := h.Lookup(e.Key); !ok || v.Type != e.Value.Type {
				t.Fatalf("Lookup(%q) = %+v, %v", e.Key, v, ok)
			}
		}
		h.Parameters()
	})
}
