package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
)

// generatedText runs worker generate --json and returns its text.
func generatedText(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	code, stdout, stderr := commandLine(stdin, append([]string{"generate", "--threads", "1", "--json", "-n", "16"}, args...)...)
	var doc generateDocument
	if err := json.Unmarshal([]byte(stdout), &doc); code != exitDone || err != nil {
		t.Fatalf("exit %d, %v: %s %s", code, err, stdout, stderr)
	}
	return doc.Text
}

func TestGenerateTakesMessagesFromFlagsFilesAndStandardInput(t *testing.T) {
	model := testmodel.Path(t, "tiny", "f16")
	const list = `[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]`
	file := filepath.Join(t.TempDir(), "chat.json")
	if err := os.WriteFile(file, []byte(`{"messages":[{"role":"user","content":"hi"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := generatedText(t, "", "--model", model, "--special",
		"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
	for name, got := range map[string]string{
		"--system":            generatedText(t, "", "--model", model, "--system", "Be brief.", "hi"),
		"--system, text in -": generatedText(t, "hi", "--model", model, "--system", "Be brief.", "-"),
		"--chat -":            generatedText(t, list, "--model", model, "--chat", "-"),
		"--chat and --system": generatedText(t, "", "--model", model, "--system", "Be brief.", "--chat", file),
	} {
		if got != want {
			t.Errorf("%s: text %q, want that of the rendered prompt: %q", name, got, want)
		}
	}
}

func TestWhatIsNoConversationIsRefused(t *testing.T) {
	tiny := testmodel.Path(t, "tiny", "f16")
	for _, c := range []struct {
		claim, stdin string
		args         []string
		code         int
		text         string
	}{
		{"no template", "", []string{"--system", "a", "b"}, exitRejected, "has no chat template"},
		{"no JSON", "hello", []string{"--chat", "-"}, exitUsage, "--chat - is not a list of messages"},
		{"unknown field", `[{"role":"user","content":"a","audio":1}]`, []string{"--chat", "-"}, exitUsage, `unknown field "audio"`},
		{"content in parts", `[{"role":"user","content":[]}]`, []string{"--chat", "-"}, exitUsage, "--chat - is not a list of messages: at byte 27 there is a JSON array in the place of a string"},
		{"no message", "[]", []string{"--chat", "-"}, exitUsage, "--chat - is not a list of messages: it has none"},
		{"no messages", "{}", []string{"--chat", "-"}, exitUsage, "--chat - is not a list of messages: it has none"},
		{"something behind it", `[{"role":"user","content":"a"}] x`, []string{"--chat", "-"}, exitUsage, "there is something behind it"},
		{"text and messages", "[]", []string{"--chat", "-", "text"}, exitUsage, "or as --chat"},
		{"unknown role", `[{"role":"root","content":"a"}]`, []string{"--model", tiny, "--chat", "-"}, exitRejected, "messages[0].role"},
		{"no such file", "", []string{"--chat", "none.json"}, exitUsage, "none.json"},
	} {
		code, stdout, stderr := commandLine(c.stdin, append([]string{"generate", "--threads", "1"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.text) || stdout != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit %d and %q", c.claim, code, stdout, stderr, c.code, c.text)
		}
	}
}

func TestGenerateHoldsTheTextToASchemaOrAGrammar(t *testing.T) {
	file := func(content string) string {
		name := filepath.Join(t.TempDir(), "answer")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if got := generatedText(t, "", "--json-schema", file(`{"enum":["yes"]}`), "Once"); got != `"yes"` {
		t.Errorf("by a schema of one text: %q", got)
	}
	if got := generatedText(t, "", "--ignore-eos", "--grammar", file(`root ::= " no"`), "Once"); got != " no" {
		t.Errorf("by a grammar of one text: %q", got)
	}
	for _, c := range []struct {
		claim string
		args  []string
		code  int
		text  string
	}{
		{"a schema that is none", []string{"--json-schema", file("{")}, exitRejected, "not valid JSON at byte 1"},
		{"a keyword that no grammar holds", []string{"--json-schema", file(`{"not":{}}`)}, exitRejected, `#: a grammar cannot hold "not"`},
		{"a grammar that is none", []string{"--grammar", file("root ::= (")}, exitRejected, "line 1, column 11"},
		{"an empty file", []string{"--grammar", file("")}, exitUsage, "is empty"},
		{"both", []string{"--grammar", "a", "--json-schema", "b"}, exitUsage, "--json-schema"},
	} {
		code, stdout, stderr := commandLine("", append([]string{"generate", "--threads", "1", "x"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.text) || stdout != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit %d and %q", c.claim, code, stdout, stderr, c.code, c.text)
		}
	}
}
