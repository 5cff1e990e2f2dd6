package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"time"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// measureOwn runs rows sessions on a fresh engine and times the ticks in which all of them decode and nothing else happens.
func measureOwn(ctx context.Context, f flags, rows int) (float64, error) {
	model, err := llama.Load(ctx, llama.FromFile(f.Model), llama.LoadOptions{})
	if err != nil {
		return 0, err
	}
	defer model.Free()
	settle := rows + 1 // sessions that got their prompt first decode while others prefill
	engine, err := llama.NewEngine(model, llama.Options{Slots: rows, ContextTokens: f.Prompt + f.New + settle, Threads: f.Threads})
	if err != nil {
		return 0, err
	}
	defer engine.Free()
	sched, err := scheduler.New(engine, scheduler.Config{Budget: scheduler.DefaultBudget(engine.Facts())})
	if err != nil {
		return 0, err
	}
	defer sched.Close()
	for i := range rows {
		if d := sched.Submit(request(i, f, settle, model.Facts().VocabTokens)); d.Rejected() {
			return 0, errors.New(d.String())
		}
	}
	var took time.Duration
	ticks := 0
	for sched.Pending() > 0 && ticks < f.New {
		began := time.Now()
		report, err := sched.Tick()
		if err != nil {
			return 0, err
		}
		if report.Occupancy == rows && len(report.Prefilled) == 0 {
			took += time.Since(began)
			ticks++
		}
	}
	if ticks < f.New {
		return 0, fmt.Errorf("%d of %d ticks decoded %d rows", ticks, f.New, rows)
	}
	return float64(rows*ticks) / took.Seconds(), nil
}

func request(i int, f flags, settle, vocab int) scheduler.Request {
	random := rand.New(rand.NewPCG(1, uint64(i)))
	prompt := make([]scheduler.Token, f.Prompt)
	for t := range prompt {
		prompt[t] = scheduler.Token(random.IntN(vocab))
	}
	sampling := scheduler.DefaultSampling()
	sampling.IgnoreEOG = true
	return scheduler.Request{
		Tenant: "bench", Session: strconv.Itoa(i), Turn: 1, Prompt: prompt, MaxNewTokens: f.New + settle, Sampling: sampling,
	}
}

// measurePeer runs llama.cpp's batched benchmark once, with isolated streams of the same depth.
func measurePeer(ctx context.Context, f flags, rows int) (float64, error) {
	const block = 256 // llama.cpp rounds each stream's context up
	perStream := (f.Prompt + f.New + block - 1) / block * block
	cmd := exec.CommandContext(ctx, f.Peer, "-m", f.Model, "-c", strconv.Itoa(rows*perStream),
		"-npp", strconv.Itoa(f.Prompt), "-ntg", strconv.Itoa(f.New), "-npl", strconv.Itoa(rows),
		"-t", strconv.Itoa(f.Threads), "-tb", strconv.Itoa(f.Threads), "--no-kv-unified", "--output-format", "jsonl")
	cmd.Dir = f.PeerDir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	output, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", f.Peer, err, bytes.TrimSpace(problems.Bytes()))
	}
	for line := range bytes.Lines(output) {
		var row struct {
			Rows  int     `json:"pl"`
			Speed float64 `json:"speed_tg"`
		}
		if json.Unmarshal(line, &row) == nil && row.Rows == rows {
			return row.Speed, nil
		}
	}
	return 0, fmt.Errorf("%s printed no result for %d rows", f.Peer, rows)
}
