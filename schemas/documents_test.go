package schemas_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/meshnet/node/schemas"
)

const documents = "../docs/schemas"

func compile(t *testing.T, message string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join(documents, message+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON is what a JSON reader sees of a message.
func asJSON(t *testing.T, m any) map[string]any {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	loose, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return loose.(map[string]any)
}

func TestJSONSchemasTakeEveryMessageAndMissEveryField(t *testing.T) {
	for name, c := range codecs() {
		for _, sample := range c.samples {
			m, err := c.decode(sample)
			if err != nil {
				t.Fatal(err)
			}
			message := reflect.TypeOf(m).Elem().Name()
			schema := compile(t, message)
			if err := schema.Validate(asJSON(t, m)); err != nil {
				t.Errorf("%s: its schema refuses %s: %v", name, message, err)
			}
			for field := range asJSON(t, m) {
				loose := asJSON(t, m)
				delete(loose, field)
				bySchema := schema.Validate(loose) == nil
				spoiled := asMap(t, sample)
				delete(spoiled, field)
				_, err := c.decode(pack(t, spoiled))
				if err == nil && !bySchema {
					t.Errorf("%s without %s is decoded, but its schema refuses it", message, field)
				}
				if err != nil && bySchema && !conditional[message+"."+field] {
					t.Errorf("%s without %s is refused (%v), but its schema takes it", message, field, err)
				}
			}
		}
	}
}

// conditional fields are there or not by what another field says, which the schemas do not tell.
var conditional = map[string]bool{"Final.finish": true, "Final.cause": true, "Final.error": true, "WorkRecord.finish": true,
	"TurnReply.outcome": true, "TurnReply.state": true, "TurnReply.reason": true, "TurnReply.final": true, "TurnReply.error": true}

func TestRangesOfTheDocumentsAreThoseOfTheValidation(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(documents, "Request.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Properties  map[string]property `json:"properties"`
		Definitions map[string]struct {
			Properties map[string]property `json:"properties"`
		} `json:"definitions"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, p := range doc.Properties {
		checked += p.check(t, name, func(m map[string]any, v any) { m[name] = v })
	}
	for name, p := range doc.Definitions["Sampling"].Properties {
		checked += p.check(t, "sampling."+name, func(m map[string]any, v any) { m["sampling"] = map[string]any{name: v} })
	}
	if checked < 20 {
		t.Errorf("%d limits were found, want at least 20", checked)
	}
}

// property is a field of a document, with its range.
type property struct {
	Type             string   `json:"type"`
	Minimum          *float64 `json:"minimum"`
	Maximum          *float64 `json:"maximum"`
	ExclusiveMinimum *float64 `json:"exclusiveMinimum"`
}

// check tries both sides of each limit, and returns how many limits there are.
func (p property) check(t *testing.T, field string, put func(m map[string]any, v any)) (limits int) {
	t.Helper()
	step := 1e-9
	if p.Type == "integer" {
		step = 1
	}
	try := func(value float64, want bool) {
		t.Helper()
		m := asMap(t, mustEncode(schemas.Encode(textRequest())))
		if p.Type == "integer" {
			put(m, int64(value))
		} else {
			put(m, value)
		}
		if _, err := schemas.Decode[schemas.Request](pack(t, m)); (err == nil) != want {
			t.Errorf("%s %v: %v, and the document says valid is %t", field, value, err, want)
		} else if err != nil {
			wantField(t, field, err, field)
		}
	}
	if p.Minimum != nil {
		limits++
		try(*p.Minimum, true)
		try(*p.Minimum-step, false)
	}
	if p.ExclusiveMinimum != nil {
		limits++
		try(*p.ExclusiveMinimum, false)
		try(*p.ExclusiveMinimum+step, true)
	}
	if p.Maximum != nil && *p.Maximum < math.MaxInt64 { // 2^64-1 has no number above it
		limits++
		try(*p.Maximum, true)
		try(*p.Maximum+step, false)
	}
	return limits
}
