package testmodel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/meshnet/node/internal/gguf"
)

// WithTemplate writes a copy of a model that has no chat template, with one.
func WithTemplate(path string, model []byte, template string) error {
	const key, metadataCount, firstKey = "tokenizer.chat_template", 16, 24
	if _, err := gguf.ReadHeader(bytes.NewReader(model), int64(len(model))); err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	entry := binary.LittleEndian.AppendUint64(nil, uint64(len(key)))
	entry = binary.LittleEndian.AppendUint32(append(entry, key...), uint32(gguf.String))
	// The weights stay where they are aligned: a comment makes the template as long as that takes.
	const length, comment = 8, "{##}"
	room := alignment - (len(entry)+length+len(template)+len(comment))%alignment
	template += "{#" + strings.Repeat(" ", room) + "#}"
	entry = append(binary.LittleEndian.AppendUint64(entry, uint64(len(template))), template...)

	model = slices.Insert(slices.Clone(model), firstKey, entry...)
	count := model[metadataCount:]
	binary.LittleEndian.PutUint64(count, binary.LittleEndian.Uint64(count)+1)
	if err := os.WriteFile(path, model, 0o600); err != nil {
		return fmt.Errorf("testmodel: %w", err)
	}
	return nil
}
