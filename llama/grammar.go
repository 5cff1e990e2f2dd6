package llama

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math"
	"runtime/cgo"
	"unsafe"

	"github.com/meshnet/node/internal/gbnf"
	"github.com/meshnet/node/scheduler"
)

// grammar is what one sampler's turn may say. It belongs to the sampler, and to the goroutine that drives the engine.
//
// It is followed by our own matcher and not by llama.cpp's, which keeps every way of reading a text apart: one that doubles with each
// character would stop all sessions of the node for ever.
type grammar struct {
	*gbnf.Matcher
	allowed []bool // reused by every mask
}

var _ scheduler.GrammarEngine = (*Engine)(nil)

// CheckGrammar says whether a grammar in GBNF can be used with this model. What is wrong with the grammar is a *SchemaError.
func (m *Model) CheckGrammar(text string) error {
	if len(text) > MaxSchemaBytes {
		return &SchemaError{fmt.Sprintf("it has %d bytes; the limit is %d", len(text), MaxSchemaBytes)}
	}
	if _, err := gbnf.Compile(text); err != nil {
		return &SchemaError{err.Error()}
	}
	return nil
}

// EndsTexts says whether the model has a token that ends a generation. Without one no grammar can be fulfilled.
func (m *Model) EndsTexts() bool {
	for token := range int32(m.facts.VocabTokens) {
		if m.IsEOG(token) {
			return true
		}
	}
	return false
}

// readVocabulary is the texts of the model's tokens, as a TextStream shows them.
func (m *Model) readVocabulary() *gbnf.Vocabulary {
	pieces, ends := make([]string, m.facts.VocabTokens), make([]bool, m.facts.VocabTokens)
	for i := range pieces {
		token := int32(i)
		ends[i] = m.IsEOG(token)
		if m.controlText(token) != "" {
			continue
		}
		if piece, err := m.Piece(token, false); err == nil {
			pieces[i] = string(piece)
		}
	}
	return gbnf.NewVocabulary(pieces, ends)
}

// Constrain implements scheduler.GrammarEngine.
func (e *Engine) Constrain(slot int, g scheduler.Grammar, history []scheduler.Token) error {
	e.enter()
	defer e.leave()
	e.checkSlot(slot)
	compiled, err := gbnf.Compile(g.Text)
	if err != nil {
		return fmt.Errorf("slot %d: grammar: %w", slot, err)
	}
	matcher, err := gbnf.NewMatcher(compiled, e.model.vocabulary())
	if err != nil {
		return fmt.Errorf("slot %d: grammar: %w", slot, err)
	}
	for _, token := range history[max(0, len(history)-g.Yielded):] {
		if err := matcher.Accept(token); err != nil {
			return fmt.Errorf("slot %d: grammar: %w", slot, err)
		}
	}
	held := &grammar{Matcher: matcher, allowed: make([]bool, e.model.facts.VocabTokens)}
	C.mn_sampler_constrain(e.c, C.int32_t(slot), C.uintptr_t(cgo.NewHandle(held)))
	return nil
}

func grammarOf(handle C.uintptr_t) *grammar { return cgo.Handle(handle).Value().(*grammar) }

//export meshnetGrammarAllows
func meshnetGrammarAllows(handle C.uintptr_t, token C.int32_t) C.bool {
	ok, err := grammarOf(handle).Allows(int32(token))
	return C.bool(ok && err == nil)
}

//export meshnetGrammarAccept
func meshnetGrammarAccept(handle C.uintptr_t, token C.int32_t) C.bool {
	return C.bool(grammarOf(handle).Accept(int32(token)) == nil)
}

//export meshnetGrammarMask
func meshnetGrammarMask(handle C.uintptr_t, logits *C.float, n C.int32_t) C.bool {
	g := grammarOf(handle)
	clear(g.allowed)
	if err := g.Mask(func(token int32) { g.allowed[token] = true }); err != nil {
		return false
	}
	row := unsafe.Slice((*float32)(unsafe.Pointer(logits)), int(n))
	for token, ok := range g.allowed {
		if !ok {
			row[token] = float32(math.Inf(-1))
		}
	}
	return true
}

//export meshnetGrammarFree
func meshnetGrammarFree(handle C.uintptr_t) { cgo.Handle(handle).Delete() }
