package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshnet/node/bench"
	"github.com/meshnet/node/models"
)

func TestBadBenchFlagsAreRefusedWithBothNumbers(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--concurrency", "0"}, "--concurrency has 0; use 1 to 4096"},
		{[]string{"--concurrency", "1,8", "--requests", "4"}, "--requests is 4, less than the 8 of --concurrency"},
		{[]string{"--concurrency", "1", "--rate", "2"}, "--concurrency"},
		{[]string{"--rate", "NaN"}, "--rate has NaN"},
		{[]string{"--requests", "0"}, "--requests is 0; use 1 to 1000000"},
		{[]string{"--rounds", "0"}, "--rounds is 0; use 1 to 1000"},
		{[]string{"--warmup=-1"}, "--warmup is -1; use 0 to 10000"},
		{[]string{"--prompt-tokens", "192-64"}, "begins at 192 and ends at 64"},
		{[]string{"--output-tokens", "0"}, "0 tokens; use 1 to 65280"},
		{[]string{"--shared-prefix", "65200"}, "--shared-prefix is 65200 and --prompt-tokens go to 128; use at least 0, and together at most 65280"},
		{[]string{"--slo", "ttft=fast"}, "no limit"},
		{[]string{"--timeout", "2h"}, "--timeout is 2h0m0s; use 1s to 59m50s"},
		{[]string{"--peer", "host:8080"}, "--peer: "},
		{[]string{"--peer", "http://host", "--peer-name", "mesh"}, `--peer-name is "mesh"`},
		{[]string{"--json", dir + "/a", "--html", dir + "/a"}, "name two files"},
		{[]string{"--html", "-"}, "--html writes a file"},
		{[]string{"--html", dir + "/none/a.html"}, "no such file or directory"},
		{[]string{"--prompts", dir + "/none"}, "no such file or directory"},
		{[]string{"--prompts", dir}, "is a directory"},
		{[]string{"--prompts", file("empty", "")}, "0 bytes and no prompt"},
		{[]string{"--prompts", file("binary", "\x00\x01")}, "line 1: it is no UTF-8 text"},
		{[]string{"--prompts", file("fine", "a"), "--shared-prefix", "3"}, "leave out --shared-prefix 3"},
	} {
		code, stdout, stderr := commandLine("", append([]string{"bench"}, c.args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit %d, stdout %q, stderr %q; want %q", c.args, code, stdout, stderr, c.want)
		}
	}
	if left, _ := filepath.Glob(dir + "/*.tmp"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// completions is a server that answers as OpenAI's API does, with as many words as it is asked for.
func completions(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, strings.Repeat("data: {\"choices\":[{\"text\":\"word \"}]}\n\n", body.MaxTokens)+
			fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", body.MaxTokens))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestBenchMeasuresAMeshAndAPeerAndWritesItsFiles(t *testing.T) {
	mesh := demoMeshOf(t)
	dir := t.TempDir()
	args := []string{"bench", "--nats", mesh.server.ClientURL(), "--concurrency", "1,2", "--requests", "2", "--rounds", "2", "--warmup", "1",
		"--prompt-tokens", "8", "--output-tokens", "4", "--peer", completions(t), "--peer-name", "fake"}
	code, stdout, stderr := commandLine("", append(args, "--json", dir+"/r.json", "--html", dir+"/r.html", "--slo", "e2el=1m")...)
	if code != exitDone || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	for _, want := range []string{models.StoryName + ": 8 random token ids", "1 at once  mesh", "2 at once", "fake", "ratio", "goodput req/s", "TPOT"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	data, err := os.ReadFile(dir + "/r.json")
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Phases {
		for _, s := range p.Systems {
			if s.Median.Completed != 4 || s.Median.Failed != 0 || s.Median.OutputTokens != 16 || s.Median.PromptTokens != 32 || len(s.Rounds) != 2 {
				t.Errorf("%s, %s: %+v", p.Name, s.System, s.Median)
			}
		}
	}
	if html, err := os.ReadFile(dir + "/r.html"); err != nil || !bytes.HasSuffix(bytes.TrimSpace(html), []byte("</html>")) {
		t.Errorf("the page: %v, %d bytes", err, len(html))
	}
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 2 {
		t.Errorf("files %v", files)
	}

	code, stdout, stderr = commandLine("Once upon a time\nA fox\n", "bench", "--nats", mesh.server.ClientURL(), "--rate", "50", "--requests", "3", "--output-tokens", "3", "--prompts", "-", "--json", "-")
	decoder := json.NewDecoder(strings.NewReader(stdout))
	report = bench.Report{}
	if err := decoder.Decode(&report); code != exitDone || err != nil || decoder.More() || stderr != "" || report.Phases[0].Systems[0].Median.Completed != 3 {
		t.Errorf("exit %d, %v, stderr %q, stdout %q", code, err, stderr, stdout)
	}

	code, _, stderr = commandLine("", "bench", "--nats", mesh.server.ClientURL(), "--prompt-tokens", "500", "--output-tokens", "13")
	if want := "up to 513 tokens together, the nodes of " + models.StoryName + " take 512"; code != exitUsage || !strings.Contains(stderr, want) {
		t.Errorf("exit %d, stderr %q; want %q", code, stderr, want)
	}
}

func TestCtrlCEndsABenchWithWhatWasMeasured(t *testing.T) {
	mesh := demoMeshOf(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out bytes.Buffer
	env := newEnvironment(ctx, strings.NewReader(""), &out, io.Discard)
	var answered atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // a server sees its client leave only once it has read the body
		if answered.Add(1) < 3 {    // the third comes when two requests of the mesh have completed
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
			return
		}
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	rounds := 2
	c := benchCommand{
		natsFlags: natsFlags{NATS: mesh.server.ClientURL(), SubjectPrefix: "mesh.v1"}, Tenant: "default", Concurrency: []int{1}, Requests: &rounds, Rounds: &rounds,
		Timeout: time.Minute, Stall: time.Minute, PromptTokens: bench.Lengths{Min: 4, Max: 4}, OutputTokens: bench.Lengths{Min: 2, Max: 2}, PromptForm: "ids",
		Peer: server.URL, PeerName: "fake",
	}
	if code := finish(env, c.Run(env)); code != exitCancelled {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{"The run was interrupted", "1 were in flight when the run was interrupted", "1 at once  mesh "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestTheProgressOfABenchIsOneLine(t *testing.T) {
	for want, p := range map[string]bench.Progress{
		"warm-up, mesh: 0 of 2 requests":                            {Phase: "warm-up", System: "mesh", Total: 2},
		"round 2 of 5, 8 at once, peer: 3 of 32 requests, 50 tok/s": {Phase: "8 at once", System: "peer", Round: 2, Rounds: 5, Done: 3, Total: 32, Pieces: 100, InPhase: 2 * time.Second},
	} {
		if got := progressLine(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
