package text_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/meshnet/node/internal/text"
)

var errVocabulary = errors.New("outside the vocabulary")

// spelled is a vocabulary whose tokens are the elements of pieces.
func spelled(pieces []string) func([]byte, int32) ([]byte, error) {
	return func(dst []byte, token int32) ([]byte, error) {
		if int(token) >= len(pieces) {
			return dst, errVocabulary
		}
		return append(dst, pieces[token]...), nil
	}
}

// said is what came out of a stream of pieces.
type said struct {
	texts   []string // after each token, and at last what was flushed
	bytes   string
	stopped int // tokens after which the stop string was complete; 0: never
}

func say(t interface{ Fatal(...any) }, pieces []string, o text.Options) said {
	o.Piece, o.Raw = spelled(pieces), true
	s := text.New(o)
	var out said
	for i := range pieces {
		c, err := s.Next(int32(i))
		if err != nil {
			t.Fatal(err)
		}
		out.texts, out.bytes = append(out.texts, c.Text), out.bytes+string(c.Bytes)
		if c.Stopped {
			out.stopped = i + 1
			break
		}
	}
	c := s.Flush()
	out.texts, out.bytes = append(out.texts, c.Text), out.bytes+string(c.Bytes)
	return out
}

// naive looks at the whole text: where the first stop string is complete that may end it, and the longest of those.
func naive(pieces []string, stops []string, least int) (whole string, stopped int) {
	all := strings.Join(pieces, "")
	end, count := 0, 0 // of the piece that a byte belongs to
	for n := 1; n <= len(all); n++ {
		for end < n {
			end += len(pieces[count])
			count++
		}
		cut := -1
		for _, stop := range stops {
			if strings.HasSuffix(all[:n], stop) && (cut < 0 || n-len(stop) < cut) {
				cut = n - len(stop)
			}
		}
		if cut >= 0 && count >= least {
			return all[:cut], count
		}
	}
	return all, 0
}

// split cuts a text into tokens at random bytes, some of them empty.
func split(t *rapid.T, all string) []string {
	pieces := []string{}
	for len(all) > 0 {
		n := rapid.IntRange(0, min(5, len(all))).Draw(t, "token bytes")
		pieces = append(pieces, all[:n])
		all = all[n:]
	}
	return pieces
}

func TestStopStringsEndTheTextWhereANaiveSearchOfTheWholeFindsTheFirst(t *testing.T) {
	alphabet := []rune("aab é日😸")
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.StringOfN(rapid.SampledFrom(alphabet), 0, 40, -1).Draw(t, "text")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom(alphabet), 1, 4, -1), 0, 4).Draw(t, "stops")
		pieces := split(t, all)
		least := rapid.IntRange(0, len(pieces)).Draw(t, "least")
		wantText, wantStopped := naive(pieces, stops, least)
		got := say(t, pieces, text.Options{Stops: stops, Least: least})
		if got.bytes != wantText || got.stopped != wantStopped {
			t.Fatalf("%q, stopped at token %d; want %q, %d", got.bytes, got.stopped, wantText, wantStopped)
		}
		if joined := strings.Join(got.texts, ""); joined != strings.ToValidUTF8(wantText, "\uFFFD") {
			t.Fatalf("text %q, want %q", joined, wantText)
		}
		for i, part := range got.texts {
			if !utf8.ValidString(part) {
				t.Fatalf("token %d: %q is not whole", i, part)
			}
		}
	})
}

func TestTextIsHeldBackOnlyWhileItCouldStillBecomeAStop(t *testing.T) {
	for name, c := range map[string]struct {
		stops  []string
		pieces []string
		want   []string
	}{
		"no stops":                  {nil, []string{"a", "b"}, []string{"a", "b", ""}},
		"held, then not":            {[]string{"abc"}, []string{"xa", "b", "d"}, []string{"x", "", "abd", ""}},
		"held to the end":           {[]string{"abc"}, []string{"xa", "b"}, []string{"x", "", "ab"}},
		"over three tokens":         {[]string{"abc"}, []string{"xa", "b", "cd"}, []string{"x", "", "", ""}},
		"within one token":          {[]string{"b"}, []string{"abc"}, []string{"a", ""}},
		"begins again within":       {[]string{"aab"}, []string{"a", "a", "a", "b"}, []string{"", "", "a", "", ""}},
		"the first to be complete":  {[]string{"abcd", "bc"}, []string{"abcd"}, []string{"a", ""}},
		"the longest at one place":  {[]string{"c", "bc"}, []string{"a", "bc"}, []string{"a", "", ""}},
		"a character cut in two":    {[]string{"é"}, []string{"a\xc3", "\xa9b"}, []string{"a", "", ""}},
		"half a character, then it": {[]string{"x"}, []string{"\xc3", "\xa9x"}, []string{"", "é", ""}},
		"half a character and stop": {[]string{"x"}, []string{"\xc3x"}, []string{"\uFFFD", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := say(t, c.pieces, text.Options{Stops: c.stops}); !slices.Equal(got.texts, c.want) {
				t.Errorf("%q, want %q", got.texts, c.want)
			}
		})
	}
}

func TestAStopBeforeTheLeastTokensIsPartOfTheText(t *testing.T) {
	pieces := []string{"a", "b", "a", "a"}
	for least, want := range map[int]said{
		0: {[]string{"", ""}, "", 1}, 1: {[]string{"", ""}, "", 1}, 2: {[]string{"a", "b", "", ""}, "ab", 3},
		3: {[]string{"a", "b", "", ""}, "ab", 3}, 4: {[]string{"a", "b", "a", "", ""}, "aba", 4}, 5: {[]string{"a", "b", "a", "a", ""}, "abaa", 0},
	} {
		got := say(t, pieces, text.Options{Stops: []string{"a"}, Least: least})
		if !slices.Equal(got.texts, want.texts) || got.bytes != want.bytes || got.stopped != want.stopped {
			t.Errorf("least %d: %+v, want %+v", least, got, want)
		}
	}
}

// kronk#275: a character cut between two tokens.
func TestCharacterComesOutWhole(t *testing.T) {
	for name, c := range map[string]struct {
		pieces string // a token a byte
		want   []string
	}{
		"4 bytes":                   {"\xf0\x9f\x98\xb8", []string{"", "", "", "😸", ""}},
		"cut at the end":            {"ab\xf0\x9f\x98", []string{"a", "b", "", "", "", "\uFFFD"}},
		"lone continuation":         {"\x80a", []string{"\uFFFD", "a", ""}},
		"never a first byte":        {"\xffa", []string{"\uFFFD", "a", ""}},
		"cut, then a letter":        {"\xe2\x82a", []string{"", "", "\uFFFDa", ""}},
		"cut, then another one":     {"\xf0\x9f\xc3\xa9", []string{"", "", "\uFFFD", "é", ""}},
		"surrogate":                 {"\xed\xa0\x80", []string{"", "\uFFFD", "\uFFFD", ""}},
		"two characters of 2 bytes": {"éß", []string{"", "é", "", "ß", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			var pieces []string
			for _, b := range []byte(c.pieces) {
				pieces = append(pieces, string([]byte{b}))
			}
			got := say(t, pieces, text.Options{})
			if !slices.Equal(got.texts, c.want) || got.bytes != c.pieces {
				t.Errorf("%q, bytes %q; want %q", got.texts, got.bytes, c.want)
			}
		})
	}
}

func TestATokenWithoutTextLeavesTheStreamAsItWas(t *testing.T) {
	s := text.New(text.Options{Piece: spelled([]string{"\xc3", "\xa9", ""})})
	for _, c := range []struct {
		token int32
		want  string
		err   error
	}{{0, "", nil}, {2, "", nil}, {7, "", errVocabulary}, {1, "é", nil}} {
		if got, err := s.Next(c.token); got.Text != c.want || !errors.Is(err, c.err) {
			t.Errorf("token %d: %q, %v", c.token, got.Text, err)
		}
	}
	if got := s.Flush(); got.Text != "" {
		t.Errorf("%q was held back", got.Text)
	}
}

func TestASilentTokenCounts(t *testing.T) {
	s := text.New(text.Options{Piece: spelled([]string{"a"}), Stops: []string{"a"}, Least: 2})
	s.Silent()
	if c, err := s.Next(0); !c.Stopped || err != nil {
		t.Errorf("%+v, %v: the second token may end the text", c, err)
	}
}
