// Package sampling is the one home of the options by which a turn's tokens are chosen and by which it ends: their names,
// defaults and ranges. The scheduler, the wire's schemas, the command line and docs/options.md all take them from here.
// It chooses no token, and imports nothing of ours, so that packages that may not know each other can agree by it.
package sampling

//go:generate go run ./internal/docgen ../docs/options.md

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of the options that are lists.
const (
	MaxLogitBias    = 512 // tokens with a bias
	MaxBias         = 100 // of a token's logit, up or down
	MaxBreakers     = 16  // DRY's sequence breakers
	MaxBreakerBytes = 40  // of one: llama.cpp looks no further
	MaxStops        = 16  // stop strings
	MaxStopBytes    = 256 // of one
)

// Params are how tokens are chosen from logits. The zero value is not valid; start from Default.
type Params struct {
	Temperature      float64
	TopK             int
	TopP             float64
	MinP             float64
	TypicalP         float64
	RepeatPenalty    float64
	PresencePenalty  float64
	FrequencyPenalty float64
	PenaltyLastN     int

	DRYMultiplier    float64
	DRYBase          float64
	DRYAllowedLength int
	DRYPenaltyLastN  int
	DRYBreakers      []string // texts at which a repetition begins anew; a token's leading space is no part of its text there

	XTCProbability float64
	XTCThreshold   float64

	LogitBias []Bias // a token at most once
	Probs     int    // n_probs

	Seed         uint64 // every draw is a function of (Seed, token index, purpose)
	IgnoreEOG    bool   // end-of-generation tokens are never chosen
	MinNewTokens int    // end-of-generation tokens are not chosen at a lower index
	FirstIndex   int    // how many tokens of the turn the prompt holds: indices count from here
}

// Bias is added to the logit of a token. Minus infinity bans it.
type Bias struct {
	Token int32
	Bias  float64
}

// Probs are natural logarithms of probabilities, by the model's own logits: before biases, penalties, filters, temperature
// and what may not be chosen. A token that the model holds impossible has minus infinity.
type Probs struct {
	Chosen float64 // of the token that was chosen
	Top    []Prob  // likeliest first, equal ones by id; as many as were asked for
}

// Prob is one token's.
type Prob struct {
	Token   int32
	LogProb float64
}

// Default is greedy, with every filter and penalty off.
func Default() Params {
	return Params{
		Temperature: Temperature.Default, TopK: int(TopK.Default), TopP: TopP.Default, MinP: MinP.Default, TypicalP: TypicalP.Default,
		RepeatPenalty: RepeatPenalty.Default, PresencePenalty: PresencePenalty.Default, FrequencyPenalty: FrequencyPenalty.Default,
		PenaltyLastN:  int(PenaltyLastN.Default),
		DRYMultiplier: DRYMultiplier.Default, DRYBase: DRYBase.Default, DRYAllowedLength: int(DRYAllowedLength.Default),
		DRYPenaltyLastN: int(DRYPenaltyLastN.Default), DRYBreakers: DefaultBreakers(),
		XTCProbability: XTCProbability.Default, XTCThreshold: XTCThreshold.Default,
	}
}

// DefaultBreakers are llama.cpp's; the slice is the caller's.
func DefaultBreakers() []string { return []string{"\n", ":", "\"", "*"} }

// Error says which option is out of its range.
type Error struct {
	Field string // its name on the wire; an element of a list as "logit_bias[3]"
	Value string // as it was given
	Limit string // what holds for a valid value
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s is %s; it must be %s", e.Field, e.Value, e.Limit)
}

func outOf(field string, value any, limit string, args ...any) *Error {
	return &Error{Field: field, Value: fmt.Sprint(value), Limit: fmt.Sprintf(limit, args...)}
}

// Validate says which option is out of its range. The error is an *Error. NaN is out of every range. Whether the model has the
// tokens of LogitBias, MinNewTokens and FirstIndex are for whoever knows the model and the request.
func (p Params) Validate() error {
	for i, value := range p.values() {
		if n := &numbers[i]; !n.Holds(value) {
			return outOf(n.Name, n.text(value), "in %s", n.Range())
		}
	}
	if err := checkBreakers(p.DRYBreakers); err != nil {
		return err
	}
	if err := checkBias(p.LogitBias); err != nil {
		return err
	}
	return nil
}

// DRY says whether the repetition of sequences is penalised.
func (p *Params) DRY() bool { return p.DRYMultiplier > 0 && p.DRYPenaltyLastN > 0 }

// XTC says whether the likeliest tokens are now and then excluded. A threshold above a half leaves nothing to exclude.
func (p *Params) XTC() bool { return p.XTCProbability > 0 && p.XTCThreshold <= 0.5 }

// Penalises says whether tokens of the past lower their logits.
func (p *Params) Penalises() bool {
	return p.PenaltyLastN > 0 && (p.RepeatPenalty != 1 || p.PresencePenalty != 0 || p.FrequencyPenalty != 0)
}

func checkBreakers(breakers []string) *Error {
	return checkTexts("dry_sequence_breakers", breakers, MaxBreakers, MaxBreakerBytes)
}

// CheckStops says which stop string is not valid; nil where all are.
func CheckStops(stops []string) *Error { return checkTexts("stop", stops, MaxStops, MaxStopBytes) }

func checkTexts(field string, texts []string, most, bytes int) *Error {
	if len(texts) > most {
		return outOf(field, fmt.Sprintf("%d strings", len(texts)), "at most %d strings", most)
	}
	for i, text := range texts {
		element := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case len(text) < 1 || len(text) > bytes:
			return outOf(element, fmt.Sprintf("%d bytes long", len(text)), "1 to %d bytes long", bytes)
		case !utf8.ValidString(text):
			return outOf(element, "not UTF-8", "UTF-8 text")
		case strings.Contains(text, "\x00"):
			return outOf(element, "a text with a NUL", "text without NUL")
		}
	}
	return nil
}

func checkBias(biases []Bias) *Error {
	if len(biases) > MaxLogitBias {
		return outOf("logit_bias", fmt.Sprintf("%d tokens", len(biases)), "at most %d tokens", MaxLogitBias)
	}
	for i, b := range biases {
		switch {
		case b.Token < 0:
			return outOf(fmt.Sprintf("logit_bias[%d]", i), b.Token, "a token id, not negative")
		case !(b.Bias >= -MaxBias && b.Bias <= MaxBias) && !math.IsInf(b.Bias, -1):
			return outOf(fmt.Sprintf("logit_bias[%d]", i), b.Bias, "a bias in [-%d, %d], or minus infinity, which bans the token", MaxBias, MaxBias)
		}
	}
	if len(biases) < 2 {
		return nil
	}
	tokens := make([]int32, len(biases))
	for i, b := range biases {
		tokens[i] = b.Token
	}
	slices.Sort(tokens)
	for i := 1; i < len(tokens); i++ {
		if tokens[i] == tokens[i-1] {
			return outOf("logit_bias", fmt.Sprintf("two biases of token %d", tokens[i]), "one bias a token")
		}
	}
	return nil
}
