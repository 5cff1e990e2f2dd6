package testmodel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/meshnet/node/internal/gguf"
)

// Damage is a way to spoil a model file.
type Damage struct {
	Name  string
	apply func(model []byte, h *gguf.Header) []byte
}

// Damages returns the ways there are; each leaves a file that no loader may accept.
func Damages() []Damage {
	// Where the counts of the format's fixed beginning are, and the length of the first key.
	const version, tensorCount, metadataCount, firstKey = 4, 8, 16, 24
	number := func(name string, at int, v uint64) Damage {
		return Damage{name, func(b []byte, _ *gguf.Header) []byte {
			binary.LittleEndian.PutUint64(b[at:], v)
			return b
		}}
	}
	return []Damage{
		{"empty", func([]byte, *gguf.Header) []byte { return nil }},
		{"wrong-magic", func(b []byte, _ *gguf.Header) []byte { copy(b, "GGML"); return b }},
		{"future-version", func(b []byte, _ *gguf.Header) []byte { b[version] = 99; return b }},
		number("huge-tensor-count", tensorCount, 1<<60),
		number("huge-metadata-count", metadataCount, 1<<60),
		number("huge-key", firstKey, 1<<62),
		{"cut-in-header", func(b []byte, h *gguf.Header) []byte { return b[:h.DataOffset/2] }},
		{"cut-in-data", func(b []byte, h *gguf.Header) []byte { return b[:(h.DataOffset+int64(len(b)))/2] }},
		{"tensor-beyond-end", moveLastTensor},
	}
}

// WriteDamaged writes a spoilt copy of the valid model at from. It holds the model in memory: use a small one.
func WriteDamaged(from, to string, damage Damage) error {
	model, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	h, err := gguf.ReadHeader(bytes.NewReader(model), int64(len(model)))
	if err != nil {
		return fmt.Errorf("testmodel: %s cannot be spoilt: %w", from, err)
	}
	if err := os.WriteFile(to, damage.apply(model, h), 0o600); err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	return nil
}

// moveLastTensor gives the last tensor of the table an offset behind the end of the file.
func moveLastTensor(b []byte, h *gguf.Header) []byte {
	last := h.Tensors[len(h.Tensors)-1]
	row := binary.LittleEndian.AppendUint32(nil, uint32(last.Type))
	row = binary.LittleEndian.AppendUint64(row, last.Offset)
	at := bytes.LastIndex(b[:h.DataOffset], row) + 4
	binary.LittleEndian.PutUint64(b[at:], uint64(len(b)+alignment-1)/alignment*alignment)
	return b
}
