package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func TestSchemasAndGrammarsThatANodeCannotHoldAreRejectedWithTheirField(t *testing.T) {
	refuse := func(field string) error { return &worker.FieldError{Field: field, Reason: "it is bad"} }
	able := func(c *worker.Config, _ *goengine.Config) {
		c.Text.JSONSchema = func(context.Context, string) (string, error) { return "", refuse("json_schema") }
		c.Text.Grammar = func(string) error { return refuse("grammar") }
	}
	unable := func(*worker.Config, *goengine.Config) {}
	for name, c := range map[string]struct {
		change         setup
		schema         string
		grammar        string
		field, message string
	}{
		"no schemas":  {unable, "{}", "", "json_schema", "this node holds no turn to a JSON Schema"},
		"no grammars": {unable, "", "root ::= x", "grammar", "this node takes no grammars of clients; send a json_schema, or ask its operator to allow them"},
		"bad schema":  {able, "{}", "", "json_schema", "it is bad"},
		"bad grammar": {able, "", "root ::= x", "grammar", "it is bad"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			m.start("n1", c.change)
			req := request("s1", 1, 8)
			req.JSONSchema, req.Grammar = c.schema, c.grammar
			r := m.read(req.ID())
			m.submit(req, schemas.AnyLane)
			final := r.final()
			m.wantOutcome(r, final, schemas.Rejected, "", 0)
			if final.Error.Reason != schemas.RejectedInvalid || final.Error.Field != c.field || final.Error.Message != c.message {
				t.Errorf("error is %+v, want field %s and %q", final.Error, c.field, c.message)
			}
		})
	}
}

// What is not the request's fault is no reason to end it.
func TestATurnWhoseSchemaCouldNotBeConvertedIsTriedAgain(t *testing.T) {
	m := newMesh(t)
	var calls atomic.Int32
	m.start("n1", func(c *worker.Config, _ *goengine.Config) {
		c.Text.JSONSchema = func(context.Context, string) (string, error) {
			if calls.Add(1) == 1 {
				return "", errors.New("no process could be started")
			}
			return "", nil // any text
		}
	})
	req := request("s1", 1, 8)
	req.JSONSchema = "{}"
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	r.whole(req)
	if n := calls.Load(); n != 2 {
		t.Errorf("the schema was converted %d times, want 2", n)
	}
}

func TestAnEngineWithoutGrammarsFailsTheTurnAndSaysWhy(t *testing.T) {
	m := newMesh(t)
	m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.Text.Grammar = func(string) error { return nil } })
	req := request("s1", 1, 8)
	req.Grammar = "root ::= x"
	r := m.read(req.ID())
	m.submit(req, schemas.AnyLane)
	final := r.final()
	m.wantOutcome(r, final, schemas.Failed, schemas.CauseEngine, 1)
	if final.Error == nil || final.Error.Message != "this engine knows no grammars" {
		t.Errorf("error is %+v", final.Error)
	}
}
