package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/meshnet/node/bench"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const model = "toy"

// mesh is a worker with the pure-Go engine, and a client.
type mesh struct {
	conn   *nats.Conn
	client *client.Client
	gate   *goengine.Gate // holds decode steps until it is opened
}

func newMesh(t *testing.T, gated bool) *mesh {
	t.Helper()
	m := &mesh{}
	config := goengine.Config{Seed: 1}
	if gated {
		m.gate = goengine.NewGate(goengine.OpDecode)
		config.OnCall = m.gate.Hold
	}
	engine, err := goengine.New(config)
	if err != nil {
		t.Fatal(err)
	}
	server := natsservertest.Start(t, natsserver.Options{})
	service, err := worker.New(worker.Config{
		URL: server.ClientURL(), Node: schemas.Must(schemas.ParseNode("n1")), Model: schemas.Must(schemas.ParseModel(model)), Engine: engine,
		Text: worker.Text{
			Tokenize: func(_ int, text string, _ bool) ([]int32, error) { return make([]int32, len(text)), nil },
			Piece:    func(dst []byte, token int32) ([]byte, error) { return fmt.Appendf(dst, "<%d>", token), nil },
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = service.Start(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(service.Stop)
	if gated {
		t.Cleanup(m.gate.Open)
	}
	if err := part.Ready(natsservertest.Context(t), service); err != nil {
		t.Fatal(err)
	}
	m.conn = natsservertest.Connect(t, server.ClientURL(), nats.ReconnectBufSize(-1))
	if m.client, err = client.New(m.conn, client.WithLog(slog.New(slog.DiscardHandler))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.client.Close)
	return m
}

// run is a benchmark of the mesh, and of a peer if there is one.
func (m *mesh) run(t *testing.T, peerURL string, change func(*bench.Options)) *bench.Run {
	t.Helper()
	o := bench.Options{
		Concurrency: []int{1, 3}, Requests: 6, Warmup: 2, Rounds: 2, Seed: 3, Output: bench.Lengths{Min: 2, Max: 6}, IgnoreEOS: true,
		Timeout: time.Minute, Stall: time.Minute,
	}
	if change != nil {
		change(&o)
	}
	serving, err := bench.FindModel(natsservertest.Context(t), m.client, model)
	if err != nil {
		t.Fatal(err)
	}
	run := &bench.Run{
		Options: o, Model: model, Prompts: bench.RandomIDs(bench.Lengths{Min: 4, Max: 12}, 2, serving.VocabTokens, o.Seed),
		Targets:   []bench.Target{bench.NewMesh(bench.MeshConfig{Client: m.client, Tenant: "acme", Model: model, Options: &o})},
		Occupancy: func() (bench.Occupancy, error) { return bench.Occupied(context.Background(), m.client, model) },
	}
	if peerURL != "" {
		peer, err := bench.NewPeer(bench.PeerConfig{URL: peerURL, Model: model, Options: &o})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(peer.Close)
		run.Targets = append(run.Targets, peer)
	}
	return run
}

func do(ctx context.Context, t *testing.T, run *bench.Run) *bench.Report {
	t.Helper()
	report, err := run.Do(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestARealMeshAndAPeerAnswerTheSameRequests(t *testing.T) {
	m := newMesh(t, false)
	server := echoServer(t)
	report := do(natsservertest.Context(t), t, m.run(t, server.URL, nil))
	if !slices.Equal(report.Systems, []string{"mesh", "peer"}) || len(report.Phases) != 2 || report.Interrupted {
		t.Fatalf("report %+v", report)
	}
	for _, p := range report.Phases {
		ours, theirs := &p.Systems[0].Median, &p.Systems[1].Median
		if ours.Completed != 12 || ours.Failed != 0 || ours.Short != 0 || theirs.Completed != 12 || theirs.Failed != 0 {
			t.Errorf("%s: mesh %+v, peer %+v", p.Name, ours, theirs)
		}
		if ours.PromptTokens != theirs.PromptTokens || ours.OutputTokens != theirs.OutputTokens || ours.OutputTokens == 0 {
			t.Errorf("%s: %d and %d tokens, the peer was asked for %d and %d", p.Name, ours.PromptTokens, ours.OutputTokens, theirs.PromptTokens, theirs.OutputTokens)
		}
		if ours.TTFT.Count != 12 || ours.E2EL.Median <= ours.TTFT.Median || p.Ratios["output_tokens_per_second"] <= 0 || p.ComparedTexts != 12 {
			t.Errorf("%s: %+v, ratios %v", p.Name, ours, p.Ratios)
		}
		for i, r := range p.Systems[0].Requests {
			if other := p.Systems[1].Requests[i]; r.Failure != "" || r.PromptTokens < 6 || r.PromptTokens > 14 || r.OutputTokens < 2 || r.OutputTokens > 6 || r.Number != other.Number {
				t.Errorf("%s: request %+v, of the peer %+v", p.Name, r, other)
			}
		}
	}
	if len(report.Occupancy) == 0 {
		t.Error("nothing is known of the nodes' occupancy")
	}
}

// echoServer answers with as many words as it is asked for.
func echoServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Prompt    []int64 `json:"prompt"`
			MaxTokens int     `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		for range body.MaxTokens {
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"word \"}]}\n\n")
			w.(http.Flusher).Flush()
		}
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", len(body.Prompt), body.MaxTokens)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestAnInterruptedRunCancelsItsTurnsInTheMesh(t *testing.T) {
	m := newMesh(t, true)
	sent := m.requests(t)
	ctx, interrupt := context.WithCancel(natsservertest.Context(t))
	run := m.run(t, "", func(o *bench.Options) { o.Concurrency, o.Warmup, o.Rounds = []int{3}, 0, 1 })
	run.Progress = func(bench.Progress) {
		if o, err := bench.Occupied(ctx, m.client, model); err == nil && o.ActiveSessions == 3 {
			interrupt()
		}
	}
	report := do(ctx, t, run)
	median := &report.Phases[0].Systems[0].Median
	if !report.Interrupted || median.Cut != 3 || median.Completed != 0 || median.Failed != 0 {
		t.Errorf("interrupted %v, %+v", report.Interrupted, median)
	}
	m.gate.Open()
	for range 3 {
		m.endsCancelled(t, <-sent)
	}
}

// requests yields the requests that are submitted from now on.
func (m *mesh) requests(t *testing.T) <-chan *schemas.Request {
	t.Helper()
	sent := make(chan *schemas.Request, 100)
	var prefix schemas.Prefix
	_, err := m.conn.Subscribe(prefix.Requests(), func(msg *nats.Msg) {
		request, err := schemas.Decode[schemas.Request](msg.Data)
		if err != nil {
			t.Error(err)
			return
		}
		sent <- request
	})
	if err == nil {
		err = m.conn.FlushWithContext(natsservertest.Context(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// endsCancelled waits until the ledger says how a turn ended.
func (m *mesh) endsCancelled(t *testing.T, r *schemas.Request) {
	t.Helper()
	ctx := natsservertest.Context(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		standing, err := m.client.Status(ctx, r.Tenant.String(), r.Session.String(), uint64(r.Turn))
		if err != nil {
			t.Fatal(err)
		}
		if standing.Final != nil {
			if standing.Final.Reason != schemas.Cancelled {
				t.Errorf("turn %s ended %s", r.ID(), standing.Final.Reason)
			}
			return
		}
		<-tick.C
	}
}

func TestATurnThatTakesTooLongIsCancelledInTheMesh(t *testing.T) {
	m := newMesh(t, true)
	sent := m.requests(t)
	run := m.run(t, "", func(o *bench.Options) {
		o.Concurrency, o.Requests, o.Warmup, o.Rounds, o.Timeout = []int{2}, 2, 0, 1, time.Second
	})
	report := do(natsservertest.Context(t), t, run)
	m.gate.Open()
	for range 2 {
		m.endsCancelled(t, <-sent)
	}
	system := &report.Phases[0].Systems[0]
	if system.Median.Failures["timeout"] != 2 || report.Completed(0) != 0 {
		t.Errorf("%+v, %v", system.Median, system.Examples)
	}
}

func TestAMeshsRefusalIsCountedByItsReason(t *testing.T) {
	m := newMesh(t, false)
	run := m.run(t, "", func(o *bench.Options) {
		o.Concurrency, o.Requests, o.Warmup, o.Output = []int{2}, 2, 0, bench.Lengths{Min: 60_000, Max: 60_000}
	})
	system := &do(natsservertest.Context(t), t, run).Phases[0].Systems[0]
	if system.Median.Failures["rejected-context"] != 4 || system.Examples["rejected-context"] == "" {
		t.Errorf("%+v, %v", system.Median, system.Examples)
	}
}

func TestAModelThatNobodyServesIsAnError(t *testing.T) {
	m := newMesh(t, false)
	if _, err := bench.FindModel(natsservertest.Context(t), m.client, "other"); err == nil {
		t.Error("it is found")
	}
}
