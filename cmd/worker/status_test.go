package main

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

// fakeTerminal is what was written to a terminal, by the status line and others.
type fakeTerminal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (f *fakeTerminal) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

// take is what was written since the last take.
func (f *fakeTerminal) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.text.Reset()
	return f.text.String()
}

// fakeTime is the clock of a status line.
type fakeTime struct {
	mu    sync.Mutex
	now   time.Time
	ticks chan time.Time
}

// pass lets time pass, and returns once the line was drawn for it: the second tick is taken after the first one's work.
func (f *fakeTime) pass(d time.Duration) {
	f.mu.Lock()
	f.now = f.now.Add(d)
	f.mu.Unlock()
	f.ticks <- time.Time{}
	f.ticks <- time.Time{}
}

func newFakeStatus(t *testing.T) (*statusLine, *fakeTerminal, *fakeTime) {
	t.Helper()
	terminal, clock := &fakeTerminal{}, &fakeTime{now: time.Unix(1000, 0), ticks: make(chan time.Time)}
	line := newStatusLine(terminal)
	line.live = true
	line.width = func() int { return 40 }
	line.now = func() time.Time {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		return clock.now
	}
	line.ticks = func() (<-chan time.Time, func()) { return clock.ticks, func() {} }
	t.Cleanup(line.clear)
	return line, terminal, clock
}

// says checks what was written since the last check.
func (f *fakeTerminal) says(t *testing.T, when, want string) {
	t.Helper()
	if got := f.take(); got != want {
		t.Errorf("%s: %q; want %q", when, got, want)
	}
}

func TestTheStatusLineComesAfterASecondCountsAndGoes(t *testing.T) {
	line, terminal, clock := newFakeStatus(t)
	line.set("waiting for a worker")
	clock.pass(999 * time.Millisecond)
	terminal.says(t, "before a second", "")
	clock.pass(time.Millisecond)
	terminal.says(t, "after a second", "\r\x1b[Kwaiting for a worker … 1 s")
	clock.pass(statusPeriod)
	terminal.says(t, "within that second", "")
	line.set("prefill")
	terminal.says(t, "before the next drawing", "")
	clock.pass(time.Second)
	terminal.says(t, "after the next", "\r\x1b[Kprefill … 2 s")
	line.clear()
	terminal.says(t, "cleared", "\r\x1b[K")
	line.clear()
	terminal.says(t, "cleared again", "")
	line.set("again")
	clock.pass(999 * time.Millisecond)
	terminal.says(t, "before a second of its own", "")
}

func TestTheStatusLineNeverWraps(t *testing.T) {
	line, terminal, clock := newFakeStatus(t)
	line.set("%s", strings.Repeat("ü", 100))
	clock.pass(10 * time.Second)
	terminal.says(t, "on 40 columns", "\r\x1b[K"+strings.Repeat("ü", 32)+" … 10 s")
	line.width = func() int { return 3 }
	clock.pass(time.Second)
	terminal.says(t, "on 3 columns", "\r\x1b[K … 11 s")
}

func TestALogLineIsWrittenAboveTheStatusLine(t *testing.T) {
	line, terminal, clock := newFakeStatus(t)
	line.set("waiting")
	clock.pass(time.Second)
	terminal.says(t, "waiting", "\r\x1b[Kwaiting … 1 s")
	newLogger(line, false).Warn("reconnecting")
	if got := terminal.take(); !strings.HasPrefix(got, "\r\x1b[Ktime=") || !strings.HasSuffix(got, "msg=reconnecting\n") {
		t.Errorf("the log: %q", got)
	}
	clock.pass(statusPeriod)
	terminal.says(t, "after the log", "\r\x1b[Kwaiting … 1 s")
}

func TestWithoutATerminalThereIsNoStatusLine(t *testing.T) {
	terminal := &fakeTerminal{}
	line := newStatusLine(terminal)
	line.set("waiting")
	if line.end != nil {
		t.Error("a goroutine draws what nobody sees")
	}
	line.clear()
	terminal.says(t, "after all", "")
}

// fakeSubmission prints a turn of 3 tokens.
func fakeSubmission(t *testing.T, stdout io.Writer, onScreen bool) (*submission, *fakeTerminal, *fakeTime) {
	t.Helper()
	line, terminal, clock := newFakeStatus(t)
	if stdout == nil {
		stdout = terminal
	}
	env := newEnvironment(context.Background(), strings.NewReader(""), stdout, terminal)
	env.status = line
	s := newSubmission(&submitCommand{}, env)
	s.status.onScreen = onScreen
	return s, terminal, clock
}

func startedOn(node string) client.Event {
	return client.Started{Started: schemas.Started{Node: schemas.Must(schemas.ParseNode(node)), PromptTokens: 9, CachedTokens: 4}}
}

func mustPrint(t *testing.T, s *submission, events ...client.Event) {
	t.Helper()
	for _, e := range events {
		if err := s.print(e); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheLineOfATurnIsGoneBeforeItsTextComesToTheSameTerminal(t *testing.T) {
	s, terminal, clock := fakeSubmission(t, nil, true)
	s.env.status.width = func() int { return 80 }
	s.status.waits("waiting for a worker")
	clock.pass(3 * time.Second)
	terminal.says(t, "waiting", "\r\x1b[Kwaiting for a worker … 3 s")
	mustPrint(t, s, startedOn("n1"))
	clock.pass(time.Second)
	terminal.says(t, "started", "\r\x1b[Kprefill of 9 tokens (4 cached) on node n1 … 4 s")
	mustPrint(t, s, client.Text{Index: 0, TokenIDs: []int64{1}, Text: "Once"})
	terminal.says(t, "the first text", "\r\x1b[KOnce")
	mustPrint(t, s, client.Text{Index: 1, TokenIDs: []int64{2}, Text: " upon"}, startedOn("n2"), client.Reset{Index: 1, TextBytes: 4},
		client.Text{Index: 1, TokenIDs: []int64{2}, Text: " upon"}, client.Final{Final: schemas.Final{Reason: schemas.Completed, Count: 2}})
	if s.env.status.end != nil {
		t.Error("a line is drawn into the text")
	}
	terminal.says(t, "the rest", " upon\n[another worker goes on from here]\nOnce upon\n")
}

func TestTheLineOfATurnCountsTokensWhileItsTextGoesToAFile(t *testing.T) {
	var file strings.Builder
	s, terminal, clock := fakeSubmission(t, &file, false)
	s.status.waits("waiting for a worker")
	clock.pass(2 * time.Second)
	terminal.says(t, "waiting", "\r\x1b[Kwaiting for a worker … 2 s")
	mustPrint(t, s, startedOn("n1"), client.Text{Index: 0, TokenIDs: []int64{1}, Text: "Once"})
	clock.pass(500 * time.Millisecond)
	terminal.take()
	mustPrint(t, s, client.Text{Index: 1, TokenIDs: []int64{2, 3}, Text: " upon a"})
	clock.pass(500 * time.Millisecond)
	terminal.says(t, "three tokens, two of them in half a second", "\r\x1b[K3 tokens, 4 tokens/s … 3 s")
	mustPrint(t, s, client.Final{Final: schemas.Final{Reason: schemas.Completed, Count: 3}})
	terminal.says(t, "the end", "\r\x1b[K")
	if file.String() != "Once upon a\n" {
		t.Errorf("the file has %q", file.String())
	}
}

func TestJSONSilencesTheStatusLineOfEveryCommand(t *testing.T) {
	for _, args := range [][]string{{"demo"}, {"submit"}, {"cancel", "chat1", "1"}, {"nodes"}, {"generate"}, {"sweep"}} {
		for _, json := range []bool{false, true} {
			line, terminal, _ := newFakeStatus(t)
			env := newEnvironment(context.Background(), strings.NewReader(""), io.Discard, terminal)
			env.status = line
			parser, err := newParser(env, func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			if json {
				args = append(args, "--json")
			}
			if _, err := parser.Parse(args); err != nil {
				t.Fatal(err)
			}
			if line.live == json {
				t.Errorf("%v: a status line is %t", args, line.live)
			}
		}
	}
}

func TestCtrlCRemovesTheStatusLine(t *testing.T) {
	line, terminal, clock := newFakeStatus(t)
	ctx, cancel := context.WithCancel(context.Background())
	stdin, never := io.Pipe()
	defer never.Close()
	env := newEnvironment(ctx, stdin, io.Discard, terminal)
	env.status = line
	line.set("waiting for a worker")
	clock.pass(time.Second)
	terminal.says(t, "waiting", "\r\x1b[Kwaiting for a worker … 1 s")
	cancel()
	if code := finish(env, (&generateCommand{Text: "-"}).Run(env)); code != exitCancelled {
		t.Errorf("exit %d", code)
	}
	terminal.says(t, "after Ctrl-C", "\r\x1b[Kworker: cancelled\n")
}
