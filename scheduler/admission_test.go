package scheduler_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/scheduler"
)

func TestRefusalsNameReasonFieldAndNumbers(t *testing.T) {
	r := newRig(t, small(), budget(func(b *scheduler.NodeBudget) { b.KVBudgetBytes = 100 * (b.KVBudgetBytes / 4 / 256) }))
	perToken := r.engine.Facts().BytesPerToken
	for name, test := range map[string]struct {
		change            func(*scheduler.Request)
		reason            scheduler.Reason
		field             string
		needed, available int64
	}{
		"no tenant":       {func(q *scheduler.Request) { q.Tenant = "" }, scheduler.RejectedInvalid, "tenant", 0, 0},
		"long session":    {func(q *scheduler.Request) { q.Session = strings.Repeat("s", 65) }, scheduler.RejectedInvalid, "session", 0, 0},
		"beyond context":  {func(q *scheduler.Request) { q.MaxNewTokens = 248 }, scheduler.RejectedContext, "max_new_tokens", 257, 256},
		"beyond KV":       {func(q *scheduler.Request) { q.MaxNewTokens = 92 }, scheduler.RejectedKVBudget, "kv_budget_bytes", 101 * perToken, 100 * perToken},
		"no prompt":       {func(q *scheduler.Request) { q.Prompt = nil }, scheduler.RejectedInvalid, "prompt", 0, 0},
		"two prompts":     {func(q *scheduler.Request) { q.Tokenize = func() ([]scheduler.Token, error) { return nil, nil } }, scheduler.RejectedInvalid, "prompt", 0, 0},
		"replay too long": {func(q *scheduler.Request) { q.Replay = prompt(1, 5) }, scheduler.RejectedInvalid, "replay", 0, 0},
		"bad replay":      {func(q *scheduler.Request) { q.Replay = []scheduler.Token{256} }, scheduler.RejectedInvalid, "replay[0]", 0, 0},
		"late":            {func(q *scheduler.Request) { q.Deadline = time.Unix(1_000_000, 0) }, scheduler.RejectedDeadline, "deadline_ms", 0, 0},
	} {
		req := request("s", 1, 10, 4)
		test.change(&req)
		d := r.submit(req)
		if d.Reason != test.reason || d.Detail.Field != test.field || d.Detail.Needed != test.needed || d.Detail.Available != test.available {
			t.Errorf("%s: %s %+v, want %s %q needed %d available %d", name, d.Reason, d.Detail, test.reason, test.field, test.needed, test.available)
		}
		if d.Accepted() || d.Running() || !d.Rejected() || d.Detail.Message == "" || d.RetryAfter != 0 {
			t.Errorf("%s: decision %+v contradicts itself", name, d)
		}
	}
	if got := r.sched.Telemetry().RejectedAdmissionsTotal; got != 9 {
		t.Errorf("%d rejected admissions, want 9", got)
	}
}

func TestChecksComeInTheContractsOrder(t *testing.T) {
	r := newRig(t, withSlots(1), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 0 }))
	live := request("s", 1, 10, 4)
	live.Epoch, live.Turn = 5, 3
	r.accept(live)

	// Everything is wrong with it; one fault after the other is put right.
	req := live
	req.MaxNewTokens = 0
	req.Prompt = prompt(1, 256)
	req.Deadline = r.clock.Now()
	r.sched.Drain()
	for _, step := range []struct {
		want  scheduler.Reason
		right func()
	}{
		{scheduler.RejectedDuplicate, func() { req.Turn, req.Epoch = 4, 4 }},
		{scheduler.RejectedStaleEpoch, func() { req.Epoch = 5 }},
		{scheduler.RejectedInvalid, func() { req.MaxNewTokens = 2; req.Turn = 2 }},
		{scheduler.RejectedInvalid, func() { req.Turn = 4 }},
		{scheduler.RejectedDeadline, func() { req.Deadline = time.Time{} }},
		{scheduler.RejectedContext, func() { req.Prompt = prompt(1, 10) }},
		{scheduler.RejectedDraining, r.sched.Undrain},
		{scheduler.RejectedQueueFull, r.finish},
		{scheduler.Admitted, func() {}},
	} {
		if d := r.submit(req); d.Reason != step.want {
			t.Fatalf("%s, want %s", d, step.want)
		}
		step.right()
	}
	r.finish()
}

// K3 (vllm#16445): the declared rule, to the token.
func TestGenerationThatExactlyFillsTheContextRuns(t *testing.T) {
	for _, test := range []struct {
		promptTokens, newTokens int
		fits                    bool
	}{
		{255, 1, true}, {256, 1, true}, {257, 1, false},
		{200, 56, true}, {200, 57, true}, {200, 58, false},
		{1, 255, true}, {1, 256, true}, {1, 257, false},
	} {
		r := newRig(t, small())
		d := r.submit(request("s", 1, test.promptTokens, test.newTokens))
		needed := int64(test.promptTokens + test.newTokens - 1)
		switch {
		case test.fits:
			r.finish()
			end := r.wantEnd(key("s", 1), scheduler.Completed, "length")
			if len(end.Tokens) != test.newTokens {
				t.Errorf("%+v yielded %d tokens", test, len(end.Tokens))
			}
		case d.Reason != scheduler.RejectedContext || d.Detail.Needed != needed || d.Detail.Available != 256:
			t.Errorf("%+v: %s %+v, want rejected-context needing %d of 256", test, d.Reason, d.Detail, needed)
		}
	}
}

// S5 (vllm#58192): the bound holds to the request, and refused ones cost nothing.
func TestOverloadIsRefusedBeforeTokenising(t *testing.T) {
	r := newRig(t, small(), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 162 }))
	var tokenised, accepted, full atomic.Int64
	release := make(chan struct{})
	var wg sync.WaitGroup
	for _, name := range names(300) {
		wg.Go(func() {
			req := request(name, 1, 1, 1)
			req.Prompt = nil
			req.Tokenize = func() ([]scheduler.Token, error) {
				tokenised.Add(1)
				<-release
				return prompt(1, 4), nil
			}
			switch d := r.sched.Submit(req); {
			case d.Accepted():
				accepted.Add(1)
			case d.Reason == scheduler.RejectedQueueFull && d.RetryAfter > 0 && d.Detail.Available == 162:
				if full.Add(1) == 134 {
					close(release) // every place is taken while the others still tokenise
				}
			default:
				t.Errorf("unexpected %+v", d)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 166 || full.Load() != 134 || tokenised.Load() != 166 {
		t.Errorf("%d accepted, %d full, %d tokenised; want 166, 134, 166", accepted.Load(), full.Load(), tokenised.Load())
	}
	r.finish()
	if len(r.ends) != 166 {
		t.Errorf("%d endings, want 166", len(r.ends))
	}
	r.wantIdle()
}

func lazily(req scheduler.Request, f func() ([]scheduler.Token, error)) scheduler.Request {
	req.Prompt, req.Tokenize = nil, f
	return req
}

func TestPlaceIsGivenBackWhenTheTokenisedPromptIsRefused(t *testing.T) {
	r := newRig(t, withSlots(1), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 1 }))
	broken := errors.New("no such encoding")
	for name, test := range map[string]struct {
		tokens []scheduler.Token
		err    error
		reason scheduler.Reason
		field  string
	}{
		"error":          {nil, broken, scheduler.RejectedInvalid, "prompt"},
		"no tokens":      {nil, nil, scheduler.RejectedInvalid, "prompt"},
		"beyond the end": {prompt(1, 254), nil, scheduler.RejectedContext, "max_new_tokens"},
		"not a token":    {[]scheduler.Token{-1}, nil, scheduler.RejectedInvalid, "prompt[0]"},
	} {
		for range 3 { // more often than there are places
			d := r.submit(lazily(request("s", 1, 1, 4), func() ([]scheduler.Token, error) { return test.tokens, test.err }))
			if d.Reason != test.reason || d.Detail.Field != test.field {
				t.Errorf("%s: %s %q, want %s %q", name, d.Reason, d.Detail.Field, test.reason, test.field)
			}
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the hook's panic was swallowed")
			}
		}()
		r.submit(lazily(request("s", 1, 1, 4), func() ([]scheduler.Token, error) { panic("tokeniser") }))
	}()
	r.wantIdle()
	r.accept(request("a", 1, 4, 2), request("b", 2, 4, 2))
	r.finish()
	if len(r.ends) != 2 {
		t.Errorf("%d endings, want 2", len(r.ends))
	}
}

func TestCancelWhileTokenisingEndsTheTurn(t *testing.T) {
	r := newRig(t, small())
	d := r.submit(lazily(request("s", 1, 1, 4), func() ([]scheduler.Token, error) {
		if found, err := r.sched.Cancel(key("s", 1), scheduler.Cancelled, "", ""); !found || err != nil {
			t.Errorf("Cancel = %t, %v", found, err)
		}
		return prompt(1, 8), nil
	}))
	if !d.Accepted() {
		t.Errorf("%s, want an accepted turn, which has an ending", d)
	}
	r.take()
	r.wantEnd(key("s", 1), scheduler.Cancelled, "")
	r.wantIdle()
	if r.tick(); r.countCalls("prefill") != 0 {
		t.Error("a cancelled turn was prefilled")
	}
}

// With a place of its own but KV that does not fit yet, a tokenised turn queues like any other.
func TestTokenisedTurnQueuesWhenItsKVDoesNotFit(t *testing.T) {
	r := newRig(t, small(), budget(func(b *scheduler.NodeBudget) {
		b.KVBudgetBytes /= 4
		b.MaxQueueDepth = 1
	}))
	r.accept(request("big", 1, 200, 4))
	tokenise := func() ([]scheduler.Token, error) { return prompt(2, 100), nil }
	if d := r.submit(lazily(request("a", 1, 1, 4), tokenise)); d.Reason != scheduler.Queued {
		t.Errorf("%s, want queued", d)
	}
	if d := r.submit(lazily(request("b", 1, 1, 4), tokenise)); d.Reason != scheduler.RejectedQueueFull {
		t.Errorf("%s, want rejected-queue-full", d)
	}
	r.finish()
	r.wantEnd(key("a", 1), scheduler.Completed, "length")
	r.wantIdle()
}

// Tokenising takes time, but costs no turn its place in the order of arrival.
func TestTurnThatTokenisesKeepsItsPlaceInTheOrder(t *testing.T) {
	r := newRig(t, withSlots(1))
	d := r.submit(lazily(request("first", 1, 1, 4), func() ([]scheduler.Token, error) {
		if d := r.submit(request("second", 2, 10, 4)); d.Reason != scheduler.Queued {
			t.Errorf("%s, want queued behind the one place that is held", d)
		}
		return prompt(1, 10), nil
	}))
	if d.Reason != scheduler.Admitted {
		t.Errorf("%s, want admitted", d)
	}
	r.finish()
	if first, second := r.ends[key("first", 1)], r.ends[key("second", 1)]; first.Usage.New != 4 || second.Usage.New != 4 || r.started[key("second", 1)].Slot != 0 {
		t.Errorf("ended %+v and %+v", first, second)
	}
}

func TestCancelWhileTokenisingLetsTheNextTurnIn(t *testing.T) {
	r := newRig(t, withSlots(1))
	r.submit(lazily(request("first", 1, 1, 4), func() ([]scheduler.Token, error) {
		r.accept(request("second", 2, 10, 4))
		if _, err := r.sched.Cancel(key("first", 1), scheduler.Cancelled, "", ""); err != nil {
			t.Error(err)
		}
		if got := r.sched.Telemetry(); got.ActiveSessions != 1 || got.QueueDepth != 0 {
			t.Errorf("%d active and %d waiting after the cancel, want 1 and 0", got.ActiveSessions, got.QueueDepth)
		}
		return prompt(1, 10), nil
	}))
	r.finish()
	r.wantEnd(key("first", 1), scheduler.Cancelled, "")
	r.wantEnd(key("second", 1), scheduler.Completed, "length")
}

func TestEpochOfATurnThatTokenisesCountsAlready(t *testing.T) {
	r := newRig(t, small())
	first := lazily(request("s", 1, 1, 4), func() ([]scheduler.Token, error) {
		older := request("s", 1, 10, 4)
		older.Turn, older.Epoch = 2, 1
		if d := r.submit(older); d.Reason != scheduler.RejectedStaleEpoch {
			t.Errorf("%s, want rejected-stale-epoch", d)
		}
		return prompt(1, 10), nil
	})
	first.Epoch = 2
	r.accept(first)
	r.finish()
}

func TestResultsNotTakenCountAgainstAdmission(t *testing.T) {
	r := newRig(t, small(), func(c *scheduler.Config) { c.MaxResults = 2 })
	r.accept(request("a", 1, 4, 1), request("b", 1, 4, 1))
	for range 3 {
		if _, err := r.sched.Tick(); err != nil {
			t.Fatal(err)
		}
	}
	d := r.submit(request("c", 1, 4, 1))
	if d.Reason != scheduler.RejectedQueueFull || d.Detail.Field != "max_results" || d.Detail.Needed != 3 || d.Detail.Available != 2 {
		t.Errorf("%s %+v, want rejected-queue-full by max_results, 3 of 2", d, d.Detail)
	}
	if got := r.sched.TakeResults(nil); len(got) != 2 {
		t.Errorf("%d results, want 2", len(got))
	}
	if got := r.sched.TakeResults(nil); len(got) != 0 {
		t.Errorf("%d results handed over twice", len(got))
	}
	r.accept(request("c", 1, 4, 1))
	r.finish()
}

// V1 (llama.cpp#12178, vllm#26797), V2 (sglang#28153), V3 (llama.cpp#9933), V4 (llama.cpp#15812).
func TestValuesOutOfRangeAreInvalidWithTheirField(t *testing.T) {
	r := newRig(t, small())
	sampling := func(change func(*scheduler.Sampling)) func(*scheduler.Request) {
		return func(q *scheduler.Request) { change(&q.Sampling) }
	}
	newTokens := func(n int) func(*scheduler.Request) { return func(q *scheduler.Request) { q.MaxNewTokens = n } }
	for _, test := range []struct {
		field  string
		change func(*scheduler.Request)
	}{
		{"prompt[3]", func(q *scheduler.Request) { q.Prompt[3] = -1 }},
		{"prompt[3]", func(q *scheduler.Request) { q.Prompt[3] = 256 }},
		{"prompt[3]", func(q *scheduler.Request) { q.Prompt[3] = math.MaxInt32 }},
		{"prompt", func(q *scheduler.Request) { q.Prompt = []scheduler.Token{} }},
		{"sampling.temperature", sampling(func(s *scheduler.Sampling) { s.Temperature = math.NaN() })},
		{"sampling.temperature", sampling(func(s *scheduler.Sampling) { s.Temperature = math.Inf(1) })},
		{"sampling.temperature", sampling(func(s *scheduler.Sampling) { s.Temperature = -1 })},
		{"sampling.top_p", sampling(func(s *scheduler.Sampling) { s.TopP = math.NaN() })},
		{"sampling.top_p", sampling(func(s *scheduler.Sampling) { s.TopP = 0 })},
		{"sampling.top_p", sampling(func(s *scheduler.Sampling) { s.TopP = 2 })},
		{"sampling.top_k", sampling(func(s *scheduler.Sampling) { s.TopK = -5 })},
		{"sampling.min_p", sampling(func(s *scheduler.Sampling) { s.MinP = math.Inf(-1) })},
		{"sampling.repeat_penalty", sampling(func(s *scheduler.Sampling) { s.RepeatPenalty = 10 })},
		{"sampling.repeat_penalty", sampling(func(s *scheduler.Sampling) { s.RepeatPenalty = -10 })},
		{"sampling.presence_penalty", sampling(func(s *scheduler.Sampling) { s.PresencePenalty = 10 })},
		{"sampling.frequency_penalty", sampling(func(s *scheduler.Sampling) { s.FrequencyPenalty = -10 })},
		{"sampling.penalty_last_n", sampling(func(s *scheduler.Sampling) { s.PenaltyLastN = -1 })},
		{"sampling.typical_p", sampling(func(s *scheduler.Sampling) { s.TypicalP = 0 })},
		{"sampling.dry_base", sampling(func(s *scheduler.Sampling) { s.DRYBase = 0.5 })},
		{"sampling.xtc_threshold", sampling(func(s *scheduler.Sampling) { s.XTCThreshold = 2 })},
		{"sampling.n_probs", sampling(func(s *scheduler.Sampling) { s.Probs = 21 })},
		{"sampling.logit_bias[0]", sampling(func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: -1}} })},
		{"sampling.logit_bias[0]", sampling(func(s *scheduler.Sampling) { s.LogitBias = []scheduler.Bias{{Token: 256}} })},
		{"min_new_tokens", sampling(func(s *scheduler.Sampling) { s.MinNewTokens = 1 << 24 })},
		{"max_new_tokens", newTokens(-2)},
		{"max_new_tokens", newTokens(-1)},
		{"max_new_tokens", newTokens(0)},
		{"max_new_tokens", newTokens(1 << 31)},
		{"max_new_tokens", newTokens(math.MinInt64)}, // 2^63, wrapped
		{"max_new_tokens", newTokens(math.MaxInt64)},
	} {
		req := request("s", 1, 10, 4)
		test.change(&req)
		if d := r.submit(req); d.Reason != scheduler.RejectedInvalid || d.Detail.Field != test.field {
			t.Errorf("%s: %s, want rejected-invalid", test.field, d)
		}
	}
	var field *scheduler.FieldError
	req := request("s", 1, 10, 4)
	req.Prompt[3] = -1
	if err := req.Validate(256); !errors.As(err, &field) || field.Field != "prompt[3]" || field.Value != "-1" || field.Limit != "a token id in [0, 256)" {
		t.Errorf("Validate = %v, want prompt[3], value -1 and the vocabulary's range", err)
	}
}

func TestTokenIDsAreCheckedBeforeTheyAreNarrowed(t *testing.T) {
	for _, id := range []int64{-1, 256, 1 << 31, 1 << 32, 5279552648203111001, math.MinInt64} {
		_, err := scheduler.ParseTokens("prompt", []int64{0, 255, id}, 256)
		var field *scheduler.FieldError
		if !errors.As(err, &field) || field.Field != "prompt[2]" || !strings.Contains(field.Error(), field.Value) {
			t.Errorf("id %d: %v, want a FieldError of prompt[2]", id, err)
		}
	}
	got, err := scheduler.ParseTokens("prompt", []int64{0, 255}, 256)
	if err != nil || !slices.Equal(got, []scheduler.Token{0, 255}) {
		t.Errorf("ParseTokens = %v, %v", got, err)
	}
}

func TestRetryHintFollowsTheShortestActiveTurn(t *testing.T) {
	r := newRig(t, withSlots(1), budget(func(b *scheduler.NodeBudget) { b.MaxQueueDepth = 0 }))
	r.onCall = func(goengine.Call) { r.clock.Advance(10 * time.Millisecond) }
	r.accept(request("a", 1, 4, 30))
	if d := r.submit(request("b", 1, 4, 1)); d.RetryAfter != time.Second {
		t.Errorf("before anything was measured: retry after %s, want 1s", d.RetryAfter)
	}
	r.untilTokens(key("a", 1), 10)
	d := r.submit(request("b", 1, 4, 1))
	if d.RetryAfter < 20*10*time.Millisecond || d.RetryAfter > 20*100*time.Millisecond {
		t.Errorf("with 20 tokens to go: retry after %s", d.RetryAfter)
	}
	r.finish()
}

func TestReasonsAreTheWireStrings(t *testing.T) {
	want := "[admitted queued rejected-queue-full rejected-kv-budget rejected-scratch-budget rejected-duplicate rejected-invalid " +
		"rejected-context rejected-stale-epoch rejected-draining rejected-model rejected-deadline]"
	if got := fmt.Sprint(scheduler.Reasons()); got != want {
		t.Errorf("reasons %s, want %s", got, want)
	}
}

func TestTurnIsLiveFromAcceptanceToItsEnd(t *testing.T) {
	r := newRig(t, small())
	if r.sched.Live(key("s", 1)) {
		t.Error("live before it was submitted")
	}
	r.accept(request("s", 1, 10, 5))
	if !r.sched.Live(key("s", 1)) || r.sched.Live(key("s", 2)) {
		t.Error("an accepted turn is live, and no other")
	}
	r.finish()
	if r.sched.Live(key("s", 1)) {
		t.Error("live after its end")
	}
}
