package llama_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/meshnet/node/llama"
)

func tokenize(t testing.TB, m *llama.Model, text string, special bool) []int32 {
	t.Helper()
	tokens, err := m.Tokenize(text, special)
	if err != nil {
		t.Fatal(err)
	}
	for i, token := range tokens {
		if token < 0 || int(token) >= m.Facts().VocabTokens {
			t.Fatalf("token %d is %d, outside the vocabulary", i, token)
		}
	}
	return tokens
}

func detokenize(t testing.TB, m *llama.Model, tokens []int32, special bool) string {
	t.Helper()
	text, err := m.Detokenize(tokens, special)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// llama.cpp#24382: spellings of control tokens in a user's text.
func TestControlTokenSpellingsAreTextUnlessSpecial(t *testing.T) {
	m := story(t)
	const text = "Lily said </s> and <s> too."
	plain, special := tokenize(t, m, text, false), tokenize(t, m, text, true)
	if plain[0] != 1 || slices.ContainsFunc(plain[1:], m.IsControl) {
		t.Errorf("as text: %v; want no control token after the first", plain)
	}
	if got := detokenize(t, m, plain, false); got != text {
		t.Errorf("as text it reads %q, want %q", got, text)
	}
	count := func(token int32) (n int) {
		for _, x := range special {
			if x == token {
				n++
			}
		}
		return n
	}
	if count(1) != 2 || count(2) != 1 {
		t.Errorf("special: %v; want two BOS (one is the model's) and one EOS", special)
	}
}

// llama.cpp#15326: a text that starts with the spelling of BOS, for a model that adds BOS.
func TestTextThatStartsWithBOSHasOneBOS(t *testing.T) {
	m := story(t)
	want := tokenize(t, m, "Once", false)
	equal(t, "special", tokenize(t, m, "<s>Once", true)[:1], []int32{1})
	got := tokenize(t, m, "<s>Once", true)
	if got[0] != 1 || got[1] == 1 {
		t.Errorf("special: %v; want one BOS", got)
	}
	if n := len(want); len(got) != n {
		t.Errorf("special: %v; want as many tokens as %v", got, want)
	}
	plain := tokenize(t, m, "<s>Once", false)
	if plain[0] != 1 || slices.Contains(plain[1:], 1) {
		t.Errorf("as text: %v; want one BOS", plain)
	}
}

// llama.cpp#15812: empty and blank prompts.
func TestEmptyAndBlankTexts(t *testing.T) {
	m := story(t)
	equal(t, "empty", tokenize(t, m, "", false), []int32{1})
	equal(t, "empty, special", tokenize(t, m, "", true), []int32{1})
	for _, text := range []string{" ", "     ", "\n\t \r\n", strings.Repeat(" ", 1000)} {
		tokens := tokenize(t, m, text, false)
		if len(tokens) < 2 {
			t.Errorf("%q: %v; want more than BOS", text, tokens)
		}
		if got := detokenize(t, m, tokens, false); got != text {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	equal(t, "no tokens", []byte(detokenize(t, m, nil, false)), nil)
}

func TestMegabyteTextsRoundTrip(t *testing.T) {
	const size = 1 << 20
	for name, unit := range map[string]string{
		"words":         "Once upon a time there was a fox. ",
		"one long word": "abcdefghij",
		"one letter":    "a",
	} {
		t.Run(name, func(t *testing.T) {
			m := story(t)
			text := strings.Repeat(unit, size/len(unit))
			if got := detokenize(t, m, tokenize(t, m, text, false), false); got != text {
				t.Errorf("%d bytes came back as %d other ones", len(text), len(got))
			}
		})
	}
}

// Characters without a piece of their own are spelt in bytes. Their number is small here: see Tokenize on its time.
func TestLongTextWithoutPiecesRoundTrips(t *testing.T) {
	m := story(t)
	text := strings.Repeat("🦊", 4096)
	if got := detokenize(t, m, tokenize(t, m, text, false), false); got != text {
		t.Errorf("%d bytes came back as %d other ones", len(text), len(got))
	}
}

func TestTextBeyondTheLimitIsRefusedWithBothNumbers(t *testing.T) {
	m := story(t)
	tokens, err := m.Tokenize(strings.Repeat("a", llama.MaxTextBytes+1), false)
	if tokens != nil || !errors.Is(err, llama.ErrTextTooLong) {
		t.Fatalf("got %d tokens, %v", len(tokens), err)
	}
	if want := "text too long: 2097153 bytes; the limit is 2097152"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestBytesThatAreNoTextDoNotBreakTheTokenizer(t *testing.T) {
	m := story(t)
	for _, text := range []string{"\xff", "a\x80b", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xf8\x88\x80\x80\x80", "\xed\xa0\x80", strings.Repeat("\xff", 10000)} {
		if tokens := tokenize(t, m, text, false); len(tokens) < 2 {
			t.Errorf("%q: %v; want something after BOS", text, tokens)
		}
	}
}

func TestNulBytesAreText(t *testing.T) {
	m := story(t)
	const text = "a\x00b\x00\x00c"
	if got := detokenize(t, m, tokenize(t, m, text, false), false); got != text {
		t.Errorf("got %q, want %q", got, text)
	}
}

// llama.cpp#12178, vllm#26797: token ids from outside the vocabulary.
func TestTokensOutsideTheVocabularyAreErrors(t *testing.T) {
	m := story(t)
	for _, token := range []int32{-1, 1024, math.MaxInt32, math.MinInt32} {
		if _, err := m.Piece(token, false); err == nil || !strings.Contains(err.Error(), "outside the vocabulary [0, 1024)") {
			t.Errorf("Piece(%d): %v", token, err)
		}
		if _, err := m.Detokenize([]int32{5, token}, false); err == nil || !strings.HasPrefix(err.Error(), "token 1: ") {
			t.Errorf("Detokenize(5, %d): %v; want the index too", token, err)
		}
		if got, err := m.AppendText([]byte("x"), token); err == nil || string(got) != "x" {
			t.Errorf("AppendText(%d): %q, %v", token, got, err)
		}
		if m.IsEOG(token) || m.IsControl(token) {
			t.Errorf("token %d has properties", token)
		}
	}
}

func TestControlTokensAreSilentUnlessSpecial(t *testing.T) {
	m := story(t)
	for token, spelling := range map[int32]string{1: "<s>", 2: "</s>"} {
		for special, want := range map[bool]string{false: "", true: spelling} {
			if got, err := m.Piece(token, special); err != nil || string(got) != want {
				t.Errorf("Piece(%d, %t): %q, %v; want %q", token, special, got, err, want)
			}
		}
		if !m.IsControl(token) || m.IsEOG(token) != (token == 2) {
			t.Errorf("token %d: control %t, end of generation %t", token, m.IsControl(token), m.IsEOG(token))
		}
	}
	if m.IsControl(500) || m.IsEOG(500) {
		t.Error("a word is a control token")
	}
}

func TestAppendPieceKeepsWhatWasThere(t *testing.T) {
	m := story(t)
	got, err := m.AppendPiece([]byte("so: "), tokenize(t, m, "Lily", false)[1], false)
	if err != nil || string(got) != "so:  Lily" && string(got) != "so:  L" {
		t.Errorf("got %q, %v", got, err)
	}
	kept, err := m.AppendPiece([]byte("kept"), -1, false)
	if err == nil || string(kept) != "kept" {
		t.Errorf("after an error: %q, %v", kept, err)
	}
}

// FuzzTokenizeRoundTrip: any text comes back as it was. Text that is not valid UTF-8 must not crash.
func FuzzTokenizeRoundTrip(f *testing.F) {
	for _, seed := range []string{
		"", " ", "  two  spaces ", tale, "<s>", "</s>", "a<s>b</s>c", "<0x0A>", "▁", "a▁b", "▁▁ x", "naïve café", "日本語", "🦊🦊",
		"👩‍👩‍👧‍👦", "e\u0301", "\u202eabc", "\x00", "a\x00b", "\r\n\t", "\xff", "\xf0\x9f\x98", "\uFFFD", "\uFEFFbom", "<unk>",
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	m := story(f)
	f.Fuzz(func(t *testing.T, text string, special bool) {
		tokens := tokenize(t, m, text, special)
		if tokens[0] != m.Facts().BOS {
			t.Fatalf("%v does not begin with BOS", tokens)
		}
		got := detokenize(t, m, tokens, special)
		if !utf8.ValidString(text) || special && strings.ContainsAny(text, "<") {
			return // control tokens and a repeated BOS need not come back as they were
		}
		// SentencePiece writes a space as ▁: the two cannot be told apart afterwards.
		if want := strings.ReplaceAll(text, "▁", " "); got != want {
			t.Errorf("%q came back as %q", text, got)
		}
	})
}

func TestATextThatCannotFitTheContextIsRefusedUntokenised(t *testing.T) {
	m := story(t)
	longest := m.Facts().LongestPiece
	if longest < 4 || longest > 64 {
		t.Fatalf("the longest piece has %d bytes", longest)
	}
	fits := strings.Repeat("a", 100*longest)
	if _, err := m.TokenizeWithin(100, fits, false); err != nil {
		t.Errorf("a text of just so many bytes: %v", err)
	}
	if _, err := m.TokenizeWithin(100, fits+"a", false); !errors.Is(err, llama.ErrTextTooLong) {
		t.Errorf("one byte more: %v", err)
	}
}
