package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/worker"
)

// answerFlags say what the text of a turn must be.
type answerFlags struct {
	JSONSchema string `help:"The text is JSON that fulfils the JSON Schema in a file." name:"json-schema" placeholder:"FILE" xor:"answer"`
	Grammar    string `help:"The text is one of the grammar in a file, in llama.cpp's GBNF." placeholder:"FILE" xor:"answer"`
}

// answer reads what the flags name.
func (f *answerFlags) answer(env *environment) (schema, grammar string, err error) {
	read := func(name string) (string, error) {
		if name == "" {
			return "", nil
		}
		data, err := readInput(env, name)
		if err == nil && len(data) == 0 {
			err = usageError("%s is empty", name)
		}
		return string(data), err
	}
	if schema, err = read(f.JSONSchema); err != nil {
		return "", "", err
	}
	grammar, err = read(f.Grammar)
	return schema, grammar, err
}

// localGrammar is what the flags say as a grammar, for a command that has the model itself.
func (f *answerFlags) localGrammar(env *environment, model *llama.Model) (string, error) {
	schema, grammar, err := f.answer(env)
	switch {
	case err != nil || schema == "" && grammar == "":
		return "", err
	case !model.EndsTexts():
		return "", &exitError{exitRejected, errNoEnd}
	case grammar != "":
		if err := model.CheckGrammar(grammar); err != nil {
			return "", &exitError{exitRejected, fmt.Errorf("--grammar %s: %w", f.Grammar, err)}
		}
		return grammar, nil
	}
	converter, err := llama.NewConverter()
	if err != nil {
		return "", err
	}
	grammar, err = converter.Grammar(env.ctx, schema)
	var wrong *llama.SchemaError
	switch {
	case errors.As(err, &wrong):
		return "", &exitError{exitRejected, fmt.Errorf("--json-schema %s: %w", f.JSONSchema, err)}
	case env.ctx.Err() != nil:
		return "", errCancelled
	}
	return grammar, err
}

var errNoEnd = errors.New("the model has no token that ends a text: no grammar would ever be fulfilled")

// serveAnswers makes the service hold turns to JSON Schemas, and to clients' grammars where they are allowed.
func serveAnswers(text *worker.Text, model *llama.Model, grammars bool) error {
	if !model.EndsTexts() {
		return nil
	}
	blame := func(field string, err error) error {
		var wrong *llama.SchemaError
		if errors.As(err, &wrong) {
			return &worker.FieldError{Field: field, Reason: wrong.Reason}
		}
		return err
	}
	if grammars {
		text.Grammar = func(grammar string) error { return blame("grammar", model.CheckGrammar(grammar)) }
	}
	converter, err := llama.NewConverter()
	if errors.Is(err, llama.ErrNoSchemas) {
		return nil
	}
	if err != nil {
		return err
	}
	text.JSONSchema = func(ctx context.Context, schema string) (string, error) {
		grammar, err := converter.Grammar(ctx, schema)
		return grammar, blame("json_schema", err)
	}
	return nil
}
