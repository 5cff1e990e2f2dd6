// Package integration tests the parts of the node together: the scheduler on a real llama.cpp engine.
package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
)

// story is the embedded model, loaded once for all tests.
var story *llama.Model

func TestMain(m *testing.M) {
	llama.ServeIfChild()
	var err error
	story, err = llama.Load(context.Background(), llama.FromBytes(models.StoryName, models.Story()), llama.LoadOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	story.Free()
	if binaryDir != "" {
		if err := os.RemoveAll(binaryDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// node is a scheduler on an engine of its own.
type node struct {
	t      testing.TB
	engine *llama.Engine
	*scheduler.Scheduler
}

// newNode makes a node; adjust, if not nil, changes its budget. At the end of the test it checks that nothing is left.
func newNode(t *testing.T, model *llama.Model, o llama.Options, adjust func(*scheduler.NodeBudget)) *node {
	t.Helper()
	return newNodeWith(t, model, o, func(_ *llama.Engine, c *scheduler.Config) {
		if adjust != nil {
			adjust(&c.Budget)
		}
	})
}

// newNodeWith is newNode whose whole configuration can be changed, once there is an engine.
func newNodeWith(t testing.TB, model *llama.Model, o llama.Options, change func(*llama.Engine, *scheduler.Config)) *node {
	t.Helper()
	if o.Threads == 0 {
		o.Threads = 1
	}
	engine, err := llama.NewEngine(model, o)
	if err != nil {
		t.Fatal(err)
	}
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth = 4096
	config := scheduler.Config{Budget: budget}
	change(engine, &config)
	sched, err := scheduler.New(engine, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sched.Close()
		if err := config.Spill.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := engine.LiveStates(); n != 0 {
			t.Errorf("%d saved states were not freed", n)
		}
		if tel := sched.Telemetry(); tel.ActiveSessions != 0 || tel.KVTotalBytes != 0 || tel.KVReservedBytes != 0 {
			t.Errorf("left behind: %d sessions, %d KV bytes, %d reserved", tel.ActiveSessions, tel.KVTotalBytes, tel.KVReservedBytes)
		}
		engine.Free()
	})
	return &node{t: t, engine: engine, Scheduler: sched}
}

func (n *node) submit(req scheduler.Request) {
	n.t.Helper()
	if d := n.Submit(req); !d.Accepted() {
		n.t.Fatal(d)
	}
}

// run ticks until nothing is pending; each, if not nil, is called after every tick.
func (n *node) run(each func(*scheduler.Report)) map[scheduler.TurnKey]scheduler.Ending {
	n.t.Helper()
	endings := make(map[scheduler.TurnKey]scheduler.Ending)
	for n.Pending() > 0 {
		report, err := n.Tick()
		if err != nil {
			n.t.Fatal(err)
		}
		if each != nil {
			each(report)
		}
		for _, e := range n.TakeResults(nil) {
			if _, twice := endings[e.Key]; twice {
				n.t.Fatalf("turn %s ended twice", e.Key)
			}
			endings[e.Key] = e
		}
	}
	return endings
}

// alone is the baseline: what a request yields as the only one on a fresh node.
func alone(t *testing.T, model *llama.Model, o llama.Options, req scheduler.Request) []scheduler.Token {
	t.Helper()
	n := newNode(t, model, o, nil)
	n.submit(req)
	end := n.run(nil)[req.Key()]
	if end.Reason != scheduler.Completed {
		t.Fatalf("the baseline ended %s %s: %s", end.Reason, end.Cause, end.Detail)
	}
	return end.Tokens
}

// request is a greedy turn of a session with a text prompt, as long as asked for whatever the model says.
func request(t *testing.T, session, prompt string, newTokens int) scheduler.Request {
	t.Helper()
	tokens, err := story.Tokenize(prompt, false)
	if err != nil {
		t.Fatal(err)
	}
	return requestTokens(session, tokens, newTokens)
}

func requestTokens(session string, prompt []scheduler.Token, newTokens int) scheduler.Request {
	sampling := scheduler.DefaultSampling()
	sampling.IgnoreEOG = true
	return scheduler.Request{Tenant: "t", Session: session, Turn: 1, Prompt: prompt, MaxNewTokens: newTokens, Sampling: sampling}
}

// randomPrompt is n token ids that depend on seed alone.
func randomPrompt(seed uint64, n, vocab int) []scheduler.Token {
	random := rand.New(rand.NewPCG(seed, 1))
	prompt := make([]scheduler.Token, n)
	for i := range prompt {
		prompt[i] = scheduler.Token(random.IntN(vocab))
	}
	return prompt
}
