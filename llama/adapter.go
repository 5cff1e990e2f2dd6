package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/meshnet/node/internal/gguf"
	"github.com/meshnet/node/scheduler"
)

// AdapterFile is a LoRA adapter to be loaded beside a model.
type AdapterFile struct {
	Name  string  // by which requests choose it; not empty, no two alike
	Path  string  // a GGUF file
	Scale float32 // how strongly it acts, within MaxAdapterScale of 0; 0 is not at all
}

// MaxAdapterScale bounds AdapterFile.Scale.
const MaxAdapterScale = 100

// AdapterError says why an adapter cannot be used with a model.
type AdapterError struct {
	Name, Path string
	Reason     string
}

func (e *AdapterError) Error() string {
	return fmt.Sprintf("adapter %s (%s) cannot be used: %s", e.Name, e.Path, e.Reason)
}

// adapter is one that was read, and once its model is loaded, llama.cpp's part of it, which the model frees.
type adapter struct {
	file   AdapterFile
	header *header
	c      *C.mn_adapter
}

// recipe tells adapters apart in fingerprints.
func (a *adapter) recipe() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "lora %s scale %08x", a.header.identity, math.Float32bits(a.file.Scale)))
	const bytes = 8
	return hex.EncodeToString(sum[:bytes])
}

// readAdapters checks adapters against the model's header. llama.cpp checks little of that, and ends the process where a value
// is of another type than it expects.
func readAdapters(base *header, files []AdapterFile) ([]*adapter, error) {
	var adapters []*adapter
	for i, file := range files {
		a := &adapter{file: file}
		fail := func(format string, args ...any) ([]*adapter, error) {
			return nil, &AdapterError{file.Name, file.Path, fmt.Sprintf(format, args...)}
		}
		named := func(f AdapterFile) bool { return f.Name == file.Name }
		if file.Name == "" || slices.ContainsFunc(files[:i], named) {
			return fail("adapters need names, and no two the same")
		}
		if !(file.Scale >= -MaxAdapterScale && file.Scale <= MaxAdapterScale) {
			return fail("scale is %v; use -%d to %d", file.Scale, MaxAdapterScale, MaxAdapterScale)
		}
		var err error
		if a.header, err = readHeader(FromFile(file.Path)); err != nil {
			return fail("%v", err)
		}
		if reason := a.header.notAdapterOf(base); reason != "" {
			return fail("%s", reason)
		}
		adapters = append(adapters, a)
	}
	return adapters, nil
}

// notAdapterOf is why the file is no LoRA adapter of a model; "" if it is one.
func (h *header) notAdapterOf(base *header) string {
	const kindKey, typeKey, alphaKey = "general.type", "adapter.type", "adapter.lora.alpha"
	if kind, ok := h.Text(kindKey); !ok || kind != "adapter" {
		return fmt.Sprintf("it is no adapter: its %s is %q, not \"adapter\"; make it with llama.cpp's convert_lora_to_gguf.py", kindKey, kind)
	}
	if kind, ok := h.Text(typeKey); !ok || kind != "lora" {
		return fmt.Sprintf("its %s is %q; only \"lora\" is served", typeKey, kind)
	}
	if arch := h.Architecture(); arch != base.Architecture() {
		return fmt.Sprintf("it was made for architecture %q, the model is %q", arch, base.Architecture())
	}
	if v, given := h.Lookup(alphaKey); given {
		if alpha, ok := v.Scalar.(float32); !ok || math.IsNaN(float64(alpha)) || math.IsInf(float64(alpha), 0) {
			return fmt.Sprintf("its %s is %v, not a finite float32", alphaKey, v.Scalar)
		}
	}
	if _, given := h.Lookup("adapter.alora.invocation_tokens"); given {
		return "it acts only after certain tokens (an activated LoRA); only those that act on all tokens are served"
	}
	return adapterTensorsFlaw(h.Tensors, base)
}

// adapterTensorsFlaw is why tensors do not make pairs A and B for matrices of the model; "" if they do.
func adapterTensorsFlaw(tensors []gguf.Tensor, base *header) string {
	const suffixA, suffixB, norm = ".lora_a", ".lora_b", "_norm.weight"
	byName := make(map[string]gguf.Tensor, len(tensors))
	for _, t := range tensors {
		byName[t.Name] = t
	}
	pairs := 0
	for _, t := range tensors {
		name, isA := strings.CutSuffix(t.Name, suffixA)
		other := name + suffixB
		if !isA {
			var isB bool
			if name, isB = strings.CutSuffix(t.Name, suffixB); !isB {
				if strings.HasSuffix(t.Name, norm) {
					continue // llama.cpp passes these over
				}
				return fmt.Sprintf("tensor %q is no part of a LoRA adapter", t.Name)
			}
			other = name + suffixA
		}
		mate, ok := byName[other]
		if !ok {
			return fmt.Sprintf("tensor %q is without its other half, %q", t.Name, other)
		}
		if isA {
			pairs++
			if reason := pairFlaw(name, t, mate, base); reason != "" {
				return reason
			}
		}
	}
	if pairs == 0 {
		return "it adapts nothing: it has no pairs of tensors"
	}
	return ""
}

// pairFlaw is why A and B do not fit the model's matrix of a name.
func pairFlaw(name string, a, b gguf.Tensor, base *header) string {
	i := slices.IndexFunc(base.Tensors, func(t gguf.Tensor) bool { return t.Name == name })
	if i < 0 {
		if parts, _ := base.Uint("split.count"); parts > 1 {
			return "" // it may be in another file of the model; llama.cpp looks there
		}
		return fmt.Sprintf("it adapts tensor %q, which the model does not have: it was made for another", name)
	}
	matrix := base.Tensors[i]
	in, out := dim(matrix, 0), dim(matrix, 1)
	fits := dim(a, 0) == in && dim(b, 1) == out && dim(a, 1) == dim(b, 0)
	rank := dim(b, 0)
	if name == embeddingTable { // it is looked up by token, so its A is transposed
		fits = dim(b, 1) == in && dim(a, 1) == out && dim(a, 0) == dim(b, 0)
	}
	for d := 2; d < gguf.MaxDims; d++ { // matrices of several experts
		fits = fits && dim(a, d) == dim(matrix, d) && dim(b, d) == dim(matrix, d)
	}
	switch {
	case name == embeddingTable && !base.hasOutputMatrix():
		// llama.cpp would take the transposed A for the output too, and end the process.
		return fmt.Sprintf("it adapts tensor %q, which is the output matrix of this model too; that is not served", name)
	case matrix.Type == typeNVFP4:
		return fmt.Sprintf("it adapts tensor %q, which is of type %s; llama.cpp has no adapters for that", name, matrix.Type)
	case !isMatrix(matrix):
		return fmt.Sprintf("it adapts tensor %q, which is no matrix", name)
	case !fits:
		return fmt.Sprintf("its matrices for tensor %q are of %v and %v, which do not fit the model's of %v: it was made for another",
			name, a.Dims, b.Dims, matrix.Dims)
	case rank < 1 || rank > max(in, out):
		return fmt.Sprintf("its rank for tensor %q is %d; the matrix has %d rows of %d, beyond which a rank says nothing", name, rank, out, in)
	}
	for _, t := range []gguf.Tensor{a, b} {
		if !isFloat(t.Type) && t.Type != typeQ8_0 {
			return fmt.Sprintf("tensor %q is of type %s; use F32, F16, BF16 or Q8_0", t.Name, t.Type)
		}
	}
	return ""
}

// dim is the size of a tensor along an axis; 1 beyond those it has.
func dim(t gguf.Tensor, axis int) uint64 {
	if axis >= len(t.Dims) {
		return 1
	}
	return t.Dims[axis]
}

// loadAdapters gives llama.cpp the adapters that were read. Those that it loaded are freed with the model.
func (m *Model) loadAdapters(adapters []*adapter) error {
	if err := checkAdapterMemory(adapters, availableMemory()); err != nil {
		return err
	}
	for _, a := range adapters {
		path := C.CString(a.file.Path)
		var cerr C.mn_error
		a.c = C.mn_adapter_load(m.c, path, &cerr)
		C.free(unsafe.Pointer(path))
		if a.c == nil {
			return &AdapterError{a.file.Name, a.file.Path, errText(&cerr)}
		}
	}
	m.adapters = adapters
	return nil
}

// probeAdapters tries every adapter on slot 0, so that one that cannot be computed with is an error now, and not that of each
// of its sessions.
func (e *Engine) probeAdapters() error {
	defer e.Bind(0, "")
	for _, a := range e.model.adapters {
		e.Bind(0, a.file.Name)
		if err := e.Open(0, scheduler.DefaultSampling(), nil); err != nil {
			return err
		}
		res := e.Prefill(scheduler.Chunk{Tokens: []scheduler.Token{0}, Last: true, Forced: scheduler.NoToken})
		e.Release(0)
		if res.Err != nil && res.Err.Cause != scheduler.CauseSampler { // a model may forbid every token after this one
			return &AdapterError{a.file.Name, a.file.Path, "the first step with it failed: " + res.Err.Error()}
		}
	}
	return nil
}

// adapterFacts are the model's adapters as an engine lists them.
func (m *Model) adapterFacts() []scheduler.Adapter {
	var facts []scheduler.Adapter
	for _, a := range m.adapters {
		facts = append(facts, scheduler.Adapter{Name: a.file.Name, Recipe: a.recipe()})
	}
	return facts
}

// Bind implements scheduler.Engine. It panics with an adapter that Facts do not list.
func (e *Engine) Bind(slot int, name string) {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	var bound *adapter
	if name != "" {
		i := slices.IndexFunc(e.model.adapters, func(a *adapter) bool { return a.file.Name == name })
		if i < 0 {
			panic(fmt.Sprintf("llama: slot %d bound to adapter %q, which was not loaded", slot, name))
		}
		bound = e.model.adapters[i]
	}
	if e.bound[slot] != bound && e.lengths[slot] > 0 {
		e.clear(slot)
	}
	e.bound[slot] = bound
}

// use makes an adapter that of the next call. llama.cpp plans its memory anew where it is another than that of the last.
func (e *Engine) use(a *adapter) error {
	if a == e.used {
		return nil
	}
	var c *C.mn_adapter
	scale := C.float(0)
	if a != nil {
		c, scale = a.c, C.float(a.file.Scale)
	}
	var cerr C.mn_error
	if !C.mn_use_adapter(e.c, c, scale, &cerr) {
		return errors.New(errText(&cerr))
	}
	e.used = a
	return nil
}

// restoreSumOf is the restore fingerprint of the states of a slot.
func (e *Engine) restoreSumOf(slot int) [32]byte { return e.restoreSumWith(e.bound[slot]) }

// restoreSums are the restore fingerprints of all states of the engine. Safe for concurrent use.
func (e *Engine) restoreSums() [][32]byte {
	sums := [][32]byte{e.restoreSum}
	for _, a := range e.model.adapters {
		sums = append(sums, e.restoreSumWith(a))
	}
	return sums
}

func (e *Engine) restoreSumWith(a *adapter) [32]byte {
	if a == nil {
		return e.restoreSum
	}
	return sha256.Sum256(fmt.Appendf(nil, "%x adapter %s", e.restoreSum, a.recipe()))
}

// shapeFor is how the rows of a call with an adapter are padded.
func (e *Engine) shapeFor(a *adapter) rowShape {
	if a == nil {
		return e.shape
	}
	return e.adaptedShape
}
