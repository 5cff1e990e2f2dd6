package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meshnet/node/client"
)

// newTerminal is a terminal of the system, as a process has one: what is written to screen comes out of it.
func newTerminal(t *testing.T) (screen *os.File, out *os.File) {
	t.Helper()
	out, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { out.Close() })
	if err := unix.IoctlSetPointerInt(int(out.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return screen, out
}

func TestControlCharactersAreShownAndNotObeyedOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	const text, want = "a\x1b[2J\x1b]0;t\a\r\x7f\u009b1mé\tb.", "a␛[2J␛]0;t␇␍␡\ufffd1mé\tb."
	screen, out := newTerminal(t)
	s := newSubmission(&submitCommand{}, newEnvironment(context.Background(), strings.NewReader(""), screen, io.Discard))
	if err := s.print(client.Text{Text: text, TokenIDs: []int64{1}}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
		t.Errorf("the terminal gets %q, %v; want %q", got, err, want)
	}

	var file bytes.Buffer
	if shown := shown(&file, text); shown != text {
		t.Errorf("a file gets %q", shown)
	}
}
