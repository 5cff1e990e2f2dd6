package llama_test

import (
	"strings"
	"testing"

	"github.com/meshnet/node/llama"
)

// byteToken is the story model's token for one byte: three control tokens come first.
func byteToken(b byte) int32 { return 3 + int32(b) }

// stream feeds bytes, each as a token of its own, and returns what came out each time.
func stream(t *testing.T, s *llama.TextStream, bytes string) []string {
	t.Helper()
	var out []string
	for _, b := range []byte(bytes) {
		text, err := s.Next(byteToken(b))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, text)
	}
	return out
}

func TestByteTokensAreWhereTheTestsThinkTheyAre(t *testing.T) {
	for _, b := range []byte{0, 'a', 0x80, 0xff} {
		if got, err := story(t).Piece(byteToken(b), false); err != nil || string(got) != string([]byte{b}) {
			t.Errorf("byte %#x: %q, %v", b, got, err)
		}
	}
}

// kronk#275: a character cut between two tokens.
func TestCharacterComesOutWhole(t *testing.T) {
	s := story(t).NewTextStream()
	equal(t, "bytes of 😸", stream(t, s, "\xf0\x9f\x98\xb8"), []string{"", "", "", "😸"})
	if rest := s.Flush(); rest != "" {
		t.Errorf("%q was held back", rest)
	}
}

// A generation that ends inside a character.
func TestFlushEndsACutCharacterWithOneReplacement(t *testing.T) {
	s := story(t).NewTextStream()
	equal(t, "cut character", stream(t, s, "ab\xf0\x9f\x98"), []string{"a", "b", "", "", ""})
	if got := s.Flush(); got != "\uFFFD" {
		t.Errorf("flushed %q, want one U+FFFD", got)
	}
	if got := s.Flush(); got != "" {
		t.Errorf("flushed %q again", got)
	}
	equal(t, "after the flush", stream(t, s, "c"), []string{"c"})
}

func TestBytesThatCannotBecomeACharacterAreReplaced(t *testing.T) {
	cases := map[string]struct {
		bytes string
		want  []string
	}{
		"lone continuation":         {"\x80a", []string{"\uFFFD", "a"}},
		"never a first byte":        {"\xffa", []string{"\uFFFD", "a"}},
		"cut, then a letter":        {"\xe2\x82a", []string{"", "", "\uFFFDa"}},
		"cut, then another one":     {"\xf0\x9f\xc3\xa9", []string{"", "", "\uFFFD", "é"}},
		"surrogate":                 {"\xed\xa0\x80", []string{"", "\uFFFD", "\uFFFD"}},
		"two characters of 2 bytes": {"éß", []string{"", "é", "", "ß"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			equal(t, "text", stream(t, story(t).NewTextStream(), c.bytes), c.want)
		})
	}
}

func TestControlTokensGiveNoText(t *testing.T) {
	s := story(t).NewTextStream()
	stream(t, s, "\xc3")
	if text, err := s.Next(2); err != nil || text != "" {
		t.Errorf("end of sequence inside a character: %q, %v", text, err)
	}
	equal(t, "the rest of it", stream(t, s, "\xa9"), []string{"é"})
}

func TestTokenOutsideTheVocabularyLeavesTheStreamAsItWas(t *testing.T) {
	s := story(t).NewTextStream()
	stream(t, s, "\xc3")
	if text, err := s.Next(5000); err == nil || text != "" {
		t.Errorf("got %q, %v", text, err)
	}
	equal(t, "the rest of it", stream(t, s, "\xa9"), []string{"é"})
}

func TestStreamedTextIsTheDetokenisedText(t *testing.T) {
	m := story(t)
	const text = "Lily met a 🦊 and said: naïve café, 日本語!"
	s := m.NewTextStream()
	var b strings.Builder
	for _, token := range tokenize(t, m, text, false) {
		part, err := s.Next(token)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(part)
	}
	b.WriteString(s.Flush())
	if got := strings.TrimPrefix(b.String(), " "); got != text {
		t.Errorf("streamed %q, want %q", got, text)
	}
}
