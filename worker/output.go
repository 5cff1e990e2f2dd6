package worker

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/meshnet/node/internal/text"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

const (
	maxEventTokens = 256 // of one event of ours; far below what may be sent
	maxEventText   = schemas.MaxEventBytes / 2
)

// output is what one attempt of a turn has to say. The fields of the first part are guarded by publisher.mu; those
// of the second belong to the publisher's goroutine.
type output struct {
	subject string
	attempt int
	lease   *lease // nothing is said once it is lost
	text    *text.Stream

	begun     *schemas.Started
	tokens    []scheduler.NewToken // from index base on
	base      int
	ended     bool          // there will be no more tokens
	whole     bool          // and the turn ends with them: held text goes out with the last one
	keepalive bool          // to be sent though there is nothing to say
	closed    bool          // nothing is sent any more
	sentEnd   bool          // all tokens were published after ended was set, in
	sentGen   uint64        // the connection that has reconnected so often
	sentAll   chan struct{} // closed and made again whenever all was sent
	lastSpoke time.Time

	pieces       []text.Chunk // text of each token converted so far
	flushed      bool         // the held text is in the last piece
	sent         int          // tokens that were published
	sentStarted  bool
	kept         int // tokens that the server has confirmed
	keptStarted  bool
	asked        int // what sent was when the confirmation under way was asked for
	askedStarted bool
}

// newOutput begins an attempt whose first new token has index base. The tokens before have been said; they go
// through the stream so that it goes on in the middle of a character where it has to.
func newOutput(subject string, attempt int, l *lease, stream *text.Stream, replayed []scheduler.Token) (*output, error) {
	o := &output{subject: subject, attempt: attempt, lease: l, text: stream, base: len(replayed),
		sentAll: make(chan struct{}), lastSpoke: time.Now()}
	for _, token := range replayed {
		if _, err := stream.Next(token); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// pending is a copy of what the publisher needs, taken under publisher.mu.
type pending struct {
	begun     *schemas.Started
	tokens    []scheduler.NewToken
	ended     bool
	whole     bool
	keepalive bool
	closed    bool
}

// convert gives each new token its text.
func (o *output) convert(p *pending) {
	for i := len(o.pieces); i < len(p.tokens); i++ {
		var piece text.Chunk
		if p.tokens[i].EOG {
			o.text.Silent()
		} else {
			var err error
			if piece, err = o.text.Next(p.tokens[i].Token); err != nil {
				piece.Text = string(utf8.RuneError) // the engine and the text disagree on the vocabulary; the id is right
			}
		}
		o.pieces = append(o.pieces, piece)
	}
	if last := len(o.pieces) - 1; p.whole && !o.flushed && last >= o.sent {
		rest := o.text.Flush()
		o.pieces[last].Text += rest.Text
		o.pieces[last].Bytes = append(o.pieces[last].Bytes, rest.Bytes...)
		o.flushed = true
	}
}

// next is the event that goes on where sent is.
func (o *output) next(p *pending) *schemas.Tokens {
	var whole strings.Builder
	e := &schemas.Tokens{Attempt: o.attempt, Index: o.base + o.sent}
	size := 0
	for i := o.sent; i < len(p.tokens) && len(e.TokenIDs) < maxEventTokens; i++ {
		token, piece := &p.tokens[i], &o.pieces[i]
		size += len(piece.Text) + len(piece.Bytes) + probsBytes(token.Probs)
		if size > maxEventText && len(e.TokenIDs) > 0 {
			break
		}
		e.TokenIDs = append(e.TokenIDs, int64(token.Token))
		whole.WriteString(piece.Text)
		e.Bytes = append(e.Bytes, piece.Bytes...)
		if token.Probs != nil {
			e.Probs = append(e.Probs, schemas.ProbsOf(token.Probs))
		}
	}
	e.Text = whole.String()
	return e
}

// probsBytes is at least what they take on the wire.
func probsBytes(p *scheduler.Probs) int {
	if p == nil {
		return 0
	}
	return 64 + 16*len(p.Top)
}

// rewind goes back to what the server has confirmed.
func (o *output) rewind() {
	o.sent, o.sentStarted = o.kept, o.keptStarted
}
