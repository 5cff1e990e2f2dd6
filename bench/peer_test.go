package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeServer answers completions as OpenAI's API does, after a script of its own.
type fakeServer struct {
	*httptest.Server
	mu          sync.Mutex // guards what follows
	bodies      []map[string]any
	headers     []http.Header
	connections map[net.Conn]bool
}

// serve starts a server. answer writes the body; flush sends what was written.
func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, flush func())) *fakeServer {
	t.Helper()
	f := &fakeServer{connections: make(map[net.Conn]bool)}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != "/v1/completions" {
			t.Errorf("%s: %v", r.URL, err)
		}
		f.mu.Lock()
		f.bodies, f.headers = append(f.bodies, body), append(f.headers, r.Header)
		f.mu.Unlock()
		answer(w, r, w.(http.Flusher).Flush)
	}))
	f.Config.ConnState = func(c net.Conn, s http.ConnState) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s == http.StateNew {
			f.connections[c] = true
		}
	}
	f.Start()
	t.Cleanup(f.Close)
	return f
}

func (f *fakeServer) peer(t *testing.T, o *Options) *Peer {
	t.Helper()
	p, err := NewPeer(PeerConfig{URL: f.URL, Name: "fake", Model: "toy", Options: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// tell writes events of a completion: the words, then what the tail says.
func tell(w io.Writer, words []string, tail string) {
	for _, word := range words {
		text, _ := json.Marshal(word)
		fmt.Fprintf(w, "data: {\"choices\":[{\"text\":%s,\"index\":0,\"finish_reason\":null}]}\n\n", text)
	}
	fmt.Fprint(w, tail)
}

const (
	lastChunk = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
	usage     = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n"
	done      = "data: [DONE]\n\n"
)

func runOn(t *testing.T, target Target, o Options, prompts *Prompts) ([]Record, Measures) {
	t.Helper()
	l := &loader{target: target, opts: &o, origin: time.Now()}
	phase := o.phases()[0]
	records := l.run(t.Context(), phase, o.plan(prompts, 0, 0, phase, 0))
	return records, o.measure(records, false)
}

func TestAPeerIsAskedForWhatTheMeshIsAskedFor(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, _ *http.Request, _ func()) {
		tell(w, []string{"a", "b"}, lastChunk+usage+done)
	})
	o := options()
	o.Concurrency, o.Requests = []int{1}, 1
	records, _ := runOn(t, server.peer(t, &o), o, RandomIDs(Lengths{3, 3}, 0, 9, 1))
	if r := &records[0]; r.Failure != nil || r.Answer != (Answer{PromptTokens: 4, CachedTokens: 2, OutputTokens: 3}) || len(r.Gaps) != 1 {
		t.Errorf("record %+v, %v", r, r.Failure)
	}
	job := o.plan(RandomIDs(Lengths{3, 3}, 0, 9, 1), 0, 0, o.phases()[0], 0)[0]
	want := fmt.Sprintf(`{"ignore_eos":true,"max_tokens":%d,"model":"toy","prompt":[%d,%d,%d],"seed":%d,"stream":true,"stream_options":{"include_usage":true},"temperature":0}`,
		job.MaxTokens, job.Prompt.TokenIDs[0], job.Prompt.TokenIDs[1], job.Prompt.TokenIDs[2], job.Seed)
	if got, _ := json.Marshal(server.bodies[0]); string(got) != want {
		t.Errorf("body %s, want %s", got, want)
	}
	if _, sent := server.headers[0]["Idempotency-Key"]; sent {
		t.Error("a header is sent that is meant for the HTTP client alone")
	}
	o.IgnoreEOS, o.Temperature = false, 0.5
	runOn(t, server.peer(t, &o), o, RandomWords(Lengths{3, 3}, 0, 1))
	body := server.bodies[1]
	if _, ids := body["prompt"].(string); !ids || body["ignore_eos"] != nil || body["temperature"] != 0.5 || body["top_k"] != 0.0 || body["top_p"] != 1.0 || body["min_p"] != 0.0 {
		t.Errorf("body %v", body)
	}
}

func TestWhatAPeerMayAnswerIsCountedByReasonAndEndsNothing(t *testing.T) {
	for claim, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, flush func())
		reason string // "": it completes
		tokens int
	}{
		"comments between events": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			tell(w, []string{"a"}, ": ping\n\n")
			tell(w, []string{"b"}, usage+done)
		}, tokens: 3},
		"usage beside the last choice": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			tell(w, []string{"a"}, `data: {"choices":[{"text":"b","finish_reason":"stop"}],"usage":{"completion_tokens":7}}`+"\n\n"+done)
		}, tokens: 7},
		"no usage": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			tell(w, []string{"a", "", "b"}, lastChunk+done)
		}, tokens: 2},
		"no DONE": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) { tell(w, []string{"a"}, lastChunk) }, tokens: 1},
		"503": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			http.Error(w, `{"error":"Loading model"}`, http.StatusServiceUnavailable)
		}, reason: "http-503"},
		"400": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			http.Error(w, "prompt must be a string", http.StatusBadRequest)
		}, reason: "http-400"},
		"an error event": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			tell(w, []string{"a"}, "data: {\"error\":{\"message\":\"out of slots\"}}\n\n")
		}, reason: peerReported},
		"the body ends early": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) { tell(w, []string{"a"}, "") }, reason: peerCutOff},
		"the connection breaks": {answer: func(w http.ResponseWriter, _ *http.Request, flush func()) {
			tell(w, []string{"a"}, "")
			flush()
			panic(http.ErrAbortHandler)
		}, reason: peerBroken},
		"no JSON": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) { fmt.Fprint(w, "data: <html>\n\n") }, reason: peerMangled},
		"an endless event": {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) {
			fmt.Fprint(w, "data: "+strings.Repeat("a", 2*maxEventBytes))
		}, reason: peerMangled},
		"no character":      {answer: func(w http.ResponseWriter, _ *http.Request, _ func()) { tell(w, []string{""}, usage+done) }, reason: reasonNoText},
		"silence in midway": {answer: stall, reason: reasonStalled},
	} {
		t.Run(claim, func(t *testing.T) {
			server := serve(t, c.answer)
			o := options()
			o.Concurrency, o.Requests, o.Stall = []int{2}, 4, 100*ms
			if c.reason != reasonStalled {
				o.Stall = time.Minute
			}
			records, m := runOn(t, server.peer(t, &o), o, RandomIDs(Lengths{3, 3}, 0, 9, 1))
			if c.reason == "" {
				if m.Completed != 4 || records[0].Answer.OutputTokens != c.tokens {
					t.Errorf("%+v, record %+v, %v", m, records[0], records[0].Failure)
				}
				return
			}
			if m.Failed != 4 || m.Failures[c.reason] != 4 {
				t.Errorf("failures %v, %v; want 4 %s", m.Failures, records[0].Failure, c.reason)
			}
		})
	}
}

// stall sends a text and a comment, then nothing until its client is gone.
func stall(w http.ResponseWriter, r *http.Request, flush func()) {
	tell(w, []string{"a"}, ": still here\n\n")
	flush()
	<-r.Context().Done()
}

func TestAPeerThatIsNotThereIsCounted(t *testing.T) {
	server := serve(t, nil)
	o := options()
	o.Concurrency, o.Requests = []int{2}, 4
	peer := server.peer(t, &o)
	server.Close()
	if records, m := runOn(t, peer, o, RandomIDs(Lengths{3, 3}, 0, 9, 1)); m.Failures[peerConnect] != 4 {
		t.Errorf("failures %v, %v", m.Failures, records[0].Failure)
	}
}

func TestConnectionsAreKeptAndAreAsManyAsAreInFlight(t *testing.T) {
	const n = 4
	var together sync.WaitGroup
	together.Add(n)
	first := make(chan struct{}, n)
	server := serve(t, func(w http.ResponseWriter, _ *http.Request, _ func()) {
		select {
		case first <- struct{}{}: // the first n wait for each other, so that n connections are needed
			together.Done()
			together.Wait()
		default:
		}
		tell(w, []string{"a"}, usage+done)
	})
	o := options()
	o.Concurrency, o.Requests = []int{n}, 60
	if _, m := runOn(t, server.peer(t, &o), o, RandomIDs(Lengths{3, 3}, 0, 9, 1)); m.Completed != 60 {
		t.Errorf("%+v", m)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.connections) != n {
		t.Errorf("%d connections for %d in flight", len(server.connections), n)
	}
}

func TestThePeersURLIsCompletedAndItsPasswordNotShown(t *testing.T) {
	for given, want := range map[string]string{
		"http://host:8080": "http://host:8080/v1/completions", "http://host/": "http://host/v1/completions", "https://host/api/v1": "https://host/api/v1/completions",
		"http://host/openai/v1/completions": "http://host/openai/v1/completions",
	} {
		p, err := NewPeer(PeerConfig{URL: given})
		if err != nil || p.url != want || p.Name() != "peer" {
			t.Errorf("%s is asked at %v, %v", given, p, err)
		}
	}
	for _, bad := range []string{"", "host:8080", "ftp://u:secret@host", "http://", "http://u:secret@ho st", "http://u:secret@host:port"} {
		if _, err := NewPeer(PeerConfig{URL: bad}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
