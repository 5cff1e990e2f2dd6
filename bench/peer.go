package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The reasons of a peer's failures, beside those of every system. A status other than 200 is http-STATUS.
const (
	peerConnect  = "connect"     // no connection
	peerBroken   = "connection"  // it broke
	peerCutOff   = "cut-off"     // the stream ended, and did not say so
	peerMangled  = "bad-stream"  // not a stream of completions
	peerReported = "error-event" // the stream says that something is wrong
)

// PeerConfig is what NewPeer needs. URL must be set.
type PeerConfig struct {
	URL     string // http://host:port, with or without /v1 or /v1/completions
	Name    string // "peer" if it is empty
	Model   string // as the peer calls it
	Key     string // sent as a bearer token, if there is one
	Options *Options
}

// Peer is a server with OpenAI's completions API as a Target.
type Peer struct {
	cfg  PeerConfig
	url  string
	http *http.Client
}

// NewPeer makes a Peer. It does not connect.
func NewPeer(cfg PeerConfig) (*Peer, error) {
	u, err := url.Parse(cfg.URL)
	var unreadable *url.Error
	if errors.As(err, &unreadable) { // it quotes the URL, which may have a password
		err = unreadable.Err
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is no URL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%q is no URL of a server; write http://127.0.0.1:8080", u.Redacted())
	}
	path := strings.TrimRight(u.Path, "/")
	switch {
	case strings.HasSuffix(path, "/completions"):
	case strings.HasSuffix(path, "/v1"):
		path += "/completions"
	default:
		path += "/v1/completions"
	}
	u.Path = path
	if cfg.Name == "" {
		cfg.Name = "peer"
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, MaxInFlight // as many as are in flight stay open
	transport.DisableCompression = true                                    // it would hold text back
	return &Peer{cfg: cfg, url: u.String(), http: &http.Client{Transport: transport}}, nil
}

// Close ends the connections that are idle.
func (p *Peer) Close() { p.http.CloseIdleConnections() }

// Name implements Target.
func (p *Peer) Name() string { return p.cfg.Name }

// completionRequest is the body. What a server may not know is left out where it says nothing.
type completionRequest struct {
	Model         string        `json:"model,omitempty"`
	Prompt        any           `json:"prompt"` // a text or token ids
	MaxTokens     int           `json:"max_tokens"`
	Temperature   float64       `json:"temperature"`
	Seed          uint64        `json:"seed"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
	IgnoreEOS     bool          `json:"ignore_eos,omitempty"` // llama-server and vLLM know it

	// Of a request with a temperature: every filter off, as in the mesh. llama-server would have some on.
	TopP *float64 `json:"top_p,omitempty"`
	TopK *int     `json:"top_k,omitempty"`
	MinP *float64 `json:"min_p,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// completionChunk is an event of the answer.
type completionChunk struct {
	Choices []struct {
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (p *Peer) request(ctx context.Context, job *Job) (*http.Request, error) {
	body := completionRequest{
		Model: p.cfg.Model, Prompt: job.Prompt.Text, MaxTokens: job.MaxTokens, Temperature: p.cfg.Options.Temperature, Seed: job.Seed,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true}, IgnoreEOS: p.cfg.Options.IgnoreEOS,
	}
	if job.Prompt.TokenIDs != nil {
		body.Prompt = job.Prompt.TokenIDs
	}
	if body.Temperature > 0 {
		topP, topK, minP := 1.0, 0, 0.0
		body.TopP, body.TopK, body.MinP = &topP, &topK, &minP
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	if p.cfg.Key != "" {
		request.Header.Set("Authorization", "Bearer "+p.cfg.Key)
	}
	// With this entry, which is not sent, the client tries again where an idle connection was closed by the server just
	// when it was used: that is no failure of the peer.
	request.Header["Idempotency-Key"] = []string{}
	return request, nil
}

// Generate implements Target.
func (p *Peer) Generate(ctx context.Context, job *Job, l *Listener) (Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := p.request(ctx, job)
	if err != nil {
		return Answer{}, err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return Answer{}, connectionFailure(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read, or is given up
	if response.StatusCode != http.StatusOK {
		return Answer{}, refusal(response)
	}
	answer, err := readCompletion(response.Body, l)
	if err != nil {
		return answer, err
	}
	l.End()
	drain(response.Body, cancel)
	return answer, nil
}

// readCompletion reads a stream up to [DONE], or to the end of the body where a reason to finish was given before.
func readCompletion(body io.Reader, l *Listener) (Answer, error) {
	var answer Answer
	var text []byte
	pieces, counted, finished := 0, false, false
	for events := newEventReader(body); ; {
		data, err := events.next()
		switch {
		case errors.Is(err, io.EOF) && finished, err == nil && string(bytes.TrimSpace(data)) == "[DONE]":
			if !counted {
				answer.OutputTokens, answer.Estimated = pieces, true
			}
			answer.Text = string(text)
			return answer, nil
		case errors.Is(err, io.EOF):
			return answer, &Failure{peerCutOff, "the stream ended without [DONE] and without a finish_reason"}
		case errors.Is(err, errEventTooLong):
			return answer, &Failure{peerMangled, err.Error()}
		case err != nil:
			return answer, connectionFailure(err)
		}
		var chunk completionChunk
		if err := json.Unmarshal(data, &chunk); err != nil {
			return answer, &Failure{peerMangled, fmt.Sprintf("an event is no JSON of a completion: %v", err)}
		}
		if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
			return answer, &Failure{peerReported, string(chunk.Error)}
		}
		for _, choice := range chunk.Choices {
			l.Text(choice.Text)
			text = append(text, choice.Text...)
			if choice.Text != "" {
				pieces++
			}
			finished = finished || choice.FinishReason != nil && *choice.FinishReason != ""
		}
		if u := chunk.Usage; u != nil {
			counted = true
			answer.PromptTokens, answer.OutputTokens = u.PromptTokens, u.CompletionTokens
			if u.Details != nil {
				answer.CachedTokens = u.Details.CachedTokens
			}
		}
	}
}

// drain reads what is left of a body, so that the connection can be used again; a server that keeps it open loses it.
func drain(body io.Reader, cancel func()) {
	const most, patience = 64 << 10, time.Second
	timer := time.AfterFunc(patience, cancel)
	defer timer.Stop()
	io.CopyN(io.Discard, body, most) //nolint:errcheck // the answer is complete without it
}

// refusal is an answer with another status.
func refusal(response *http.Response) *Failure {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10)) // the status says enough
	return &Failure{fmt.Sprintf("http-%d", response.StatusCode), strings.TrimSpace(string(body))}
}

// connectionFailure says whether there was a connection. A *url.Error would quote the URL, which may have a password.
func connectionFailure(err error) *Failure {
	var quoting *url.Error
	if errors.As(err, &quoting) {
		err = quoting.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &Failure{peerConnect, err.Error()}
	}
	return &Failure{peerBroken, err.Error()}
}
