package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/meshnet/node/bench"
)

// parseLine parses a command line, and yields the parser with what its flags came to.
func parseLine(args ...string) (*kong.Kong, error) {
	parser, err := newParser(newEnvironment(context.Background(), strings.NewReader(""), io.Discard, io.Discard), func(int) {})
	if err != nil {
		return nil, err
	}
	_, err = parser.Parse(args)
	return parser, err
}

// mustParse is what a flag of a command is after a command line.
func mustParse(t *testing.T, command, flag string, args ...string) any {
	t.Helper()
	parser, err := parseLine(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return findFlag(t, parser, command, flag).Target.Interface()
}

func findFlag(t *testing.T, parser *kong.Kong, command, name string) *kong.Flag {
	t.Helper()
	for _, node := range parser.Model.Children {
		for _, flag := range slices.Concat(node.Flags, parser.Model.Flags) {
			if node.Name == command && flag.Name == name {
				return flag
			}
		}
	}
	t.Fatalf("%s has no flag %s", command, name)
	return nil
}

func configOf(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sampleOf is a text that a flag takes and that is not its default.
func sampleOf(t *testing.T, flag *kong.Flag, file string) string {
	t.Helper()
	kind := flag.Target.Type()
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch {
	case flag.Enum != "":
		return flag.EnumSlice()[len(flag.EnumSlice())-1]
	case flag.Tag.Type == "existingfile", flag.Name == configFlag:
		return file
	case kind == reflect.TypeFor[time.Duration]():
		return "1m33s"
	case kind == reflect.TypeFor[byteCount]():
		return "3MiB"
	case kind == reflect.TypeFor[bench.Lengths]():
		return "3-5"
	case kind == reflect.TypeFor[bench.SLO]():
		return "ttft=1s"
	case kind.Kind() == reflect.Bool && flag.Default == "true":
		return "false"
	}
	samples := map[reflect.Kind]string{
		reflect.Bool: "true", reflect.String: "word", reflect.Float64: "0.25", reflect.Slice: "3,5",
		reflect.Map: "7=0.5", reflect.Int: "7", reflect.Int64: "7", reflect.Uint64: "18446744073709551615",
	}
	sample, ok := samples[kind.Kind()]
	if !ok {
		t.Fatalf("--%s is a %s, of which there is no sample", flag.Name, kind)
	}
	return sample
}

// argumentsOf are what a command asks for besides flags.
func argumentsOf(command string) []string {
	if command == "cancel" {
		return []string{"chat1", "1"}
	}
	return nil
}

func TestEveryFlagOfEveryCommandHasAVariableAndAKeyThatSetIt(t *testing.T) {
	file := configOf(t, "")
	parser, err := parseLine("nodes")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Children {
		line := append([]string{command.Name}, argumentsOf(command.Name)...)
		for _, flag := range slices.Concat(command.Flags, parser.Model.Flags) {
			if flag.Name == "help" || flag.Name == "version" {
				continue
			}
			t.Run(command.Name+" --"+flag.Name, func(t *testing.T) {
				sample := sampleOf(t, flag, file)
				unset := mustParse(t, command.Name, flag.Name, line...)
				want := mustParse(t, command.Name, flag.Name, append(slices.Clone(line), "--"+flag.Name+"="+sample)...)
				if reflect.DeepEqual(unset, want) {
					t.Fatalf("%s is the default", sample)
				}
				setting := strings.TrimPrefix(variable(flag), variablePrefix)
				if setting == "" || setting != strings.ToUpper(setting) || strings.Contains(setting, "-") {
					t.Errorf("the variable is %q", variable(flag))
				}
				if flag.Name != configFlag {
					checkKeys(t, command.Name, flag, sample, line, want)
				}
				t.Setenv(variable(flag), sample)
				if got := mustParse(t, command.Name, flag.Name, line...); !reflect.DeepEqual(got, want) {
					t.Errorf("%s=%s made it %v, the flag %v", variable(flag), sample, got, want)
				}
			})
		}
	}
}

// checkKeys sets a flag by its keys in a file.
func checkKeys(t *testing.T, command string, flag *kong.Flag, sample string, line []string, want any) {
	t.Helper()
	for _, content := range []string{
		settingName(flag) + ": " + sample,
		command + ":\n  " + flag.Name + ": " + sample,
		`{"` + command + `": {"` + flag.Name + `": "` + sample + `"}}`,
	} {
		if got := mustParse(t, command, flag.Name, append(slices.Clone(line), "--config="+configOf(t, content))...); !reflect.DeepEqual(got, want) {
			t.Errorf("%s made it %v, the flag %v", content, got, want)
		}
	}
}

func TestHelpShowsTheVariableOfEveryFlag(t *testing.T) {
	parser, err := parseLine("nodes")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Children {
		_, help, _ := commandLine("", command.Name, "--help")
		for _, flag := range slices.Concat(command.Flags, parser.Model.Flags) {
			if name := variable(flag); name != "" && !strings.Contains(strings.Join(strings.Fields(help), " "), "$"+name+").") {
				t.Errorf("%s --help does not show %s", command.Name, name)
			}
		}
	}
}

func TestAFlagRanksAboveAVariableAVariableAboveAFileAndASectionAboveItsFile(t *testing.T) {
	both := "--config=" + configOf(t, "max-active: 2\nrun:\n  max-active: 3\n")
	flat := "--config=" + configOf(t, "max-active: 2\nnodes:\n  json: true\n")
	active := func(args ...string) any {
		t.Helper()
		return mustParse(t, "run", "max-active", append([]string{"run"}, args...)...)
	}
	if got := active(); got != 8 {
		t.Errorf("the default is %v", got)
	}
	if got := active(flat); got != 2 {
		t.Errorf("with a key %v", got)
	}
	if got := active(both); got != 3 {
		t.Errorf("with a key in the section %v", got)
	}
	t.Setenv("MESHNET_MAX_ACTIVE", "4")
	if got := active(both); got != 4 {
		t.Errorf("with a variable %v", got)
	}
	if got := active(both, "--max-active=5"); got != 5 {
		t.Errorf("with a flag %v", got)
	}
	t.Setenv("MESHNET_MAX_ACTIVE", "")
	if got := active(both); got != 3 {
		t.Errorf("with an empty variable %v", got)
	}
}

func TestAFileIsNamedByAVariableAndAFlagNamesAnother(t *testing.T) {
	t.Setenv("MESHNET_CONFIG", configOf(t, "max-active: 2"))
	if got := mustParse(t, "run", "max-active", "run"); got != 2 {
		t.Errorf("by the variable %v", got)
	}
	if got := mustParse(t, "run", "max-active", "run", "--config", configOf(t, "max-active: 3")); got != 3 {
		t.Errorf("by the flag %v", got)
	}
}

func TestASwitchThatIsOnInAFileIsTurnedOffByAFlag(t *testing.T) {
	config := "--config=" + configOf(t, "exact: yes")
	if got := mustParse(t, "run", "exact", "run", config); got != true {
		t.Errorf("exact is %v", got)
	}
	if got := mustParse(t, "run", "exact", "run", config, "--exact=false"); got != false {
		t.Errorf("with --exact=false it is %v", got)
	}
}

func TestTheModelOfSubmitIsAnotherSettingThanTheFileOfRun(t *testing.T) {
	config := configOf(t, "model: /models/qwen.gguf\nserved-model: qwen\n")
	if got := mustParse(t, "run", "model", "run", "--config", config); got != "/models/qwen.gguf" {
		t.Errorf("run serves %v", got)
	}
	if got := mustParse(t, "submit", "model", "submit", "--config", config); got != "qwen" {
		t.Errorf("submit asks for %v", got)
	}
}

func TestAFileNamesFilesFromTheHomeFolder(t *testing.T) {
	got := mustParse(t, "run", "model", "run", "--config", configOf(t, "model: ~/models/qwen.gguf")).(string)
	if !filepath.IsAbs(got) || !strings.HasSuffix(got, "/models/qwen.gguf") || strings.Contains(got, "~") {
		t.Errorf("the model is %s", got)
	}
	if got := mustParse(t, "run", "model", "run", "--model="); got != "" {
		t.Errorf("with an empty flag it is %s", got)
	}
}

func TestAFileTakesWhatYAMLAndJSONHave(t *testing.T) {
	for _, c := range []struct {
		claim, command, flag, content string
		want                          any
	}{
		{"a list", "sweep", "levels", "levels: [1, 16]", []int{1, 16}},
		{"a list in lines", "sweep", "levels", "levels:\n- 1\n- 16\n", []int{1, 16}},
		{"a list as the flag has it", "sweep", "levels", "levels: 1,16", []int{1, 16}},
		{"JSON with tabs", "sweep", "levels", "{\n\t\"levels\": [1, 16]\n}", []int{1, 16}},
		{"leading zeros of a password", "run", "password", "password: 0123", "0123"},
		{"a value that others share", "run", "queue-depth", "max-active: &n 3\nqueue-depth: *n\n", 3},
		{"a key without a value", "run", "max-active", "max-active:\n", 8},
		{"an empty file", "run", "max-active", "", 8},
		{"a file of comments", "run", "max-active", "# max-active: 4\n", 8},
		{"a list of names and files", "run", "lora", "lora:\n- poet=/m/poet.gguf\n- sql=/m/a,b.gguf:0.5\n", []string{"poet=/m/poet.gguf", "sql=/m/a,b.gguf:0.5"}},
		{"names with values", "run", "tenant-weight", "run:\n  tenant-weight:\n    lab: 2\n    guests: 0.5\n", map[string]float64{"lab": 2, "guests": 0.5}},
		{"a section of comments", "run", "max-active", "run:\n  # max-active: 4\n", 8},
		{"settings of other commands", "run", "max-active", "levels: nonsense\nsubmit:\n  deadline: nonsense\n", 8},
	} {
		if got := mustParse(t, c.command, c.flag, c.command, "--config", configOf(t, c.content)); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v; want %v", c.claim, got, c.want)
		}
	}
}

func TestAWrongFileIsOneErrorLineThatNamesKeyFileAndWhatToDo(t *testing.T) {
	for _, c := range []struct{ claim, content, text string }{
		{"a misspelt key", "max_active: 4", `--config: "max_active" in FILE, line 1 is no flag of any command; the nearest is "max-active"`},
		{"a misspelt key of a section", "run:\n  max-activ: 4", `--config: "max-activ" in FILE, line 2 is no flag of ` + "`worker run`" + `; the nearest is "max-active"`},
		{"a flag of another command", "run:\n  levels: 1,2", `"levels" in FILE, line 2 is no flag of ` + "`worker run`"},
		{"a word for a number", "name: x\nmax-active: many", `--max-active: expected a valid 64 bit int but got "many" ("max-active" in FILE, line 2)`},
		{"a fraction for a number", "max-active: 4.5", `("max-active" in FILE, line 1)`},
		{"a number for a switch", "exact: 3", `--exact: bool value must be true, 1, yes, false, 0 or no but got "3" ("exact" in FILE, line 1)`},
		{"a number for a duration", "ack-wait: 30", `--ack-wait: expected duration but got "30": time: missing unit in duration "30" ("ack-wait" in FILE, line 1)`},
		{"no number of bytes", "kv-budget: 1GB", `--kv-budget: "1GB" is no number of bytes; write 1073741824, 1024MiB or 1GiB ("kv-budget" in FILE, line 1)`},
		{"a word that is no choice", "provision: maybe", `--provision: must be one of auto, verify but is "maybe" ("provision" in FILE, line 1)`},
		{"a file that is not there", "creds: /none/node.creds", `--creds: stat /none/node.creds: no such file or directory ("creds" in FILE, line 1)`},
		{"a list for one value", "max-active: [1, 2]", `--max-active: takes one value, not a list ("max-active" in FILE, line 1)`},
		{"settings for a value", "max-active: {a: 1}", `--max-active: takes a value, not settings ("max-active" in FILE, line 1)`},
		{"a value for a section", "run: 4", `--config: "run" in FILE, line 1 is a command: write flags of ` + "`worker run`" + ` under it`},
		{"a key twice", "node: a\nnode: b", `--config: "node" in FILE, line 2 is there twice`},
		{"another file", "config: other.yaml", `--config: "config" in FILE, line 1: a config file cannot name another one`},
		{"a flag that asks at once", "version: true", `"version" in FILE, line 1 is no flag of any command`},
		{"a list of settings", "- max-active", "--config: FILE has no settings; write names of flags and their values, like `max-active: 4`"},
		{"two documents", "node: a\n---\nnode: b", `--config: FILE has more than one document; put all settings into one`},
		{"no YAML", "node: [", `--config: FILE is no YAML: yaml: line 1: did not find expected node content`},
		{"too large", "# " + strings.Repeat("x", maxConfigBytes), `--config: FILE is larger than 1048576 bytes`},
	} {
		path := configOf(t, c.content)
		code, stdout, stderr := commandLine("", "run", "--config", path)
		want := strings.ReplaceAll(c.text, "FILE", path)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, stderr %q; want %q", c.claim, code, stderr, want)
		}
	}
}

func TestAFileThatCannotBeReadOrAWrongVariableIsOneErrorLine(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct{ name, value, text string }{
		{"MESHNET_CONFIG", folder + "/none.yaml", "MESHNET_CONFIG: open " + folder + "/none.yaml: no such file or directory"},
		{"MESHNET_CONFIG", folder, "MESHNET_CONFIG: read " + folder + ": is a directory"},
		{"MESHNET_THREADS", "all", `--threads: expected a valid 64 bit int but got "all" (MESHNET_THREADS)`},
		{"MESHNET_HOT_BUDGET", "much", `--hot-budget: "much" is no number of bytes; write 1073741824, 1024MiB or 1GiB (MESHNET_HOT_BUDGET)`},
		{"MESHNET_PROVISION", "maybe", `--provision: must be one of auto, verify but is "maybe" (MESHNET_PROVISION)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			code, _, stderr := commandLine("", "run")
			if want := "worker: " + c.text + "\n"; code != exitUsage || stderr != want {
				t.Errorf("exit %d, stderr %q; want %q", code, stderr, want)
			}
		})
	}
}

func TestAWrongVariableOfAnotherCommandDisturbsNobody(t *testing.T) {
	t.Setenv("MESHNET_LEVELS", "nonsense")
	if got := mustParse(t, "run", "max-active", "run"); got != 8 {
		t.Errorf("max-active is %v", got)
	}
}

func TestAConfigFileDrivesACommand(t *testing.T) {
	config := configOf(t, "threads: 1\ngenerate:\n  max-tokens: 5\n  json: true\n")
	var stdout, stderr bytes.Buffer
	code := run([]string{"generate", "--config", config, storyPrompt}, strings.NewReader(""), &stdout, &stderr)
	var doc generateDocument
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil {
		t.Fatalf("%v: exit %d, stderr %q", err, code, stderr.String())
	}
	if code != exitDone || doc.Usage.NewTokens != 5 {
		t.Errorf("exit %d, %d tokens", code, doc.Usage.NewTokens)
	}
}
