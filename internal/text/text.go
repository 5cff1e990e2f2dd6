// Package text turns a turn's tokens, as they come, into its text, and finds where a stop string ends it. What comes out is
// a function of the tokens and the options alone: whoever has the same tokens has the same text and the same end.
package text

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// Options say what a Stream is of.
type Options struct {
	// Piece appends the raw text of one token, which may end within a character. A token outside the vocabulary is an error.
	Piece func(dst []byte, token int32) ([]byte, error)
	// Stops end the text where the first of them is complete; of those that are complete at once the longest counts. It
	// is no part of the text.
	Stops []string
	// Least is how many tokens there have to be: a stop string that is complete before is part of the text.
	Least int
	Raw   bool // Chunks have Bytes
}

// Stream is the text of one turn. Not safe for concurrent use.
type Stream struct {
	opts    Options
	tokens  int
	held    []byte // may be the begin of a stop string
	partial []byte // the begin of a character, all that was let go of before it is out
	stopped bool
}

// New starts a turn's text.
func New(o Options) *Stream { return &Stream{opts: o} }

// Chunk is what tokens add to the text.
type Chunk struct {
	Text    string // whole characters; bytes that can never become one are U+FFFD
	Bytes   []byte // of Raw: what was let go of, exactly; it may end within a character, which Text then lacks
	Stopped bool   // a stop string is complete; nothing follows
}

// Next takes the turn's next token and yields the text that it lets go of. Held back are what may be the begin of a stop
// string and, of Text, an incomplete character.
func (s *Stream) Next(token int32) (Chunk, error) {
	at := len(s.held)
	all, err := s.opts.Piece(s.held, token)
	if err != nil {
		return Chunk{}, err
	}
	s.tokens++
	if s.stopped {
		return Chunk{Stopped: true}, nil
	}
	if s.tokens >= s.opts.Least {
		if end := s.findStop(all, at); end >= 0 {
			s.stopped, s.held = true, nil
			c := s.let(all[:end], true)
			c.Stopped = true
			return c, nil
		}
	}
	keep := s.begun(all)
	c := s.let(all[:len(all)-keep], false)
	s.held = append(s.held[:0], all[len(all)-keep:]...)
	return c, nil
}

// Silent takes a token that has no text, such as one that ends the generation.
func (s *Stream) Silent() { s.tokens++ }

// Flush yields what is held back, where no token follows.
func (s *Stream) Flush() Chunk {
	c := s.let(s.held, true)
	c.Stopped = s.stopped
	s.held = nil
	return c
}

// findStop is where the text ends if a stop string is complete at a byte from at on; else −1.
func (s *Stream) findStop(all []byte, at int) int {
	for n := at + 1; n <= len(all); n++ {
		longest := 0
		for _, stop := range s.opts.Stops {
			if len(stop) > longest && endsIn(all[:n], stop) {
				longest = len(stop)
			}
		}
		if longest > 0 {
			return n - longest
		}
	}
	return -1
}

// begun is the length of the longest end of b that a stop string begins with.
func (s *Stream) begun(b []byte) int {
	longest := 0
	for _, stop := range s.opts.Stops {
		for n := min(len(stop)-1, len(b)); n > longest; n-- {
			if endsIn(b, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}

func endsIn(b []byte, end string) bool {
	return len(b) >= len(end) && string(b[len(b)-len(end):]) == end
}

// let makes a chunk of bytes that are held back no more.
func (s *Stream) let(b []byte, last bool) Chunk {
	var c Chunk
	if s.opts.Raw {
		c.Bytes = bytes.Clone(b)
	}
	whole := append(s.partial, b...)
	cut := len(whole)
	if !last {
		cut = completeLen(whole)
	}
	c.Text = strings.ToValidUTF8(string(whole[:cut]), string(utf8.RuneError))
	s.partial = slices.Clone(whole[cut:])
	return c
}

// completeLen is the length of b without an incomplete character at its end.
func completeLen(b []byte) int {
	for back := 1; back <= min(utf8.UTFMax, len(b)); back++ {
		at := len(b) - back
		if utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				return at
			}
			break
		}
	}
	return len(b)
}
