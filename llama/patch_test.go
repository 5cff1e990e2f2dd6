package llama_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/meshnet/node/internal/gguf"
	"github.com/meshnet/node/internal/testmodel"
)

// Where the counts are in a GGUF file, and what its tensor data is aligned to here.
const (
	tensorCountAt = 8
	pairCountAt   = 16
	preambleBytes = 24
	alignment     = 32
)

// patch is a GGUF file that is being changed.
type patch struct {
	t    testing.TB
	data []byte
}

func (p *patch) header() *gguf.Header {
	p.t.Helper()
	h, err := gguf.ReadHeader(bytes.NewReader(p.data), int64(len(p.data)))
	if err != nil {
		p.t.Fatal(err)
	}
	return h
}

// weights are the bytes of a tensor.
func (p *patch) weights(name string) []byte {
	p.t.Helper()
	h := p.header()
	for _, x := range h.Tensors {
		if x.Name == name {
			size, _ := x.Bytes()
			at := h.DataOffset + int64(x.Offset)
			return p.data[at : at+int64(size)]
		}
	}
	p.t.Fatalf("no tensor is named %s", name)
	return nil
}

// add inserts one metadata pair and, where info is not nil, a last row of the tensor table. Tensor data stays where it is
// within its section: a second pair fills up to the alignment.
func (p *patch) add(pair, info []byte) {
	const lengthBytes = 8
	filler := u32(text(nil, "test.filler"), uint32(gguf.String))
	gap := alignment - (len(pair)+len(filler)+lengthBytes+len(info))%alignment
	filler = text(filler, string(make([]byte, gap)))
	pairs := uint64(1)
	if pair != nil {
		pairs = 2
	}
	if info != nil {
		tensors := p.header().Tensors
		last := tensors[len(tensors)-1]
		name := text(nil, last.Name)
		at := bytes.Index(p.data, name) + len(name) + 4 + 8*len(last.Dims) + 4 + 8 // dimensions, their count, type, offset
		p.data = bytes.Join([][]byte{p.data[:at], info, p.data[at:]}, nil)
		p.count(tensorCountAt, 1)
	}
	p.data = bytes.Join([][]byte{p.data[:preambleBytes], pair, filler, p.data[preambleBytes:]}, nil)
	p.count(pairCountAt, pairs)
}

func (p *patch) count(at int, more uint64) {
	binary.LittleEndian.PutUint64(p.data[at:], binary.LittleEndian.Uint64(p.data[at:])+more)
}

// addTensor adds a matrix of F16 weights at the end of the data.
func (p *patch) addTensor(name string, width, rows uint64, weights []byte) {
	h := p.header()
	for int64(len(p.data))%alignment != h.DataOffset%alignment {
		p.data = append(p.data, 0)
	}
	offset := uint64(int64(len(p.data)) - h.DataOffset)
	p.data = append(p.data, weights...)
	info := u32(text(nil, name), 2)
	info = u64(u64(info, width), rows)
	p.add(nil, u64(u32(info, uint32(gguf.TensorF16)), offset))
}

func u32(b []byte, v uint32) []byte    { return binary.LittleEndian.AppendUint32(b, v) }
func u64(b []byte, v uint64) []byte    { return binary.LittleEndian.AppendUint64(b, v) }
func text(b []byte, s string) []byte   { return append(u64(b, uint64(len(s))), s...) }
func putF16(b []byte, i int, v uint16) { binary.LittleEndian.PutUint16(b[2*i:], v) }

const nanF16 = 0x7e00

// shapedModel is the file of a random model of a named shape.
func shapedModel(t testing.TB, name string) *patch {
	t.Helper()
	data, err := os.ReadFile(testmodel.Path(t, name, "f16"))
	if err != nil {
		t.Fatal(err)
	}
	return &patch{t: t, data: data}
}
