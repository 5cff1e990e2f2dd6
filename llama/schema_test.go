package llama_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/meshnet/node/internal/gbnf"
	"github.com/meshnet/node/llama"
)

func newConverter(t testing.TB) *llama.Converter {
	t.Helper()
	c, err := llama.NewConverter()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestASchemaBecomesAGrammarOfTextsThatFulfilIt(t *testing.T) {
	grammar, err := newConverter(t).Grammar(t.Context(), `{"type":"object","properties":{"n":{"type":"integer","minimum":3,"maximum":12}},"required":["n"],"additionalProperties":false}`)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gbnf.Compile(grammar)
	if err != nil {
		t.Fatal(err)
	}
	pieces, ends := make([]string, 129), make([]bool, 129)
	for c := 1; c < 128; c++ {
		pieces[c] = string(rune(c))
	}
	ends[128] = true
	v := gbnf.NewVocabulary(pieces, ends)
	for text, want := range map[string]bool{`{"n":3}`: true, `{"n": 12}`: true, `{"n":2}`: false, `{"n":13}`: false, `{}`: false, `{"m":3}`: false} {
		m, err := gbnf.NewMatcher(g, v)
		if err != nil {
			t.Fatal(err)
		}
		took := true
		for _, c := range text {
			took = took && m.Accept(c) == nil
		}
		if took = took && m.Accept(128) == nil; took != want {
			t.Errorf("%s: %t, want %t", text, took, want)
		}
	}
}

func TestASchemaThatAGrammarCannotHoldIsRefusedWithItsPlace(t *testing.T) {
	c := newConverter(t)
	deep := strings.Repeat(`{"items":`, 33) + "{}" + strings.Repeat("}", 33)
	for _, x := range []struct{ schema, reason string }{
		{``, "not valid JSON"},
		{`{"type":}`, "not valid JSON at byte 9"},
		{`[]`, "it must be a JSON object"},
		{`{"type":"strin"}`, "unrecognized type strin"},
		{`{"$ref":"#/$defs/a"}`, "cannot resolve $ref #/$defs/a"},
		{`{"$ref":"https://example.org/s"}`, "unsupported $ref"},
		{`{"properties":{"a":{"type":"array","uniqueItems":true}}}`, `#/properties/a: a grammar cannot hold "uniqueItems"`},
		{`{"type":"number","minimum":0}`, "#: a grammar cannot hold bounds of numbers"},
		{`{"items":{"type":"string","pattern":"^a$","maxLength":1}}`, "#/items: lengths beside a pattern"},
		{`{"type":"object","properties":{},"required":["a"]}`, `"a" is required but not among the properties`},
		{`{"anyOf":[{"type":"null"}],"type":"string"}`, `"type" beside "anyOf"`},
		{`{"type":"string","pattern":"a(?=b)"}`, ""},
		{`{"type":"string","pattern":"a"}`, ""},
		{`{"type":"string","maxLength":100000000}`, "it makes a grammar that cannot be used"},
		{deep, "nested 34 deep; the limit is 32"},
		{`{"title":"` + strings.Repeat("x", llama.MaxSchemaBytes) + `"}`, "the limit is 65536"},
		{"{\"title\":\"\xff\"}", "not UTF-8"},
	} {
		_, err := c.Grammar(t.Context(), x.schema)
		var wrong *llama.SchemaError
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, x.reason) {
			t.Errorf("%.60s: %v; want a SchemaError with %q", x.schema, err, x.reason)
		}
	}
}

// misbehaveEnv makes the process of a conversion do what llama.cpp's was made to do.
const misbehaveEnv = "MESHNET_TEST_CONVERSION"

func misbehaveIfAsked() {
	if os.Getenv(llama.ChildEnv) == "" || os.Getenv(misbehaveEnv) == "" {
		return
	}
	if err := llama.LimitProcess(); err != nil {
		panic(err)
	}
	switch os.Getenv(misbehaveEnv) {
	case "crash":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "spin":
	case "eat":
		var eaten [][]byte
		for {
			eaten = append(eaten, bytes.Repeat([]byte{1}, 1<<24))
			runtime.KeepAlive(eaten)
		}
	case "talk":
		for {
			fmt.Println(strings.Repeat("x", 1<<16))
		}
	}
	for n := uint64(1); n != 0; n++ { // two seconds of processor time are its limit
		runtime.KeepAlive(n)
	}
}

func TestAConversionThatCrashesOrNeverEndsIsARefusal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux limits a process")
	}
	for _, kind := range []string{"crash", "spin", "eat", "talk"} {
		t.Run(kind, func(t *testing.T) {
			t.Setenv(misbehaveEnv, kind)
			_, err := newConverter(t).Grammar(t.Context(), `{}`)
			var wrong *llama.SchemaError
			if !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, "within its limits of time and memory") {
				t.Errorf("%v; want a SchemaError about limits", err)
			}
		})
	}
}

func TestWhatIsKeptOfSchemasIsBoundedInBytes(t *testing.T) {
	c := newConverter(t)
	for i := range byte(40) {
		c.Keep(i, 1<<20)
	}
	if schemas, bytes := c.Kept(); schemas != 32 || bytes != 32<<20 {
		t.Errorf("%d schemas with %d bytes are kept, want 32 with 32 MiB", schemas, bytes)
	}
}

func TestASchemaBeyondTheLimitsIsTriedOnce(t *testing.T) {
	c := newConverter(t)
	t.Setenv(misbehaveEnv, "crash")
	var wrong *llama.SchemaError
	_, first := c.Grammar(t.Context(), `{}`)
	if !errors.As(first, &wrong) {
		t.Fatalf("%v; want a SchemaError", first)
	}
	t.Setenv(misbehaveEnv, "killed") // had it run again, that would be no SchemaError
	if _, again := c.Grammar(t.Context(), `{}`); again == nil || again.Error() != first.Error() {
		t.Errorf("%v the second time, want %v", again, first)
	}
}

func TestAConversionThatSomebodyKilledIsNoFaultOfTheSchema(t *testing.T) {
	t.Setenv(misbehaveEnv, "killed")
	_, err := newConverter(t).Grammar(t.Context(), `{}`)
	var wrong *llama.SchemaError
	if err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), "the process was killed") {
		t.Errorf("%v; want an error of the node that says that it was killed", err)
	}
}

func TestAConversionEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newConverter(t).Grammar(ctx, `{}`); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want context.Canceled", err)
	}
}

func BenchmarkConvertSchema(b *testing.B) {
	c := newConverter(b)
	for i := 0; b.Loop(); i++ {
		if _, err := c.Grammar(b.Context(), fmt.Sprintf(`{"type":"string","maxLength":%d}`, i+1)); err != nil {
			b.Fatal(err)
		}
	}
}
