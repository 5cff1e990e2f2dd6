package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	statusDelay  = time.Second            // what is over by then needs no line
	statusPeriod = 250 * time.Millisecond // between two drawings
	statusWidth  = 80                     // of a line where the terminal does not say
	eraseLine    = "\r\x1b[K"
)

// statusLine is the one line at the end of a terminal that says what the process does now and for how long; nothing
// where there is no terminal. Commands set it and clear it before they print, one goroutine at a time; logs are written
// through it from any goroutine, so that they do not run into it.
type statusLine struct {
	w     io.Writer
	live  bool
	width func() int // of the terminal, in characters
	now   func() time.Time
	ticks func() (ticks <-chan time.Time, stop func())

	end, ended chan struct{} // of the goroutine that draws; nil without one

	mu    sync.Mutex // guards what follows, and w
	text  string
	began time.Time
	drawn string // what is on the terminal
}

func newStatusLine(w io.Writer) *statusLine {
	return &statusLine{
		w: w, live: isTerminal(w), now: time.Now,
		width: func() int { return terminalWidth(w, statusWidth) },
		ticks: func() (<-chan time.Time, func()) {
			t := time.NewTicker(statusPeriod)
			return t.C, t.Stop
		},
	}
}

// set says what is being done from now on. The time shown counts from the first set since the line was clear.
func (s *statusLine) set(format string, args ...any) {
	if !s.live {
		return
	}
	s.mu.Lock()
	s.text = fmt.Sprintf(format, args...)
	s.mu.Unlock()
	if s.end == nil {
		s.began = s.now() // no other goroutine reads it yet
		s.end, s.ended = make(chan struct{}), make(chan struct{})
		go s.draw(s.end, s.ended)
	}
}

// clear removes the line. It may be called again.
func (s *statusLine) clear() {
	if s.end == nil {
		return
	}
	close(s.end)
	<-s.ended
	s.end, s.ended = nil, nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
}

// silence clears the line for good.
func (s *statusLine) silence() {
	s.clear()
	s.live = false
}

// Write writes whole lines above the status line.
func (s *statusLine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	return s.w.Write(p)
}

// erase takes the line from the terminal until it is drawn again; mu is held.
func (s *statusLine) erase() {
	if s.drawn != "" {
		io.WriteString(s.w, eraseLine) //nolint:errcheck // it is only for show
		s.drawn = ""
	}
}

func (s *statusLine) draw(end <-chan struct{}, ended chan<- struct{}) {
	defer close(ended)
	ticks, stop := s.ticks()
	defer stop()
	for {
		select {
		case <-end:
			return
		case <-ticks:
			s.redraw()
		}
	}
}

// redraw shows what there is to say, where that changed.
func (s *statusLine) redraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := s.now().Sub(s.began)
	if elapsed < statusDelay {
		return
	}
	seconds := fmt.Sprintf(" … %d s", int(elapsed.Seconds()))
	text := []rune(s.text)
	if room := s.width() - 1 - len([]rune(seconds)); len(text) > room { // a line that wraps could not be erased
		text = text[:max(0, room)]
	}
	if line := string(text) + seconds; line != s.drawn {
		io.WriteString(s.w, eraseLine+line) //nolint:errcheck // it is only for show
		s.drawn = line
	}
}

// turnStatus is the status line of a turn: what it waits for, then how fast its text comes. While text goes to the
// same terminal there is no line: it would run into the text.
type turnStatus struct {
	line     *statusLine
	onScreen bool // the text is printed to a terminal
	begun    bool // text was printed
	tokens   int
	first    time.Time // when the first token came
}

// waits says what the turn waits for.
func (t *turnStatus) waits(format string, args ...any) {
	if !t.begun {
		t.line.set(format, args...)
	}
}

// prints makes room for text.
func (t *turnStatus) prints() {
	t.begun = true
	if t.onScreen {
		t.line.clear()
	}
}

// reaches tells how many tokens the turn has now.
func (t *turnStatus) reaches(tokens int) {
	if t.tokens == 0 {
		t.first = t.line.now()
	}
	t.tokens = tokens
	if t.onScreen {
		return
	}
	if after := t.line.now().Sub(t.first); tokens > 1 && after > 0 {
		t.line.set("%d tokens, %.0f tokens/s", tokens, float64(tokens-1)/after.Seconds())
	}
}
