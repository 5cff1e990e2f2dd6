package llama

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// notInGrammars are keywords that llama.cpp's conversion passes over. A text that it allows would not fulfil them.
var notInGrammars = []string{"not", "if", "then", "else", "patternProperties", "minProperties", "maxProperties", "propertyNames",
	"contains", "minContains", "maxContains", "uniqueItems", "multipleOf", "dependentRequired", "dependentSchemas", "dependencies",
	"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"}

// aside are keywords that say nothing about what a value is, or nothing beside another one.
var aside = []string{"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
	"deprecated", "readOnly", "writeOnly"}

// alone are keywords beside which the conversion passes over all others. The type may be beside those that list values.
var alone = []string{"$ref", "oneOf", "anyOf", "allOf", "const", "enum"}

// heldFormats are the formats that the conversion knows.
var heldFormats = []any{"date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4", "uuid5"}

// unenforced is why texts of a grammar might not fulfil one schema, or "".
func unenforced(s schemaNode) string {
	for _, word := range notInGrammars {
		if value, ok := s[word]; ok && (word != "uniqueItems" || value != false) {
			return fmt.Sprintf("a grammar cannot hold %q; leave it out", word)
		}
	}
	for _, word := range alone {
		if _, ok := s[word]; ok {
			return besideAlone(s, word)
		}
	}
	for _, check := range []func(schemaNode) string{checkText, checkList, checkBounds, checkRequired, checkAdditional} {
		if reason := check(s); reason != "" {
			return reason
		}
	}
	return ""
}

func has(s schemaNode, word string) bool { return s[word] != nil }

func hasAny(s schemaNode, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return has(s, word) })
}

// mayBe says whether a schema's type allows one; a schema without a type allows all.
func mayBe(s schemaNode, name string) bool {
	list, _ := s["type"].([]any)
	return s["type"] == nil || s["type"] == name || slices.Contains(list, any(name))
}

// besideAlone checks what is beside a keyword of alone.
func besideAlone(s schemaNode, word string) string {
	for beside := range s {
		listed := word == "const" || word == "enum"
		if beside != word && !slices.Contains(aside, beside) && !(beside == "type" && (listed || word == "allOf" && s["type"] == "object")) {
			return fmt.Sprintf("%q beside %q would be passed over; put it into what that names", beside, word)
		}
	}
	if ref, ok := s["$ref"]; ok && word == "$ref" {
		if _, ok := ref.(string); !ok {
			return "$ref must be a string"
		}
	}
	values, isList := s["enum"].([]any)
	switch word {
	case "const":
		values = []any{s["const"]}
	case "enum":
		if !isList {
			return `"enum" must be a list`
		}
	}
	for i, value := range values {
		if !slices.ContainsFunc(typesOf(value), func(name string) bool { return mayBe(s, name) }) {
			return fmt.Sprintf("value %d of %q, %s, is not of the schema's type", i, word, shownJSON(value))
		}
		if number := inexact(value); number != "" {
			return fmt.Sprintf("value %d of %q has the number %.40s, which is too large or too long to be kept as it is", i, word, number)
		}
	}
	return ""
}

// typesOf are the types that a value is of.
func typesOf(value any) []string {
	switch v := value.(type) {
	case nil:
		return []string{"null"}
	case bool:
		return []string{"boolean"}
	case string:
		return []string{"string"}
	case json.Number:
		if f, err := v.Float64(); err == nil && f == math.Trunc(f) {
			return []string{"number", "integer"}
		}
		return []string{"number"}
	case []any:
		return []string{"array"}
	}
	return []string{"object"}
}

// inexact is a number within a value that the conversion, which takes numbers for floating point, would write as another one.
func inexact(value any) json.Number {
	switch v := value.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil || len(v) > 32 || f == 0 && strings.ContainsAny(string(v), "123456789eE") {
			return v
		}
		want, ok := new(big.Rat).SetString(string(v))
		got, gotOK := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
		if !ok || !gotOK || want.Cmp(got) != 0 {
			return v
		}
	case []any:
		for _, sub := range v {
			if number := inexact(sub); number != "" {
				return number
			}
		}
	case map[string]any:
		for _, sub := range v {
			if number := inexact(sub); number != "" {
				return number
			}
		}
	}
	return ""
}

// maxCount bounds how often a schema repeats something. The conversion takes larger counts for others.
const maxCount = 1 << 30

// checkCounts checks the keywords of a least and a greatest count.
func checkCounts(s schemaNode, least, most string) string {
	counts := map[string]int64{least: 0, most: maxCount}
	for word := range counts {
		value, there := s[word]
		if !there {
			continue
		}
		number, _ := value.(json.Number)
		n, err := number.Int64()
		if err != nil || n < 0 || n > maxCount {
			return fmt.Sprintf("%q must be a whole number from 0 to %d", word, maxCount)
		}
		counts[word] = n
	}
	if counts[least] > counts[most] {
		return fmt.Sprintf("%q is more than %q", least, most)
	}
	return ""
}

func checkText(s schemaNode) string {
	held := slices.Contains(heldFormats, s["format"])
	switch {
	case has(s, "pattern") && hasAny(s, "minLength", "maxLength"):
		return "lengths beside a pattern would be passed over; put them into the pattern"
	case has(s, "pattern") && held:
		return "a format beside a pattern would be passed over; leave it out"
	case held && hasAny(s, "minLength", "maxLength"):
		return "lengths beside a format would be passed over; leave them out"
	}
	if pattern, ok := s["pattern"].(string); ok {
		if reason := checkPattern(pattern); reason != "" {
			return reason
		}
	}
	return checkCounts(s, "minLength", "maxLength")
}

// checkPattern refuses what the conversion copies into a grammar of JSON texts as if those had no escapes, and what it reads in
// another way than regular expressions do. Sets are looked after in the grammar.
func checkPattern(pattern string) string {
	inSet := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c < ' ' || c == 0x7F:
			return "a grammar cannot hold a pattern with control characters"
		case c == '\\':
			if i++; !inSet && i < len(pattern) && strings.IndexByte(`\"nrtxuU`, pattern[i]) >= 0 {
				return fmt.Sprintf(`a grammar cannot hold \%c in a pattern, outside of sets`, pattern[i])
			}
		case inSet:
			inSet = c != ']'
		case c == '[':
			inSet = true
		case c == '"':
			return "a grammar cannot hold a quote in a pattern, outside of sets"
		case c == '{':
			counts, _, closed := strings.Cut(pattern[i+1:], "}")
			least, most, _ := strings.Cut(counts, ",")
			if !closed || least == "" || strings.Trim(least+most, "0123456789") != "" {
				return fmt.Sprintf("a grammar cannot hold {%.20s in a pattern; say {least}, {least,} or {least,most}", counts)
			}
		}
	}
	return ""
}

func checkList(s schemaNode) string {
	_, listed := s["items"].([]any)
	switch tuple := listed || has(s, "prefixItems"); {
	case has(s, "prefixItems") && has(s, "items"):
		return `"prefixItems" beside "items" would be passed over; a grammar can hold one of them`
	case tuple && hasAny(s, "minItems", "maxItems"):
		return "counts of items beside a list of them would be passed over; leave them out"
	case !has(s, "type") && !has(s, "items") && hasAny(s, "minItems", "maxItems"):
		return "counts of items without a type would be passed over; add the type array"
	}
	return checkCounts(s, "minItems", "maxItems")
}

// checkBounds checks the bounds of integers, the way that the conversion rounds them.
func checkBounds(s schemaNode) string {
	if !hasAny(s, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") {
		return ""
	}
	if mayBe(s, "number") {
		return "a grammar cannot hold bounds of numbers that need not be integers; take the type integer, or leave them out"
	}
	const largest = 1 << 53
	low, high := -math.MaxFloat64, math.MaxFloat64
	for _, bound := range []struct {
		word, other string
		apply       func(float64)
	}{
		{"minimum", "exclusiveMinimum", func(f float64) { low = math.Ceil(f) }},
		{"exclusiveMinimum", "minimum", func(f float64) { low = math.Floor(f) + 1 }},
		{"maximum", "exclusiveMaximum", func(f float64) { high = math.Floor(f) }},
		{"exclusiveMaximum", "maximum", func(f float64) { high = math.Ceil(f) - 1 }},
	} {
		value, there := s[bound.word]
		if !there {
			continue
		}
		number, _ := value.(json.Number)
		f, err := number.Float64()
		switch {
		case err != nil || !(f > -largest && f < largest):
			return fmt.Sprintf("%q must be a number between -2^53 and 2^53", bound.word)
		case has(s, bound.other):
			return fmt.Sprintf("%q beside %q would be passed over; leave one out", bound.word, bound.other)
		}
		bound.apply(f)
	}
	if low > high {
		return "no integer is within its bounds"
	}
	return ""
}

func checkRequired(s schemaNode) string {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for _, name := range required {
		if name, ok := name.(string); ok && properties[name] == nil {
			return fmt.Sprintf("%q is required but not among the properties", name)
		}
	}
	return ""
}

// checkAdditional checks names that additional properties must not have: the conversion excludes them letter by letter.
func checkAdditional(s schemaNode) string {
	properties, _ := s["properties"].(map[string]any)
	if more, there := s["additionalProperties"]; !there || more == false {
		return ""
	}
	for name := range properties {
		odd := func(r rune) bool { return r < ' ' || r == 0x7F || strings.ContainsRune(`"\]^`, r) }
		if name == "" || strings.ContainsFunc(name, odd) {
			return fmt.Sprintf(`a grammar cannot tell additional properties from %q; leave out "additionalProperties", or that name`, name)
		}
	}
	return ""
}
