package scheduler

import (
	"errors"
	"slices"
)

// Grammar says what a turn's text may be. The zero value is any text. Where a grammar allows nothing but an end, the turn ends,
// whatever its sampling says of ends.
type Grammar struct {
	Text string // in GBNF
	// Yielded is how many of the prompt's last tokens belong to the turn already: its text begins with them.
	Yielded int
}

// GrammarEngine is an Engine that can hold a turn to a grammar.
type GrammarEngine interface {
	Engine
	// Constrain lets a grammar say which tokens may follow in a slot that was just opened, replayed ones included. It
	// lasts as long as the slot's sampler. history is the prompt; it is not kept.
	Constrain(slot int, g Grammar, history []Token) error
}

// open gives a turn's slot its sampler, and its grammar if it has one. yielded are the turn's own tokens where it goes on
// after it was suspended. Called without the lock.
func (s *Scheduler) open(t *turn, yielded []Token) error {
	if err := s.engine.Reopen(t.slot, t.req.Sampling, t.req.Prompt, yielded); err != nil {
		return err
	}
	if t.req.Grammar.Text == "" {
		return nil
	}
	engine, ok := s.engine.(GrammarEngine)
	if !ok {
		return errors.New("this engine knows no grammars")
	}
	g := t.req.Grammar
	g.Yielded += len(yielded)
	return engine.Constrain(t.slot, g, slices.Concat(t.req.Prompt, yielded))
}
