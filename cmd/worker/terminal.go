package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// isTerminal says whether w is a terminal that understands colours and line control.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
}

// Styles, on a terminal only.
const (
	styleDim   = "\x1b[2m"
	styleRed   = "\x1b[31m"
	styleGreen = "\x1b[32m"
	styleReset = "\x1b[0m"
)

// styled wraps text in a style where w is a terminal and NO_COLOR is not set.
func styled(w io.Writer, style, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return style + text + styleReset
}

// statusLine is one line on a terminal that is written over and finally removed. It stays silent for the first
// second, and where w is no terminal. One goroutine at a time uses it.
type statusLine struct {
	w     io.Writer
	began time.Time
	shown bool
}

const statusDelay = time.Second

func newStatusLine(w io.Writer) *statusLine {
	return &statusLine{w: w, began: time.Now()}
}

func (s *statusLine) show(text string) {
	if time.Since(s.began) < statusDelay || !isTerminal(s.w) {
		return
	}
	fmt.Fprintf(s.w, "\r\x1b[K%s", text)
	s.shown = true
}

func (s *statusLine) clear() {
	if s.shown {
		fmt.Fprint(s.w, "\r\x1b[K")
		s.shown = false
	}
}
