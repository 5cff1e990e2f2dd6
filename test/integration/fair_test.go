package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func ofTenant(tenant string, req scheduler.Request) scheduler.Request {
	req.Tenant = tenant
	return req
}

// Of models with every kind of memory: two sessions are suspended for others, one in its prompt and one in its answer.
func TestASuspendedSessionGoesOnWithEqualTokens(t *testing.T) {
	for _, shape := range []string{"story", "mamba", "hybrid", "swa"} {
		for _, exact := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/exact=%t", shape, exact), func(t *testing.T) {
				model := story
				if shape != "story" {
					model = loadModel(t, shape, "f16", llama.LoadOptions{})
				}
				o := llama.Options{Slots: 2, Exact: exact, ContextTokens: 512, PrefillChunk: 32}
				n := newNode(t, model, o, nil)
				vocab := model.Facts().VocabTokens
				answers := ofTenant("big", requestTokens("answers", randomPrompt(1, 40, vocab), 120))
				answers.Sampling.RepeatPenalty = 1.2
				if shape == "story" { // of the others the bits may depend on the crowd, and with them a draw
					answers.Sampling.Temperature, answers.Sampling.Seed = 0.9, 7
				}
				reads := ofTenant("big", requestTokens("reads", randomPrompt(2, 300, vocab), 20))
				small, other := ofTenant("small", requestTokens("s", randomPrompt(3, 50, vocab), 10)), ofTenant("other", requestTokens("o", randomPrompt(4, 50, vocab), 10))
				n.submit(answers)
				var suspended []string
				ticks, read := 0, 0
				ends := n.run(func(r *scheduler.Report) {
					for _, k := range r.Suspended {
						suspended = append(suspended, k.Session)
					}
					if ticks++; ticks == 40 {
						n.submit(reads)
					}
					if slices.Contains(r.Prefilled, reads.Key()) {
						if read += r.PrefillTokens; read == 96 { // of 300
							n.submit(small)
							n.submit(other)
						}
					}
				})
				if len(ends) != 4 || !slices.Equal(suspended, []string{"answers", "reads"}) {
					t.Fatalf("suspended %v; %d turns ended", suspended, len(ends))
				}
				for _, req := range []scheduler.Request{answers, reads, small, other} {
					if got, want := ends[req.Key()].Tokens, alone(t, model, o, req); !slices.Equal(got, want) {
						t.Errorf("turn %s yielded %v, alone %v", req.Key(), got, want)
					}
				}
			})
		}
	}
}

// quiet is what the quiet tenant of BenchmarkQuietTenant saw, in seconds.
type quiet struct {
	sched              *scheduler.Scheduler
	turn               uint64
	sent, last         time.Time
	first, gaps        []float64
	ended              chan struct{} // its turn is over
	chunks, steps      []float64     // of the ticks meanwhile
	flood, vocab, live int
}

// sink is called by the goroutine that ticks.
func (q *quiet) sink(r *scheduler.Report) {
	now := time.Now()
	for _, token := range r.Tokens {
		if token.Key.Tenant != "quiet" {
			continue
		}
		if token.Index == 0 {
			q.first = append(q.first, now.Sub(q.sent).Seconds())
		} else {
			q.gaps = append(q.gaps, now.Sub(q.last).Seconds())
		}
		q.last = now
	}
	if r.Occupancy > 0 {
		q.steps = append(q.steps, r.Decode.Seconds())
	}
	if r.PrefillTokens == llama.DefaultPrefillChunk {
		q.chunks = append(q.chunks, r.Prefill.Seconds())
	}
	for _, end := range q.sched.TakeResults(nil) {
		switch end.Key.Tenant {
		case "quiet":
			q.ended <- struct{}{}
		case "flood":
			q.live--
		}
	}
	for ; q.flood > 0 && q.live < 100; q.live++ {
		q.flood++
		q.sched.Submit(ofTenant("flood", requestTokens(fmt.Sprint("f", q.flood), randomPrompt(uint64(q.flood), 1024, q.vocab), 32)))
	}
}

// ask sends one prompt of 512 tokens and waits until its turn is over.
func (q *quiet) ask(b *testing.B, newTokens int) {
	q.turn++
	req := ofTenant("quiet", requestTokens("q", randomPrompt(q.turn, 512, q.vocab), newTokens))
	req.Turn = q.turn
	q.sent = time.Now()
	if d := q.sched.Submit(req); !d.Accepted() {
		b.Fatal(d)
	}
	<-q.ended
}

func p99(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)*99/100]
}

// BenchmarkQuietTenant compares a quiet tenant's 512-token prompts beside a hundred 1024-token prompts of another with the same
// alone, in chunks and steps of the same run: how much later the first token comes, and the p99 gap after it.
func BenchmarkQuietTenant(b *testing.B) {
	model, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(b, "135m", "q4_0")), llama.LoadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer model.Free()
	engine, err := llama.NewEngine(model, llama.Options{Slots: 8, Threads: 1, ContextTokens: 2048})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Free()
	budget := scheduler.DefaultBudget(engine.Facts())
	budget.MaxQueueDepth = 200
	sched, err := scheduler.New(engine, scheduler.Config{Budget: budget})
	if err != nil {
		b.Fatal(err)
	}
	q := &quiet{sched: sched, vocab: model.Facts().VocabTokens, ended: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- sched.Run(ctx, q.sink) }()
	for range 5 {
		q.ask(b, 8)
	}
	alone := middle(q.first)
	q.first, q.gaps, q.steps, q.chunks = nil, nil, nil, nil
	q.flood = 1
	pause := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		wait := time.NewTimer(time.Duration(pause.IntN(1000)) * time.Millisecond) // to come at any moment of a tick
		<-wait.C
		q.ask(b, 8)
	}
	b.StopTimer()
	stop()
	sched.Interrupt()
	if err := <-ran; err != nil {
		b.Fatal(err)
	}
	suspensions := sched.Telemetry().SuspensionsTotal
	sched.Close()
	chunk, step := middle(q.chunks), middle(q.steps)
	first, gap, slowChunk := middle(q.first), p99(q.gaps), p99(q.chunks)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1000*chunk, "chunk-ms")
	b.ReportMetric(1000*step, "step-ms")
	b.ReportMetric(1000*alone, "alone-ms")
	b.ReportMetric(1000*first, "first-ms")
	b.ReportMetric((first-alone)/chunk, "later-chunks")
	b.ReportMetric((first-alone)/(2*chunk+2*step), "of-the-bound")
	b.ReportMetric(gap/chunk, "p99-gap-chunks")
	b.ReportMetric(gap/slowChunk, "p99-gap-p99-chunks")
	b.ReportMetric(float64(suspensions), "suspensions")
}

// BenchmarkQuietTenantThroughTheBus is the same from the client's Generate to the first text, with a worker that is full: the quiet
// request waits in the lane behind those of the flood. Chunks and steps are those of BenchmarkQuietTenant.
func BenchmarkQuietTenantThroughTheBus(b *testing.B) {
	c, vocab := floodedMesh(b)
	var turn uint64
	ask := func() float64 {
		turn++
		began := time.Now()
		return waitFirst(b, c, client.Request{Tenant: "quiet", Session: "q", Turn: turn, Model: "m", MaxNewTokens: 8,
			TokenIDs: wide(randomPrompt(turn, 512, vocab))}).Sub(began).Seconds()
	}
	var alone, beside []float64
	for range 15 {
		alone = append(alone, ask())
	}
	ctx, stop := context.WithCancel(context.Background())
	var flood sync.WaitGroup
	for i := range 100 {
		flood.Go(func() {
			for n := uint64(1); ctx.Err() == nil; n++ {
				req := client.Request{Tenant: "flood", Session: fmt.Sprint("f", i), Turn: n, Model: "m", MaxNewTokens: 32, TokenIDs: wide(randomPrompt(n, 1024, vocab))}
				if stream, err := c.Generate(ctx, req); err == nil {
					_, _ = stream.Wait() // that ctx ended
				}
			}
		})
	}
	pause := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		wait := time.NewTimer(time.Duration(1000+pause.IntN(1000)) * time.Millisecond)
		<-wait.C
		beside = append(beside, ask())
	}
	b.StopTimer()
	stop()
	flood.Wait()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1000*middle(alone), "alone-ms")
	b.ReportMetric(1000*middle(beside), "first-ms")
}

func wide(tokens []scheduler.Token) []int64 {
	ids := make([]int64, len(tokens))
	for i, token := range tokens {
		ids[i] = int64(token)
	}
	return ids
}

// waitFirst runs a turn to its end, and says when its first token came.
func waitFirst(b *testing.B, c *client.Client, req client.Request) (first time.Time) {
	stream, err := c.Generate(context.Background(), req)
	if err != nil {
		b.Fatal(err)
	}
	for event, err := range stream.Events() {
		if err != nil {
			b.Fatal(err)
		}
		if _, ok := event.(client.Text); ok && first.IsZero() {
			first = time.Now()
		}
	}
	return first
}

// floodedMesh is a server, a worker of eight slots with the 135M model, and a client of it.
func floodedMesh(b *testing.B) (c *client.Client, vocab int) {
	model, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(b, "135m", "q4_0")), llama.LoadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(model.Free)
	engine, err := llama.NewEngine(model, llama.Options{Slots: 8, Threads: 1, ContextTokens: 2048})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.Free)
	return meshOf(b, worker.Config{Model: schemas.Must(schemas.ParseModel("m")), Engine: engine, TenantQuota: 128, DrainTimeout: -1,
		Text: worker.Text{Tokenize: model.TokenizeWithin, Piece: model.AppendText}}), model.Facts().VocabTokens
}
