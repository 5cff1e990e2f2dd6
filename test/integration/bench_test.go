package integration

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/models"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// BenchmarkFirstToken compares the time to a turn's first token through NATS, from Generate to the first text, with
// that of the scheduler alone: what the bus adds. Medians, in turns, on the story model.
func BenchmarkFirstToken(b *testing.B) {
	const prompt = "Once upon a time, there was a small fox named Pip."
	engine := benchEngine(b)
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		b.Fatal(err)
	}
	defer sched.Close()
	c := benchMesh(b)
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
			Tenant: "t", Session: fmt.Sprint("s", turn), Turn: 1, Model: models.StoryName, Prompt: prompt, MaxNewTokens: 1,
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

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func benchEngine(b *testing.B) *llama.Engine {
	engine, err := llama.NewEngine(story, llama.Options{Slots: 8, Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.Free)
	return engine
}

// benchMesh is a server, a worker and a client of it.
func benchMesh(b *testing.B) *client.Client {
	server := natsservertest.Start(b, natsserver.Options{})
	service, err := worker.New(worker.Config{
		URL: server.ClientURL(), Node: schemas.Must(schemas.ParseNode("bench")), Model: schemas.Must(schemas.ParseModel(models.StoryName)),
		Engine: benchEngine(b),
		Text:   worker.Text{Tokenize: story.TokenizeWithin, Piece: story.AppendText},
		Log:    slog.New(slog.DiscardHandler),
	})
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
