package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// BenchmarkHotSecondTurn compares the time to the first text of a session's second turn, with a history of 1,500 tokens and 20 new ones,
// with that of the same prompt in a session that nobody knows, both through the bus; medians, in turns.
func BenchmarkHotSecondTurn(b *testing.B) {
	const history, added, answer = 1500, 20, 4
	model := benchLoad(b)
	engine, err := llama.NewEngine(model, llama.Options{Slots: 2, Threads: 1, ContextTokens: 2048})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.Free)
	c := meshOf(b, worker.Config{
		Model: schemas.Must(schemas.ParseModel(benchModel)), Engine: engine,
		Text: worker.Text{Tokenize: model.TokenizeWithin, Piece: model.AppendText},
	})
	var hot, cold []float64
	for round := 1; b.Loop(); round++ {
		session := fmt.Sprint("s", round)
		prompt := wide(randomPrompt(uint64(2*round), history-answer, model.Facts().VocabTokens))
		_, said := benchTurn(b, c, session, 1, prompt, answer)
		prompt = slices.Concat(prompt, said, wide(randomPrompt(uint64(2*round+1), added, model.Facts().VocabTokens)))
		first, _ := benchTurn(b, c, session, 2, prompt, 1)
		hot = append(hot, first.Seconds())
		prompt[0] = (prompt[0] + 1) % int64(model.Facts().VocabTokens) // so that no beginning is shared
		first, _ = benchTurn(b, c, session+"-cold", 1, prompt, 1)
		cold = append(cold, first.Seconds())
	}
	b.ReportMetric(1000*middle(hot), "hot-ms")
	b.ReportMetric(1000*middle(cold), "cold-ms")
	b.ReportMetric(middle(hot)/middle(cold), "hot/cold")
}

// benchTurn runs a turn and returns how long its first tokens took, and all of them.
func benchTurn(b *testing.B, c *client.Client, session string, turn uint64, prompt []int64, n int) (first time.Duration, tokens []int64) {
	began := time.Now()
	stream, err := c.Generate(context.Background(), client.Request{
		Tenant: "t", Session: session, Turn: turn, Model: benchModel, TokenIDs: prompt, MaxNewTokens: n, Keep: turn == 1,
	})
	if err != nil {
		b.Fatal(err)
	}
	for event, err := range stream.Events() {
		if err != nil {
			b.Fatal(err)
		}
		if _, ok := event.(client.Text); ok && first == 0 {
			first = time.Since(began)
		}
	}
	result, err := stream.Wait()
	if err != nil {
		b.Fatal(err)
	}
	return first, result.TokenIDs
}
