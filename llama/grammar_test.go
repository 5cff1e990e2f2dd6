package llama_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	texts "github.com/meshnet/node/internal/text"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// bind opens an empty slot whose turn is held to a grammar, with yielded of its tokens at the end of the prompt.
func (r *rig) bind(slot int, grammar string, s scheduler.Sampling, prompt []scheduler.Token, yielded int) {
	r.t.Helper()
	if err := r.Open(slot, s, prompt); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Constrain(slot, scheduler.Grammar{Text: grammar, Yielded: yielded}, prompt); err != nil {
		r.t.Fatal(err)
	}
}

// bound begins a turn that is held to a grammar.
func (r *rig) bound(slot int, grammar string, s scheduler.Sampling, prompt []scheduler.Token) *session {
	r.t.Helper()
	r.bind(slot, grammar, s, prompt, 0)
	turn := &session{slot: slot}
	turn.take(r.t, r.prefill(slot, 0, prompt, true, noToken))
	turn.kept = len(prompt)
	return turn
}

// say generates until a token ends the text, at most n tokens, and returns the text without it.
func (r *rig) say(s *session, n int) (said string, ended bool) {
	r.t.Helper()
	for len(s.out) < n && !r.model.IsEOG(s.newest) {
		r.steps(1, s)
	}
	stream := texts.New(texts.Options{Piece: r.model.AppendText})
	for _, token := range s.out {
		if r.model.IsEOG(token) {
			return said + stream.Flush().Text, true
		}
		piece, err := stream.Next(token)
		if err != nil {
			r.t.Fatal(err)
		}
		said += piece.Text
	}
	return said + stream.Flush().Text, false
}

const pairs = `root ::= "(" [a-f]{1,8} ("," [0-9]{1,3})* ")"`

var isPairs = regexp.MustCompile(`^\([a-f]{1,8}(,[0-9]{1,3})*\)$`)

func TestATextWithinAGrammarIsOneOfItsTexts(t *testing.T) {
	m := random(t, "tiny")
	r := newRig(t, m, llama.Options{Slots: 1})
	whole := 0
	for seed := range uint64(40) {
		for _, temperature := range []float64{0, 1} {
			s := warm(seed)
			s.Temperature = temperature
			s.RepeatPenalty = 1.3
			turn := r.bound(0, pairs, s, r.prompt(tale, 10+int(seed)))
			text, ended := r.say(turn, 200)
			r.Release(0)
			if ended {
				whole++
			}
			if ended && !isPairs.MatchString(text) || !strings.HasPrefix(text, "(") {
				t.Errorf("seed %d, temperature %v: %q", seed, temperature, text)
			}
		}
	}
	if whole < 60 {
		t.Errorf("%d of 80 texts ended; the test says little", whole)
	}
}

func TestACompleteGrammarEndsTheTurnWhateverIsSaidOfEnds(t *testing.T) {
	r := newRig(t, random(t, "tiny"), llama.Options{Slots: 1})
	s := warm(1)
	s.IgnoreEOG = true
	turn := r.bound(0, `root ::= "yes" | "no"`, s, r.prompt(tale, 12))
	text, ended := r.say(turn, 20)
	if !ended || text != "yes" && text != "no" {
		t.Errorf("%q, ended %t", text, ended)
	}
}

// Nothing of a session without a grammar, its draws least of all, depends on those that have one.
func TestSessionsWithAndWithoutAGrammarShareABatch(t *testing.T) {
	m := random(t, "tiny")
	alone := newRig(t, m, llama.Options{Slots: 2})
	free := alone.generate(0, warm(7), alone.prompt(tale, 20), 30).out
	other := alone.bound(0, pairs, warm(9), alone.prompt(tale, 30))
	want, _ := alone.say(other, 30)
	alone.Release(0)

	r := newRig(t, m, llama.Options{Slots: 2})
	one, two := r.begin(0, warm(7), r.prompt(tale, 20)), r.bound(1, pairs, warm(9), r.prompt(tale, 30))
	for len(one.out) < 30 {
		if r.model.IsEOG(two.newest) {
			r.steps(1, one)
		} else {
			r.steps(1, one, two)
		}
	}
	equal(t, "without a grammar", one.out, free)
	if got, _ := r.say(two, 30); got != want {
		t.Errorf("with a grammar: %q, alone %q", got, want)
	}
}

func TestAMovedSessionTakesItsGrammarAlong(t *testing.T) {
	m := random(t, "tiny")
	r := newRig(t, m, llama.Options{Slots: 2})
	want := r.bound(0, pairs, warm(4), r.prompt(tale, 25))
	wanted, _ := r.say(want, 60)
	r.Release(0)
	s := r.bound(1, pairs, warm(4), r.prompt(tale, 25))
	r.steps(1, s)
	if err := r.Move(1, 0); err != nil {
		t.Fatal(err)
	}
	s.slot = 0
	if got, _ := r.say(s, 60); got != wanted {
		t.Errorf("%q after a move, want %q", got, wanted)
	}
}

// A takeover replays tokens as forced rows, or prefills them.
func TestATurnGoesOnWithinItsGrammarAfterAReplayAndAfterAPrefill(t *testing.T) {
	m := random(t, "tiny")
	r := newRig(t, m, llama.Options{Slots: 1})
	prompt := r.prompt(tale, 25)
	first := r.bound(0, pairs, warm(3), prompt)
	want, ended := r.say(first, 60)
	r.Release(0)
	const known = 3
	if !ended || len(first.out) < known+2 {
		t.Fatalf("a turn of %d tokens, ended %t: take another seed", len(first.out), ended)
	}

	s := &session{slot: 0, kept: len(prompt)}
	r.bind(0, pairs, warm(3), prompt, 0)
	s.take(t, r.prefill(0, 0, prompt, true, first.out[0]))
	for _, token := range first.out[1:known] {
		row := s.row()
		row.Forced = token
		s.take(t, r.Decode([]scheduler.Row{row})[0])
		s.kept++
	}
	if got, _ := r.say(s, 60); got != want {
		t.Errorf("after a replay %q, want %q", got, want)
	}
	r.Release(0)

	begun := append(append([]scheduler.Token(nil), prompt...), first.out[:known]...)
	r.bind(0, pairs, warm(3), begun, known)
	s = &session{slot: 0, kept: len(begun)}
	s.take(t, r.prefill(0, 0, begun, true, noToken))
	rest, _ := r.say(s, 60)
	stream, head := texts.New(texts.Options{Piece: m.AppendText}), ""
	for _, token := range first.out[:known] {
		piece, _ := stream.Next(token)
		head += piece.Text
	}
	if whole := head + rest; !isPairs.MatchString(whole) {
		t.Errorf("after a prefill %q", whole)
	}
}

func TestAKnownTokenThatTheGrammarDoesNotAllowEndsItsSessionAlone(t *testing.T) {
	m := random(t, "tiny")
	r := newRig(t, m, llama.Options{Slots: 2})
	other := r.begin(1, warm(1), r.prompt(tale, 10))
	prompt := r.prompt(tale, 8)
	r.bind(0, `root ::= "a"`, warm(1), prompt, 0)
	res := r.prefill(0, 0, prompt, true, prompt[5])
	if res.Outcome != scheduler.OutcomeError || res.Err.Cause != scheduler.CauseGrammar {
		t.Errorf("outcome %d, %v; want an error of the grammar", res.Outcome, res.Err)
	}
	r.steps(3, other)
}

func TestAGrammarThatReadsInTooManyWaysEndsItsSessionAlone(t *testing.T) {
	m := random(t, "tiny")
	r := newRig(t, m, llama.Options{Slots: 2})
	other := r.begin(1, warm(1), r.prompt(tale, 10))
	s := r.bound(0, "root ::= x\nx ::= [a-z] x \"1\" | [a-z] x \"2\" | [a-z]", warm(1), r.prompt(tale, 8))
	for range 100 {
		results := r.decode(s, other)
		other.take(t, results[1])
		other.kept++
		if res := results[0]; res.Outcome == scheduler.OutcomeError {
			if res.Err.Cause != scheduler.CauseGrammar {
				t.Errorf("%v; want an error of the grammar", res.Err)
			}
			return
		}
		s.take(t, results[0])
		s.kept++
	}
	t.Error("the session did not end")
}

func TestAGrammarIsCheckedBeforeItIsUsed(t *testing.T) {
	m := random(t, "tiny")
	if !m.EndsTexts() {
		t.Error("the model is said to have no token that ends a text")
	}
	for text, reason := range map[string]string{
		`root ::= "a"`:            "",
		`root ::= x`:              "line 1, column 10: rule x is not defined",
		`root ::= root "a" | "b"`: "read in too many ways",
		strings.Repeat("#", llama.MaxSchemaBytes+1): "the limit is 65536",
	} {
		err := m.CheckGrammar(text)
		var wrong *llama.SchemaError
		if reason == "" && err != nil || reason != "" && (!errors.As(err, &wrong) || !strings.Contains(wrong.Reason, reason)) {
			t.Errorf("%.40s: %v, want %q", text, err, reason)
		}
	}
}

// BenchmarkGrammar is what a grammar costs a row with a vocabulary of 49,152 tokens: where the sampled token may follow, and where
// the vocabulary is masked.
func BenchmarkGrammar(b *testing.B) {
	m := random(b, "135m")
	r := newRig(b, m, llama.Options{Slots: 1, ContextTokens: 2048})
	prompt := r.prompt(tale, 16)
	for name, grammar := range map[string]string{"none": "", "allowed": `root ::= [^\x00]*`, "masked": `root ::= "\"" [^"\\A-Z]{0,1000} "\""`} {
		b.Run(name, func(b *testing.B) {
			s := greedy()
			s.IgnoreEOG = true
			begin := func() *session {
				if grammar == "" {
					return r.begin(0, s, prompt)
				}
				return r.bound(0, grammar, s, prompt)
			}
			turn := begin()
			for b.Loop() {
				if turn.kept > 2000 || m.IsEOG(turn.newest) {
					r.Release(0)
					turn = begin()
				}
				r.steps(1, turn)
			}
			r.Release(0)
		})
	}
}
