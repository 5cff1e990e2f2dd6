package llama

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// llama.cpp's conversion passes over what it does not know, and over more than it says. A text that a grammar takes has to fulfil
// the schema: what the conversion would pass over, or take for something else, is refused here before.

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
	if name, twice := repeatedName([]byte(schema)); twice {
		return &SchemaError{fmt.Sprintf("an object has the name %q twice; leave one out", name)}
	}
	decoder := json.NewDecoder(strings.NewReader(schema))
	decoder.UseNumber()
	var root map[string]any
	if err := decoder.Decode(&root); err != nil {
		return &SchemaError{err.Error()}
	}
	c := &schemaCheck{root: root, nodes: map[string]schemaNode{}, refs: map[string]string{}}
	err := c.node(root, "#")
	for _, ref := range slices.Sorted(maps.Keys(c.refs)) {
		err = errors.Join(err, c.ref(ref))
		if err != nil {
			break
		}
	}
	for _, path := range slices.Sorted(maps.Keys(c.nodes)) {
		if err != nil {
			break
		}
		if reason := c.merged(c.nodes[path]); reason != "" {
			err = &SchemaError{path + ": " + reason}
		}
	}
	return err
}

// repeatedName is a name that an object of valid JSON has twice. Readers differ in which value they then take.
func repeatedName(text []byte) (name string, twice bool) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	type level struct {
		names map[string]bool // nil: a list
		value bool            // the next token is the value of a name
	}
	var levels []level
	for {
		token, err := decoder.Token()
		if err != nil {
			return "", false
		}
		if end, ok := token.(json.Delim); ok && (end == '}' || end == ']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if n := len(levels) - 1; n >= 0 && levels[n].names != nil {
			if name, ok := token.(string); ok && !levels[n].value {
				if levels[n].names[name] {
					return name, true
				}
				levels[n].names[name], levels[n].value = true, true
				continue
			}
			levels[n].value = false
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}

// schemaNode is a schema within the schema.
type schemaNode = map[string]any

// schemaCheck looks at a whole schema.
type schemaCheck struct {
	root  schemaNode
	nodes map[string]schemaNode // by their JSON pointers: what a $ref may name
	refs  map[string]string     // every $ref, and where one of them is
}

// node checks a schema within the schema, and those in it.
func (c *schemaCheck) node(value any, path string) error {
	s, ok := value.(schemaNode)
	if !ok {
		return &SchemaError{path + ": a grammar needs an object here, not " + shownJSON(value)}
	}
	c.nodes[path] = s
	if reason := unenforced(s); reason != "" {
		return &SchemaError{path + ": " + reason}
	}
	if _, ok := s["$id"]; ok && path != "#" {
		return &SchemaError{path + `: "$id" changes what each $ref names; leave it out`}
	}
	if ref, ok := s["$ref"].(string); ok {
		c.refs[ref] = path
	}
	for _, word := range []string{"properties", "$defs", "definitions"} {
		named, ok := s[word].(map[string]any)
		if _, there := s[word]; there && !ok {
			return &SchemaError{fmt.Sprintf("%s: %q must be an object", path, word)}
		}
		for _, name := range slices.Sorted(maps.Keys(named)) {
			if err := c.node(named[name], path+"/"+word+"/"+name); err != nil {
				return err
			}
		}
	}
	return c.listed(s, path)
}

// listed checks the schemas in keywords that hold one or a list of them.
func (c *schemaCheck) listed(s schemaNode, path string) error {
	for _, word := range []string{"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"} {
		value, there := s[word]
		if _, isBool := value.(bool); !there || isBool && word == "additionalProperties" {
			continue
		}
		list, ok := value.([]any)
		if !ok && (word == "items" || word == "additionalProperties") {
			if err := c.node(value, path+"/"+word); err != nil {
				return err
			}
			continue
		}
		if !ok || len(list) == 0 && word != "items" && word != "prefixItems" {
			return &SchemaError{fmt.Sprintf("%s: %q must be a list of schemas, and not empty", path, word)}
		}
		for i, sub := range list {
			if err := c.node(sub, fmt.Sprintf("%s/%s/%d", path, word, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ref says why a $ref cannot be followed. One that names what is no schema would bring in what was not checked.
func (c *schemaCheck) ref(ref string) error {
	at := c.refs[ref]
	switch {
	case !strings.HasPrefix(ref, "#/"):
		return &SchemaError{fmt.Sprintf("%s: unsupported $ref %s: only references into the same document, which begin with #/, are", at, ref)}
	case strings.ContainsAny(ref, "~%"):
		return &SchemaError{fmt.Sprintf("%s: unsupported $ref %s: it has an escape; name the schema without / ~ %%", at, ref)}
	case c.nodes[ref] == nil:
		return &SchemaError{fmt.Sprintf("%s: cannot resolve $ref %s: there is no schema", at, ref)}
	}
	name := ruleName("ref" + strings.TrimPrefix(ref, "#"))
	for other := range c.refs {
		if other != ref && c.nodes[other] != nil {
			prefix := ruleName("ref" + strings.TrimPrefix(other, "#"))
			if rest, ok := strings.CutPrefix(name, prefix+"-"); name == prefix || ok && makesRule(c.nodes[other], rest) {
				return &SchemaError{fmt.Sprintf("%s: $ref %s cannot be told from what $ref %s makes; give one another name", at, ref, other)}
			}
		}
	}
	if makesRule(c.root, name) {
		return &SchemaError{fmt.Sprintf("%s: $ref %s cannot be told from a property; give one another name", at, ref)}
	}
	return nil
}

var noRuleName = regexp.MustCompile("[^a-zA-Z0-9-]+")

// ruleName is what the conversion makes of a name. It takes rules of one name for the same, whatever they stand for.
func ruleName(name string) string { return noRuleName.ReplaceAllString(name, "-") }

// makesRule says whether the rules of a schema may have a name, which is that of the schema itself with this behind.
func makesRule(value any, rest string) bool {
	s, ok := value.(schemaNode)
	if !ok {
		return false
	}
	made := func(name string, sub any) bool {
		behind, ok := strings.CutPrefix(rest, ruleName(name))
		if !ok {
			return false
		}
		further, deeper := strings.CutPrefix(behind, "-")
		return strings.Trim(behind, "0123456789") == "" || // as it is told from others of its name
			deeper && (strings.HasPrefix(further, "kv") || strings.HasPrefix(further, "rest") || makesRule(sub, further))
	}
	named, _ := s["properties"].(map[string]any)
	for name, sub := range named {
		if made(name, sub) {
			return true
		}
	}
	if made("item", s["items"]) || made("tuple", nil) || strings.HasPrefix(rest, "tuple-") || strings.HasPrefix(rest, "additional-") {
		return true
	}
	for _, word := range []string{"allOf", "anyOf", "oneOf"} {
		list, _ := s[word].([]any)
		for i, sub := range list {
			if word == "allOf" && makesRule(sub, rest) || made(strconv.Itoa(i), sub) || made("alternative-"+strconv.Itoa(i), sub) {
				return true
			}
		}
	}
	types, _ := s["type"].([]any)
	for i := range types {
		if one := without(s, "type"); made(strconv.Itoa(i), one) || made("alternative-"+strconv.Itoa(i), one) {
			return true
		}
	}
	return false
}

func without(s schemaNode, word string) schemaNode {
	rest := maps.Clone(s)
	delete(rest, word)
	return rest
}

// merged says why the objects of an allOf do not come to one whose texts fulfil all of them; empty where they do, or there is none.
func (c *schemaCheck) merged(s schemaNode) string {
	list, _ := s["allOf"].([]any)
	seen := map[string]bool{}
	for i, value := range list {
		part := c.target(value)
		if part == nil {
			return fmt.Sprintf("allOf[%d] names itself", i)
		}
		if part["enum"] != nil && len(list) == 1 {
			continue
		}
		kind := part["type"]
		if kind != "object" && (kind != nil || part["properties"] == nil) || slices.ContainsFunc(alone, func(word string) bool { return part[word] != nil }) {
			return fmt.Sprintf("allOf[%d] is no object with properties; a grammar can hold allOf of nothing else", i)
		}
		if more, there := part["additionalProperties"]; there && more != true {
			return fmt.Sprintf(`allOf[%d] says "additionalProperties", which would be passed over; leave it out`, i)
		}
		named, _ := part["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(named)) {
			if seen[name] {
				return fmt.Sprintf("two schemas of allOf say what %q is; say it in one", name)
			}
			seen[name] = true
		}
	}
	return ""
}

// target is a schema, or what its $ref names in the end; nil where that leads round in a circle.
func (c *schemaCheck) target(value any) schemaNode {
	s, _ := value.(schemaNode)
	for range len(c.refs) + 1 {
		ref, ok := s["$ref"].(string)
		if !ok {
			return s
		}
		s = c.nodes[ref]
	}
	return nil
}

// shownJSON is the beginning of a value, for a message.
func shownJSON(value any) string {
	const most = 40
	text, _ := json.Marshal(value) // it was decoded from JSON
	if len(text) > most {
		return strings.ToValidUTF8(string(text[:most]), "") + "…"
	}
	return string(text)
}
