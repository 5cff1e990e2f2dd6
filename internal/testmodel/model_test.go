package testmodel_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/meshnet/node/internal/gguf"
	"github.com/meshnet/node/internal/testmodel"
)

// small are the shapes that take a moment only.
func small() []testmodel.Shape {
	var s []testmodel.Shape
	for _, shape := range testmodel.Shapes() {
		if shape.Name != "135m" {
			s = append(s, shape)
		}
	}
	return s
}

func lookup(t *testing.T, name string) testmodel.Shape {
	t.Helper()
	shape, err := testmodel.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return shape
}

func write(t *testing.T, shape testmodel.Shape, seed uint64) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := testmodel.Write(path, shape, seed); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func header(t *testing.T, b []byte) *gguf.Header {
	t.Helper()
	h, err := gguf.ReadHeader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestEveryShapeIsAWholeFileWithoutGaps(t *testing.T) {
	for _, shape := range small() {
		b := write(t, shape, 1)
		h := header(t, b)
		end := uint64(0)
		for _, tensor := range h.Tensors {
			if tensor.Offset != end {
				t.Errorf("%s: %s starts at %d, want %d", shape.Name, tensor.Name, tensor.Offset, end)
			}
			n, ok := tensor.Bytes()
			if !ok {
				t.Fatalf("%s: %s is of type %v", shape.Name, tensor.Name, tensor.Type)
			}
			end = tensor.Offset + (n+31)/32*32
		}
		if got := uint64(h.DataOffset) + end; got != uint64(len(b)) {
			t.Errorf("%s: the tensors end at %d of %d bytes", shape.Name, got, len(b))
		}
		pieces, _ := h.Lookup("tokenizer.ggml.tokens")
		context, _ := h.Uint(shape.Arch + ".context_length")
		if h.Architecture() != shape.Arch || pieces.Len != uint64(shape.Vocab) || context != uint64(shape.Context) {
			t.Errorf("%s: architecture %q, %d pieces, context %d", shape.Name, h.Architecture(), pieces.Len, context)
		}
	}
}

func TestParametersOfTheTinyShape(t *testing.T) {
	const dim, kv, ffn, layers, vocab = 64, 32, 192, 2, 512
	const layer = 2*dim*dim + 2*dim*kv + 3*dim*ffn + 2*dim
	if n := header(t, write(t, lookup(t, "tiny"), 1)).Parameters(); n != vocab*dim+dim+layers*layer {
		t.Errorf("%d parameters, want %d", n, vocab*dim+dim+layers*layer)
	}
}

// Tests of other packages are tuned to these weights. Whoever changes them raises the generation in write.go,
// so that no cached model of before is taken for one of after, and puts the new sum here.
func TestSameShapeAndSeedGiveTheSameBytesEverywhere(t *testing.T) {
	const want = "4fdca5f8216a54dbc2f0a047c3a725ba36c7175004d49855b2514bcdfbd2603b"
	shape := lookup(t, "tiny")
	first := write(t, shape, 1)
	if sum := fmt.Sprintf("%x", sha256.Sum256(first)); sum != want {
		t.Errorf("SHA-256 is %s, want %s", sum, want)
	}
	other := write(t, shape, 2)
	if bytes.Equal(first, other) {
		t.Error("another seed gives the same bytes")
	}
	if header(t, other).DataOffset != header(t, first).DataOffset {
		t.Error("another seed gives another header")
	}
}

func TestUnknownNamesAreRefusedWithTheChoice(t *testing.T) {
	if _, err := testmodel.Lookup("giant"); err == nil || !strings.Contains(err.Error(), "there are 135m, 30layers-tiny, tiny,") {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := testmodel.File(path, lookup(t, "tiny"), 1, "q3_x"); err == nil || !strings.Contains(err.Error(), "there are f16, q4_0, q8_0, q4_k_m") {
		t.Error(err)
	}
	if err := testmodel.Write(path, testmodel.Shape{Arch: "none"}, 1); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Error(err)
	}
}

func TestQuantisedWeightsHaveTheirTypes(t *testing.T) {
	for weights, want := range map[string]string{"f16": "F16", "q4_0": "Q4_0", "q8_0": "Q8_0", "q4_k_m": "Q4_K"} {
		path := filepath.Join(t.TempDir(), "model.gguf")
		if err := testmodel.File(path, lookup(t, "30layers-tiny"), 1, weights); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, tensor := range header(t, b).Tensors {
			if tensor.Name == "blk.3.attn_q.weight" && tensor.Type.String() != want {
				t.Errorf("%s: attention weights are %v, want %s", weights, tensor.Type, want)
			}
		}
		left, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(left) != 1 {
			t.Errorf("%s: the folder holds %v, %v", weights, left, err)
		}
	}
}

func TestManyTestsAtOnceGetOneCachedModel(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	paths := make([]string, 8)
	var all sync.WaitGroup
	for i := range paths {
		all.Go(func() { paths[i] = testmodel.Path(t, "tiny", "q8_0") })
	}
	all.Wait()
	for _, path := range paths {
		if path != paths[0] {
			t.Fatalf("got %s and %s", paths[0], path)
		}
	}
	left, err := os.ReadDir(filepath.Dir(paths[0]))
	if err != nil || len(left) != 1 {
		t.Fatalf("the cache holds %v, %v", left, err)
	}
	before, err := os.Stat(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	testmodel.Path(t, "tiny", "q8_0")
	if after, err := os.Stat(paths[0]); err != nil || !os.SameFile(before, after) {
		t.Errorf("a cached model was written again: %v", err)
	}
	if other := testmodel.Path(t, "tiny", "f16"); other == paths[0] {
		t.Error("two types of weights share a file")
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.gguf")
	if err := testmodel.Write(whole, lookup(t, "tiny"), 1); err != nil {
		t.Fatal(err)
	}
	for _, damage := range testmodel.Damages() {
		path := filepath.Join(dir, damage.Name+".gguf")
		if err := testmodel.WriteDamaged(whole, path, damage); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var format *gguf.FormatError
		if _, err := gguf.ReadHeader(bytes.NewReader(b), int64(len(b))); !errors.As(err, &format) {
			t.Errorf("%s: %v", damage.Name, err)
		}
	}
}
