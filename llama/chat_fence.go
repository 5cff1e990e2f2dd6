package llama

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// What a client wrote must not become a control token. llama.cpp's template engine marks the text of a conversation, but
// loses the mark where a template splits, joins or prints it as JSON. So each spelling of a control token in a conversation
// is cut in two beforehand, by a fence behind its first character; a rendered text is cut where fences are, and where a
// spelling lies in marked text. All else is one piece, with the very tokens that the model was trained on.

// spellings finds the spellings of control tokens in a text.
type spellings struct {
	all     map[string]bool
	lengths []int     // of them, each once
	begins  [256]bool // bytes that one begins with
}

func newSpellings(texts []string) *spellings {
	s := &spellings{all: make(map[string]bool, len(texts))}
	for _, text := range texts {
		s.all[text] = true
		s.begins[text[0]] = true
		if !slices.Contains(s.lengths, len(text)) {
			s.lengths = append(s.lengths, len(text))
		}
	}
	slices.Sort(s.lengths)
	return s
}

// match is the length of the longest spelling that text begins with; 0 is none.
func (s *spellings) match(text string) int {
	if !s.begins[text[0]] {
		return 0
	}
	best := 0
	for _, n := range s.lengths {
		if n <= len(text) && s.all[text[:n]] {
			best = n
		}
	}
	return best
}

// fences are noncharacters: no text has a reason to hold one, and JSON prints them as they are.
var fences = func() (all []string) {
	for r := rune(0xFDD0); r <= 0xFDEF; r++ {
		all = append(all, string(r))
	}
	return all
}()

// fence cuts the spellings in a conversation's texts, and returns what with: a character that is in none of them, nor in the
// template.
func (s *spellings) fence(doc *document, template string) (string, error) {
	for _, fence := range fences {
		used := strings.Contains(template, fence)
		doc.eachText(func(text string) string {
			used = used || strings.Contains(text, fence)
			return text
		})
		if !used {
			doc.eachText(func(text string) string { return s.cutIn(text, fence) })
			return fence, nil
		}
	}
	return "", &ConversationError{Field: "messages", Reason: "they hold all 32 noncharacters from U+FDD0 on; leave one out"}
}

// cutIn puts a fence into each spelling in text, behind its first character.
func (s *spellings) cutIn(text, fence string) string {
	var out strings.Builder
	from := 0
	for i := range text {
		if s.match(text[i:]) > 0 {
			_, size := utf8.DecodeRuneInString(text[i:])
			out.WriteString(text[from:i+size] + fence)
			from = i + size
		}
	}
	if from == 0 {
		return text
	}
	return out.String() + text[from:]
}

// rendered is a conversation as the template rendered it, with fences.
type rendered struct {
	fence string
	bytes []byte
	input []bool // for each byte: it is marked as the conversation's
}

// unfence is the text without fences, its marks, and where fences were.
func (r *rendered) unfence() (text string, input []bool, cuts map[int]bool) {
	cuts = make(map[int]bool)
	var plain []byte
	for i := 0; i < len(r.bytes); {
		if bytes.HasPrefix(r.bytes[i:], []byte(r.fence)) {
			cuts[len(plain)] = true
			i += len(r.fence)
			continue
		}
		plain = append(plain, r.bytes[i])
		input = append(input, r.input[i])
		i++
	}
	return string(plain), input, cuts
}

// cut is the text without fences, in pieces that must not be tokenised together.
func (s *spellings) cut(r *rendered) []string {
	text, input, cuts := r.unfence()
	for i := range text {
		if n := s.match(text[i:]); n > 0 && slices.Contains(input[i:i+n], true) {
			_, size := utf8.DecodeRuneInString(text[i:])
			cuts[i+size] = true
		}
	}
	var pieces []string
	from := 0
	for i := 1; i <= len(text); i++ {
		if i == len(text) || cuts[i] {
			pieces = append(pieces, text[from:i])
			from = i
		}
	}
	return pieces
}
