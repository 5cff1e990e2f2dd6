package gbnf_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/gbnf"
)

// bytesVocabulary has a token for each byte and for each of some texts; the last token ends a text.
func bytesVocabulary(texts ...string) *gbnf.Vocabulary {
	pieces := make([]string, 256, 256+len(texts)+1)
	for b := 1; b < 256; b++ {
		pieces[b] = string([]byte{byte(b)})
	}
	pieces = append(append(pieces, texts...), "</s>")
	ends := make([]bool, len(pieces))
	ends[len(pieces)-1] = true
	return gbnf.NewVocabulary(pieces, ends)
}

func mustCompile(t testing.TB, grammar string) *gbnf.Grammar {
	t.Helper()
	g, err := gbnf.Compile(grammar)
	if err != nil {
		t.Fatalf("%s: %v", grammar, err)
	}
	return g
}

func newMatcher(t testing.TB, g *gbnf.Grammar, v *gbnf.Vocabulary) *gbnf.Matcher {
	t.Helper()
	m, err := gbnf.NewMatcher(g, v)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// takes says whether a grammar takes a whole text, byte by byte.
func takes(t testing.TB, g *gbnf.Grammar, text string) bool {
	t.Helper()
	m := newMatcher(t, g, bytesVocabulary())
	for i := range len(text) {
		if m.Accept(int32(text[i])) != nil {
			return false
		}
	}
	ok, err := m.Allows(256)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestAGrammarTakesItsTextsAndNoOthers(t *testing.T) {
	for _, c := range []struct {
		grammar  string
		yes, not []string
	}{
		{`root ::= "ab"`, []string{"ab"}, []string{"", "a", "abc", "b"}},
		{`root ::= "" | "a"`, []string{"", "a"}, []string{"b"}},
		{`root ::= [a-c] [^a-c]`, []string{"ad", "cü", "a\n"}, []string{"ab", "da", "a"}},
		{`root ::= .`, []string{"a", "ü", "🦊", "\n"}, []string{"", "ab", "\xff", "\xc3"}},
		{`root ::= "a"*`, []string{"", "a", "aaaaa"}, []string{"b", "ab"}},
		{`root ::= "ab"+`, []string{"ab", "abab"}, []string{"", "a", "aba"}},
		{`root ::= "ab"? "c"`, []string{"c", "abc"}, []string{"ac", "ababc"}},
		{`root ::= "ab"{2}`, []string{"abab"}, []string{"ab", "ababab"}},
		{`root ::= "a"{1,3}`, []string{"a", "aa", "aaa"}, []string{"", "aaaa"}},
		{`root ::= "a"{0,0} "b"`, []string{"b"}, []string{"ab"}},
		{`root ::= [a]{2,}`, []string{"aa", "aaaa"}, []string{"a", ""}},
		{`root ::= ("a" | "b" "c")+ "d"`, []string{"ad", "bcad"}, []string{"bd", "d"}},
		{"root ::= x # comment\nx ::= (\n \"a\" |\n \"b\")\n", []string{"a", "b"}, []string{"x"}},
		{`root ::= "\x41\u00fc\U0001F98A\n\t\r\\\"" [\]\-\^]`, []string{"Aü🦊\n\t\r\\\"]", "Aü🦊\n\t\r\\\"-"}, []string{"A"}},
		{`root ::= "(" root ")" | ""`, []string{"", "()", "((()))"}, []string{"(", "())"}},
		{`root ::= [à-ý]`, []string{"é"}, []string{"e", "\xc3", "Ā"}},
		{"root ::= ((\"a\")*)* \"b\"", []string{"b", "aaab"}, []string{"a"}},
	} {
		g := mustCompile(t, c.grammar)
		for _, text := range c.yes {
			if !takes(t, g, text) {
				t.Errorf("%s does not take %q", c.grammar, text)
			}
		}
		for _, text := range c.not {
			if takes(t, g, text) {
				t.Errorf("%s takes %q", c.grammar, text)
			}
		}
	}
}

func TestABrokenGrammarIsRefusedWithItsPosition(t *testing.T) {
	for _, c := range []struct {
		grammar      string
		line, column int
		reason       string
	}{
		{"", 1, 1, "rule root is not defined"},
		{"x ::= \"a\"", 1, 1, "rule root is not defined"},
		{"root ::= y", 1, 10, "rule y is not defined"},
		{"root ::= \"a", 1, 10, "no closing quote"},
		{"root ::= [a", 1, 10, "no closing bracket"},
		{"root ::= (\"a\"", 1, 14, ") was expected"},
		{"root ::= *", 1, 10, "nothing before *"},
		{"root ::= \"a\"{3,2}", 1, 14, "at least 3 and at most 2"},
		{"root ::= \"a\"{x}", 1, 14, "a number up to"},
		{"root ::= \"a\"{99999999999999999999}", 1, 14, "a number up to"},
		{"root ::= \"\\q\"", 1, 11, "unknown escape"},
		{"root ::= \"\\uzzzz\"", 1, 11, "no character"},
		{"root ::= \"\\U00110000\"", 1, 11, "no character"},
		{"root ::= \"\\U0011\"", 1, 11, "cut off"},
		{"root ::= a\na ::= root", 1, 1, "takes no text at all"},
		{"root = \"a\"", 1, 6, "::= was expected"},
		{"root ::= \"a\"\nroot ::= \"b\"", 2, 1, "defined twice"},
		{"root ::= \"a\" }", 1, 14, "a new line or the end was expected"},
		{"root ::= <[5]>", 1, 10, "token ids"},
		{"root ::= \xff", 1, 1, "not UTF-8"},
		{"root ::= " + strings.Repeat("(", 33), 1, 42, "more than 32 deep"},
		{"root ::= \"a\"" + strings.Repeat("*", 40), 1, 45, "more than 32 repetitions"},
		{"root ::= \"ab\"{200000}", 1, 1, "repetitions make the grammar longer"},
		{strings.Repeat("#", gbnf.MaxBytes+1), 1, gbnf.MaxBytes + 1, "the limit is 1048576"},
	} {
		_, err := gbnf.Compile(c.grammar)
		var syntax *gbnf.SyntaxError
		if !errors.As(err, &syntax) || syntax.Line != c.line || syntax.Column != c.column || !strings.Contains(syntax.Reason, c.reason) {
			t.Errorf("%.60q: %v; want line %d, column %d, %q", c.grammar, err, c.line, c.column, c.reason)
		}
	}
}

// What takes llama.cpp's matcher exponential time.
func TestAGrammarThatReadsInTooManyWaysEndsWithAnError(t *testing.T) {
	v := bytesVocabulary("aaaaaaaaaaaaaaaa")
	many := "root ::= x\nx ::= \"a\" (" + strings.Repeat("x \"b\" | x \"c\" | ", 200) + "\"\")\n"
	for name, grammar := range map[string]string{
		"two returns":           "root ::= x\nx ::= \"a\" x \"b\" | \"a\" x \"c\" | \"\"",
		"hundreds of returns":   many,
		"left recursion":        `root ::= root "a" | "b"`,
		"hidden left recursion": `root ::= "x"? root "a" | "b"`,
	} {
		g, err := gbnf.Compile(grammar)
		var m *gbnf.Matcher
		if err == nil {
			m = newMatcher(t, g, v)
			for range 100 {
				if err = m.Accept(256); err != nil {
					break
				}
			}
		}
		var ambiguous *gbnf.AmbiguousError
		if !errors.As(err, &ambiguous) {
			t.Errorf("%s: %v; want an AmbiguousError", name, err)
		}
	}
}

func TestMaskIsWhatAllowsSaysOfEachToken(t *testing.T) {
	texts := []string{"a", "ab", "abc", "{\"", "\":", "\xc3\xbc", "\xc3", "x\xf0\x9f", "\xa6\x8a", "true", "null,", "  ", "123"}
	v := bytesVocabulary(texts...)
	end := int32(256 + len(texts))
	value := "root ::= \"{\" pair (\",\" pair)* \"}\"\npair ::= \"\\\"\" [^\"\\\\]{1,6} \"\\\":\" value\nvalue ::= [0-9]{1,3} | \"true\" | \"null\" | root | \"ü\" | \"🦊\"\n"
	g := mustCompile(t, value)
	for seed := range 200 {
		m := newMatcher(t, g, v)
		random := uint64(seed)
		for step := range 60 {
			var masked, asked []int32
			if err := m.Mask(func(token int32) { masked = append(masked, token) }); err != nil {
				t.Fatal(err)
			}
			for token := range end + 1 {
				if ok, err := m.Allows(token); err != nil {
					t.Fatal(err)
				} else if ok {
					asked = append(asked, token)
				}
			}
			slices.Sort(masked)
			if !slices.Equal(masked, asked) {
				t.Fatalf("seed %d, step %d: masked %v, asked %v", seed, step, masked, asked)
			}
			if len(asked) == 0 {
				t.Fatalf("seed %d, step %d: nothing may follow", seed, step)
			}
			random = random*6364136223846793005 + 1442695040888963407
			next := asked[int(random>>33)%len(asked)]
			if err := m.Accept(next); err != nil {
				t.Fatal(err)
			}
			if next == end {
				break
			}
		}
	}
}

func TestBehindAWholeTextOnlyAnEndMayFollow(t *testing.T) {
	m := newMatcher(t, mustCompile(t, `root ::= "ab"`), bytesVocabulary())
	for _, want := range [][]int32{{'a'}, {'b'}, {256}, nil} {
		var next []int32
		if err := m.Mask(func(token int32) { next = append(next, token) }); err != nil || !slices.Equal(next, want) {
			t.Fatalf("%v, %v; want %v", next, err, want)
		}
		if want != nil && m.Accept(want[0]) != nil {
			t.Fatalf("token %d is not accepted", want[0])
		}
	}
	if m.Accept('c') == nil || m.Accept(256) == nil {
		t.Error("a token behind the end was accepted")
	}
}

// A machine that forgets what it remembered is where it was.
func TestALongTextKeepsBoundedMemory(t *testing.T) {
	g := mustCompile(t, "root ::= \"[\" root* \"]\"\n")
	m := newMatcher(t, g, bytesVocabulary())
	const deep = 3000
	for _, c := range strings.Repeat("[", deep) + strings.Repeat("[]", deep) + strings.Repeat("]", deep) {
		if err := m.Accept(c); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := m.Allows(256); !ok || err != nil {
		t.Errorf("the text may not end here: %v", err)
	}
}

func FuzzGrammar(f *testing.F) {
	f.Add(`root ::= "a" [b-d]* (x | "")`+"\nx ::= .{1,3}", "abcd")
	f.Add(`root ::= "\x41" root? #`, "AAA")
	v := bytesVocabulary("ab", "{\"", "\xf0\x9f")
	f.Fuzz(func(_ *testing.T, grammar, text string) {
		g, err := gbnf.Compile(grammar)
		if err != nil {
			return
		}
		m, err := gbnf.NewMatcher(g, v)
		if err != nil {
			return
		}
		for i := range min(len(text), 64) {
			if m.Mask(func(int32) {}) != nil || m.Accept(int32(text[i])) != nil {
				return
			}
		}
	})
}

// jsonGrammar is what a JSON Schema of one string comes to.
const jsonGrammar = "char ::= [^\"\\\\\\x7F\\x00-\\x1F] | [\\\\] ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4})\n" +
	"root ::= \"{\" space \"\\\"name\\\"\" space \":\" space \"\\\"\" char{0,200} \"\\\"\" space \"}\"\nspace ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}\n"

// withinAString is a matcher in the middle of a JSON string, with a vocabulary of 49,257 tokens.
func withinAString(b *testing.B) (*gbnf.Grammar, *gbnf.Vocabulary) {
	var texts []string
	for i := range 49_000 {
		texts = append(texts, fmt.Sprintf(" w%x", i*7919%65537))
	}
	return mustCompile(b, jsonGrammar), bytesVocabulary(texts...)
}

// next goes on by a token, at another place of the grammar each time; at the end of the string it begins anew.
func next(b *testing.B, m *gbnf.Matcher, g *gbnf.Grammar, v *gbnf.Vocabulary) *gbnf.Matcher {
	if m != nil && m.Accept('a') == nil {
		return m
	}
	m = newMatcher(b, g, v)
	for _, c := range `{"name":"` {
		if err := m.Accept(c); err != nil {
			b.Fatal(err)
		}
	}
	return m
}

func BenchmarkMask(b *testing.B) {
	g, v := withinAString(b)
	m := next(b, nil, g, v)
	for b.Loop() {
		m = next(b, m, g, v)
		if err := m.Mask(func(int32) {}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllowAndAccept(b *testing.B) {
	g, v := withinAString(b)
	m := next(b, nil, g, v)
	for b.Loop() {
		if _, err := m.Allows(1000); err != nil {
			b.Fatal(err)
		}
		m = next(b, m, g, v)
	}
}

func TestAGrammarWithoutTextsIsRefused(t *testing.T) {
	for _, grammar := range []string{
		`root ::= "a" root`,
		`root ::= [z-a]`,
		`root ::= "\uD800"`,
		"root ::= a\na ::= \"(\" b \")\"\nb ::= \"[\" a \"]\"",
		`root ::= ("a" []){2,3}`,
	} {
		var wrong *gbnf.SyntaxError
		if _, err := gbnf.Compile(grammar); !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, "takes no text at all") {
			t.Errorf("%s: %v; want a SyntaxError that says that it takes no text", grammar, err)
		}
	}
}

// What leads nowhere is left out: after each character that is allowed there is an end.
func TestAlternativesWithoutAnEndAreNeverBegun(t *testing.T) {
	g, err := gbnf.Compile("root ::= \"a\" [z-a] | \"b\" endless | \"c\" | \"d\" endless? \"e\"\nendless ::= \"x\" endless")
	if err != nil {
		t.Fatal(err)
	}
	pieces := []string{"a", "b", "c", "d", "e", "x", ""}
	m, err := gbnf.NewMatcher(g, gbnf.NewVocabulary(pieces, []bool{6: true}))
	if err != nil {
		t.Fatal(err)
	}
	next := func() (allowed string) {
		if err := m.Mask(func(token int32) { allowed += pieces[token] }); err != nil {
			t.Fatal(err)
		}
		return allowed
	}
	if got := next(); got != "cd" {
		t.Errorf("at first %q may come, want c and d", got)
	}
	if err := m.Accept(3); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "e" {
		t.Errorf("after d %q may come, want e", got)
	}
}

// A table of which character is in which set would take 440 MiB.
func TestAGrammarOfManyCharactersTakesMemoryByItsLength(t *testing.T) {
	var text strings.Builder
	for r := rune(0x4e00); r < 0x4e00+20900; r++ {
		text.WriteRune(r)
	}
	grammar := `root ::= "` + text.String() + `"`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g, err := gbnf.Compile(grammar)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	const most = 500 // bytes allocated in all for a byte of the grammar
	if got := (after.TotalAlloc - before.TotalAlloc) / uint64(len(grammar)); got > most {
		t.Errorf("%d bytes were allocated for each byte of the grammar, want at most %d", got, most)
	}
	if last := strings.TrimSuffix(text.String(), "\u9fa3"); !takes(t, g, text.String()) || takes(t, g, last) {
		t.Errorf("it does not take its text, or takes one that lacks the last character")
	}
}

func BenchmarkCompileALargeGrammar(b *testing.B) {
	for b.Loop() {
		if _, err := gbnf.Compile(`root ::= [a-z]{0,60000}`); err != nil {
			b.Fatal(err)
		}
	}
}
