package gbnf

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Vocabulary is the texts of a model's tokens. It never changes; safe for concurrent use.
type Vocabulary struct {
	pieces []string // by token; empty for those that are no text
	ends   []bool   // by token: it ends a text
	sorted []int32  // the tokens with a text, by it
	shared []int    // how much of its text each of them has in common with the one before
}

// NewVocabulary takes the text of each token, empty where a token stands for no text, and whether it ends a text.
func NewVocabulary(pieces []string, ends []bool) *Vocabulary {
	v := &Vocabulary{pieces: pieces, ends: ends}
	for token, piece := range pieces {
		if piece != "" && !ends[token] {
			v.sorted = append(v.sorted, int32(token))
		}
	}
	slices.SortFunc(v.sorted, func(a, b int32) int { return strings.Compare(pieces[a], pieces[b]) })
	v.shared = make([]int, len(v.sorted))
	for i := 1; i < len(v.sorted); i++ {
		a, b := pieces[v.sorted[i-1]], pieces[v.sorted[i]]
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		v.shared[i] = n
	}
	return v
}

// Matcher follows one text. Not safe for concurrent use.
type Matcher struct {
	m     *machine
	vocab *Vocabulary
	at    place
	path  []place // reused by Mask
	ended bool
}

// place is where a text has got to: a state, and the bytes of a character that is not whole yet.
type place struct {
	state int32
	value rune // of those bytes
	left  int8 // bytes to come
	most  int8 // bytes of the character
}

// NewMatcher is at the beginning of a text.
func NewMatcher(g *Grammar, v *Vocabulary) (*Matcher, error) {
	m, err := newMachine(g)
	if err != nil {
		return nil, err
	}
	return &Matcher{m: m, vocab: v}, nil
}

// Allows says whether a token may come next. The error is an *AmbiguousError.
func (m *Matcher) Allows(token int32) (bool, error) {
	if m.vocab.ends[token] {
		return m.mayEnd(), nil
	}
	to, err := m.after(token)
	return to.state != dead, err
}

// Accept goes on behind a token. It is an error where the grammar does not allow it.
func (m *Matcher) Accept(token int32) error {
	if m.vocab.ends[token] && m.mayEnd() {
		m.ended = true
		return nil
	}
	to, err := m.after(token)
	if err != nil {
		return err
	}
	if to.state == dead {
		return fmt.Errorf("the grammar does not allow token %d, %q, here", token, m.vocab.pieces[token])
	}
	m.at = to
	m.at.state = m.m.trim(to.state)
	return nil
}

func (m *Matcher) mayEnd() bool { return !m.ended && m.at.left == 0 && m.m.mayEnd(m.at.state) }

// after is the place behind a token, with a dead state where it may not come.
func (m *Matcher) after(token int32) (place, error) {
	m.m.begin()
	piece := m.vocab.pieces[token]
	if m.ended || piece == "" {
		return place{state: dead}, nil
	}
	at := m.at
	for i := 0; i < len(piece); i++ {
		var err error
		if at, err = m.feed(at, piece[i]); err != nil || at.state == dead {
			return place{state: dead}, err
		}
	}
	return at, nil
}

// Mask calls allow for every token that may come next, and for no other. Those that end a text are among them.
func (m *Matcher) Mask(allow func(token int32)) error {
	m.m.begin()
	if m.mayEnd() {
		for token, ends := range m.vocab.ends {
			if ends {
				allow(int32(token))
			}
		}
	}
	if m.ended {
		return nil
	}
	// path[n] is the place behind n bytes of the token looked at. Tokens are in the order of their texts: what one has in
	// common with the last is not followed again, and what begins as a text that is not allowed is passed over.
	m.path = append(m.path[:0], m.at)
	refused := -1 // how many bytes lead into nothing
	for i, token := range m.vocab.sorted {
		shared := m.vocab.shared[i]
		if refused >= 0 && shared >= refused {
			continue
		}
		refused = -1
		piece := m.vocab.pieces[token]
		m.path = m.path[:min(shared, len(m.path)-1)+1]
		for n := len(m.path) - 1; n < len(piece); n++ {
			to, err := m.feed(m.path[n], piece[n])
			if err != nil {
				return err
			}
			if to.state == dead {
				refused = n + 1
				break
			}
			m.path = append(m.path, to)
		}
		if refused < 0 {
			allow(token)
		}
	}
	return nil
}

// feed goes on by a byte.
func (m *Matcher) feed(at place, b byte) (place, error) {
	switch {
	case at.left > 0 && b&0xC0 == 0x80:
		at.value = at.value<<6 | rune(b&0x3F)
		at.left--
	case at.left > 0:
		return place{state: dead}, nil
	case b < utf8.RuneSelf:
		at.value = rune(b)
	case b&0xE0 == 0xC0:
		at.value, at.left, at.most = rune(b&0x1F), 1, 2
	case b&0xF0 == 0xE0:
		at.value, at.left, at.most = rune(b&0x0F), 2, 3
	case b&0xF8 == 0xF0:
		at.value, at.left, at.most = rune(b&0x07), 3, 4
	default:
		return place{state: dead}, nil
	}
	if at.left > 0 {
		ok, err := m.promises(at)
		if !ok {
			at.state = dead
		}
		return at, err
	}
	if at.most > 0 && utf8.RuneLen(at.value) != int(at.most) {
		return place{state: dead}, nil // overlong, or no character
	}
	state, err := m.m.step(at.state, m.m.g.alphabet.class(at.value))
	return place{state: state}, err
}

// promises says whether the bytes of an unfinished character can become one that may come.
func (m *Matcher) promises(at place) (bool, error) {
	least := [...]rune{2: 0x80, 3: 0x800, 4: 0x10000}
	low := max(at.value<<(6*at.left), least[at.most])
	high := min(at.value<<(6*at.left)|(1<<(6*at.left)-1), utf8.MaxRune)
	if low > high {
		return false, nil
	}
	return m.m.mayTake(at.state, low, high)
}
