package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/goleak"

	"github.com/meshnet/node/llama"

	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
)

// asWorker makes the test binary behave as the worker, for tests that need a process of their own.
const asWorker = "MESHNET_TEST_AS_WORKER"

func TestMain(m *testing.M) {
	llama.ConvertSchemaIfAsked()
	if os.Getenv(asWorker) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// commandLine runs a command line in this process.
func commandLine(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

const (
	storyPrompt = "Once upon a time"
	storyBegin  = ", there was a small sailor named Luna. Luna lived in a harbor near the bridge."
)

func TestGenerateContinuesTheTextAndPrintsNothingElse(t *testing.T) {
	code, stdout, stderr := commandLine("", "generate", "--threads", "1", storyPrompt)
	if code != exitDone || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	if !strings.HasPrefix(stdout, storyBegin) || !strings.HasSuffix(stdout, " The end.\n") {
		t.Errorf("stdout is %q", stdout)
	}
}

func TestGenerateReadsThePromptFromStandardInput(t *testing.T) {
	_, direct, _ := commandLine("", "generate", "--threads", "1", "-n", "20", storyPrompt)
	code, piped, stderr := commandLine(storyPrompt, "generate", "--threads", "1", "-n", "20", "-")
	if code != exitDone || piped != direct {
		t.Errorf("exit %d, stdout %q, stderr %q; want %q", code, piped, stderr, direct)
	}
}

func TestGenerateJSONIsOneDocumentWithTheSameText(t *testing.T) {
	_, text, _ := commandLine("", "generate", "--threads", "1", storyPrompt)
	code, stdout, stderr := commandLine("", "generate", "--threads", "1", "--json", storyPrompt)
	if code != exitDone || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	var doc generateDocument
	decoder := json.NewDecoder(strings.NewReader(stdout))
	if err := decoder.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if decoder.More() {
		t.Errorf("more than one document: %q", stdout)
	}
	if doc.Text+"\n" != text {
		t.Errorf("text %q, without --json %q", doc.Text, text)
	}
	if doc.SchemaVersion != 1 || doc.Reason != "completed" || doc.Finish != "stop" || doc.Seed != nil {
		t.Errorf("document %+v", doc)
	}
	if doc.Usage.PromptTokens != 5 || doc.Usage.NewTokens != len(doc.TokenIDs) {
		t.Errorf("usage %+v with %d token ids", doc.Usage, len(doc.TokenIDs))
	}
}

func TestASeedIsChosenAndReportedAndRepeatsTheText(t *testing.T) {
	sampled := func(args ...string) generateDocument {
		t.Helper()
		_, stdout, stderr := commandLine("", append([]string{"generate", "--threads", "1", "--json", "--temperature", "1.5", "-n", "40", storyPrompt}, args...)...)
		var doc generateDocument
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || doc.Seed == nil {
			t.Fatalf("%v: %q %q", err, stdout, stderr)
		}
		return doc
	}
	first := sampled()
	seed, _ := json.Marshal(*first.Seed)
	if again := sampled("--seed", string(seed)); again.Text != first.Text {
		t.Errorf("seed %s told %q, then %q", seed, first.Text, again.Text)
	}
}

func TestExitCodesSayWhatWentWrong(t *testing.T) {
	long := strings.Repeat("the fox ", 2000) // 4000 tokens, as many bytes as 1778 of the longest
	notGGUF := t.TempDir() + "/not.gguf"
	if err := os.WriteFile(notGGUF, []byte("plain text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim string
		args  []string
		code  int
		text  string // in stderr
	}{
		{"unknown flag", []string{"generate", "--frobnicate"}, exitUsage, "--frobnicate"},
		{"unknown command", []string{"frobnicate"}, exitUsage, "frobnicate"},
		{"text and tokens", []string{"generate", "--tokens", "1", "x"}, exitUsage, "--tokens"},
		{"context beyond the model", []string{"generate", "--ctx", "4096", "x"}, exitUsage, "made for 2048"},
		{"negative temperature", []string{"generate", "--temperature=-1", "x"}, exitRejected, "temperature is -1"},
		{"NaN temperature", []string{"generate", "--temperature", "NaN", "x"}, exitRejected, "temperature is NaN"},
		{"infinite top_p", []string{"generate", "--top-p", "+Inf", "x"}, exitRejected, "top_p is +Inf"},
		{"typical_p 0", []string{"generate", "--typical-p", "0", "x"}, exitRejected, "typical_p is 0"},
		{"a bias of a token that there is not", []string{"generate", "--logit-bias", "1024=1", "x"}, exitRejected, "logit_bias[0] is 1024"},
		{"a bias of 101", []string{"generate", "--logit-bias", "3=101", "x"}, exitRejected, "logit_bias[0] is 101"},
		{"an empty stop string", []string{"generate", "--stop", "", "x"}, exitRejected, "stop[0] is 0 bytes long"},
		{"more least tokens than tokens", []string{"generate", "-n", "5", "--min-tokens", "6", "x"}, exitRejected, "min_new_tokens is 6"},
		{"no new tokens", []string{"generate", "-n", "0", "x"}, exitRejected, "max_new_tokens is 0"},
		{"minus one is not unlimited", []string{"generate", "--max-tokens=-1", "x"}, exitRejected, "max_new_tokens is -1"},
		{"token id beyond 64 bits", []string{"generate", "--tokens", "9223372036854775808", "x"}, exitUsage, "9223372036854775808"},
		{"token id outside the vocabulary", []string{"generate", "--tokens", "1,5279552648203111001"}, exitRejected, "tokens[1] is 5279552648203111001"},
		{"prompt beyond the context", []string{"generate", long}, exitRejected, "rejected-context"},
		{"text that no context holds", []string{"generate", long + long}, exitRejected, "text too long"},
		{"a sweep of one level", []string{"sweep", "--levels", "4,4"}, exitUsage, "at least two"},
		{"a sweep without a crowd", []string{"sweep", "--levels", "1,8", "--requests", "2"}, exitUsage, "--requests is 2"},
		{"a sweep beyond memory", []string{"sweep", "--requests", "1000000000"}, exitUsage, "--requests is 1000000000"},
		{"prompts beyond 64 bits", []string{"sweep", "--prompt-tokens", "9223372036854775807"}, exitUsage, "--prompt-tokens is 9223372036854775807"},
		{"a sweep beyond the context", []string{"sweep", "--threads", "1", "--prompt-tokens", "3000"}, exitUsage, "the context has 2048"},
		{"a weight of nothing", []string{"run", "--max-active", "1", "--ctx", "256", "--nats", "nats://127.0.0.1:1", "--tenant-weight", "acme=0"}, exitUsage, "weights[acme] is 0"},
		{"no such model", []string{"generate", "--model", t.TempDir() + "/none.gguf", "x"}, exitFailed, "no such file"},
		{"not a model", []string{"generate", "--model", notGGUF, "x"}, exitFailed, "not a GGUF"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			code, stdout, stderr := commandLine("", c.args...)
			if code != c.code || !strings.Contains(stderr, c.text) || stdout != "" {
				t.Errorf("exit %d, stdout %q, stderr %q; want exit %d and %q", code, stdout, stderr, c.code, c.text)
			}
			if lines := strings.Count(stderr, "\n"); lines > 1 {
				t.Errorf("the error takes %d lines: %q", lines, stderr)
			}
		})
	}
}

func TestAZeroThatMeansNothingIsRefusedAndNotTakenForTheDefault(t *testing.T) {
	for _, c := range []struct{ flag, want string }{
		{"--max-active=0", "--max-active is 0; use 1 to 256"},
		{"--replicas=0", "--replicas is 0; use at least 1"},
		{"--tenant-quota=0", "--tenant-quota is 0; use at least 1"},
		{"--replay-max=0", "--replay-max is 0; use at least 1, or -1 for no limit"},
		{"--ack-wait=0s", "--ack-wait is 0s; use 2s or more"},
		{"--kv-budget=1", "--kv-budget is 1 bytes; the KV of a single token of this model takes "},
	} {
		if code, _, stderr := commandLine("", "run", "--threads", "1", c.flag); code != exitUsage || !strings.HasPrefix(stderr, "worker: "+c.want) {
			t.Errorf("%s: exit %d, stderr %q", c.flag, code, stderr)
		}
	}
}

func TestADrainTimeoutOfZeroIsNone(t *testing.T) {
	c := runCommand{
		natsFlags: natsFlags{SubjectPrefix: "mesh.v1"}, Node: "n1", MaxActive: 1, Replicas: 1, TenantQuota: 1, ReplayMax: 1, AckWait: time.Second, kvFlags: kvFlags{KVSpillBudget: 1},
	}
	cfg, err := c.config(newEnvironment(t.Context(), strings.NewReader(""), io.Discard, io.Discard))
	if err != nil || cfg.DrainTimeout >= 0 {
		t.Errorf("the service is to drain for %s, %v", cfg.DrainTimeout, err)
	}
}

func TestANumberWithALeadingZeroIsDecimal(t *testing.T) {
	var cli struct {
		Turn   uint64        `arg:""`
		Count  *int          // a flag whose absence is known
		Tokens []int64       // and one with several
		Wait   time.Duration // is no number
	}
	parser, err := kong.New(&cli, decimals())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"010", "--count=-07", "--tokens=08,10", "--wait=1m"}); err != nil {
		t.Fatal(err)
	}
	if cli.Turn != 10 || *cli.Count != -7 || !slices.Equal(cli.Tokens, []int64{8, 10}) || cli.Wait != time.Minute {
		t.Errorf("parsed %+v", cli)
	}
	for _, word := range []string{"0x10", "1_0", "1e1", "-1", "18446744073709551616"} {
		if _, err := parser.Parse([]string{"--", word}); err == nil {
			t.Errorf("%s is read as %d", word, cli.Turn)
		}
	}
}

func TestHelpShowsExamples(t *testing.T) {
	for _, command := range []string{"generate", "sweep"} {
		code, stdout, _ := commandLine("", command, "--help")
		if code != exitDone || !strings.Contains(stdout, "worker "+command) || !strings.Contains(stdout, "Examples:") {
			t.Errorf("%s --help: exit %d, %q", command, code, stdout)
		}
	}
}

// cancelOnWrite cancels a context at the first write.
type cancelOnWrite struct {
	text   strings.Builder
	cancel context.CancelFunc
}

func (w *cancelOnWrite) Write(p []byte) (int, error) {
	w.cancel()
	return w.text.Write(p)
}

func TestCtrlCEndsGenerateAfterTheTokenInFlight(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out := &cancelOnWrite{cancel: cancel}
	env := newEnvironment(ctx, strings.NewReader(""), out, io.Discard)
	c := generateCommand{Text: storyPrompt, modelFlags: modelFlags{Threads: 1}, samplingFlags: greedyFlags()}
	err := c.Run(env)
	if !errors.Is(err, errCancelled) {
		t.Fatalf("error %v", err)
	}
	if text := out.text.String(); !strings.HasSuffix(text, "\n") || len(text) > len(storyBegin) {
		t.Errorf("after Ctrl-C at the first token: %q", text)
	}
}

func TestCtrlCEndsTheWaitForAPromptThatDoesNotCome(t *testing.T) {
	stdin, never := io.Pipe()
	defer never.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	env := newEnvironment(ctx, stdin, io.Discard, io.Discard)
	if err := (&generateCommand{Text: "-"}).Run(env); !errors.Is(err, errCancelled) {
		t.Errorf("error %v", err)
	}
}

func TestAModelOnWhichLlamaCPPGivesUpIsOneErrorLine(t *testing.T) {
	model := bytes.Clone(models.Story())
	key := []byte("llama.block_count")
	at := bytes.Index(model, key) + len(key) + 4 // the value follows its type
	copy(model[at:], []byte{0, 0, 0, 0})
	path := t.TempDir() + "/no-layers.gguf"
	if err := os.WriteFile(path, model, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "generate", "--model", path, "x")
	cmd.Env = append(os.Environ(), asWorker+"=1")
	output, err := cmd.CombinedOutput()
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != exitFailed {
		t.Errorf("%v", err)
	}
	if text := string(output); !strings.HasPrefix(text, "llama.cpp gave up") || strings.Count(text, "\n") != 1 {
		t.Errorf("output %q", text)
	}
}

func TestAnExactSweepRestoresKVAndSaysWhenItCannot(t *testing.T) {
	sweep := func(args ...string) (int, sweepDocument) {
		t.Helper()
		code, stdout, stderr := commandLine("", append([]string{"sweep", "--exact", "--json", "--threads", "1", "--levels", "1,2", "--max-tokens", "8"}, args...)...)
		var doc sweepDocument
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
			t.Fatalf("%v: %q %q", err, stdout, stderr)
		}
		return code, doc
	}
	code, doc := sweep()
	if code != exitDone || !doc.Certified || doc.Settings[1].Results[0].CachedTokens == 0 {
		t.Errorf("exit %d, certified %t, unproven %q, hot %+v", code, doc.Certified, doc.Unproven, doc.Settings[1].Results)
	}
	code, doc = sweep("--prefill-chunk", "256")
	if code != exitFailed || doc.Certified || !strings.Contains(doc.Unproven, "no KV was reused") {
		t.Errorf("with nothing to restore: exit %d, certified %t, unproven %q", code, doc.Certified, doc.Unproven)
	}
}

func TestAnExactSweepFailsWhereKeptKVChangesABit(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		exact bool
		want  error
	}{{false, nil}, {true, errKeptNotExact}} {
		report := &scheduler.SweepReport{
			Results:        []scheduler.SweepResult{{Concurrency: 1, MaxBatchOccupancy: 1}, {Concurrency: 2, MaxBatchOccupancy: 2}},
			CorruptionFree: true, BitExact: &yes, SettingsExact: &no,
			SettingDifferences: []scheduler.SettingDifference{{Setting: scheduler.SettingHot, Against: scheduler.SettingAfresh, TokensEqual: true,
				BitsEqual: &no, FirstDifference: &scheduler.Difference{Session: "s0"}}},
		}
		var stdout bytes.Buffer
		sweep := &sweepCommand{modelFlags: modelFlags{Exact: c.exact}}
		err := sweep.print(newEnvironment(t.Context(), nil, &stdout, io.Discard), llama.ModelFacts{}, report)
		if !errors.Is(err, c.want) || !strings.Contains(stdout.String(), "hot vs afresh          same tokens, not the same bits") {
			t.Errorf("exact %t: error %v, want %v; stdout %q", c.exact, err, c.want, &stdout)
		}
	}
}

// failingWriter is a full disk.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAFullDiskIsOneErrorLine(t *testing.T) {
	var stderr bytes.Buffer
	for _, args := range [][]string{
		{"generate", "--threads", "1", storyPrompt},
		{"generate", "--threads", "1", "--json", storyPrompt},
	} {
		stderr.Reset()
		code := run(args, strings.NewReader(""), failingWriter{}, &stderr)
		if code != exitFailed || !strings.Contains(stderr.String(), "no space left") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: exit %d, stderr %q", args, code, stderr.String())
		}
	}
}

func TestTheProcessExitsWithTheCodeOfItsCommand(t *testing.T) {
	cmd := exec.Command(os.Args[0], "generate", "-n", "0", "x")
	cmd.Env = append(os.Environ(), asWorker+"=1")
	output, err := cmd.CombinedOutput()
	var exited *exec.ExitError
	if !errors.As(err, &exited) || exited.ExitCode() != exitRejected {
		t.Errorf("%v: %s", err, output)
	}
}
