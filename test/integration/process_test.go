package integration

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/schemas"
)

// binaryDir is where binary put the worker; TestMain removes it.
var binaryDir string

// binary builds the worker once for all tests.
var binary = sync.OnceValues(func() (path string, err error) {
	if binaryDir, err = os.MkdirTemp("", "meshnet-worker-"); err != nil {
		return "", err
	}
	path = filepath.Join(binaryDir, "worker")
	output, err := exec.Command("go", "build", "-o", path, "../../cmd/worker").CombinedOutput()
	if err != nil {
		os.Stderr.Write(output) //nolint:errcheck // the error below says that it failed
	}
	return path, err
})

// workerProcess is `worker run` in a process of its own.
type workerProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	log *strings.Builder
	end chan struct{} // closed when its output ended
}

// startWorker returns once the worker is ready.
func startWorker(t *testing.T, url, node string, args ...string) *workerProcess {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	w := &workerProcess{t: t, log: &strings.Builder{}, end: make(chan struct{})}
	w.cmd = exec.Command(path, append([]string{"run", "--nats", url, "--node", node, "--threads", "1", "--ack-wait", "3s", "--drain-timeout", "5s"}, args...)...)
	stderr, err := w.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		defer close(w.end)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			w.log.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "serving ") {
				ready <- true
			}
		}
		close(ready)
	}()
	t.Cleanup(w.kill)
	if !<-ready {
		t.Fatalf("worker %s did not become ready:\n%s", node, w.log)
	}
	return w
}

// kill is SIGKILL. It may be called again.
func (w *workerProcess) kill() {
	w.cmd.Process.Kill() //nolint:errcheck // it has ended before
	<-w.end
	w.cmd.Wait() //nolint:errcheck // killed is what it was to be
}

// meshClient connects a client for as long as the test runs.
func meshClient(t *testing.T, url string) *client.Client {
	t.Helper()
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		nc.Close()
	})
	return c
}

func meshRequest(session string, newTokens int) client.Request {
	sampling := schemas.DefaultSampling()
	sampling.IgnoreEOS = true
	return client.Request{
		Tenant: "t", Session: session, Turn: 1, Model: "m", Prompt: "Once upon a time there was a small fox.",
		MaxNewTokens: newTokens, Sampling: &sampling, Deadline: time.Minute,
	}
}

// What breaks queues that ack before the work is done.
func TestATurnOfAKilledWorkerIsFinishedByAnotherWithoutLossOrDoubling(t *testing.T) {
	const newTokens = 1500
	server := natsservertest.Start(t, natsserver.Options{})
	model := testmodel.Path(t, "30layers-tiny", "f16")
	args := []string{"--model", model, "--name", "m", "--ctx", "2048", "--exact"}
	workers := map[string]*workerProcess{"a": startWorker(t, server.ClientURL(), "a", args...)}
	c := meshClient(t, server.ClientURL())
	undisturbed, err := generate(t, c, meshRequest("undisturbed", newTokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	workers["b"] = startWorker(t, server.ClientURL(), "b", args...)

	killed := false
	disturbed, err := generate(t, c, meshRequest("disturbed", newTokens), func(owner string, tokens int) {
		if tokens >= 5 && !killed {
			killed = true
			workers[owner].kill()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if disturbed.Final.Attempt != 2 || disturbed.Final.Count != newTokens {
		t.Errorf("attempt %d, %d tokens; want 2 and %d", disturbed.Final.Attempt, disturbed.Final.Count, newTokens)
	}
	if disturbed.Text != undisturbed.Text {
		t.Errorf("disturbed:   %.200q\nundisturbed: %.200q", disturbed.Text, undisturbed.Text)
	}
	again, err := generate(t, c, meshRequest("disturbed", newTokens), nil)
	if err != nil || again.Text != disturbed.Text || again.Final.Attempt != 2 {
		t.Errorf("submitted again: attempt %d, %v, %.100q", again.Final.Attempt, err, again.Text)
	}
}

// generate reads a turn to its end; on, if not nil, is told who runs it and how many tokens came.
func generate(t *testing.T, c *client.Client, req client.Request, on func(owner string, tokens int)) (*client.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := c.Generate(ctx, req)
	if err != nil {
		return nil, err
	}
	if on == nil {
		return stream.Wait()
	}
	owner, tokens, result := "", 0, &client.Result{}
	for event, err := range stream.Events() {
		if err != nil {
			return result, err
		}
		switch e := event.(type) {
		case client.Started:
			owner = e.Node.String()
		case client.Text:
			tokens = e.Index + len(e.TokenIDs)
			result.Text += e.Text
			on(owner, tokens)
		case client.Reset:
			t.Errorf("text was taken back from token %d on", e.Index)
		case client.Final:
			result.Final = e.Final
		}
	}
	return result, nil
}

func TestAWorkerToldToEndHandsItsTurnOverAndExits(t *testing.T) {
	const newTokens = 1500
	server := natsservertest.Start(t, natsserver.Options{})
	args := []string{"--model", testmodel.Path(t, "30layers-tiny", "f16"), "--name", "m", "--ctx", "2048", "--exact", "--drain-timeout", "1ms"}
	workers := map[string]*workerProcess{"a": startWorker(t, server.ClientURL(), "a", args...), "b": startWorker(t, server.ClientURL(), "b", args...)}
	c := meshClient(t, server.ClientURL())
	told := ""
	result, err := generate(t, c, meshRequest("s", newTokens), func(owner string, tokens int) {
		if tokens >= 5 && told == "" {
			told = owner
			if err := workers[owner].cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.Final.Count != newTokens || result.Final.Node.String() == told {
		t.Errorf("%d tokens, ended by %s, which was told to end", result.Final.Count, result.Final.Node)
	}
	<-workers[told].end
	if err := workers[told].cmd.Wait(); err != nil {
		t.Errorf("worker %s: %v\n%s", told, err, workers[told].log)
	}
}
