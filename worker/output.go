package worker

import (
	"slices"
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

// output is what one attempt of a turn has to say. The fields of the first two parts are guarded by publisher.mu; those
// of the last belong to the publisher's goroutine.
type output struct {
	subject string
	attempt int
	lease   *lease // nothing is said once it is lost
	text    *text.Stream

	begun     *schemas.Started
	tokens    []scheduler.NewToken // from index base on
	base      int
	ended     bool // there will be no more tokens
	whole     bool // and the turn is completed by them: held text goes out with the last one
	keepalive bool // to be sent though there is nothing to say
	closed    bool // nothing is sent any more
	sentEnd   bool // all tokens were published after ended was set
	lastSpoke time.Time

	// What the stream of events has confirmed of what was published since the last break.
	breaks    uint64        // which one that was
	published int           // events
	stored    int           // how many of them were confirmed
	progress  chan struct{} // closed and made again when all is confirmed, and at a break

	pieces      []text.Chunk // text of each token converted so far
	flushed     bool         // the held text is in the last piece
	ends        []int        // of the events that were ever published, in tokens
	sent        int          // tokens that were published since the last break
	sentStarted bool
}

// newOutput begins an attempt whose first new token has index base. The tokens before have been said; they go
// through the stream so that it goes on in the middle of a character where it has to.
func newOutput(subject string, attempt int, l *lease, stream *text.Stream, replayed []scheduler.Token) (*output, error) {
	o := &output{subject: subject, attempt: attempt, lease: l, text: stream, base: len(replayed),
		progress: make(chan struct{}), lastSpoke: time.Now()}
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
	if last := len(o.pieces) - 1; p.whole && !o.flushed && last >= o.said() {
		rest := o.text.Flush()
		o.pieces[last].Text += rest.Text
		o.pieces[last].Bytes = append(o.pieces[last].Bytes, rest.Bytes...)
		o.flushed = true
	}
}

// said is how many tokens were ever published.
func (o *output) said() int {
	if len(o.ends) == 0 {
		return 0
	}
	return o.ends[len(o.ends)-1]
}

// next is the event that goes on where sent is. What is said again is said in the same events: a reader cannot part an
// event's text, and the next attempt may go on after any one of them.
func (o *output) next(p *pending) *schemas.Tokens {
	i, _ := slices.BinarySearch(o.ends, o.sent+1)
	if i == len(o.ends) {
		o.ends = append(o.ends, o.extend(p))
	}
	end := o.ends[i]
	e := &schemas.Tokens{Attempt: o.attempt, Index: o.base + o.sent}
	var whole strings.Builder
	for i := o.sent; i < end; i++ {
		token, piece := &p.tokens[i], &o.pieces[i]
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

// extend is where an event ends that takes in as much as there is room for.
func (o *output) extend(p *pending) (end int) {
	size := 0
	for end = o.sent; end < len(p.tokens) && end < o.sent+maxEventTokens; end++ {
		piece := &o.pieces[end]
		size += len(piece.Text) + len(piece.Bytes) + probsBytes(p.tokens[end].Probs)
		if size > maxEventText && end > o.sent {
			break
		}
	}
	return end
}

// rewind begins anew after a break. The caller holds publisher.mu, and is the publisher's goroutine.
func (o *output) rewind(breaks uint64) {
	o.breaks = breaks
	o.sent, o.sentStarted, o.sentEnd = 0, false, false
	o.published, o.stored = 0, 0
	o.tell()
}

// tell wakes who waits for progress. The caller holds publisher.mu.
func (o *output) tell() {
	close(o.progress)
	o.progress = make(chan struct{})
}

// probsBytes is at least what they take on the wire.
func probsBytes(p *scheduler.Probs) int {
	if p == nil {
		return 0
	}
	return 64 + 16*len(p.Top)
}
