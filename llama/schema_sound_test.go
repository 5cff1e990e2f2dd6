package llama_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meshnet/node/internal/gbnf"
	"github.com/meshnet/node/llama"
)

// letters is a vocabulary of single characters, those among them that a string must not hold as they are.
var letters, letterEnd = func() (*gbnf.Vocabulary, int32) {
	var pieces []string
	for r := rune(0); r < 0x80; r++ {
		pieces = append(pieces, string(r))
	}
	pieces = append(pieces, "é", "\u2028", "😀", "")
	ends := make([]bool, len(pieces))
	ends[len(ends)-1] = true
	return gbnf.NewVocabulary(pieces, ends), int32(len(ends) - 1)
}()

// wander is a text that a grammar takes, chosen at random; "" where it has not come to an end.
func wander(t *testing.T, g *gbnf.Grammar, random *rand.Rand) string {
	t.Helper()
	m, err := gbnf.NewMatcher(g, letters)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for range 300 {
		var next []int32
		if err := m.Mask(func(token int32) { next = append(next, token) }); err != nil || len(next) == 0 {
			t.Fatalf("after %s: %v, %d characters may follow", said.String(), err, len(next))
		}
		token := next[random.IntN(len(next))]
		if next[0] == letterEnd && random.IntN(3) == 0 {
			token = letterEnd
		}
		if token == letterEnd {
			return said.String()
		}
		// What ends strings, lists and objects, and what makes escapes, is chosen as often as all the rest.
		for _, c := range next {
			if strings.ContainsRune(`"\]}u`, c) && c < 0x80 && random.IntN(4) == 0 {
				token = c
			}
		}
		if err := m.Accept(token); err != nil {
			t.Fatal(err)
		}
		if token < 0x80 {
			said.WriteByte(byte(token))
		} else {
			said.WriteString([]string{"é", "\u2028", "😀"}[token-0x80])
		}
	}
	return ""
}

func schemaOf(t *testing.T, text string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// misread are schemas that llama.cpp's conversion makes a grammar of that takes other texts, unless it is helped.
var misread = []string{
	`{"type":"string","pattern":"^.{1,3}$"}`,
	`{"type":"string","pattern":"^[^a]*$"}`,
	`{"type":"string","pattern":"^[!-~]{2}$"}`,
	`{"type":"string","pattern":"^[\\[-\\]]{2}x\\.(y|z)?$"}`,
	`{"type":"string","pattern":"^a\\{2\\}$"}`,
	`{"type":"object","properties":{"a":{"const":1},"ab":{"const":2},"é-]":{"const":3}},"additionalProperties":false}`,
	`{"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"integer"}},"additionalProperties":true}`,
	`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":{"type":"boolean"}}`,
	`{"type":"string","minLength":3,"maxLength":3}`,
	`{"type":"string","format":"date"}`,
	`{"type":"string","format":"date-time"}`,
	`{"type":"string","format":"time"}`,
	`{"type":"string","format":"uuid"}`,
	`{"type":"integer","minimum":-12,"exclusiveMaximum":3.5}`,
	`{"type":"integer","exclusiveMinimum":9,"maximum":1234}`,
	`{"type":"array","items":{"type":"integer","minimum":0},"minItems":2,"maxItems":3}`,
	`{"prefixItems":[{"type":"null"},{"enum":[1,"x"]}]}`,
	`{"type":["string","integer"],"maxLength":2,"minimum":5}`,
	`{"type":["string","null"],"enum":["a",null]}`,
	`{"allOf":[{"type":"object","properties":{"a":{"type":"null"}}},{"$ref":"#/$defs/b"}],"$defs":{"b":{"properties":{"b":{"type":"boolean"}},"required":["b"]}}}`,
	`{"type":"object","properties":{"c":{"allOf":[{"$ref":"#/$defs/c"}]}},"$defs":{"c":{"enum":["x","y"]}}}`,
	`{"$defs":{"a":{"type":"object","properties":{"b":{"$ref":"#/$defs/a"},"s":{"type":"string","maxLength":1}}}},"$ref":"#/$defs/a"}`,
	`{"$defs":{"user":{"type":"object","properties":{"id":{"type":"null"}}},"user_name":{"type":"boolean"}},"properties":{"u":{"$ref":"#/$defs/user"},"n":{"$ref":"#/$defs/user_name"}}}`,
	`{"type":"number"}`,
	`{"type":"array","items":{}}`,
	`{"const":"[^\"a\\"}`,
	`{"enum":["] [^\"x", {"[^":["\\"]}]}`,
}

func TestNoTextOfASchemasGrammarFailsTheSchema(t *testing.T) {
	c := newConverter(t)
	for _, schema := range misread {
		grammar, err := c.Grammar(t.Context(), schema)
		if err != nil {
			t.Errorf("%s: %v", schema, err)
			continue
		}
		g, err := gbnf.Compile(grammar)
		if err != nil {
			t.Errorf("%s: %v", schema, err)
			continue
		}
		compiled := schemaOf(t, schema)
		ended := 0
		for seed := range uint64(400) {
			text := wander(t, g, rand.New(rand.NewPCG(seed, 1)))
			if text == "" {
				continue
			}
			ended++
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err == nil {
				err = errors.Join(compiled.Validate(value), json.Unmarshal([]byte(text), new(any)))
			}
			if err != nil {
				t.Errorf("%s: its grammar takes %s: %v", schema, text, err)
				break
			}
		}
		if ended < 20 {
			t.Errorf("%s: %d of 400 texts came to an end, want 20 at least", schema, ended)
		}
	}
}

// refused are schemas that it would misread, and why they are refused.
var refused = []struct{ schema, reason string }{
	{`{"type":"string","type":"integer"}`, `an object has the name "type" twice`},
	{`{"properties":{"a":{"enum":[{"b":1,"b":2}]}}}`, `an object has the name "b" twice`},
	{`{"type":"string","enum":["a",1]}`, `#: value 1 of "enum", 1, is not of the schema's type`},
	{`{"type":"integer","const":1.5}`, `#: value 0 of "const", 1.5, is not of the schema's type`},
	{`{"enum":[1,2],"const":1}`, `beside`},
	{`{"type":"string","enum":["a","bb"],"minLength":2}`, `#: "minLength" beside "enum"`},
	{`{"const":123456789012345678901234567890}`, `has the number 123456789012345678901234567890, which is too large`},
	{`{"const":1e400}`, `has the number 1e400, which is too large`},
	{`{"enum":[[1e-999999999]]}`, `has the number 1e-999999999, which is too large`},
	{`{"const":9007199254740993}`, `has the number 9007199254740993, which is too large`},
	{`{"properties":{"a":{"type":"null"}},"allOf":[{"properties":{"b":{"type":"null"}}}]}`, `#: "properties" beside "allOf"`},
	{`{"type":"string","allOf":[{"maxLength":1}]}`, `#: "type" beside "allOf"`},
	{`{"allOf":[{"type":"string"}]}`, "#: allOf[0] is no object with properties"},
	{`{"allOf":[{"anyOf":[{"properties":{"a":{"type":"null"}}}]}]}`, "#: allOf[0] is no object with properties"},
	{`{"allOf":[{"enum":[1]},{"enum":[2]}]}`, "#: allOf[0] is no object with properties"},
	{`{"allOf":[{"properties":{"a":{"type":"null"}},"additionalProperties":false},{"properties":{"b":{"type":"null"}}}]}`, `#: allOf[0] says "additionalProperties"`},
	{`{"allOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"a":{"type":"null"}}}]}`, `#: two schemas of allOf say what "a" is`},
	{`{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"$ref":"#/$defs/a"}}}`, "#: allOf[0] names itself"},
	{`{"allOf":[]}`, `#: "allOf" must be a list of schemas, and not empty`},
	{`{"prefixItems":[{"type":"null"}],"items":{"type":"null"}}`, `#: "prefixItems" beside "items"`},
	{`{"prefixItems":[{"type":"null"}],"minItems":2}`, "#: counts of items beside a list of them"},
	{`{"minItems":2}`, "#: counts of items without a type"},
	{`{"type":"array","minItems":4294967296}`, `#: "minItems" must be a whole number from 0 to 1073741824`},
	{`{"type":"array","minItems":1e9}`, `#: "minItems" must be a whole number`},
	{`{"type":"string","minLength":4294967297}`, `#: "minLength" must be a whole number from 0 to 1073741824`},
	{`{"type":"string","minLength":2,"maxLength":1}`, `#: "minLength" is more than "maxLength"`},
	{`{"minimum":1}`, "#: a grammar cannot hold bounds of numbers"},
	{`{"type":"integer","minimum":1,"exclusiveMinimum":4}`, `#: "minimum" beside "exclusiveMinimum"`},
	{`{"type":"integer","minimum":1.2,"maximum":1.8}`, "#: no integer is within its bounds"},
	{`{"type":"integer","minimum":18446744073709551615}`, `#: "minimum" must be a number between -2^53 and 2^53`},
	{`{"type":"integer","minimum":1e400}`, `#: "minimum" must be a number between`},
	{`{"type":"string","pattern":"^\"$"}`, "#: a grammar cannot hold a quote in a pattern"},
	{`{"type":"string","pattern":"^\\x22$"}`, `#: a grammar cannot hold \x in a pattern`},
	{`{"type":"string","pattern":"^\u0000$"}`, "#: a grammar cannot hold a pattern with control characters"},
	{`{"type":"string","pattern":"^a{,2}$"}`, "#: a grammar cannot hold {,2 in a pattern"},
	{`{"type":"string","pattern":"^a$","format":"date"}`, "#: a format beside a pattern"},
	{`{"type":"string","format":"date","maxLength":3}`, "#: lengths beside a format"},
	{`{"properties":{"^":{"type":"null"}},"additionalProperties":true}`, `#: a grammar cannot tell additional properties from "^"`},
	{`{"properties":{"":{"type":"null"}},"additionalProperties":{"type":"null"}}`, `#: a grammar cannot tell additional properties from ""`},
	{`{"unevaluatedItems":false}`, `#: a grammar cannot hold "unevaluatedItems"`},
	{`{"contains":false}`, `#: a grammar cannot hold "contains"`},
	{`{"$ref":"#/examples/0","examples":[{"not":{}}]}`, "#: cannot resolve $ref #/examples/0: there is no schema"},
	{`{"properties":{"a":{"$ref":"#/title"}},"title":{"type":"null"}}`, "#/properties/a: cannot resolve $ref #/title"},
	{`{"$ref":"#/$defs/a~1b","$defs":{"a~1b":{"type":"null"},"a/b":{"type":"null"}}}`, "#: unsupported $ref #/$defs/a~1b: it has an escape"},
	{`{"$ref":"file:///etc/passwd"}`, "#: unsupported $ref file:///etc/passwd"},
	{`{"$ref":"#"}`, "#: unsupported $ref #"},
	{`{"$ref":7}`, "#: $ref must be a string"},
	{`{"$defs":{"a b":{"type":"null"},"a_b":{"type":"boolean"}},"properties":{"x":{"$ref":"#/$defs/a b"},"y":{"$ref":"#/$defs/a_b"}}}`, "cannot be told from what $ref"},
	{`{"$defs":{"u":{"properties":{"name":{"type":"null"}}},"u_name":{"type":"boolean"}},"properties":{"x":{"$ref":"#/$defs/u"},"y":{"$ref":"#/$defs/u_name"}}}`, "cannot be told from what $ref #/$defs/u makes"},
	{`{"$defs":{"a":{"type":"boolean"}},"properties":{"ref-defs-a":{"type":"null"},"y":{"$ref":"#/$defs/a"}}}`, "cannot be told from a property"},
	{`{"properties":{"a":{"$id":"x","$ref":"#/properties/b"},"b":{"type":"null"}}}`, `#/properties/a: "$id" changes what each $ref names`},
	{`{"items":true}`, "#/items: a grammar needs an object here, not true"},
	{`{"properties":{"a":null}}`, "#/properties/a: a grammar needs an object here, not null"},
	{`{"properties":[]}`, `#: "properties" must be an object`},
}

func TestASchemaThatTheConversionWouldMisreadIsRefused(t *testing.T) {
	c := newConverter(t)
	for _, x := range refused {
		_, err := c.Grammar(t.Context(), x.schema)
		var wrong *llama.SchemaError
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, x.reason) {
			t.Errorf("%s: %v; want a SchemaError with %q", x.schema, err, x.reason)
		}
	}
}

// Two halves of a character count as one, and one alone is none.
func TestNoStringHasAnEscapedHalfOfACharacter(t *testing.T) {
	grammar, err := newConverter(t).Grammar(t.Context(), `{"type":"string","minLength":2}`)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gbnf.Compile(grammar)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{`"\ud83d\ude00"`: false, `"\uDFFFx"`: false, `"\ud7ff\ue000"`: true, `"\n\""`: true, `"a"`: false} {
		m, err := gbnf.NewMatcher(g, letters)
		if err != nil {
			t.Fatal(err)
		}
		took := true
		for _, c := range text {
			took = took && m.Accept(c) == nil
		}
		if took = took && m.Accept(letterEnd) == nil; took != want {
			t.Errorf("%s: taken %t, want %t", text, took, want)
		}
	}
}
