package main

import (
	"reflect"
	"slices"
	"strings"

	"github.com/meshnet/node/schemas"
)

// messages are the types that get a schema of their own.
func messages() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[schemas.Request](),
		reflect.TypeFor[schemas.Started](), reflect.TypeFor[schemas.Tokens](),
		reflect.TypeFor[schemas.Keepalive](), reflect.TypeFor[schemas.Final](),
		reflect.TypeFor[schemas.WorkRecord](), reflect.TypeFor[schemas.LedgerRecord](),
		reflect.TypeFor[schemas.Control](), reflect.TypeFor[schemas.TurnRequest](), reflect.TypeFor[schemas.TurnReply](),
		reflect.TypeFor[schemas.Advertisement](), reflect.TypeFor[schemas.NodeReply](),
	}
}

// words are the closed sets, by type.
var words = map[reflect.Type][]string{}

func init() {
	closed(schemas.Reasons())
	closed(schemas.ChatRoles())
	closed(schemas.EndReasons())
	closed(schemas.Finishes())
	closed(schemas.Causes())
	closed(schemas.Misses())
	closed(schemas.EventKinds())
	closed(schemas.ControlKinds())
	closed(schemas.TurnOps())
	closed(schemas.TurnStates())
	closed(schemas.CancelOutcomes())
	closed(schemas.NodeVerbs())
	closed(schemas.NodeStates())
	closed(schemas.SessionPhases())
}

func closed[W ~string](all []W) {
	var set []string
	for _, w := range all {
		set = append(set, string(w))
	}
	words[reflect.TypeFor[W]()] = set
}

// kinds are the events' constant kinds.
var kinds = map[reflect.Type]schemas.EventKind{
	reflect.TypeFor[schemas.Started]():   schemas.KindStarted,
	reflect.TypeFor[schemas.Tokens]():    schemas.KindToken,
	reflect.TypeFor[schemas.Keepalive](): schemas.KindKeepalive,
	reflect.TypeFor[schemas.Final]():     schemas.KindFinal,
}

const namePattern = "^[A-Za-z0-9_-]{1,64}$"

// generator makes the schema of one message.
type generator struct {
	comments comments
	order    []string          // names of the types met
	defined  map[string]object // their schemas
}

func (g *generator) message(t reflect.Type) object {
	o := object{
		{"$schema", "http://json-schema.org/draft-07/schema#"},
		{"title", t.Name()},
	}
	o = append(o, g.structure(t)...)
	if len(g.order) > 0 {
		var definitions object
		for _, name := range g.order {
			definitions = append(definitions, member{name, g.defined[name]})
		}
		o = append(o, member{"definitions", definitions})
	}
	return o
}

func (g *generator) structure(t reflect.Type) object {
	var properties object
	var required []string
	g.fields(t, t, &properties, &required)
	o := object{{"description", g.comments[t.Name()]}, {"type", "object"}, {"properties", properties}}
	if len(required) > 0 {
		o = append(o, member{"required", required})
	}
	if one, ok := oneOf[t]; ok {
		var choices []object
		for _, name := range one {
			choices = append(choices, object{{"required", []string{name}}})
		}
		o = append(o, member{"oneOf", choices})
	}
	return o
}

// fields adds the fields of t, which is owner or embedded in it.
func (g *generator) fields(owner, t reflect.Type, properties *object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			g.fields(owner, f.Type, properties, required)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
		if options != "omitempty" && f.Tag.Get("wire") != "default" {
			*required = append(*required, name)
		}
		var schema object
		if text := g.comments[t.Name()+"."+f.Name]; text != "" {
			schema = append(schema, member{"description", text})
		}
		path := owner.Name() + "." + name
		switch {
		case name == "v":
			schema = append(schema, member{"const", schemas.ProtocolVersion})
		case slices.Contains(reserved, path):
			schema = append(schema, member{"not", object{}})
		case name == "kind" && kinds[owner] != "":
			schema = append(schema, member{"const", kinds[owner]})
		default:
			schema = append(append(schema, limited(g.value(f.Type), path)...), limits[path]...)
		}
		*properties = append(*properties, member{name, schema})
	}
}

// limited adds the limits of a list's elements.
func limited(schema object, path string) object {
	for i := range schema {
		if items, ok := schema[i].value.(object); ok && schema[i].name == "items" {
			schema[i].value = append(items, limits[path+"[]"]...)
		}
	}
	return schema
}

// value is the schema of a field's type.
func (g *generator) value(t reflect.Type) object {
	if set, ok := words[t]; ok {
		return object{{"type", "string"}, {"enum", set}}
	}
	switch t {
	case reflect.TypeFor[schemas.Hash]():
		return object{{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}, {"x-msgpack", "bin of 32 bytes"}}
	case reflect.TypeFor[schemas.Node]():
		return object{{"type", "string"}, {"pattern", namePattern}, {"not", object{{"const", schemas.AnyLane.String()}}}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.value(t.Elem())
	case reflect.Bool:
		return object{{"type", "boolean"}}
	case reflect.Int, reflect.Int64:
		return object{{"type", "integer"}}
	case reflect.Uint64:
		return object{{"type", "integer"}, {"minimum", 0}, {"maximum", uint64(1<<64 - 1)}}
	case reflect.Float64:
		return object{{"type", "number"}}
	case reflect.String:
		return object{{"type", "string"}}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{{"type", "string"}, {"contentEncoding", "base64"}, {"x-msgpack", "bin"}}
		}
		return object{{"type", "array"}, {"items", g.value(t.Elem())}}
	case reflect.Map:
		return object{{"type", "object"}, {"additionalProperties", g.value(t.Elem())}}
	}
	if strings.HasPrefix(t.Name(), "Name[") {
		return object{{"type", "string"}, {"pattern", namePattern}}
	}
	return g.reference(t)
}

// reference defines a struct once, and points to it. allOf keeps what stands beside it valid.
func (g *generator) reference(t reflect.Type) object {
	if _, ok := g.defined[t.Name()]; !ok {
		g.defined[t.Name()] = nil
		g.order = append(g.order, t.Name())
		g.defined[t.Name()] = g.structure(t)
	}
	return object{{"allOf", []object{{{"$ref", "#/definitions/" + t.Name()}}}}}
}
