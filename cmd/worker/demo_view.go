package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	demoWidth   = 100                   // of a line where there is no terminal
	demoRefresh = 50 * time.Millisecond // between two drawings of the live lines
)

// demoView prints headings, claims, and rows that are live on a terminal. It is safe for concurrent use.
type demoView struct {
	w     io.Writer
	live  bool
	width int

	mu    sync.Mutex // guards what follows
	rows  []string
	drawn int // rows on the screen
	at    time.Time
	err   error // the first one
}

func newDemoView(w io.Writer) *demoView {
	return &demoView{w: w, width: terminalWidth(w, demoWidth), live: isTerminal(w)}
}

func (v *demoView) line(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.print(fmt.Sprintf(format, args...) + "\n")
}

func (v *demoView) heading(n int, title string) {
	v.line("\n%d  %s", n, title)
}

func (v *demoView) claim(c demoClaim) {
	mark := styled(v.w, styleGreen, "ok    ")
	if !c.Holds {
		mark = styled(v.w, styleRed, "FAILED")
	}
	v.close()
	v.line("   %s  %s", mark, c.Claim)
}

// show sets a row, the first being 0. Of a text that is too long its end is shown.
func (v *demoView) show(row int, label, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(v.rows) <= row {
		v.rows = append(v.rows, "")
	}
	v.rows[row] = v.fit(label, text)
	if v.live && time.Since(v.at) >= demoRefresh {
		v.draw()
	}
}

// fit makes a row of a label and the end of a text.
func (v *demoView) fit(label, text string) string {
	row := fmt.Sprintf("   %-22s  ", label)
	room := v.width - len(row) - 1
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) > room {
		runes = append([]rune("…"), runes[len(runes)-max(0, room-1):]...)
	}
	return row + string(runes)
}

// close leaves the rows as they are, for what follows to be below them.
func (v *demoView) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.rows) > 0 {
		v.draw()
	}
	v.rows, v.drawn, v.at = nil, 0, time.Time{}
}

// draw writes the rows over those on the screen; mu is held.
func (v *demoView) draw() {
	var b strings.Builder
	erase := ""
	if v.live {
		erase = "\x1b[K"
		if v.drawn > 0 {
			fmt.Fprintf(&b, "\x1b[%dA\r", v.drawn)
		}
	}
	for _, row := range v.rows {
		b.WriteString(row + erase + "\n")
	}
	v.drawn, v.at = len(v.rows), time.Now()
	v.print(b.String())
}

// print writes; mu is held.
func (v *demoView) print(text string) {
	if v.err == nil {
		_, v.err = io.WriteString(v.w, text)
	}
}
