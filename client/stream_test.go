package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
)

func TestStreamYieldsWhatTheWorkerSays(t *testing.T) {
	b := newBed(t)
	b.work(t, func(r *schemas.Request, lane schemas.Lane) {
		if *r.Prompt != "Once" || lane != schemas.AnyLane || r.MaxNewTokens != 8 {
			t.Errorf("request %+v in lane %s", r, lane)
		}
		b.tell(t, r.ID(), started(1, 0), tokens(1, 0, " upon", 7), tokens(1, 1, " a time", 8, 9), completed(1, 3))
	})
	s := generate(t, b.connect(t), request())
	r, err := s.Wait()
	if err != nil || r.Text != " upon a time" || fmt.Sprint(r.TokenIDs) != "[7 8 9]" || r.Final.Finish != schemas.FinishStop {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want io.EOF", err)
	}
}

func TestBytesAndLogProbabilitiesReachTheReaderWithTheirTokens(t *testing.T) {
	b := newBed(t)
	b.work(t, func(r *schemas.Request, _ schemas.Lane) {
		if !r.Raw || r.MinNewTokens != 2 || fmt.Sprint(r.Stop) != "[x yz]" {
			t.Errorf("request %+v", r)
		}
		first, second := tokens(1, 0, "a", 7), tokens(1, 1, "é", 8)
		first.Bytes, second.Bytes = []byte("a\xc3"), []byte("\xa9")
		first.Probs = []schemas.TokenProbs{{LogProb: -1, TopIDs: []int64{7}, TopProbs: []float64{-1}}}
		second.Probs = []schemas.TokenProbs{{LogProb: -2, TopIDs: []int64{9}, TopProbs: []float64{-0.5}}}
		b.tell(t, r.ID(), started(1, 0), first, second, completed(1, 2))
	})
	req := request()
	req.Raw, req.MinNewTokens, req.Stop = true, 2, []string{"x", "yz"}
	r, err := generate(t, b.connect(t), req).Wait()
	if err != nil || r.Text != "aé" || string(r.Bytes) != "aé" || len(r.Probs) != 2 || r.Probs[1].LogProb != -2 || r.Probs[1].TopIDs[0] != 9 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestEventsComeInOrderAndTheFinalLast(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, started(1, 0))
	got := []client.Event{next(t, s)}
	b.say(t, turn1, tokens(1, 0, "a", 1))
	got = append(got, next(t, s))
	b.say(t, turn1, &schemas.Keepalive{Attempt: 1, LastIndex: 0}, tokens(1, 1, "b", 2))
	got = append(got, next(t, s))
	b.say(t, turn1, completed(1, 2))
	got = append(got, next(t, s))
	if record(got...) != `start1 "a"@0 "b"@1 final` {
		t.Errorf("%s", record(got...))
	}
}

func TestTakeoverShowsAResetOfWhatWasDelivered(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "b", 2))
	got := []client.Event{next(t, s)}
	for record(got...) != `start1 "ab"@0` && record(got...) != `start1 "a"@0 "b"@1` {
		got = append(got, next(t, s))
	}
	b.say(t, turn1, started(2, 1), tokens(2, 1, "x", 9), completed(2, 2))
	rest := []client.Event{next(t, s), next(t, s), next(t, s), next(t, s)}
	if record(rest...) != `start2 reset@1 "x"@1 final` || rest[1].(client.Reset).TextBytes != 1 {
		t.Errorf("%+v", rest)
	}
	if _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestWhatIsNoEventIsIgnored(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, []byte{0xdf, 0xff, 0xff, 0xff, 0xff}, []byte("text"), started(1, 0), []byte{}, tokens(1, 0, "a", 1), completed(1, 1))
	if got, err := read(s); err != nil || got != `start1 "a"@0 final` {
		t.Errorf("%s, %v", got, err)
	}
}

// N11, nats.go#2107: what a slow subscription loses is filled in from the stream.
func TestSlowReaderGetsTheWholeText(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t, client.WithBuffer(2)), request())
	var want strings.Builder
	b.say(t, turn1, started(1, 0))
	for i := range 600 {
		text := fmt.Sprintf("<%d>", i)
		want.WriteString(text)
		b.say(t, turn1, tokens(1, i, text, int64(i)))
	}
	b.say(t, turn1, completed(1, 600))
	r, err := s.Wait()
	if err != nil || r.Text != want.String() || len(r.TokenIDs) != 600 {
		t.Errorf("%d tokens, %d bytes, %v; want 600 and %d", len(r.TokenIDs), len(r.Text), err, want.Len())
	}
}

func TestTokensLostWhileDisconnectedAreFilledIn(t *testing.T) {
	b := newBed(t)
	proxy := natsservertest.StartProxy(t, b.url)
	conn := natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers(), nats.ReconnectBufSize(-1))
	s := generate(t, clientOn(t, conn), request())
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1))
	next(t, s)
	proxy.Cut()
	b.say(t, turn1, tokens(1, 1, "b", 2), started(2, 1), tokens(2, 1, "c", 3), completed(2, 2)) // nothing is published after
	proxy.Heal()
	r, err := s.Wait()
	if err != nil || r.Text != "ac" {
		t.Errorf("%q, %v; want ac", r.Text, err)
	}
}

func TestStreamOfEventsThatWasMadeAgainIsReadFromItsBeginning(t *testing.T) {
	b := newBed(t)
	proxy := natsservertest.StartProxy(t, b.url)
	conn := natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers(), nats.ReconnectBufSize(-1))
	s := generate(t, clientOn(t, conn), request())
	proxy.Cut()
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "b", 2), tokens(1, 2, "c", 3))
	proxy.Heal()
	for text := ""; text != "abc"; {
		if more, ok := next(t, s).(client.Text); ok {
			text += more.Text
		}
	}
	proxy.Cut()
	if err := b.js.DeleteStream(waitCtx(t), mesh.EventStream()); err != nil {
		t.Fatal(err)
	}
	if err := makeStores(waitCtx(t), b.js); err != nil {
		t.Fatal(err)
	}
	b.say(t, turn1, started(2, 0), tokens(2, 0, "x", 9), completed(2, 1))
	proxy.Heal()
	if got, err := read(s); err != nil || got != `start2 reset@0 "x"@0 final` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestTurnThatEndedOtherwiseIsATypedError(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, &schemas.Final{Reason: schemas.Rejected, Node: node1,
		Error: &schemas.ErrorDetail{Reason: schemas.RejectedContext, Field: "context", Needed: 600, Available: 512, Message: "too long"}})
	got, err := read(s)
	var turn *client.TurnError
	var detail *schemas.ErrorDetail
	if got != "final" || !errors.As(err, &turn) || !errors.As(err, &detail) {
		t.Fatalf("%s, %v", got, err)
	}
	if turn.ID != turn1 || turn.Final.Reason != schemas.Rejected || detail.Reason != schemas.RejectedContext || detail.Needed != 600 {
		t.Errorf("%v", err)
	}
	for _, word := range []string{"acme/s1/1", "rejected", "rejected-context", "too long"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %s", err, word)
		}
	}
}

func TestFinalOfAnAttemptThatNeverStartedIsBelievedAfterALook(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1),
		&schemas.Final{Reason: schemas.Failed, Cause: schemas.CauseDeadline, Attempt: 2, Node: node1, Count: 1})
	got, err := read(s)
	var turn *client.TurnError
	if !errors.As(err, &turn) || turn.Final.Cause != schemas.CauseDeadline || !strings.HasSuffix(got, `"a"@0 final`) {
		t.Errorf("%s, %v", got, err)
	}
}

func TestTokensLostForGoodAreATypedError(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	s := generate(t, b.connect(t, client.WithClock(clock)), request())
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1), tokens(1, 2, "c", 3), completed(1, 3))
	stop := goOn(t, clock)
	got, err := read(s)
	stop()
	var lost *client.IncompleteError
	if !errors.As(err, &lost) || lost.Tokens != 1 || lost.Final.Count != 3 || !strings.HasSuffix(got, `"a"@0 final`) {
		t.Errorf("%s, %v", got, err)
	}
}

func TestStreamEndsWithItsContextOrClose(t *testing.T) {
	b := newBed(t)
	c := b.connect(t)
	ctx, cancel := context.WithCancel(waitCtx(t))
	s, err := c.Generate(ctx, request())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("Next = %v after its context ended", err)
	}
	second := request()
	second.Turn = 2
	s = generate(t, c, second)
	closing := make(chan struct{})
	go func() { <-closing; s.Close() }()
	close(closing)
	if _, err := s.Next(); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Next = %v after Close", err)
	}
	s.Close()
}

func TestLoopThatBreaksClosesTheStream(t *testing.T) {
	b := newBed(t)
	s := generate(t, b.connect(t), request())
	b.say(t, turn1, started(1, 0))
	for _, err := range s.Events() {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, err := s.Next(); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Next = %v, want %v", err, client.ErrClosed)
	}
}

func TestAttachGoesOnFromAnyIndex(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply {
		return &schemas.TurnReply{State: schemas.StateRunning, Attempt: 1, Node: node1}
	})
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1), tokens(1, 1, "bc", 2, 3))
	s, err := b.connect(t).Attach(waitCtx(t), "acme", "s1", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := record(next(t, s), next(t, s))
	b.say(t, turn1, tokens(1, 3, "d", 4), completed(1, 4))
	rest, err := read(s)
	if all := got + " " + rest; err != nil || all != `start1 "abc"@0 "d"@3 final` {
		t.Errorf("while it runs: %s, %v", all, err)
	}
	for from, want := range map[int]string{1: `start1 "bcd"@1 final`, 2: `start1 reset@1 "bcd"@1 final`, 3: `start1 "d"@3 final`, 4: `start1 final`, 9: `start1 reset@4 final`} {
		s, err := b.connect(t).Attach(waitCtx(t), "acme", "s1", 1, from)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := read(s); err != nil || got != want {
			t.Errorf("from %d after the end: %s, %v; want %s", from, got, err, want)
		}
	}
}

func TestClientThatCrashedGoesOnWithTheWholeText(t *testing.T) {
	b := newBed(t)
	b.answer(t, func(*schemas.TurnRequest) *schemas.TurnReply {
		return &schemas.TurnReply{State: schemas.StateRunning, Attempt: 1, Node: node1}
	})
	conn := natsservertest.Connect(t, b.url)
	s := generate(t, clientOn(t, conn), request())
	b.say(t, turn1, started(1, 0), tokens(1, 0, "a", 1))
	next(t, s)
	next(t, s)
	conn.Close() // the crash
	if _, err := s.Next(); err == nil {
		t.Fatal("a stream goes on without its connection")
	}
	b.say(t, turn1, tokens(1, 1, "b", 2))
	s, err := b.connect(t).Attach(waitCtx(t), "acme", "s1", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	next(t, s)
	b.say(t, turn1, tokens(1, 2, "c", 3), completed(1, 3))
	r, err := s.Wait()
	if err != nil || r.Text != "abc" {
		t.Errorf("%q, %v; want abc", r.Text, err)
	}
}

func TestConnectionThatIsClosedIsUnreachable(t *testing.T) {
	b := newBed(t)
	conn := natsservertest.Connect(t, b.url)
	s := generate(t, clientOn(t, conn), request())
	conn.Close()
	_, err := s.Next()
	var unreachable *client.UnreachableError
	if !errors.As(err, &unreachable) || !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("%v", err)
	}
}

func TestAnotherPrefixIsAnotherMesh(t *testing.T) {
	b := newBed(t)
	other := schemas.Must(schemas.ParsePrefix("lab.v1"))
	s, err := b.connect(t, client.WithPrefix(other)).Attach(waitCtx(t), "acme", "s1", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	b.say(t, turn1, started(1, 0), completed(1, 0))
	if err := b.conn.Publish(other.Tokens(turn1), encode(t, completed(0, 0))); err != nil {
		t.Fatal(err)
	}
	if got, err := read(s); err != nil || got != "final" {
		t.Errorf("%s, %v; want the final of lab.v1 alone", got, err)
	}
}
