package integration

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// BenchmarkFirstToken compares the time to a turn's first token through NATS, from Generate to the first text, with
// that of the scheduler alone: what the bus adds. Medians, in turns, on the story model.
func BenchmarkFirstToken(b *testing.B) {
	const prompt = "Once upon a time, there was a small fox named Pip."
	sched := benchScheduler(b, story, 1)
	c := benchMesh(b, story, 1)
	var direct, bus []float64
	for turn := 1; b.Loop(); turn++ {
		began := time.Now()
		tokens, err := story.Tokenize(prompt, false)
		if err != nil {
			b.Fatal(err)
		}
		sched.Submit(scheduler.Request{Tenant: "t", Session: "s", Turn: uint64(turn), Prompt: tokens, MaxNewTokens: 1, Sampling: scheduler.DefaultSampling()})
		for sched.Pending() > 0 {
			if _, err := sched.Tick(); err != nil {
				b.Fatal(err)
			}
		}
		sched.TakeResults(nil)
		direct = append(direct, time.Since(began).Seconds())

		began = time.Now()
		stream, err := c.Generate(context.Background(), client.Request{
			Tenant: "t", Session: fmt.Sprint("s", turn), Turn: 1, Model: benchModel, Prompt: prompt, MaxNewTokens: 1,
		})
		if err != nil {
			b.Fatal(err)
		}
		for event, err := range stream.Events() {
			if err != nil {
				b.Fatal(err)
			}
			if _, ok := event.(client.Text); ok {
				bus = append(bus, time.Since(began).Seconds())
			}
		}
	}
	b.ReportMetric(1000*middle(direct), "direct-ms")
	b.ReportMetric(1000*middle(bus), "bus-ms")
	b.ReportMetric(1000*(middle(bus)-middle(direct)), "overhead-ms")
}

// BenchmarkThroughput compares the tokens a second of eight sessions through NATS, with their client in the same process,
// with those of the scheduler alone, under the same load: prompts and lengths, from the first prompt's text to the last
// token. An operation is a round of each, in turns; medians over the rounds, and quartiles of the rounds' own ratios. Also the
// processor time of a token, of everything in the process: engine, worker, server and client.
func BenchmarkThroughput(b *testing.B) {
	for _, load := range []struct {
		name   string
		model  func(b *testing.B) *llama.Model
		tokens int // of each session
	}{
		{"story", func(*testing.B) *llama.Model { return story }, 200},
		{"135m-q4_0", benchLoad, 64},
		{"135m-q4_0/long", benchLoad, 400}, // in which the time for claims, and with it that until all eight run, counts less
	} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", load.name, threads), func(b *testing.B) {
				benchThroughput(b, load.model(b), threads, load.tokens)
			})
		}
	}
}

func benchThroughput(b *testing.B, model *llama.Model, threads, newTokens int) {
	sched, c := benchScheduler(b, model, threads), benchMesh(b, model, threads)
	var direct, bus, ratios, directCPU, busCPU []float64
	total := float64(benchSessions * newTokens)
	for round := 1; b.Loop(); round++ {
		began, used := time.Now(), processorTime(b)
		driveDirect(b, sched, model, round, newTokens)
		direct = append(direct, total/time.Since(began).Seconds())
		directCPU = append(directCPU, (processorTime(b)-used).Seconds()/total)
		began, used = time.Now(), processorTime(b)
		driveBus(b, c, round, newTokens)
		bus = append(bus, total/time.Since(began).Seconds())
		busCPU = append(busCPU, (processorTime(b)-used).Seconds()/total)
		ratios = append(ratios, bus[len(bus)-1]/direct[len(direct)-1])
	}
	b.ReportMetric(middle(direct), "direct-tok/s")
	b.ReportMetric(middle(bus), "bus-tok/s")
	b.ReportMetric(middle(bus)/middle(direct), "bus/direct")
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/4], "ratio-q1")
	b.ReportMetric(ratios[len(ratios)*3/4], "ratio-q3")
	b.ReportMetric(1e6*middle(directCPU), "direct-cpu-us/tok")
	b.ReportMetric(1e6*middle(busCPU), "bus-cpu-us/tok")
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

const (
	benchModel    = "m"
	benchSessions = 8
)

func benchPrompt(session int) string {
	return fmt.Sprintf("Once upon a time, there were %d small foxes.", session+2)
}

func driveDirect(b *testing.B, sched *scheduler.Scheduler, model *llama.Model, round, newTokens int) {
	for i := range benchSessions {
		tokens, err := model.Tokenize(benchPrompt(i), false)
		if err != nil {
			b.Fatal(err)
		}
		req := requestTokens(fmt.Sprint("s", i), tokens, newTokens)
		req.Turn = uint64(round)
		if d := sched.Submit(req); !d.Accepted() {
			b.Fatal(d)
		}
	}
	for sched.Pending() > 0 {
		if _, err := sched.Tick(); err != nil {
			b.Fatal(err)
		}
	}
	for _, end := range sched.TakeResults(nil) {
		if len(end.Tokens) != newTokens {
			b.Fatalf("%d tokens, not %d: %s", len(end.Tokens), newTokens, end.Detail)
		}
	}
}

func driveBus(b *testing.B, c *client.Client, round, newTokens int) {
	var sessions sync.WaitGroup
	for i := range benchSessions {
		sessions.Go(func() {
			req := meshRequest(fmt.Sprint("s", i), newTokens)
			req.Turn, req.Prompt = uint64(round), benchPrompt(i)
			stream, err := c.Generate(context.Background(), req)
			if err != nil {
				b.Error(err)
				return
			}
			if result, err := stream.Wait(); err != nil || result.Final.Count != newTokens {
				b.Errorf("%d tokens, not %d: %v", result.Final.Count, newTokens, err)
			}
		})
	}
	sessions.Wait()
}

// benchLoad loads a model of the size that small nodes serve, for as long as the benchmark runs.
func benchLoad(b *testing.B) *llama.Model {
	model, err := llama.Load(context.Background(), llama.FromFile(testmodel.Path(b, "135m", "q4_0")), llama.LoadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(model.Free)
	return model
}

func benchScheduler(b *testing.B, model *llama.Model, threads int) *scheduler.Scheduler {
	engine := benchEngine(b, model, threads)
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(sched.Close)
	return sched
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func benchEngine(b *testing.B, model *llama.Model, threads int) *llama.Engine {
	engine, err := llama.NewEngine(model, llama.Options{Slots: benchSessions, Threads: threads, ContextTokens: 512})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.Free)
	return engine
}

// benchMesh is a server, a worker of a model and a client of it.
func benchMesh(b *testing.B, model *llama.Model, threads int) *client.Client {
	return meshOf(b, worker.Config{
		Model: schemas.Must(schemas.ParseModel(benchModel)), Engine: benchEngine(b, model, threads),
		Text: worker.Text{Tokenize: model.TokenizeWithin, Piece: model.AppendText},
	})
}

// meshOf is a server, a worker and a client of it.
func meshOf(b *testing.B, cfg worker.Config) *client.Client {
	server := natsservertest.Start(b, natsserver.Options{})
	cfg.URL, cfg.Node, cfg.Log = server.ClientURL(), schemas.Must(schemas.ParseNode("bench")), slog.New(slog.DiscardHandler)
	service, err := worker.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := service.Start(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(service.Stop)
	<-service.Started()
	nc, err := nats.Connect(server.ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	c, err := client.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}
