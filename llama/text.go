package llama

import (
	"strings"
	"unicode/utf8"
)

// TextStream turns tokens, as they come, into whole UTF-8 text: bytes of a character that is not complete yet are
// held back. The zero value is not usable; see Model.NewTextStream. Not safe for concurrent use.
type TextStream struct {
	model *Model
	held  []byte // the incomplete end of the text so far
}

// NewTextStream starts a stream with nothing held back.
func (m *Model) NewTextStream() *TextStream {
	return &TextStream{model: m}
}

// Next returns the text that the token completes; it may be empty. Bytes that can never become a character come out
// as U+FFFD. A token outside the vocabulary is an error.
func (s *TextStream) Next(token int32) (string, error) {
	bytes, err := s.model.AppendPiece(s.held, token, false)
	if err != nil {
		return "", err
	}
	cut := completeLen(bytes)
	text := toValid(bytes[:cut])
	s.held = append(bytes[:0], bytes[cut:]...)
	return text, nil
}

// Flush returns what is still held back, as one U+FFFD if it is an incomplete character.
func (s *TextStream) Flush() string {
	text := toValid(s.held)
	s.held = s.held[:0]
	return text
}

// completeLen is the length of b without an incomplete character at its end.
func completeLen(b []byte) int {
	for back := 1; back <= min(utf8.UTFMax, len(b)); back++ {
		at := len(b) - back
		if utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				return at
			}
			break
		}
	}
	return len(b)
}

// toValid replaces each run of bytes that is no character by one U+FFFD.
func toValid(b []byte) string {
	return strings.ToValidUTF8(string(b), string(utf8.RuneError))
}
