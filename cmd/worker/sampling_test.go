package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/meshnet/node/sampling"
	"github.com/meshnet/node/scheduler"
)

// parsed is what a command line makes of the sampling flags.
func parsed(t *testing.T, args ...string) *samplingFlags {
	t.Helper()
	parser, err := newParser(&environment{ctx: context.Background(), stdout: io.Discard, stderr: io.Discard}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	c, err := parser.Parse(append([]string{"generate", "x"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	command, ok := c.Selected().Target.Addr().Interface().(*generateCommand)
	if !ok {
		t.Fatalf("the command is a %s", c.Selected().Target.Type())
	}
	return &command.samplingFlags
}

func TestWithoutFlagsTheSamplingIsTheDefault(t *testing.T) {
	flags, want := parsed(t, "--seed", "0"), scheduler.DefaultSampling()
	if got := flags.sampling(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	greedy := greedyFlags()
	flags.Seed = nil
	if !reflect.DeepEqual(&greedy, flags) {
		t.Errorf("greedyFlags are %+v, and a command line without flags is %+v", greedy, flags)
	}
}

func TestEveryOptionOfTheTableHasItsFlag(t *testing.T) {
	for _, n := range sampling.Numbers() {
		flag := "--" + strings.ReplaceAll(n.Name, "_", "-") + "="
		p := parsed(t, flag+strconv.FormatFloat(n.Max, 'f', -1, 64)).params()
		if reflect.DeepEqual(p, sampling.Default()) && n.Max != n.Default {
			t.Errorf("%s%g changes nothing", flag, n.Max)
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%s%g: %v", flag, n.Max, err)
		}
		err := parsed(t, flag+strconv.FormatFloat(n.Max+1, 'f', -1, 64)).params().Validate()
		if err == nil || !strings.HasPrefix(err.Error(), n.Name+" is ") {
			t.Errorf("%s%g: %v, want a refusal that names %s", flag, n.Max+1, err, n.Name)
		}
	}
}

func TestListsOfFlagsKeepWhatIsInThem(t *testing.T) {
	f := parsed(t, "--logit-bias", "7=-inf", "--logit-bias", "3=1.5", "--stop", "a, b", "--stop", "\n", "--dry-sequence-breaker", "x,y", "--min-tokens", "4")
	p := f.sampling()
	want := []scheduler.Bias{{Token: 3, Bias: 1.5}, {Token: 7, Bias: math.Inf(-1)}}
	if !reflect.DeepEqual(p.LogitBias, want) || !reflect.DeepEqual(p.DRYBreakers, []string{"x,y"}) || p.MinNewTokens != 4 {
		t.Errorf("%+v", p)
	}
	if !reflect.DeepEqual(f.Stop, []string{"a, b", "\n"}) {
		t.Errorf("stop strings %q", f.Stop)
	}
}

// generated is what generate prints as JSON.
func generated(t *testing.T, args ...string) generateDocument {
	t.Helper()
	code, stdout, stderr := commandLine("", append([]string{"generate", "--threads", "1", "--json", "-n", "30", storyPrompt}, args...)...)
	var doc generateDocument
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != exitDone {
		t.Fatalf("exit %d, %v: %q %q", code, err, stdout, stderr)
	}
	return doc
}

func TestGenerateEndsAtAStopString(t *testing.T) {
	whole := generated(t)
	at := len(whole.Text) / 2
	stop := whole.Text[at : at+9]
	at = strings.Index(whole.Text, stop)
	doc := generated(t, "--stop", stop)
	if doc.Text != whole.Text[:at] || doc.Finish != "stop-string" || len(doc.TokenIDs) >= len(whole.TokenIDs) {
		t.Errorf("%q ends %s, want %q", doc.Text, doc.Finish, whole.Text[:at])
	}
	if doc := generated(t, "--stop", stop, "--min-tokens", "30"); doc.Text != whole.Text || doc.Finish != "length" {
		t.Errorf("with 30 least tokens %q ends %s", doc.Text, doc.Finish)
	}
}

func TestGenerateTellsLogProbabilities(t *testing.T) {
	doc := generated(t, "--n-probs", "3")
	if len(doc.Probs) != len(doc.TokenIDs) {
		t.Fatalf("%d log-probabilities of %d tokens", len(doc.Probs), len(doc.TokenIDs))
	}
	for i, p := range doc.Probs {
		if len(p.TopIDs) != 3 || p.TopIDs[0] != int64(doc.TokenIDs[i]) || p.TopProbs[0] != p.LogProb {
			t.Errorf("token %d, %d, has %+v", i, doc.TokenIDs[i], p)
		}
	}
}

func TestASampledSweepFindsEverySessionTheSame(t *testing.T) {
	code, stdout, stderr := commandLine("", "sweep", "--levels", "1,4", "--requests", "4", "--max-tokens", "16", "--threads", "1", "--exact", "--sampled", "--json")
	var doc sweepDocument
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil || code != exitDone {
		t.Fatalf("exit %d, %v: %q %q", code, err, stdout, stderr)
	}
	_, greedy, _ := commandLine("", "sweep", "--levels", "1,4", "--requests", "4", "--max-tokens", "16", "--threads", "1", "--exact", "--json")
	var plain sweepDocument
	if err := json.Unmarshal([]byte(greedy), &plain); err != nil {
		t.Fatal(err)
	}
	if !doc.Certified || reflect.DeepEqual(doc.ReferenceOutputs, plain.ReferenceOutputs) {
		t.Errorf("certified %t, unproven %q; the samplers must change the tokens: %v, greedy %v", doc.Certified, doc.Unproven, doc.ReferenceOutputs, plain.ReferenceOutputs)
	}
}
