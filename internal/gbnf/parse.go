package gbnf

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// item is an element of a sequence, repeated least to most times; most is −1 where there is no end.
type item struct {
	literal     []rune      // a text
	set         []runeRange // or a set of characters
	rule        int         // or a rule, where the others are nil
	least, most int
}

// parser reads a grammar into rules, each a list of alternatives.
type parser struct {
	src   []byte
	pos   int
	names map[string]int
	rules [][][]item
	used  []int // where each rule was first named
	depth int
}

// failure is how a parser gives up; giveUp recovers it.
type failure struct{ *SyntaxError }

// giveUp is deferred: it makes a failure the error.
func (p *parser) giveUp(err *error) {
	if r := recover(); r != nil {
		f, ok := r.(failure)
		if !ok {
			panic(r)
		}
		*err = f.SyntaxError
	}
}

func (p *parser) fail(at int, format string, args ...any) {
	before := p.src[:min(at, len(p.src))]
	line := 1 + bytes.Count(before, []byte("\n"))
	panic(failure{&SyntaxError{Offset: at, Line: line, Column: at - bytes.LastIndexByte(before, '\n'), Reason: fmt.Sprintf(format, args...)}})
}

// parse reads the whole grammar. Rule 0 is root.
func parse(text string) (p *parser, err error) {
	p = &parser{src: []byte(text), names: map[string]int{"root": 0}, rules: [][][]item{nil}, used: []int{0}}
	defer p.giveUp(&err)
	if len(text) > MaxBytes {
		p.fail(MaxBytes, "the grammar has %d bytes; the limit is %d", len(text), MaxBytes)
	}
	if !utf8.ValidString(text) {
		p.fail(0, "the grammar is not UTF-8")
	}
	for p.space(true); p.pos < len(p.src); p.space(true) {
		p.definition()
	}
	for name, rule := range p.names {
		if p.rules[rule] == nil {
			p.fail(p.used[rule], "rule %s is not defined", name)
		}
	}
	return p, nil
}

// peek is the next byte, or 0 at the end.
func (p *parser) peek() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

// space skips blanks and comments, and line ends where a rule may go on behind them.
func (p *parser) space(lines bool) {
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == ' ' || c == '\t':
			p.pos++
		case lines && (c == '\n' || c == '\r'):
			p.pos++
		case c == '#':
			for p.pos < len(p.src) && p.src[p.pos] != '\n' && p.src[p.pos] != '\r' {
				p.pos++
			}
		default:
			return
		}
	}
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}

// name reads a rule's name and returns its number.
func (p *parser) name() int {
	begin := p.pos
	for isNameByte(p.peek()) {
		p.pos++
	}
	if p.pos == begin {
		p.fail(begin, "a rule's name was expected")
	}
	name := string(p.src[begin:p.pos])
	rule, ok := p.names[name]
	if !ok {
		rule = p.newRule(begin)
		p.names[name] = rule
	}
	return rule
}

func (p *parser) newRule(at int) int {
	p.rules = append(p.rules, nil)
	p.used = append(p.used, at)
	return len(p.rules) - 1
}

func (p *parser) definition() {
	at := p.pos
	rule := p.name()
	if p.rules[rule] != nil {
		p.fail(at, "the rule is defined twice")
	}
	p.space(false)
	if !bytes.HasPrefix(p.src[p.pos:], []byte("::=")) {
		p.fail(p.pos, "::= was expected")
	}
	p.pos += len("::=")
	p.space(true)
	p.rules[rule] = p.alternatives(false)
	if c := p.peek(); c != 0 && c != '\n' && c != '\r' {
		p.fail(p.pos, "a new line or the end was expected")
	}
}

func (p *parser) alternatives(nested bool) [][]item {
	all := [][]item{p.sequence(nested)}
	for p.peek() == '|' {
		p.pos++
		p.space(true)
		all = append(all, p.sequence(nested))
	}
	return all
}

func (p *parser) sequence(nested bool) []item {
	items := []item{}
	for {
		it := item{least: 1, most: 1}
		switch c := p.peek(); {
		case c == '"':
			it.literal = p.literal()
		case c == '[':
			it.set = p.set()
		case c == '.':
			p.pos++
			it.set = []runeRange{{0, utf8.MaxRune}}
		case c == '(':
			it.rule = p.group()
		case isNameByte(c):
			it.rule = p.name()
		case c == '<' || c == '!':
			p.fail(p.pos, "token ids in grammars are not supported; spell the text")
		case c == '*' || c == '+' || c == '?' || c == '{':
			p.fail(p.pos, "there is nothing before %c to repeat", c)
		default:
			return items
		}
		p.space(nested)
		p.repeat(&it, nested)
		items = append(items, it)
	}
}

func (p *parser) group() int {
	at := p.pos
	if p.depth++; p.depth > MaxDepth {
		p.fail(at, "groups are more than %d deep", MaxDepth)
	}
	p.pos++
	p.space(true)
	rule := p.newRule(at)
	p.rules[rule] = p.alternatives(true)
	if p.peek() != ')' {
		p.fail(p.pos, ") was expected")
	}
	p.pos++
	p.depth--
	return rule
}

// repeat reads what follows an element: how often it may be there. More than one repetition nest.
func (p *parser) repeat(it *item, nested bool) {
	for n := 0; ; n++ {
		at := p.pos
		least, most := 0, -1
		switch p.peek() {
		case '*':
			p.pos++
		case '+':
			p.pos++
			least = 1
		case '?':
			p.pos++
			most = 1
		case '{':
			p.pos++
			least, most = p.counts()
		default:
			return
		}
		if n >= MaxDepth {
			p.fail(at, "more than %d repetitions of one element", MaxDepth)
		}
		if n > 0 {
			rule := p.newRule(at)
			p.rules[rule] = [][]item{{*it}}
			*it = item{rule: rule}
		}
		it.least, it.most = least, most
		p.space(nested)
	}
}

// counts reads what is behind {: m}, m,} or m,n}.
func (p *parser) counts() (least, most int) {
	at := p.pos
	p.space(true)
	least = p.number()
	most = least
	p.space(true)
	if p.peek() == ',' {
		p.pos++
		p.space(true)
		most = -1
		if p.peek() != '}' {
			most = p.number()
			p.space(true)
		}
	}
	if p.peek() != '}' {
		p.fail(p.pos, "} was expected")
	}
	p.pos++
	if most >= 0 && most < least {
		p.fail(at, "at least %d and at most %d times", least, most)
	}
	return least, most
}

func (p *parser) number() int {
	begin := p.pos
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.pos++
	}
	n, err := strconv.Atoi(string(p.src[begin:p.pos]))
	if err != nil || n > maxOps {
		p.fail(begin, "a number up to %d was expected", maxOps)
	}
	return n
}

func (p *parser) literal() []rune {
	begin := p.pos
	p.pos++
	text := []rune{}
	for p.peek() != '"' {
		if p.pos >= len(p.src) {
			p.fail(begin, "the text has no closing quote")
		}
		text = append(text, p.char())
	}
	p.pos++
	return text
}

func (p *parser) set() []runeRange {
	begin := p.pos
	p.pos++
	inverse := p.peek() == '^'
	if inverse {
		p.pos++
	}
	var ranges []runeRange
	for p.peek() != ']' {
		if p.pos >= len(p.src) {
			p.fail(begin, "the set has no closing bracket")
		}
		low := p.char()
		high := low
		if p.peek() == '-' && p.pos+1 < len(p.src) && p.src[p.pos+1] != ']' {
			p.pos++
			high = p.char()
		}
		ranges = append(ranges, runeRange{low, high})
	}
	p.pos++
	ranges = normalised(ranges)
	if inverse {
		ranges = complement(ranges)
	}
	return ranges
}

// char reads a character, which may be escaped.
func (p *parser) char() rune {
	if p.peek() != '\\' {
		r, size := utf8.DecodeRune(p.src[p.pos:])
		p.pos += size
		return r
	}
	at := p.pos
	p.pos++
	c := p.peek()
	p.pos++
	switch c {
	case 'x':
		return p.hex(at, 2)
	case 'u':
		return p.hex(at, 4)
	case 'U':
		return p.hex(at, 8)
	case 't':
		return '\t'
	case 'r':
		return '\r'
	case 'n':
		return '\n'
	case '\\', '"', '[', ']', '-', '^':
		return rune(c)
	}
	p.fail(at, "an unknown escape")
	return 0
}

func (p *parser) hex(at, digits int) rune {
	end := p.pos + digits
	if end > len(p.src) {
		p.fail(at, "the escape is cut off")
	}
	n, err := strconv.ParseUint(string(p.src[p.pos:end]), 16, 32)
	if err != nil || n > utf8.MaxRune {
		p.fail(at, "the escape is no character")
	}
	p.pos = end
	return rune(n)
}
