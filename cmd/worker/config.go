package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configFlag names the file; it is the one flag that is no key in it.
const configFlag = "config"

// maxConfigBytes bounds a config file: all flags of all commands take a few KiB.
const maxConfigBytes = 1 << 20

// configFile is a YAML file, which JSON is too: settings of all commands, and sections with those of one. It does not
// change once it is read.
type configFile struct {
	flat     map[string]*configEntry            // by the setting's name
	sections map[string]map[string]*configEntry // by the command's name and the flag's
}

// configEntry is the value of one key.
type configEntry struct {
	node  *yaml.Node
	where string // for errors: key, file and line
}

// readConfig reads a file and refuses keys that nothing would read.
func readConfig(path string, app *kong.Application) (*configFile, error) {
	root, err := parseConfig(path)
	if err != nil {
		return nil, err
	}
	f := &configFile{flat: make(map[string]*configEntry), sections: make(map[string]map[string]*configEntry)}
	if root == nil {
		return f, nil
	}
	everywhere := settingNames(app)
	sections := make(map[string][]string)
	for _, command := range app.Children {
		sections[command.Name] = flagNames(app, command)
	}
	return f, eachKey(path, root, func(key string, entry *configEntry) error {
		names, isSection := sections[key]
		if !isSection {
			f.flat[key] = entry
			return known(key, entry, everywhere, "no flag of any command")
		}
		if entry.empty() { // all lines of the section are comments
			return nil
		}
		if entry.node.Kind != yaml.MappingNode {
			return fmt.Errorf("%s is a command: write flags of `worker %s` under it", entry.where, key)
		}
		f.sections[key] = make(map[string]*configEntry)
		return eachKey(path, entry.node, func(name string, entry *configEntry) error {
			f.sections[key][name] = entry
			return known(name, entry, names, fmt.Sprintf("no flag of `worker %s`", key))
		})
	})
}

// parseConfig is the file's mapping; nil where it is empty.
func parseConfig(path string) (*yaml.Node, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes; a config file has only names of flags and their values", path, maxConfigBytes)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s is no YAML: %w", path, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s has more than one document; put all settings into one", path)
	}
	root := document.Content[0]
	if root.ShortTag() == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s has no settings; write names of flags and their values, like `max-active: 4`", path)
	}
	return root, nil
}

// eachKey calls do for the entries of a mapping, up to the first error.
func eachKey(path string, mapping *yaml.Node, do func(key string, entry *configEntry) error) error {
	seen := make(map[string]bool)
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		entry := &configEntry{node: value, where: fmt.Sprintf("%q in %s, line %d", key.Value, path, key.Line)}
		if value.Kind == yaml.AliasNode {
			entry.node = value.Alias
		}
		if seen[key.Value] {
			return fmt.Errorf("%s is there twice", entry.where)
		}
		seen[key.Value] = true
		if err := do(key.Value, entry); err != nil {
			return err
		}
	}
	return nil
}

// known refuses a key that is not among names.
func known(key string, entry *configEntry, names []string, instead string) error {
	switch {
	case key == configFlag:
		return fmt.Errorf("%s: a config file cannot name another one", entry.where)
	case !slices.Contains(names, key):
		return fmt.Errorf("%s is %s; the nearest is %q", entry.where, instead, nearest(key, names))
	default:
		return nil
	}
}

// settingNames are the keys that hold for all commands.
func settingNames(app *kong.Application) []string {
	var names []string
	for _, node := range append([]*kong.Node{app.Node}, app.Children...) {
		for _, flag := range node.Flags {
			if name := settingName(flag); name != "" && name != configFlag {
				names = append(names, name)
			}
		}
	}
	return names
}

// flagNames are the keys of a command's section.
func flagNames(app *kong.Application, command *kong.Node) []string {
	var names []string
	for _, flag := range slices.Concat(command.Flags, app.Flags) {
		if settingName(flag) != "" && flag.Name != configFlag {
			names = append(names, flag.Name)
		}
	}
	return names
}

// entry is what the file says of a flag: that of the command's section, or that for all commands; nil for nothing.
func (f *configFile) entry(command *kong.Node, flag *kong.Flag) *configEntry {
	var entry *configEntry
	if command != nil {
		entry = f.sections[command.Name][flag.Name]
	}
	if entry == nil {
		entry = f.flat[settingName(flag)]
	}
	if entry == nil || entry.empty() {
		return nil
	}
	return entry
}

// empty says that there is nothing behind the key.
func (e *configEntry) empty() bool { return e.node.ShortTag() == "!!null" }

// text is the value as the command line would have it.
func (e *configEntry) text(flag *kong.Flag) (string, error) {
	if e.node.Kind == yaml.ScalarNode {
		return e.node.Value, nil
	}
	pairs := e.node.Kind == yaml.MappingNode
	switch {
	case pairs && !flag.IsMap():
		return "", errors.New("takes a value, not settings")
	case !pairs && !flag.IsSlice():
		return "", errors.New("takes one value, not a list")
	}
	var elements []string
	for _, element := range e.node.Content {
		if element.Kind != yaml.ScalarNode {
			return "", errors.New("takes single values, not more settings below them")
		}
		elements = append(elements, element.Value)
	}
	if !pairs {
		return kong.JoinEscaped(elements, flag.Tag.Sep), nil
	}
	var entries []string
	for pair := range slices.Chunk(elements, 2) {
		entries = append(entries, pair[0]+"="+pair[1])
	}
	return kong.JoinEscaped(entries, flag.Tag.MapSep), nil
}

// nearest is the name that takes the fewest edits to become.
func nearest(word string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return edits(word, a) - edits(word, b) })
}

// edits is the Levenshtein distance of two words, in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // from the letters of a so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
