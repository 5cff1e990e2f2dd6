package testmodel

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/gguf"
)

// adapterStrength is how large what an adapter of scale 1 adds to a matrix's output is beside that output: enough to change
// the text within a few tokens.
const adapterStrength = 1.0

// WriteAdapter writes a LoRA adapter with random weights, for every matrix of the layers of a model of the shape, to path,
// replacing what is there. The matrices have the ranks in turn. After an error nothing usable is left at path.
func WriteAdapter(path string, shape Shape, seed uint64, ranks ...int) error {
	p, err := newAdapterPlan(shape, ranks)
	if err != nil {
		return err
	}
	return p.write(path, seed)
}

// Adapter writes a LoRA adapter of rank 4 for a named shape into the test's own folder, and returns its path.
func Adapter(tb testing.TB, shape string, seed uint64) string {
	tb.Helper()
	s, err := Lookup(shape)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), fmt.Sprintf("%s-lora-%d.gguf", shape, seed))
	const rank = 4
	if err := WriteAdapter(path, s, seed, rank); err != nil {
		tb.Fatal(err)
	}
	return path
}

// newAdapterPlan plans a pair of small matrices for each large one: A, which turns an input into a vector of size rank, and
// B, which turns that into what is added to the output.
func newAdapterPlan(shape Shape, ranks []int) (*plan, error) {
	if len(ranks) == 0 || slices.Min(ranks) < 1 {
		return nil, fmt.Errorf("testmodel: ranks %v; an adapter has at least one, of at least 1", ranks)
	}
	base, err := newPlan(shape)
	if err != nil {
		return nil, err
	}
	p := &plan{shape: shape}
	p.set("general.type", "adapter")
	p.set("general.architecture", shape.Arch)
	p.set("general.name", "Meshnet test adapter of "+shape.Name)
	p.set("adapter.type", "lora")
	p.set("adapter.lora.alpha", float32(ranks[0])) // llama.cpp multiplies by alpha / rank
	for _, t := range base.tensors {
		if !strings.HasPrefix(t.name, "blk.") || t.kind != gguf.TensorF16 {
			continue
		}
		in, out, rank := t.dims[0], t.dims[1], ranks[len(p.tensors)/2%len(ranks)]
		p.tensors = append(p.tensors,
			tensor{t.name + ".lora_a", []int{in, rank}, gguf.TensorF16, projection(in, 1)},
			tensor{t.name + ".lora_b", []int{rank, out}, gguf.TensorF32, normal(float32(adapterStrength / math.Sqrt(float64(rank))))})
	}
	return p, nil
}
