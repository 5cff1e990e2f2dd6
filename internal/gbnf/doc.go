// Package gbnf says which tokens a grammar allows next. Grammars are written in llama.cpp's GBNF
// (https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md), without its references to token ids.
//
// It is for grammars of strangers. Whatever a grammar says, compiling it and every step take bounded time and memory, and what
// goes beyond is an error of that grammar: a set of stacks that llama.cpp would let grow with every character, for one.
// It knows nothing of models, sampling or the wire.
package gbnf

import "fmt"

// Limits of a grammar.
const (
	MaxBytes = 1 << 20
	MaxDepth = 32 // of groups within each other
	maxOps   = 1 << 18
	// maxStacks bounds how many ways of reading a text are followed at once. JSON Schemas need a dozen.
	maxStacks = 4096
	// maxWork bounds how many of them are looked at for one token. Masking a vocabulary of 49,152 tokens within a JSON string
	// looks at a few thousand.
	maxWork = 1 << 17
)

// SyntaxError says what is wrong with a grammar, and where.
type SyntaxError struct {
	Offset       int // in bytes
	Line, Column int // from 1; the column in bytes
	Reason       string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Reason)
}

// AmbiguousError says that there are too many ways of reading a text.
type AmbiguousError struct{}

func (*AmbiguousError) Error() string {
	return fmt.Sprintf("the grammar can be read in too many ways at once (the limit is %d), or calls itself before it takes a character; make its alternatives differ in their first characters", maxStacks)
}
