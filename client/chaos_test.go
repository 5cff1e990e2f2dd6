package client_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
)

// teller plays workers that take each other's turn over, and knows the text that a reader must have.
type teller struct {
	t       *testing.T
	b       *bed
	id      schemas.TurnID
	random  *rand.Rand
	attempt int
	pieces  []string // of the tokens that stand
}

// takeOver goes on at any token, with other words.
func (w *teller) takeOver() {
	if w.attempt++; w.attempt > 1 {
		w.pieces = w.pieces[:w.random.IntN(len(w.pieces)+1)]
	}
	w.b.say(w.t, w.id, started(w.attempt, len(w.pieces)))
}

func (w *teller) tell(tokens int) {
	for range tokens {
		piece := fmt.Sprintf("<%d.%d>", w.attempt, len(w.pieces))
		w.b.say(w.t, w.id, &schemas.Tokens{Attempt: w.attempt, Index: len(w.pieces), TokenIDs: []int64{int64(w.attempt)}, Text: piece})
		w.pieces = append(w.pieces, piece)
	}
}

// A reader that is cut off again and again, and too slow, has the worker's text in the end, and was told of every
// cut of what it had.
func TestReaderThatLosesConnectionsHasTheWorkersText(t *testing.T) {
	b := newBed(t)
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			proxy := natsservertest.StartProxy(t, b.url)
			c := clientOn(t, natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers(), nats.ReconnectBufSize(-1)), client.WithBuffer(4))
			r := request()
			r.Tenant = fmt.Sprintf("t%d", seed) // with a quota of its own
			s := generate(t, c, r)
			w := &teller{t: t, b: b, id: s.ID(), random: random}
			told := make(chan struct{})
			go func() {
				defer close(told)
				for range 1 + random.IntN(4) {
					w.takeOver()
					for range random.IntN(4) {
						w.tell(random.IntN(10))
						switch random.IntN(3) {
						case 0:
							proxy.Cut()
						case 1:
							proxy.Heal()
						}
					}
				}
				b.say(t, w.id, completed(w.attempt, len(w.pieces)))
				proxy.Heal()
			}()
			text := ""
			for event, err := range s.Events() {
				if err != nil {
					t.Fatal(err)
				}
				switch e := event.(type) {
				case client.Text:
					text += e.Text
				case client.Reset:
					text = text[:e.TextBytes]
				}
			}
			<-told
			if want := strings.Join(w.pieces, ""); text != want {
				t.Errorf("read %q, want %q", text, want)
			}
		})
	}
}

// C4, vllm#10583: a turn that is submitted again yields its outcome again.
func TestTurnSubmittedAgainYieldsTheSameText(t *testing.T) {
	b := newBed(t)
	runs := 0
	b.work(t, func(r *schemas.Request, _ schemas.Lane) {
		if runs++; runs == 1 {
			b.tell(t, r.ID(), started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "b", 2))
		}
		b.tell(t, r.ID(), completed(1, 2))
	})
	c := b.connect(t)
	for range 2 {
		if got, err := generate(t, c, request()).Wait(); err != nil || got.Text != "ab" {
			t.Errorf("%q, %v", got.Text, err)
		}
	}
}
