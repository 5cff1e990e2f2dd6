package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

const (
	conversationTurns = 20
	conversationGrid  = 64 // of prefill
	systemMessage     = "Long ago there was a kind queen who knew many stories. Every evening she told one of them to the children of the village, " +
		"and when she was tired the children told one to her. Nobody went home before the end."
	storyTemplate = `{% for m in messages %}{{ m['role'] + '\n' + m['content'] + '\n' }}{% endfor %}{{ 'assistant\n' }}`
)

// chatStory is the file of the story model, with a chat template.
func chatStory(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "story.gguf")
	if err := testmodel.WithTemplate(path, models.Story(), storyTemplate); err != nil {
		t.Fatal(err)
	}
	return path
}

// followed is a turn that was read to its end.
type followed struct {
	client.Result
	started []client.Started
}

// follow reads a turn to its end; on, if not nil, is told who runs it and how many tokens came.
func follow(t *testing.T, c *client.Client, req client.Request, on func(owner string, tokens int)) *followed {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := c.Generate(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	f := &followed{}
	for event, err := range stream.Events() {
		if err != nil {
			t.Fatalf("turn %s/%d: %v", req.Session, req.Turn, err)
		}
		switch e := event.(type) {
		case client.Started:
			f.started = append(f.started, e)
		case client.Text:
			f.Text += e.Text
			f.TokenIDs, f.Probs, f.Bytes = append(f.TokenIDs, e.TokenIDs...), append(f.Probs, e.Probs...), append(f.Bytes, e.Bytes...)
			if on != nil {
				on(f.started[len(f.started)-1].Node.String(), len(f.TokenIDs))
			}
		case client.Reset:
			t.Errorf("turn %s/%d: text was taken back from token %d on", req.Session, req.Turn, e.Index)
		case client.Final:
			f.Final = e.Final
		}
	}
	return f
}

// exchange is a turn of a conversation that is over.
type exchange struct {
	asked string
	answer
}

type answer struct {
	text   string
	tokens []scheduler.Token
}

// A door is a way to send a conversation: it fills in a request, and says what tokens the model gets.
type door func(t *testing.T, past []exchange, asked string, req *client.Request) []scheduler.Token

// rendered is the conversation as text, by hand.
func rendered(past []exchange, asked string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "system\n%s\n", systemMessage)
	for _, e := range past {
		fmt.Fprintf(&b, "user\n%s\nassistant\n%s\n", e.asked, e.text)
	}
	fmt.Fprintf(&b, "user\n%s\nassistant\n", asked)
	return b.String()
}

var doors = map[string]door{
	"messages": func(t *testing.T, past []exchange, asked string, req *client.Request) []scheduler.Token {
		message := func(role schemas.ChatRole, content string) {
			req.Messages = append(req.Messages, schemas.ChatMessage{Role: role, Content: content})
		}
		message(schemas.RoleSystem, systemMessage)
		for _, e := range past {
			message(schemas.RoleUser, e.asked)
			message(schemas.RoleAssistant, e.text)
		}
		message(schemas.RoleUser, asked)
		return tokenized(t, rendered(past, asked))
	},
	"prompt": func(t *testing.T, past []exchange, asked string, req *client.Request) []scheduler.Token {
		req.Prompt = rendered(past, asked)
		return tokenized(t, req.Prompt)
	},
	// Replies go back as the tokens they came as.
	"token_ids": func(t *testing.T, past []exchange, asked string, req *client.Request) (prompt []scheduler.Token) {
		prompt = tokenized(t, systemMessage)
		for _, e := range past {
			prompt = slices.Concat(prompt, tokenized(t, e.asked), e.tokens)
		}
		prompt = append(prompt, tokenized(t, asked)...)
		for _, token := range prompt {
			req.TokenIDs = append(req.TokenIDs, int64(token))
		}
		return prompt
	},
}

func tokenized(t *testing.T, text string) []scheduler.Token {
	t.Helper()
	tokens, err := story.Tokenize(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// conversationTurn is turn k without its prompt. Every other one is drawn.
func conversationTurn(tenant, session, model string, k int) client.Request {
	seed := uint64(k)
	sampling := schemas.DefaultSampling()
	sampling.Temperature, sampling.Seed, sampling.Probs = float64(k%2), &seed, 2
	return client.Request{Tenant: tenant, Session: session, Turn: uint64(k), Model: model, MaxNewTokens: 24, MinNewTokens: 10,
		Sampling: &sampling, Deadline: time.Minute, Keep: true}
}

// One session of 20 turns through each door, and each of its turns again as the first of a session of its own, with nothing cached.
func TestEachTurnOfALongConversationPrefillsWhatIsNewInIt(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	c := meshClient(t, server.ClientURL())
	model := chatStory(t)
	for _, mode := range []string{"exact", "plain"} {
		args := []string{"--model", model, "--name", mode, "--prefill-chunk", fmt.Sprint(conversationGrid)}
		if mode == "exact" {
			args = append(args, "--exact")
		}
		startWorker(t, server.ClientURL(), mode, args...)
		for name, send := range doors {
			t.Run(mode+"/"+name, func(t *testing.T) { converse(t, c, mode, name, send) })
		}
	}
}

func converse(t *testing.T, c *client.Client, mode, name string, send door) {
	exact := mode == "exact"
	var past []exchange
	var before, held []scheduler.Token // the prompt of the turn before, and what its KV is of
	reused, otherTurns, otherTokens := 0, 0, 0
	for k := 1; k <= conversationTurns; k++ {
		asked := fmt.Sprintf("Tell me of child number %d and of the %s.", k, []string{"fox", "owl", "river", "old king"}[k%4])
		req := conversationTurn(mode+"-"+name, "hot", mode, k)
		prompt := send(t, past, asked, &req)
		req.RequireHot = k > 1
		hot := follow(t, c, req, nil)

		cached := 0
		if k > 1 {
			cached = hotTokens(before, held, prompt, exact)
			if cached == 0 {
				t.Fatal("nothing can be hot: the test shows nothing")
			}
		}
		wantPrefill(t, k, hot, len(prompt), cached, exact || k == 1)
		if len(held) > 0 && cached == len(held) {
			reused++
		}

		alone := conversationTurn(fmt.Sprintf("%s-%s-%d", mode, name, k), "cold", mode, k)
		send(t, past, asked, &alone)
		cold := follow(t, c, alone, nil)
		wantPrefill(t, k, cold, len(prompt), 0, true)
		if n := differing(hot.TokenIDs, cold.TokenIDs); n > 0 {
			otherTurns, otherTokens = otherTurns+1, otherTokens+n
		}
		if exact && fmt.Sprint(hot.TokenIDs, hot.Probs) != fmt.Sprint(cold.TokenIDs, cold.Probs) {
			t.Errorf("turn %d: hot %v, cold %v", k, hot.TokenIDs, cold.TokenIDs)
		}

		reply := narrowed(hot.TokenIDs)
		before, held = prompt, slices.Concat(prompt, reply[:len(reply)-1])
		past = append(past, exchange{asked, answer{hot.Text, reply}})
	}
	if !exact {
		t.Logf("%d of %d turns came out otherwise than cold, in %d tokens; %d turns reused all of the one before; the last prompt has %d tokens",
			otherTurns, conversationTurns, otherTokens, reused, len(before))
		if name == "token_ids" && reused != conversationTurns-1 {
			t.Errorf("%d turns reused all of the one before, want each", reused)
		}
	}
}

// hotTokens is how much of a prompt need not be evaluated: what it has in common with the KV of the turn before, short of its
// last token. An exact node takes only what was evaluated as a prompt, in whole chunks.
func hotTokens(before, held, prompt []scheduler.Token, exact bool) int {
	common := 0
	for common < min(len(held), len(prompt)-1) && held[common] == prompt[common] {
		common++
	}
	if exact {
		common = min(common, len(before)) / conversationGrid * conversationGrid
	}
	return common
}

func wantPrefill(t *testing.T, k int, got *followed, prompt, cached int, exact bool) {
	t.Helper()
	if len(got.started) != 1 || got.Final.Reason != schemas.Completed {
		t.Fatalf("turn %d started %d times and ended %s: %+v", k, len(got.started), got.Final.Reason, got.Final.Error)
	}
	started := got.started[0]
	miss := schemas.Miss("")
	if cached == 0 {
		miss = schemas.MissNever
	}
	if started.Miss != miss || started.PromptTokens != prompt || started.CachedTokens != cached || started.Exact != exact {
		t.Errorf("turn %d started %+v; want %d prompt tokens, %d cached, miss %q, exact %t", k, started.Started, prompt, cached, miss, exact)
	}
	want := schemas.Usage{PromptTokens: prompt, CachedTokens: cached, PrefilledTokens: prompt - cached, NewTokens: len(got.TokenIDs)}
	if got.Final.Usage != want || !got.Final.Kept || len(got.Probs) != len(got.TokenIDs) {
		t.Errorf("turn %d: usage %+v, want %+v; kept %t, %d log-probabilities", k, got.Final.Usage, want, got.Final.Kept, len(got.Probs))
	}
}

// differing is at how many places two turns have other tokens.
func differing(a, b []int64) int {
	n := max(len(a), len(b)) - min(len(a), len(b))
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

func narrowed(ids []int64) []scheduler.Token {
	tokens := make([]scheduler.Token, len(ids))
	for i, id := range ids {
		tokens[i] = scheduler.Token(id)
	}
	return tokens
}
