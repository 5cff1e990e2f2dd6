// Package testmodel writes GGUF models with random weights, so that tests run llama.cpp on every kind of
// model without a download. The same shape and seed give the same bytes on every machine. The models say
// nothing meaningful, but behave like trained ones in what tests look at: text that goes on without falling
// into a loop, clear favourites among the next tokens, and every token depending on the whole context.
//
// It is for tests and tools of this project only; the product never imports it.
package testmodel

import (
	"fmt"
	"slices"
	"strings"
)

// Shape is the architecture of a model. Counts are of elements, Context and Window of tokens.
type Shape struct {
	Name    string
	Arch    string // as llama.cpp spells it
	Dim     int
	Layers  int
	Heads   int // 0: no attention
	KVHeads int
	FFN     int // 0: no feed-forward part
	Vocab   int
	Context int

	Window     int // sliding attention window, on every other layer; 0 is none
	StateSize  int // of a recurrent layer; 0: no recurrent layer
	AttnPeriod int // in a hybrid, every AttnPeriod-th layer attends and the others are recurrent
	Chat       bool

	Template string // chat template in place of Chat's
	Controls string // spellings of control tokens beside Chat's, with spaces between
}

// Every decoder's head size is Dim / Heads.
var shapes = []Shape{
	{Name: "135m", Arch: "llama", Dim: 576, Layers: 30, Heads: 9, KVHeads: 3, FFN: 1536, Vocab: 49152, Context: 8192, Chat: true},
	{Name: "30layers-tiny", Arch: "llama", Dim: 256, Layers: 30, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 1024, Context: 2048},
	{Name: "tiny", Arch: "llama", Dim: 64, Layers: 2, Heads: 4, KVHeads: 2, FFN: 192, Vocab: 512, Context: 512, Chat: true},
	{Name: "mamba", Arch: "mamba", Dim: 64, Layers: 4, Vocab: 512, Context: 1024, StateSize: 16},
	{Name: "swa", Arch: "gemma3", Dim: 64, Layers: 4, Heads: 4, KVHeads: 2, FFN: 192, Vocab: 512, Context: 1024, Window: 64},
	{Name: "hybrid", Arch: "jamba", Dim: 64, Layers: 4, Heads: 4, KVHeads: 2, FFN: 192, Vocab: 512, Context: 1024, StateSize: 16, AttnPeriod: 2},
	{Name: "encoder", Arch: "bert", Dim: 64, Layers: 2, Heads: 4, KVHeads: 4, FFN: 128, Vocab: 512, Context: 512},
}

// Shapes returns all named shapes.
func Shapes() []Shape { return slices.Clone(shapes) }

// Lookup returns the shape of a name; the error lists the names there are.
func Lookup(name string) (Shape, error) {
	var names []string
	for _, s := range shapes {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Shape{}, fmt.Errorf("testmodel: no shape is named %q; there are %s", name, strings.Join(names, ", "))
}

func (s Shape) headDim() int { return s.Dim / s.Heads }

// attends reports whether a layer has attention; in a shape with StateSize the others are recurrent.
func (s Shape) attends(layer int) bool {
	return s.StateSize == 0 || s.AttnPeriod > 0 && layer%s.AttnPeriod == s.AttnPeriod-1
}
