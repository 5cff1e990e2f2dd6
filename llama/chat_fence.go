package llama

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// What a client wrote must not become a control token. llama.cpp's template engine marks the text of a conversation, but
// loses the mark where a template splits, joins or prints it as JSON. So a fence is put beforehand behind each character of a
// conversation that a spelling of a control token may begin with: a template may join one of pieces. A rendered text is cut where it
// has a spelling with a fence behind its first character, or one that lies in marked text. All else is one piece, with the very tokens
// that the model was trained on. What a template looks for in a conversation, such as '<think>', is left without a fence, unless a
// spelling begins with it.

// spellings finds the spellings of control tokens in a text.
type spellings struct {
	all     map[string]bool
	lengths []int     // of them, each once
	begins  [256]bool // bytes that one begins with
	sought  []string  // what the template looks for, as far as a fence could be in it
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

// seek takes note of the texts in a template's source: all that is between two quotes of a kind.
func (s *spellings) seek(template string) {
	all := slices.Collect(maps.Keys(s.all))
	for i := range len(template) {
		if quote := template[i]; quote == '\'' || quote == '"' {
			text, _, closed := strings.Cut(template[i+1:], string(quote))
			begun := func(spelling string) bool { return strings.HasPrefix(spelling, text) }
			if closed && len(text) > 1 && s.begins[text[0]] && !slices.ContainsFunc(all, begun) {
				s.sought = append(s.sought, text)
			}
		}
	}
	slices.Sort(s.sought)
	s.sought = slices.Compact(s.sought)
}

// mayBegin says whether a template may make a spelling that begins with the first character of text.
func (s *spellings) mayBegin(text string) bool {
	isSought := func(sought string) bool { return strings.HasPrefix(text, sought) }
	return s.begins[text[0]] && (s.match(text) > 0 || !slices.ContainsFunc(s.sought, isSought))
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

// fence puts fences into a conversation's texts, and returns what they are: a character that is in none of them, nor in the
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

// cutIn puts a fence behind each character of text with which a spelling may begin.
func (s *spellings) cutIn(text, fence string) string {
	var out strings.Builder
	from := 0
	for i := range text {
		if s.mayBegin(text[i:]) {
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
func (r *rendered) unfence() (text string, input []bool, fenced map[int]bool) {
	fenced = make(map[int]bool)
	var plain []byte
	for i := 0; i < len(r.bytes); {
		if bytes.HasPrefix(r.bytes[i:], []byte(r.fence)) {
			fenced[len(plain)] = true
			i += len(r.fence)
			continue
		}
		plain = append(plain, r.bytes[i])
		input = append(input, r.input[i])
		i++
	}
	return string(plain), input, fenced
}

// cut is the text without fences, in pieces that must not be tokenised together.
func (s *spellings) cut(r *rendered) []string {
	text, input, fenced := r.unfence()
	cuts := make(map[int]bool)
	for i := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		if n := s.match(text[i:]); n > 0 && (fenced[i+size] || slices.Contains(input[i:i+n], true)) {
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
