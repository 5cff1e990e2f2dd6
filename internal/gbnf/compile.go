package gbnf

import (
	"fmt"
	"slices"
)

// op is one step of an alternative.
type op struct {
	kind opKind
	arg  int32 // of a set or a rule
}

type opKind uint8

const (
	opEnd  opKind = iota // the alternative is over
	opSet                // takes a character of a set
	opCall               // goes through a rule
)

// Grammar is a compiled grammar. It never changes; safe for concurrent use.
type Grammar struct {
	ops      []op
	rules    [][]int32 // where the alternatives of a rule begin
	sets     [][]classRange
	alphabet *alphabet
}

// compiler turns rules into ops.
type compiler struct {
	g    *Grammar
	sets [][]runeRange
	seen map[string]int32 // sets by their spelling
	err  error
}

// Compile reads a grammar, whose first rule is root. The error is a *SyntaxError, or an *AmbiguousError where the grammar
// cannot even begin.
func Compile(text string) (*Grammar, error) {
	p, err := parse(text)
	if err != nil {
		return nil, err
	}
	c := &compiler{g: &Grammar{rules: make([][]int32, len(p.rules))}, seen: map[string]int32{}}
	for rule, alternatives := range p.rules {
		for _, items := range alternatives {
			c.alternative(rule, items)
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	c.g.alphabet = newAlphabet(c.sets)
	for _, set := range c.sets {
		c.g.sets = append(c.g.sets, c.g.alphabet.members(set))
	}
	c.g.prune()
	_, err = newMachine(c.g)
	if err != nil {
		return nil, err
	}
	return c.g, nil
}

// alternative emits one alternative of a rule, in one piece: helpers that it needs are made before.
func (c *compiler) alternative(rule int, items []item) {
	var ops []op
	for _, it := range items {
		ops = append(ops, c.repeated(it)...)
		if c.full(len(ops)) {
			return
		}
	}
	c.add(rule, ops)
}

// add appends an alternative to a rule.
func (c *compiler) add(rule int, ops []op) {
	c.g.rules[rule] = append(c.g.rules[rule], int32(len(c.g.ops)))
	c.g.ops = append(append(c.g.ops, ops...), op{kind: opEnd})
}

func (c *compiler) full(more int) bool {
	if len(c.g.ops)+more > maxOps && c.err == nil {
		c.err = &SyntaxError{Line: 1, Column: 1, Reason: fmt.Sprintf("repetitions make the grammar longer than %d steps; repeat less", maxOps)}
	}
	return c.err != nil
}

// repeated is an element as often as it may be there.
func (c *compiler) repeated(it item) []op {
	once := c.once(it)
	if it.least == 1 && it.most == 1 {
		return once
	}
	if c.full(it.least*len(once) + 4*max(0, it.most-it.least)) {
		return nil
	}
	ops := slices.Repeat(once, it.least)
	switch {
	case it.most < 0:
		again := c.rule()
		c.add(int(again.arg), append(slices.Clone(once), again))
		c.add(int(again.arg), nil)
		return append(ops, again)
	case it.most > it.least:
		if len(once) > 1 {
			whole := c.rule()
			c.add(int(whole.arg), once)
			once = []op{whole}
		}
		var rest []op
		for range it.most - it.least {
			more := c.rule()
			c.add(int(more.arg), append(slices.Clone(once), rest...))
			c.add(int(more.arg), nil)
			rest = []op{more}
		}
		return append(ops, rest...)
	}
	return ops
}

// rule makes a new rule, and is the call of it.
func (c *compiler) rule() op {
	c.g.rules = append(c.g.rules, nil)
	return op{opCall, int32(len(c.g.rules) - 1)}
}

func (c *compiler) once(it item) []op {
	switch {
	case it.literal != nil:
		var ops []op
		for _, r := range it.literal {
			ops = append(ops, c.set([]runeRange{{r, r}}))
		}
		return ops
	case it.set != nil:
		return []op{c.set(it.set)}
	}
	return []op{{opCall, int32(it.rule)}}
}

func (c *compiler) set(ranges []runeRange) op {
	key := fmt.Sprint(ranges)
	id, ok := c.seen[key]
	if !ok {
		id = int32(len(c.sets))
		c.seen[key] = id
		c.sets = append(c.sets, ranges)
	}
	return op{opSet, id}
}

// prune drops the alternatives that no text ends: those with a set of no character, or a rule without an end. A text that has
// gone on so far by what is left can be brought to an end.
func (g *Grammar) prune() {
	p := pruner{g: g, waits: make([][]int32, len(g.rules)), missing: map[int32]int{}, of: map[int32]int32{}, ends: make([]bool, len(g.rules))}
	for rule, begins := range g.rules {
		for _, begin := range begins {
			p.of[begin] = int32(rule)
			p.look(begin)
		}
	}
	for len(p.todo) > 0 {
		rule := p.todo[len(p.todo)-1]
		p.todo = p.todo[:len(p.todo)-1]
		for _, begin := range p.waits[rule] {
			if p.missing[begin]--; p.missing[begin] == 0 {
				p.end(begin)
			}
		}
	}
	for rule, begins := range g.rules {
		g.rules[rule] = slices.DeleteFunc(begins, func(begin int32) bool { return p.missing[begin] != 0 })
	}
}

// pruner finds out which alternatives texts end. Alternatives go by where they begin.
type pruner struct {
	g       *Grammar
	of      map[int32]int32 // which rule's it is
	missing map[int32]int   // how many of its steps are not known to end; those at a set of no character never do
	waits   [][]int32       // of a rule: the alternatives that call it, as often as they do
	ends    []bool          // of a rule: some text ends it
	todo    []int32         // rules that were found to end
}

// look counts the steps of an alternative that have to end.
func (p *pruner) look(begin int32) {
	for pos := begin; p.g.ops[pos].kind != opEnd; pos++ {
		switch op := p.g.ops[pos]; {
		case op.kind == opCall:
			p.missing[begin]++
			p.waits[op.arg] = append(p.waits[op.arg], begin)
		case len(p.g.sets[op.arg]) == 0:
			p.missing[begin]++
		}
	}
	if p.missing[begin] == 0 {
		p.end(begin)
	}
}

// end notes that some text ends an alternative, and so its rule.
func (p *pruner) end(begin int32) {
	if rule := p.of[begin]; !p.ends[rule] {
		p.ends[rule] = true
		p.todo = append(p.todo, rule)
	}
}
