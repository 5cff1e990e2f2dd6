// Docgen writes docs/options.md from the table of options.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/meshnet/node/sampling"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: docgen FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(document()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func document() string {
	var b strings.Builder
	fmt.Fprint(&b, head+"\n")
	fmt.Fprintln(&b, "| `sampling` field | flag | default | range | |")
	fmt.Fprintln(&b, "|---|---|---|---|---|")
	for _, n := range sampling.Numbers() {
		fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s | %s |\n", n.Name, strings.ReplaceAll(n.Name, "_", "-"), sampling.Text(n.Default), n.Range(), n.Help)
	}
	quoted := make([]string, 0, 4)
	for _, text := range sampling.DefaultBreakers() {
		quoted = append(quoted, fmt.Sprintf("`%q`", text))
	}
	fmt.Fprintf(&b, "| `dry_sequence_breakers` | `--dry-sequence-breaker`, repeated | %s | at most %d texts of 1 to %d bytes, without NUL | DRY takes a repetition for ended at these texts; an empty list is none. |\n",
		strings.Join(quoted, " "), sampling.MaxBreakers, sampling.MaxBreakerBytes)
	fmt.Fprintf(&b, "| `logit_bias` | `--logit-bias ID=BIAS`, repeated | none | at most %d tokens, each once; biases in [-%d, %d] or minus infinity | Maps of `token_id` and `bias`, which is added to the token's logit. Minus infinity bans the token. |\n",
		sampling.MaxLogitBias, sampling.MaxBias, sampling.MaxBias)
	fmt.Fprintln(&b, "| `seed` | `--seed` | drawn, and told in `started` | uint64 | Every random choice is a function of the seed, the token's index in the turn, and what it is for. |")
	fmt.Fprintln(&b, "| `ignore_eos` | `--ignore-eos` | false | | End-of-generation tokens are never chosen. |")
	fmt.Fprintf(&b, ending, sampling.MaxStops, sampling.MaxStopBytes)
	return b.String()
}

const head = `<!-- Made by go generate ./sampling. -->
# Options of a turn

How its tokens are chosen and what ends it: through the mesh (a Request's fields), and by the flags of ` + "`worker generate` and `worker submit`" + `.
A value out of its range is refused by the client, the worker and the scheduler alike, with the field's name. NaN is out of every range.
`

const ending = `
What applies is applied in the order of llama.cpp's own default chain: biases and bans; repeat, presence and frequency penalty; DRY; top-k; typical-p;
top-p; min-p; XTC; temperature; the draw. At temperature 0 the likeliest token is taken after biases, penalties and DRY; the filters, XTC and
the seed then have no effect. Should penalties leave no token possible, the likeliest one before them is taken. Samplers with a memory know the prompt and the turn so far, also where another worker goes on with it.
DRY finds its breakers by a pass over the vocabulary; each worker keeps the last 16 sets of DRY's options, and an option set that is new costs that pass once.

**Log-probabilities.** With ` + "`n_probs`" + ` each ` + "`token`" + ` event has ` + "`logprobs`" + `, an entry for each of its tokens: ` + "`logprob`" + ` of the token, ` + "`top_ids` and `top_logprobs`" + ` of the
likeliest. They are natural logarithms by the model's own logits: before biases, penalties, filters and temperature, as llama-server
tells them by default. The token that was chosen need not be among the likeliest. −9999 stands for impossible.

| field of the request | flag | default | range | |
|---|---|---|---|---|
| ` + "`max_new_tokens`" + ` | ` + "`--max-tokens`" + ` | (256 by flag) | [1, 2²⁴], and what the context has room for | The turn ends with finish ` + "`length`" + `. |
| ` + "`min_new_tokens`" + ` | ` + "`--min-tokens`" + ` | 0 | [0, max_new_tokens] | No end-of-generation token is chosen before there are so many tokens, and a stop string that is complete before does not count. |
| ` + "`stop`" + ` | ` + "`--stop`" + `, repeated | none | at most %d texts of 1 to %d bytes, without NUL | The turn ends with finish ` + "`stop-string`" + ` with the token that completes the first of them. |
| ` + "`raw`" + ` | ` + "`--raw`, of `submit --json`" + ` | false | | ` + "`token`" + ` events have ` + "`bytes`" + `, too: the text as the tokens have it, which need not be UTF-8. |

**Stop strings** are found in the bytes of the text, however it is cut into tokens, and over takeovers. The stop string and what follows it
are no part of the text; the text is held back only while its end could still become a stop string, and all of it is out when the turn completes (a turn that
is cancelled or fails may end with held text untold). ` + "`token_ids`" + ` and ` + "`count`" + ` have every token, those of the stop string too. Of several strings the one that
is complete first counts, and of those complete at one byte the longest.
`
