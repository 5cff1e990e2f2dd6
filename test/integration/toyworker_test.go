package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// toyChild is the environment variable that makes the test binary a worker: toyOptions as JSON.
const toyChild = "MESHNET_TEST_TOY_WORKER"

// toyOptions are what differs from one toy worker to another.
type toyOptions struct {
	URL, Node string
	Slots     int
}

// Characters that do something to the worker that evaluates a prompt with them.
const (
	toyKill = "\x01" // ends its process
	toyHold = "\x02" // holds its engine until it is told toyRelease
)

// What a toy worker can be told, in one line. It answers in one line.
const (
	toyRelease = "release"
	toyMemory  = "memory"
)

// A test binary that startToy started again never gets to its tests: it is the worker.
func init() {
	if options := os.Getenv(toyChild); options != "" {
		if err := serveToy([]byte(options), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// toyEngine does what the characters above say.
type toyEngine struct {
	scheduler.Engine
	released chan struct{}
}

func newToyEngine(slots int) (*toyEngine, error) {
	engine, err := goengine.New(goengine.Config{Slots: slots, Dim: 64, FFN: 128, EOGBias: -1000, Seed: 1})
	return &toyEngine{engine, make(chan struct{})}, err
}

// Prefill is where a prompt is evaluated.
func (e *toyEngine) Prefill(chunk scheduler.Chunk) scheduler.Result {
	if slices.Contains(chunk.Tokens, toyTokens(toyKill)[0]) {
		process, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = process.Kill()
		}
		panic(err) // killed by then
	}
	if slices.Contains(chunk.Tokens, toyTokens(toyHold)[0]) {
		<-e.released
	}
	return e.Engine.Prefill(chunk)
}

// toyTokens makes a token of each byte, behind the special ones.
func toyTokens(text string) []scheduler.Token {
	tokens := make([]scheduler.Token, len(text))
	for i := range len(text) {
		tokens[i] = 3 + scheduler.Token(text[i])
	}
	return tokens
}

// serveToy runs a worker until in ends, which it also does when the test's process does.
func serveToy(options []byte, in io.Reader, out io.Writer) error {
	var opts toyOptions
	if err := json.Unmarshal(options, &opts); err != nil {
		return err
	}
	engine, err := newToyEngine(opts.Slots)
	if err != nil {
		return err
	}
	service, err := worker.New(worker.Config{
		URL: opts.URL, Node: schemas.Must(schemas.ParseNode(opts.Node)), Model: schemas.Must(schemas.ParseModel("m")), Engine: engine,
		Text: worker.Text{
			Tokenize: func(_ int, text string, _ bool) ([]int32, error) { return toyTokens(text), nil },
			Piece:    busWord,
		},
		Periods:      worker.Periods{AckWait: 5 * time.Second, Rescue: time.Second},
		DrainTimeout: -1, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	if err := service.Start(context.Background()); err != nil {
		return err
	}
	defer service.Stop()
	if err := part.Ready(context.Background(), service); err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		switch lines.Text() {
		case toyRelease:
			close(engine.released)
			fmt.Fprintln(out, "released")
		case toyMemory:
			runtime.GC()
			runtime.GC() // what the first one found, pools and finalizers gave up
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			fmt.Fprintln(out, stats.HeapAlloc, peakBytes())
		}
	}
	return nil
}

// toyWorker is a worker in a process of its own: this program, started again.
type toyWorker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer
	reap   sync.Once
}

// startToy returns once the worker takes requests.
func startToy(opts toyOptions) (*toyWorker, error) {
	options, err := json.Marshal(opts)
	if err != nil {
		return nil, err
	}
	w := &toyWorker{cmd: exec.Command(os.Args[0])}
	w.cmd.Env = append(os.Environ(), toyChild+"="+string(options))
	w.cmd.Stderr = &w.errors
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	if line, err := w.out.ReadString('\n'); err != nil || line != "ready\n" {
		w.kill()
		return nil, fmt.Errorf("toy worker %s does not start: %s", opts.Node, &w.errors)
	}
	return w, nil
}

// gone waits until the process has ended.
func (w *toyWorker) gone() {
	w.reap.Do(func() {
		io.Copy(io.Discard, w.out) //nolint:errcheck // its end is what is waited for
		w.cmd.Wait()               //nolint:errcheck // being killed is no fault of it
	})
}

// kill ends the process. It may be called again.
func (w *toyWorker) kill() {
	w.cmd.Process.Kill() //nolint:errcheck // it has ended before
	w.gone()
}

func (w *toyWorker) ask(t testing.TB, question string) string {
	t.Helper()
	if _, err := fmt.Fprintln(w.in, question); err != nil {
		t.Fatal(err)
	}
	line, err := w.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v\n%s", err, &w.errors)
	}
	return strings.TrimSpace(line)
}

// memory is the live heap of the worker and the most that its resident set has been, in bytes; the latter is 0 where the
// system does not tell.
func (w *toyWorker) memory(t testing.TB) (heap, peak int64) {
	t.Helper()
	if _, err := fmt.Sscan(w.ask(t, toyMemory), &heap, &peak); err != nil {
		t.Fatal(err)
	}
	return heap, peak
}

// peakBytes is the most that the resident set of this process has been.
func peakBytes() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	var kib int64
	if _, after, ok := strings.Cut(string(status), "VmHWM:"); ok {
		fmt.Sscan(after, &kib) //nolint:errcheck // 0 is what it cannot tell
	}
	return kib << 10
}

// toyUndisturbed is the text of a turn that runs alone, without a bus.
func toyUndisturbed(t *testing.T, prompt string, newTokens int) string {
	t.Helper()
	engine, err := newToyEngine(1)
	if err != nil {
		t.Fatal(err)
	}
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	close(engine.released)
	sched.Submit(requestTokens("s", toyTokens(prompt), newTokens))
	endings, err := sched.RunToCompletion(0)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, token := range endings[0].Tokens {
		fmt.Fprintf(&text, "<%d>", token)
	}
	return text.String()
}
