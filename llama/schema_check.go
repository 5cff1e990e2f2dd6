package llama

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// notInGrammars are keywords that llama.cpp's conversion passes over. A text that it allows would not fulfil them.
var notInGrammars = []string{"not", "if", "then", "else", "patternProperties", "minProperties", "maxProperties", "propertyNames",
	"contains", "minContains", "maxContains", "uniqueItems", "multipleOf", "dependentRequired", "dependentSchemas", "dependencies",
	"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"}

// aside are keywords that say nothing about what a value is, or nothing beside another one.
var aside = []string{"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
	"deprecated", "readOnly", "writeOnly"}

// checkSchema says why a schema cannot be turned into a grammar that holds all of it. It never recurses deeper than MaxJSONDepth.
func checkSchema(schema string) error {
	switch {
	case len(schema) > MaxSchemaBytes:
		return &SchemaError{fmt.Sprintf("it has %d bytes; the limit is %d", len(schema), MaxSchemaBytes)}
	case !utf8.ValidString(schema):
		return &SchemaError{"it is not UTF-8"}
	case strings.ContainsRune(schema, 0):
		return &SchemaError{"it holds a zero byte"}
	}
	if reason := checkJSON(schema, '{'); reason != "" {
		return &SchemaError{reason}
	}
	var root map[string]any
	if err := json.Unmarshal([]byte(schema), &root); err != nil {
		return &SchemaError{err.Error()}
	}
	return checkNode(root, "#")
}

// checkNode checks a schema within the schema, and those in it.
func checkNode(node any, path string) error {
	s, ok := node.(map[string]any)
	if !ok {
		return nil // the conversion says what is wrong
	}
	if reason := unenforced(s); reason != "" {
		return &SchemaError{path + ": " + reason}
	}
	for _, word := range []string{"properties", "$defs", "definitions"} {
		named, _ := s[word].(map[string]any)
		for name, sub := range named {
			if err := checkNode(sub, path+"/"+word+"/"+name); err != nil {
				return err
			}
		}
	}
	for _, word := range []string{"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"} {
		list, ok := s[word].([]any)
		if !ok {
			list = []any{s[word]}
		}
		for i, sub := range list {
			if err := checkNode(sub, fmt.Sprintf("%s/%s/%d", path, word, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// unenforced is why texts of a grammar might not fulfil one schema, or "".
func unenforced(s map[string]any) string {
	for _, word := range notInGrammars {
		if value, ok := s[word]; ok && value != false {
			return fmt.Sprintf("a grammar cannot hold %q; leave it out", word)
		}
	}
	for _, word := range []string{"$ref", "oneOf", "anyOf"} {
		if _, ok := s[word]; !ok {
			continue
		}
		for beside := range s {
			if beside != word && !slices.Contains(aside, beside) {
				return fmt.Sprintf("%q beside %q would be passed over; put it into what that names", beside, word)
			}
		}
		return ""
	}
	if has(s, "pattern") && (has(s, "minLength") || has(s, "maxLength")) {
		return "lengths beside a pattern would be passed over; put them into the pattern"
	}
	if hasType(s, "number") && (has(s, "minimum") || has(s, "maximum") || has(s, "exclusiveMinimum") || has(s, "exclusiveMaximum")) {
		return "a grammar cannot hold bounds of numbers that need not be integers; take the type integer, or leave them out"
	}
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for _, name := range required {
		if name, ok := name.(string); ok && properties[name] == nil {
			return fmt.Sprintf("%q is required but not among the properties", name)
		}
	}
	return ""
}

func has(s map[string]any, word string) bool { return s[word] != nil }

func hasType(s map[string]any, name string) bool {
	list, _ := s["type"].([]any)
	return s["type"] == name || slices.Contains(list, any(name))
}
