package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

func TestTheDemoProvesWhatItShowsAndLeavesNothing(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	code, stdout, stderr := commandLine("", "demo", "--json")
	var doc demoDocument
	if err := json.Unmarshal([]byte(stdout), &doc); err != nil {
		t.Fatalf("%v: exit %d, stdout %q, stderr %q", err, code, stdout, stderr)
	}
	if code != exitDone || stderr != "" || !doc.Passed {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
	turns := make(map[string][]demoTurn)
	for _, step := range doc.Steps {
		turns[step.Name] = step.Turns
		for _, c := range step.Claims {
			if !c.Holds {
				t.Errorf("%s: this does not hold: %s", step.Name, c.Claim)
			}
		}
		if !step.Passed || len(step.Claims) == 0 {
			t.Errorf("step %s passed: %t, with %d claims", step.Name, step.Passed, len(step.Claims))
		}
	}
	if code != exitDone {
		t.FailNow()
	}
	checkDemoTurns(t, turns)
	if len(doc.Steps) != len(demoScenes()) || len(doc.Nodes) != demoNodes {
		t.Errorf("%d steps, %d nodes", len(doc.Steps), len(doc.Nodes))
	}
	checkEmpty(t, temporary)
}

// checkDemoTurns checks by the turns alone what the claims say.
func checkDemoTurns(t *testing.T, turns map[string][]demoTurn) {
	t.Helper()
	for name, n := range map[string]int{"streams": 3, "cancel": 1, "quota": demoQuota + 1, "hot": 2, "takeover": 1} {
		if len(turns[name]) != n {
			t.Fatalf("%s has %d turns; want %d", name, len(turns[name]), n)
		}
		for _, turn := range turns[name] {
			if name != "cancel" && (turn.Reason != schemas.Completed || !turn.SameAlone) {
				t.Errorf("%s: session %s ended %s, as alone: %t", name, turn.Session, turn.Reason, turn.SameAlone)
			}
		}
	}
	if first := turns["streams"][0]; !strings.HasPrefix(first.Text, storyBegin) || first.Finish != schemas.FinishStop {
		t.Errorf("the first story ended %s: %q", first.Finish, first.Text)
	}
	if cancelled := turns["cancel"][0]; cancelled.Reason != schemas.Cancelled {
		t.Errorf("the cancelled turn ended %s", cancelled.Reason)
	}
	if u := turns["hot"][1].Usage; u.CachedTokens == 0 || u.CachedTokens+u.PrefilledTokens != u.PromptTokens {
		t.Errorf("the hot turn's usage is %+v", u)
	}
	disturbed, undisturbed := turns["takeover"][0], turns["streams"][2]
	if disturbed.Attempt < 2 || disturbed.Resumed == 0 || disturbed.Text != undisturbed.Text {
		t.Errorf("attempt %d went on at %d and said %q; undisturbed %q", disturbed.Attempt, disturbed.Resumed, disturbed.Text, undisturbed.Text)
	}
}

func checkEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCtrlCEndsTheDemoAndLeavesNothing(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	ctx, cancel := context.WithCancel(context.Background())
	out := &cancelOnWrite{cancel: cancel}
	env := newEnvironment(ctx, strings.NewReader(""), out, io.Discard)
	if err := (&demoCommand{}).Run(env); !errors.Is(err, errCancelled) {
		t.Errorf("error %v", err)
	}
	if text := out.text.String(); strings.Contains(text, "ok  ") {
		t.Errorf("after Ctrl-C at the first line: %q", text)
	}
	checkEmpty(t, temporary)
}

// A demo that cannot fail proves nothing.
func TestTheDemoSeesTokensThatAreLostDoubledOrOthers(t *testing.T) {
	event := func(index int, text string, ids ...int64) client.Event {
		return client.Text{Index: index, TokenIDs: ids, Text: text}
	}
	final := client.Final{Final: schemas.Final{Reason: schemas.Completed, Count: 3}}
	for _, c := range []struct {
		claim  string
		same   bool
		events []client.Event
	}{
		{"whole", true, []client.Event{event(0, "a", 1), event(1, "bc", 2, 3), final}},
		{"taken back and told again", true, []client.Event{event(0, "ax", 1, 9), client.Reset{Index: 1, TextBytes: 1}, event(1, "bc", 2, 3), final}},
		{"lost", false, []client.Event{event(0, "a", 1), event(2, "c", 3), final}},
		{"doubled", false, []client.Event{event(0, "a", 1), event(0, "a", 1), event(1, "bc", 2, 3), final}},
		{"others", false, []client.Event{event(0, "abd", 1, 2, 4), final}},
		{"other text", false, []client.Event{event(0, "abd", 1, 2, 3), final}},
		{"without an end", false, []client.Event{event(0, "abc", 1, 2, 3)}},
	} {
		told := &telling{alone: &generateDocument{Text: "abc", TokenIDs: []int32{1, 2, 3}}}
		for _, e := range c.events {
			told.take(e)
		}
		if told.sameAlone() != c.same {
			t.Errorf("%s: as alone is %t", c.claim, !c.same)
		}
	}
	step := &demoStep{Passed: true, view: newDemoView(io.Discard)}
	step.claim(false, "not so")
	step.claim(true, "so")
	if step.Passed || len(step.Claims) != 2 || step.Claims[0].Holds {
		t.Errorf("after a claim that does not hold: %+v", step)
	}
}
