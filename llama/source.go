package llama

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshnet/node/internal/gguf"
)

// Source is where a model comes from: a file or bytes in memory.
type Source struct {
	Name string
	path string
	data []byte
}

// FromFile is a model in a GGUF file. For a model split over files, name the first.
func FromFile(path string) Source {
	return Source{Name: strings.TrimSuffix(filepath.Base(path), ".gguf"), path: path}
}

// FromBytes is a model in memory, for example an embedded one. The bytes must not change.
func FromBytes(name string, data []byte) Source {
	return Source{Name: name, data: data}
}

// header is the part of a GGUF file that llama.cpp does not hand out, and an identity of the file's content.
type header struct {
	*gguf.Header
	identity string // hex
}

func readHeader(src Source) (*header, error) {
	if src.data != nil {
		return parseHeader(bytes.NewReader(src.data), int64(len(src.data)))
	}
	info, err := os.Stat(src.path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // known before it is opened: opening a pipe waits for its other end
		return nil, fmt.Errorf("%s is not a file", src.path)
	}
	file, err := os.Open(src.path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read from
	return parseHeader(file, info.Size())
}

func parseHeader(r io.ReaderAt, size int64) (*header, error) {
	h, err := gguf.ReadHeader(r, size)
	if err != nil {
		return nil, err
	}
	identity, err := fileIdentity(r, size, h)
	if err != nil {
		return nil, err
	}
	return &header{Header: h, identity: identity}, nil
}

// encodes says whether the model declares that its attention is not causal, as embedding models do.
func (h *header) encodes() bool {
	v, _ := h.Lookup(h.Architecture() + ".attention.causal")
	causal, declared := v.Scalar.(bool)
	return declared && !causal
}

// identitySampleBytes is how much of a tensor fileIdentity reads at its start and in its middle.
const identitySampleBytes = 4096

// fileIdentity hashes the whole header (metadata and tensor table), the size, and two blocks of every tensor: two
// trainings of one architecture have the same header, and their states must not be mixed up.
func fileIdentity(r io.ReaderAt, size int64, h *gguf.Header) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, h.DataOffset)); err != nil {
		return "", err
	}
	fmt.Fprintf(sum, "size %d", size)
	block := make([]byte, identitySampleBytes)
	for _, t := range h.Tensors {
		bytes, _ := t.Bytes() // of an unknown type only the start is read
		start := h.DataOffset + int64(t.Offset)
		for _, at := range []int64{start, start + int64(bytes/2)} {
			n, err := r.ReadAt(block, at)
			if err != nil && !errors.Is(err, io.EOF) {
				return "", err
			}
			sum.Write(block[:n])
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
