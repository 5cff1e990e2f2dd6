package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/internal/text"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// schemas are of the kinds that clients send. Texts are bounded: a model with random weights would never come to an end of one.
var clientSchemas = []string{
	`{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"],"additionalProperties":false}`,
	`{"type":"array","items":{"type":"integer","minimum":-5,"maximum":5},"minItems":1,"maxItems":4}`,
	`{"type":"array","items":{"type":"array","items":{"type":"array","items":{"type":"boolean"},"maxItems":2},"minItems":1,"maxItems":2},"maxItems":3}`,
	`{"enum":["red","green","blue",1,null,true]}`,
	`{"const":{"kind":"fixed","n":[1,2]}}`,
	`{"type":"string","pattern":"^[A-Z]{2}-[0-9]{3,5}$"}`,
	`{"type":"string","minLength":3,"maxLength":9}`,
	`{"type":"string","format":"date"}`,
	`{"type":"string","format":"uuid"}`,
	`{"type":["string","null","integer"],"maxLength":6}`,
	`{"anyOf":[{"type":"null"},{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}]}`,
	`{"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"boolean"},"c":{"type":"boolean"}},"required":["b"]}`,
	`{"$defs":{"point":{"type":"object","properties":{"x":{"type":"integer","minimum":0,"maximum":99},"y":{"type":"integer","minimum":0,"maximum":99}},"required":["x","y"]}},"type":"array","items":{"$ref":"#/$defs/point"},"minItems":2,"maxItems":3}`,
	`{"$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer","minimum":0,"maximum":9},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"},"maxItems":1}},"required":["v"]}},"$ref":"#/$defs/tree"}`,
	`{"type":"object","properties":{"tags":{"type":"array","items":{"enum":["a","b","c"]},"minItems":1,"maxItems":3},"note":{"type":"string","maxLength":20}},"required":["tags","note"]}`,
	`{"type":"array","prefixItems":[{"type":"boolean"},{"type":"string","maxLength":4},{"type":"null"}]}`,
	`{"type":"object","additionalProperties":{"type":"boolean"},"properties":{"id":{"type":"string","pattern":"^[a-f0-9]{8}$"}},"required":["id"]}`,
	`{"type":"object","properties":{"ü":{"type":"string","maxLength":5},"a\"b":{"const":"\\"}},"required":["ü","a\"b"],"additionalProperties":false}`,
	`{"allOf":[{"type":"object","properties":{"p":{"type":"integer","minimum":1,"maximum":3}},"required":["p"]},{"type":"object","properties":{"q":{"enum":["x","y"]}},"required":["q"]}]}`,
	`{"type":"object","properties":{"call":{"enum":["weather","time"]},"args":{"type":"object","properties":{"place":{"type":"string","pattern":"^[a-z]{3,8}$"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["place"],"additionalProperties":false}},"required":["call","args"],"additionalProperties":false}`,
}

// allTurns makes a test run as many turns as the figures in docs/structured-output.md are of.
const allTurns = "MESHNET_TEST_ALL_TURNS"

// wanderer is a small model with random weights and a context that is long enough.
func wanderer(t *testing.T) *llama.Model {
	t.Helper()
	shape, err := testmodel.Lookup("tiny")
	if err != nil {
		t.Fatal(err)
	}
	shape.Context = 2048
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := testmodel.Write(path, shape, 1); err != nil {
		t.Fatal(err)
	}
	model, err := llama.Load(t.Context(), llama.FromFile(path), llama.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Free)
	return model
}

// textOf is what a turn says, without the token that ended it.
func textOf(t *testing.T, model *llama.Model, tokens []scheduler.Token) string {
	t.Helper()
	stream := text.New(text.Options{Piece: model.AppendText})
	var said strings.Builder
	for _, token := range tokens {
		if model.IsEOG(token) {
			break
		}
		piece, err := stream.Next(token)
		if err != nil {
			t.Fatal(err)
		}
		said.WriteString(piece.Text)
	}
	return said.String() + stream.Flush().Text
}

func TestEveryTextThatEndsFulfilsItsSchema(t *testing.T) {
	turns := 60
	if os.Getenv(allTurns) != "" {
		turns = 500
	}
	converter, err := llama.NewConverter()
	if err != nil {
		t.Fatal(err)
	}
	model := wanderer(t)
	n := newNode(t, model, llama.Options{Slots: 8, ContextTokens: 1024}, nil)
	keys := make(map[scheduler.TurnKey]int)
	for i := range turns {
		schema := i % len(clientSchemas)
		grammar, err := converter.Grammar(t.Context(), clientSchemas[schema])
		if err != nil {
			t.Fatalf("schema %d: %v", schema, err)
		}
		req := requestTokens(fmt.Sprint(i), randomPrompt(uint64(i), 5+i%20, model.Facts().VocabTokens), 800)
		req.Sampling.Temperature, req.Sampling.Seed = float64(i%3)/2, uint64(i)
		req.Sampling.IgnoreEOG = i%5 == 0
		req.Grammar.Text = grammar
		keys[req.Key()] = schema
		n.submit(req)
	}
	cut := 0
	for key, end := range n.run(nil) {
		schema := clientSchemas[keys[key]]
		text := textOf(t, model, end.Tokens)
		switch {
		case end.Reason != scheduler.Completed:
			t.Errorf("turn %s ended %s %s: %s", key, end.Reason, end.Cause, end.Detail)
		case end.Finish == scheduler.FinishLength:
			cut++
		default:
			if err := validate(schema, text); err != nil {
				t.Errorf("%s does not fulfil %s: %v", text, schema, err)
			}
		}
	}
	t.Logf("%d of %d turns were cut off at max_new_tokens", cut, turns)
	if cut*20 >= turns {
		t.Errorf("%d of %d turns were cut off, want less than one in twenty", cut, turns)
	}
}

// validate holds a text against a schema, by a validator that knows nothing of grammars.
func validate(schema, text string) error {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("schema.json", doc); err != nil {
		return err
	}
	compiled, err := compiler.Compile("schema.json")
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

// hostileGrammars are what strangers send to see what happens: grammars begin with a name, schemas with a brace.
func hostileGrammars() map[string]string {
	all := map[string]string{
		"two ways":            "root ::= x\nx ::= [a-z] x \"1\" | [a-z] x \"2\" | [a-z]",
		"left recursion":      `root ::= root "a" | "b"`,
		"hidden recursion":    `root ::= "x"? root "a" | "b"`,
		"endless nothing":     `root ::= (""*)* "a"`,
		"no text":             "root ::= a\na ::= root",
		"empty set":           `root ::= []`,
		"open literal":        `root ::= "a`,
		"open group":          `root ::= ("a"`,
		"deep groups":         "root ::= " + strings.Repeat("(", 30000) + `"a"` + strings.Repeat(")", 30000),
		"deep repetitions":    `root ::= "a"` + strings.Repeat("{9}", 10000),
		"huge repetition":     `root ::= "a"{4294967295}`,
		"overflow":            `root ::= "a"{99999999999999999999999}`,
		"nested repetition":   `root ::= ((("a"{2000}){2000}){2000}){2000}`,
		"thousand choices":    "root ::= x*\nx ::= " + strings.Repeat(`"a" | `, 9000) + `"b"`,
		"nested choices":      "root ::= x\nx ::= [a-z] (" + strings.Repeat("x \"b\" | x \"c\" | ", 2000) + `"")`,
		"undefined":           "root ::= nobody",
		"no root":             `a ::= "b"`,
		"zero bytes":          "root ::= \"\x00\"",
		"not UTF-8":           "root ::= \"\xff\xfe\"",
		"surrogate":           `root ::= "\uD800"`,
		"beyond Unicode":      `root ::= "\UFFFFFFFF"`,
		"token id":            `root ::= <[999999999]>`,
		"token name":          `root ::= !<|im_end|>`,
		"comments":            strings.Repeat("#\n", 30000),
		"prose":               "please answer in JSON",
		"nothing":             "root ::= ",
		"long name":           strings.Repeat("a", 60000) + ` ::= "b"`,
		"many rules":          "root ::= r0\n" + chain(2500),
		"everything":          `root ::= .*`,
		"all of Unicode":      `root ::= [^a]{0,500} [^b]{0,500} [^c]*`,
		"schema: prose":       "{please}",
		"schema: deep":        strings.Repeat(`{"items":`, 5000) + "{}" + strings.Repeat("}", 5000),
		"schema: deep values": `{"const":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + "}",
		"schema: itself":      `{"$ref":"#"}`,
		"schema: cycle":       `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
		"schema: allOf cycle": `{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`,
		"schema: remote":      `{"$ref":"http://127.0.0.1:1/x"}`,
		"schema: file":        `{"$ref":"file:///etc/passwd"}`,
		"schema: groups":      `{"type":"string","pattern":"^` + strings.Repeat("(", 30000) + strings.Repeat(")", 30000) + `$"}`,
		"schema: open groups": `{"type":"string","pattern":"^` + strings.Repeat("(", 60000) + `$"}`,
		"schema: brackets":    `{"type":"string","pattern":"^` + strings.Repeat("[", 60000) + `$"}`,
		"schema: ReDoS":       `{"type":"string","pattern":"^(a+)+(a+)+(a|a)*(.*a){20}$"}`,
		"schema: counts":      `{"type":"string","pattern":"^((a{1000}){1000}){1000}$"}`,
		"schema: bad counts":  `{"type":"string","pattern":"^a{,99999999999999999999}$"}`,
		"schema: long":        `{"type":"string","minLength":2147483647}`,
		"schema: negative":    `{"type":"array","minItems":-1,"maxItems":-2}`,
		"schema: many items":  `{"type":"array","items":{"type":"string"},"minItems":2000000000}`,
		"schema: enum":        `{"enum":["` + strings.Repeat(`a","`, 15000) + `b"]}`,
		"schema: alike":       `{"$defs":{"x":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/x"}},{"type":"array","items":{"$ref":"#/$defs/x"},"minItems":1}]}},"$ref":"#/$defs/x"}`,
		"schema: integers":    `{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}`,
		"schema: floats":      `{"type":"integer","minimum":1e308,"maximum":-1e308}`,
		"schema: wrong types": `{"type":{"a":1},"properties":[1],"required":{"b":2},"enum":3,"items":"x"}`,
		"schema: optional":    `{"type":"object","properties":{` + optional(400) + `}}`,
	}
	return all
}

// chain is n rules that call each other in a row.
func chain(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "r%d ::= r%d | \"a\"\n", i, i+1)
	}
	fmt.Fprintf(&b, "r%d ::= \"b\"\n", n)
	return b.String()
}

func optional(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(`"p%d":{"type":"boolean"}`, i)
	}
	return strings.Join(names, ",")
}

// Each is refused or served. The node lives, and a session beside it says what it says alone.
func TestHostileGrammarsAndSchemasAreRefusedOrServed(t *testing.T) {
	converter, err := llama.NewConverter()
	if err != nil {
		t.Fatal(err)
	}
	all := hostileGrammars()
	if len(all) < 50 {
		t.Fatalf("there are %d cases, want at least 50", len(all))
	}
	model := wanderer(t)
	const tokens = 40
	innocent := requestTokens("innocent", randomPrompt(1, 20, model.Facts().VocabTokens), tokens)
	want := alone(t, model, llama.Options{Slots: 2, ContextTokens: 512}, innocent)
	n := newNode(t, model, llama.Options{Slots: 2, ContextTokens: 512}, nil)
	refused, failed, served := 0, 0, 0
	for name, text := range all {
		grammar := text
		if strings.HasPrefix(text, "{") {
			grammar, err = converter.Grammar(t.Context(), text)
		} else {
			err = model.CheckGrammar(text)
		}
		if err != nil {
			refused++
			continue
		}
		turn := requestTokens("hostile", randomPrompt(2, 10, model.Facts().VocabTokens), tokens)
		turn.Sampling.Temperature, turn.Sampling.Seed, turn.Grammar.Text = 1, 5, grammar
		n.submit(turn)
		n.submit(innocent)
		endings := n.run(nil)
		switch end := endings[turn.Key()]; {
		case end.Reason == scheduler.Completed:
			served++
		case end.Cause == scheduler.FailEngine && strings.Contains(end.Detail, "grammar"):
			failed++
		default:
			t.Errorf("%s: %s %s %s", name, end.Reason, end.Cause, end.Detail)
		}
		if got := endings[innocent.Key()]; fmt.Sprint(got.Tokens) != fmt.Sprint(want) {
			t.Errorf("%s: the session beside it says %v, alone %v", name, got.Tokens, want)
		}
	}
	t.Logf("%d refused, %d ended by their grammar, %d served", refused, failed, served)
}
