package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
)

func TestLoRAFlagsNameFilesAndScales(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	flags := modelFlags{LoRA: []string{"a=/x/a.gguf", "b=/x/b.gguf:0.5", "c=/x/c:d.gguf", "d=d.gguf:-2", "e=/x/a=b:c.gguf:1e1"}}
	got, err := flags.adapterFiles()
	want := []llama.AdapterFile{
		{Name: "a", Path: "/x/a.gguf", Scale: 1}, {Name: "b", Path: "/x/b.gguf", Scale: 0.5}, {Name: "c", Path: "/x/c:d.gguf", Scale: 1},
		{Name: "d", Path: filepath.Join(here, "d.gguf"), Scale: -2}, {Name: "e", Path: "/x/a=b:c.gguf", Scale: 10},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestWrongLoRAFlagsAreUsageErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a.gguf":      `--lora "a.gguf": give NAME=FILE or NAME=FILE:SCALE`,
		"a=":          `--lora "a=": give NAME=FILE or NAME=FILE:SCALE`,
		"a b=x.gguf":  `--lora "a b=x.gguf": adapter is "a b"; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -`,
		"=x.gguf":     `--lora "=x.gguf": adapter is ""; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -`,
		"../a=x":      `--lora "../a=x": adapter is "../a"; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -`,
		"é=x":         `--lora "é=x": adapter is "é"; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -`,
		"a\x1b[m=x":   `--lora "a\x1b[m=x": adapter is "a\x1b[m"; it must be 1 to 64 of the characters A-Z a-z 0-9 _ -`,
		"a=x:101":     `--lora "a=x:101": the scale must be in [-100, 100]`,
		"a=x:NaN":     `--lora "a=x:NaN": the scale must be in [-100, 100]`,
		"twice=x":     `--lora "twice=x": the name is given twice`,
		"a=/no.gguf ": "adapter a (/no.gguf ) cannot be used: stat /no.gguf : no such file or directory",
	} {
		args := []string{"generate", "--lora", text, storyPrompt}
		wantCode := exitUsage
		switch {
		case strings.HasPrefix(text, "twice"):
			args = slices.Insert(args, 1, "--lora", text)
		case strings.HasPrefix(want, "adapter"):
			wantCode = exitFailed
		}
		code, stdout, stderr := commandLine("", args...)
		if code != wantCode || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want exit %d: %s", text, code, stdout, stderr, wantCode, want)
		}
	}
}

func TestGenerateUsesTheAdapterOfItsFlags(t *testing.T) {
	model := testmodel.Path(t, "tiny", "f16")
	bard, clerk := testmodel.Adapter(t, "tiny", 1), testmodel.Adapter(t, "tiny", 2)
	generate := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := commandLine("", append([]string{"generate", "--threads", "1", "--model", model, "-n", "16", "--tokens", "5,6,7"}, args...)...)
		if code != exitDone {
			t.Fatalf("%v: exit %d: %s", args, code, stderr)
		}
		return stdout
	}
	both := []string{"--lora", "bard=" + bard, "--lora", "clerk=" + clerk}
	plain, first, second := generate(), generate("--lora", "bard="+bard), generate("--lora", "clerk="+clerk)
	if plain == first || plain == second || first == second {
		t.Errorf("texts are not all different: %q, %q, %q", plain, first, second)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"the first": {both, first},
		"chosen":    {append(slices.Clone(both), "--adapter", "clerk"), second},
		"none":      {append(slices.Clone(both), "--adapter="), plain},
		"scale 0":   {[]string{"--lora", "bard=" + bard + ":0"}, plain},
	} {
		if got := generate(c.args...); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	code, _, stderr := commandLine("", append([]string{"generate", "--threads", "1", "--model", model, "--adapter", "poet", "x"}, both...)...)
	const want = `rejected-invalid: adapter is "poet"; it must be absent or one of those loaded: bard, clerk`
	if code != exitRejected || !strings.Contains(stderr, want) {
		t.Errorf("exit %d, stderr %q; want exit %d: %s", code, stderr, exitRejected, want)
	}
}

func TestSweepOfMixedAdaptersIsCertified(t *testing.T) {
	code, stdout, stderr := commandLine("", "sweep", "--threads", "1", "--model", testmodel.Path(t, "tiny", "q8_0"), "--exact", "--levels", "1,4",
		"--lora", "bard="+testmodel.Adapter(t, "tiny", 1), "--lora", "clerk="+testmodel.Adapter(t, "tiny", 2))
	if code != exitDone {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}
