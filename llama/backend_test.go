package llama_test

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// listDevicesEnv makes the test binary list the devices instead of running tests: backends are loaded once a process.
const listDevicesEnv = "MESHNET_TEST_LIST_DEVICES"

func listDevices() int {
	if _, err := llama.Devices(); err != nil {
		_, _ = os.Stdout.WriteString(err.Error()) // the parent sees an empty output otherwise, and fails
		return 3
	}
	return 0
}

func TestFolderWithoutBackendsIsOneClearError(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), listDevicesEnv+"=1", llama.BackendDirEnv+"="+dir)
	out, err := child.Output()
	if err == nil {
		t.Skip("this llama.cpp has its backends built in")
	}
	want := "no CPU backend of llama.cpp found: looked in " + dir + "; set MESHNET_GGML_DIR to the folder with libggml-cpu*.so"
	if string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestLogGoesToTheLoggerFromItsLevelOn(t *testing.T) {
	defer quietLog()
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: true, slog.LevelError: false} {
		var out bytes.Buffer
		llama.SetLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), level)
		newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
		if got := strings.Contains(out.String(), "llama.cpp: "); got != want {
			t.Errorf("level %v: lines of llama.cpp %t, want %t:\n%.300s", level, got, want, out.String())
		}
	}
}

func TestAnInterruptIsNoErrorInTheLog(t *testing.T) {
	defer quietLog()
	var out bytes.Buffer
	llama.SetLogger(slog.New(slog.NewTextHandler(&out, nil)), slog.LevelWarn)
	r := newRig(t, story(t), llama.Options{Slots: 1, ContextTokens: 256})
	prompt := r.prompt(tale, 64)
	if err := r.Open(0, greedy(), prompt); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	r.Interrupt()
	res := r.Prefill(scheduler.Chunk{Tokens: prompt, Last: true, Forced: noToken})
	if res.Err == nil || res.Err.Cause != scheduler.CauseAborted {
		t.Fatalf("result %+v", res)
	}
	if out.Len() > 0 {
		t.Errorf("logged: %s", out.String())
	}
}
