package fold_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/meshnet/node/internal/fold"
	"github.com/meshnet/node/schemas"
)

func started(attempt, resume int) *schemas.Started {
	return &schemas.Started{Attempt: attempt, ResumeIndex: resume}
}

func tokens(attempt, index int, text string, ids ...int64) *schemas.Tokens {
	return &schemas.Tokens{Attempt: attempt, Index: index, TokenIDs: ids, Text: text}
}

func completed(attempt, count int) *schemas.Final {
	return &schemas.Final{Reason: schemas.Completed, Attempt: attempt, Count: count}
}

func cancelled(attempt, count int) *schemas.Final {
	return &schemas.Final{Reason: schemas.Cancelled, Attempt: attempt, Count: count}
}

func TestEventsAreFoldedByTheReadersRules(t *testing.T) {
	alive := func(attempt, last int) schemas.Event { return &schemas.Keepalive{Attempt: attempt, LastIndex: last} }
	for _, c := range []struct {
		claim  string
		events []schemas.Event
		text   string
		tokens int
		status fold.Status
	}{
		{"nothing seen is open", nil, "", 0, fold.Open},
		{"tokens in order make the text", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "bc", 2, 3), completed(1, 3)}, "abc", 3, fold.Whole},
		{"a known index does not count again", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 0, "a", 1)}, "a", 1, fold.Open},
		{"tokens after a gap do not count", []schemas.Event{started(1, 0), tokens(1, 1, "b", 2)}, "", 0, fold.Gap},
		{"tokens without their start do not count", []schemas.Event{tokens(1, 0, "a", 1)}, "", 0, fold.Gap},
		{"a higher attempt cuts to its resume index", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "b", 2), started(2, 1), tokens(2, 1, "x", 9)}, "ax", 2, fold.Open},
		{"a lower attempt does not count", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), started(2, 1), tokens(1, 1, "b", 2), tokens(2, 1, "x", 9)}, "ax", 2, fold.Open},
		{"the same start twice cuts nothing", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), started(1, 0)}, "a", 1, fold.Open},
		{"a start after lost tokens waits for them", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), started(2, 2), tokens(2, 2, "c", 3)}, "a", 1, fold.Gap},
		{"and counts once they came", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), started(2, 2), tokens(1, 1, "b", 2), started(2, 2), tokens(2, 2, "c", 3), completed(2, 3)}, "abc", 3, fold.Whole},
		{"the new tokens of an event known in part count", []schemas.Event{started(1, 0), tokens(1, 0, "ab", 1, 2), tokens(1, 2, "c", 3), tokens(1, 2, "cd", 3, 4)}, "abcd", 4, fold.Open},
		{"but not where text and tokens cannot be parted", []schemas.Event{started(1, 0), tokens(1, 0, "ab", 1, 2), tokens(1, 1, "bc", 2, 3)}, "ab", 2, fold.Gap},
		{"however alike the texts are", []schemas.Event{started(1, 0), tokens(1, 0, "aa", 1, 2), tokens(1, 1, "aab", 2, 3)}, "aa", 2, fold.Gap},
		{"nor where they contradict", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 0, "xy", 1, 2)}, "a", 1, fold.Gap},
		{"a cut inside an event drops the whole event", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "bc", 2, 3), started(2, 2)}, "a", 1, fold.Gap},
		{"until its tokens come as they were stored", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "bc", 2, 3), started(2, 2), tokens(1, 1, "b", 2), started(2, 2), tokens(2, 2, "x", 9), completed(2, 3)}, "abx", 3, fold.Whole},
		{"a keepalive beyond the tokens shows a gap", []schemas.Event{started(1, 0), alive(1, 0)}, "", 0, fold.Gap},
		{"a keepalive before the start of its attempt shows none", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), alive(2, -1)}, "a", 1, fold.Open},
		{"a final beyond the tokens shows a gap", []schemas.Event{started(1, 0), completed(1, 1)}, "", 0, fold.Gap},
		{"a final of a turn never claimed is whole", []schemas.Event{cancelled(0, 0)}, "", 0, fold.Whole},
		{"a start that skips an attempt waits for what was stored of that", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), started(3, 1), tokens(3, 1, "b", 2)}, "a", 1, fold.Gap},
		{"unless it begins anew", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), started(3, 0), tokens(3, 0, "x", 9)}, "x", 1, fold.Open},
		{"a final of an attempt never started leaves a doubt", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), cancelled(2, 1)}, "a", 1, fold.Doubt},
		{"its end may not know of the last tokens", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), cancelled(1, 0)}, "a", 1, fold.Whole},
		{"a completed one must", []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), completed(1, 0)}, "a", 1, fold.Gap},
		{"the first final counts", []schemas.Event{cancelled(0, 0), completed(1, 5)}, "", 0, fold.Whole},
	} {
		t.Run(c.claim, func(t *testing.T) {
			var f fold.Fold
			for _, e := range c.events {
				f.ApplyLive(e)
			}
			if f.Text() != c.text || f.Len() != c.tokens || f.Status() != c.status {
				t.Errorf("%q, %d tokens, %s; want %q, %d, %s", f.Text(), f.Len(), f.Status(), c.text, c.tokens, c.status)
			}
		})
	}
}

func TestTakeShowsACutBelowWhatWasDelivered(t *testing.T) {
	var f fold.Fold
	f.ApplyLive(started(1, 0))
	f.ApplyLive(tokens(1, 0, "ab", 1, 2))
	f.ApplyLive(tokens(1, 2, "c", 3))
	if d := f.Take(); d.Reset || d.Index != 0 || d.Text != "abc" {
		t.Fatalf("%+v", d)
	}
	if d := f.Take(); !d.Empty() {
		t.Fatalf("nothing came, and Take has %+v", d)
	}
	f.ApplyLive(started(2, 2))
	f.ApplyLive(tokens(2, 2, "X", 9))
	if d := f.Take(); !d.Reset || d.Index != 2 || d.Text != "X" || !slices.Equal(d.TokenIDs, []int64{9}) {
		t.Errorf("after the cut: %+v", d)
	}
}

func TestCutOfWhatWasNotDeliveredIsNotShown(t *testing.T) {
	var f fold.Fold
	f.ApplyLive(started(1, 0))
	f.ApplyLive(tokens(1, 0, "a", 1))
	f.Take()
	f.ApplyLive(tokens(1, 1, "b", 2))
	f.ApplyLive(started(2, 1))
	f.ApplyLive(tokens(2, 1, "x", 9))
	if d := f.Take(); d.Reset || d.Index != 1 || d.Text != "x" {
		t.Errorf("%+v", d)
	}
}

func TestReaderGoesOnFromAnyIndex(t *testing.T) {
	events := []schemas.Event{started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "bc", 2, 3), tokens(1, 3, "d", 4), completed(1, 4)}
	for _, c := range []struct {
		from, index int
		reset       bool
		text        string
	}{
		{0, 0, false, "abcd"}, {1, 1, false, "bcd"}, {3, 3, false, "d"}, {4, 4, false, ""},
		{2, 1, true, "bcd"}, // inside an event: from its beginning
		{9, 4, true, ""},    // more than there is
	} {
		f := fold.From(c.from)
		for _, e := range events {
			f.ApplyLive(e)
		}
		if d := f.Take(); d.Reset != c.reset || d.Index != c.index || d.Text != c.text {
			t.Errorf("from %d: %+v, want reset %t, index %d, %q", c.from, d, c.reset, c.index, c.text)
		}
	}
}

func TestReaderThatHadMoreThanATakeoverKeptIsReset(t *testing.T) {
	f := fold.From(3)
	f.ApplyLive(started(1, 0))
	f.ApplyLive(tokens(1, 0, "ab", 1, 2))
	f.ApplyLive(started(2, 2))
	if d := f.Take(); !d.Reset || d.Index != 2 {
		t.Errorf("%+v", d)
	}
}

// A world draws what workers publish for one turn, in the order in which the stream stores it.
type world struct {
	stream []schemas.Event
	text   string // of the final, as its worker has it
	ids    []int64
}

// draw lets several attempts speak, each going on where a reader of the stream stood, some of them still
// speaking after they were replaced; publishes are lost and sent again from an earlier event on.
func draw(t *rapid.T) world {
	var w world
	var sent [][]schemas.Event // by attempt
	publish := func(attempt int, e schemas.Event) {
		w.stream = append(w.stream, e)
		sent[attempt-1] = append(sent[attempt-1], e)
	}
	attempts := rapid.IntRange(1, 4).Draw(t, "attempts")
	for attempt := 1; attempt <= attempts; attempt++ {
		sent = append(sent, nil)
		var f fold.Fold
		for _, e := range w.stream {
			f.ApplyStored(e)
		}
		resume := f.Len()
		if rapid.Bool().Draw(t, "fresh") {
			resume = 0
		}
		w.ids, w.text = slices.Clone(f.Tokens()[:resume]), ""
		if resume > 0 {
			w.text = f.Text()
		}
		late := rapid.IntRange(0, 2).Draw(t, "late") // events of the attempt before that come after the reading
		for range late {
			if attempt > 1 {
				at := len(w.ids)
				publish(attempt-1, tokens(attempt-1, at, fmt.Sprint("late", attempt), int64(attempt)))
			}
		}
		publish(attempt, started(attempt, resume))
		for i := range rapid.IntRange(0, 6).Draw(t, "events") {
			var ids []int64
			text := ""
			for j := range rapid.IntRange(1, 3).Draw(t, "tokens") {
				ids = append(ids, int64(100*attempt+10*i+j))
				if rapid.Bool().Draw(t, "shown") {
					text += fmt.Sprintf("<%d.%d.%d>", attempt, i, j)
				}
			}
			e := tokens(attempt, len(w.ids), text, ids...)
			w.ids, w.text = append(w.ids, ids...), w.text+text
			publish(attempt, e)
			if rapid.IntRange(0, 4).Draw(t, "again") == 0 { // after an error
				from := rapid.IntRange(0, len(sent[attempt-1])-1).Draw(t, "again from")
				w.stream = append(w.stream, sent[attempt-1][from:]...)
			}
		}
	}
	w.stream = append(w.stream, completed(attempts, len(w.ids)))
	return w
}

// A reader keeps what it was given by Take, as a client's user does.
type reader struct {
	ids  []int64
	text string
}

func (r *reader) take(t *rapid.T, f *fold.Fold) {
	d := f.Take()
	if d.Index > len(r.ids) || d.Index < len(r.ids) && !d.Reset {
		t.Fatalf("delta at %d (reset %t) for a reader with %d tokens", d.Index, d.Reset, len(r.ids))
	}
	if d.TextBytes > len(r.text) || d.TextBytes < len(r.text) && !d.Reset {
		t.Fatalf("delta at byte %d (reset %t) for a reader with %d bytes", d.TextBytes, d.Reset, len(r.text))
	}
	r.ids = append(r.ids[:d.Index:d.Index], d.TokenIDs...)
	r.text = r.text[:d.TextBytes] + d.Text
	if !slices.Equal(r.ids, f.Tokens()) || r.text != f.Text() {
		t.Fatalf("reader has %v %q, fold has %v %q", r.ids, r.text, f.Tokens(), f.Text())
	}
}

func TestAnyLossesAndFillsYieldTheWorkersFinalText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := draw(t)
		var f fold.Fold
		for i, e := range w.stream {
			if rapid.IntRange(0, 2).Draw(t, "live") > 0 {
				f.ApplyLive(e)
			}
			if rapid.IntRange(0, 5).Draw(t, "fill") == 0 { // of what is stored, which may be ahead of what was heard
				for _, e := range w.stream[:rapid.IntRange(i+1, len(w.stream)).Draw(t, "stored")] {
					f.ApplyStored(e)
				}
			}
		}
		for _, e := range w.stream {
			f.ApplyStored(e)
		}
		if f.Status() != fold.Whole || f.Text() != w.text || !slices.Equal(f.Tokens(), w.ids) {
			t.Fatalf("%s %v %q, want whole %v %q", f.Status(), f.Tokens(), f.Text(), w.ids, w.text)
		}
	})
}

func TestWholeIsNeverSaidOfAnotherText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := draw(t)
		var f fold.Fold
		for _, e := range w.stream {
			if rapid.Bool().Draw(t, "live") {
				f.ApplyLive(e)
			}
			if f.Status() == fold.Whole && (f.Text() != w.text || !slices.Equal(f.Tokens(), w.ids)) {
				t.Fatalf("whole with %v %q, want %v %q", f.Tokens(), f.Text(), w.ids, w.text)
			}
		}
	})
}

func TestDeltasAddUpToTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := draw(t)
		var f fold.Fold
		var r reader
		for _, e := range w.stream {
			f.ApplyLive(e)
			if rapid.Bool().Draw(t, "take") {
				r.take(t, &f)
			}
		}
	})
}

// rich is a token event with all that can come with tokens.
func rich(attempt, index int, raw string, ids ...int64) *schemas.Tokens {
	e := tokens(attempt, index, "-", ids...)
	e.Bytes = []byte(raw)
	for _, id := range ids {
		e.Probs = append(e.Probs, schemas.TokenProbs{LogProb: -float64(id)})
	}
	return e
}

func logProbs(probs []schemas.TokenProbs) (ids []int64) {
	for _, p := range probs {
		ids = append(ids, int64(-p.LogProb))
	}
	return ids
}

func TestBytesAndLogProbabilitiesAreCutAndResumedWithTheirTokens(t *testing.T) {
	f := fold.From(0)
	take := func(want string, reset bool, ids ...int64) {
		t.Helper()
		d := f.Take()
		if string(d.Bytes) != want || d.Reset != reset || !slices.Equal(logProbs(d.Probs), ids) || !slices.Equal(d.TokenIDs, ids) {
			t.Errorf("%+v, want %q, reset %t, tokens %v", d, want, reset, ids)
		}
	}
	f.ApplyLive(started(1, 0))
	f.ApplyLive(rich(1, 0, "a\xc3", 1))
	take("a\xc3", false, 1)
	f.ApplyLive(rich(1, 1, "\xa9", 2, 3))
	f.ApplyLive(rich(1, 1, "\xa9", 2, 3)) // again
	take("\xa9", false, 2, 3)
	f.ApplyLive(started(2, 1))
	f.ApplyLive(rich(2, 1, "z", 9))
	again := rich(2, 1, "zy", 9, 8) // sent again, with one more
	again.Text = "--"
	f.ApplyLive(again)
	take("zy", true, 9, 8)
	if got := f.Bytes(); string(got) != "a\xc3zy" {
		t.Errorf("bytes %q", got)
	}
	if got := logProbs(f.Probs()); !slices.Equal(got, []int64{1, 9, 8}) {
		t.Errorf("log-probabilities of %v", got)
	}
	f.ApplyLive(tokens(2, 3, "x", 7)) // told without
	if got := f.Probs(); len(got) != 0 {
		t.Errorf("log-probabilities %v, although one token has none", got)
	}
}

func TestAResetSaysWhereTheBytesGoOn(t *testing.T) {
	f := fold.From(0)
	f.ApplyLive(started(1, 0))
	f.ApplyLive(rich(1, 0, "abc", 1))
	f.ApplyLive(rich(1, 1, "d", 2))
	f.Take()
	f.ApplyLive(started(2, 1))
	if d := f.Take(); !d.Reset || d.Index != 1 || d.TextBytes != 1 || d.RawBytes != 3 {
		t.Errorf("%+v, want a reset to 1 token, 1 byte of text, 3 raw bytes", d)
	}
}
