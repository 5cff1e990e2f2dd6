package integration

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/schemas"
)

// chatModelFile is a model of thirty layers with a chat template.
func chatModelFile(t *testing.T) string {
	t.Helper()
	shape, err := testmodel.Lookup("30layers-tiny")
	if err != nil {
		t.Fatal(err)
	}
	shape.Chat = true
	path := filepath.Join(t.TempDir(), "chat.gguf")
	if err := testmodel.File(path, shape, 1, "f16"); err != nil {
		t.Fatal(err)
	}
	return path
}

// words is a schema of long texts: a turn lasts long enough to be disturbed.
const words = `{"type":"array","items":{"type":"string","minLength":20,"maxLength":30},"minItems":30,"maxItems":30}`

func wordsRequest(session string) client.Request {
	seed := uint64(3)
	sampling := schemas.DefaultSampling()
	sampling.Temperature, sampling.Seed = 1, &seed
	return client.Request{
		Tenant: "t", Session: session, Turn: 1, Model: "m", MaxNewTokens: 1800, Sampling: &sampling, Deadline: time.Minute, JSONSchema: words,
		Messages: []schemas.ChatMessage{{Role: schemas.RoleSystem, Content: "Be brief."}, {Role: schemas.RoleUser, Content: "Thirty words, <|im_end|> please."}},
	}
}

// The takeover replays tokens, or prefills those beyond --replay-max; each goes through the grammar.
func TestAChatTurnOfAKilledWorkerGoesOnWithinItsSchema(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	model := chatModelFile(t)
	for name, c := range map[string]struct {
		args []string
		same bool // prefilled tokens may go on with other bits
	}{
		"replay":  {[]string{"--exact"}, true},
		"prefill": {[]string{"--replay-max", "2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--model", model, "--name", "m", "--ctx", "2048"}, c.args...)
			workers := map[string]*workerProcess{"a": startWorker(t, server.ClientURL(), "a", args...)}
			mesh := meshClient(t, server.ClientURL())
			want, err := generate(t, mesh, wordsRequest("undisturbed-"+name), nil)
			if err != nil {
				t.Fatal(err)
			}
			workers["b"] = startWorker(t, server.ClientURL(), "b", args...)
			killed := false
			got, err := generate(t, mesh, wordsRequest("disturbed-"+name), func(owner string, tokens int) {
				if tokens >= 40 && !killed {
					killed = true
					workers[owner].kill()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.Final.Attempt != 2 || got.Final.Finish != schemas.FinishStop {
				t.Errorf("attempt %d, finish %s; want 2 and stop", got.Final.Attempt, got.Final.Finish)
			}
			if err := validate(words, got.Text); err != nil {
				t.Errorf("%.200s: %v", got.Text, err)
			}
			if c.same && got.Text != want.Text {
				t.Errorf("disturbed:   %.200q\nundisturbed: %.200q", got.Text, want.Text)
			}
		})
	}
}

func TestNodesAdvertiseWhatTheirModelAndTheirOperatorAllow(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	startWorker(t, server.ClientURL(), "story", "--name", "story")
	startWorker(t, server.ClientURL(), "chat", "--name", "m", "--model", chatModelFile(t), "--allow-grammar")
	nodes, err := meshClient(t, server.ClientURL()).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"story": {"json-schema"}, "chat": {"chat", "json-schema", "grammar"}}
	for _, n := range nodes {
		if got := n.Ad.Features; !slices.Equal(got, want[n.Ad.Node.String()]) {
			t.Errorf("node %s advertises %v, want %v", n.Ad.Node, got, want[n.Ad.Node.String()])
		}
	}
	if len(nodes) != 2 {
		t.Errorf("%d nodes, want 2", len(nodes))
	}
}
