package llama

import (
	"strings"

	"github.com/meshnet/node/internal/gbnf"
)

// The conversion writes grammars of JSON texts as if a string held its characters as they are. Its sets of characters, those of
// patterns and those that tell additional properties from others, would take a quote that ends the string, a backslash that
// makes an escape of what follows, or a bare control character.

// wide are rules of the conversion that take too much, and what takes their place: escapes of halves of a character, of which two
// count as one; days that a month does not have; numbers that readers cannot hold.
var wide = map[string]string{
	`[^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})`: `[^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | ` +
		`"u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))`,
	`[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [1-2] [0-9] | "3" [0-1] )`: `[0-9]{4} "-" (` +
		`("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ` +
		`("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))`,
	`("-"? integral-part) ("." decimal-part)? ([eE] [-+]? integral-part)?`: `"-"? integral-part ("." decimal-part)? ([eE] [-+]? [0-9]{1,2})?`,
}

// holdText makes the sets of a converted grammar take only what stands for itself within a JSON string, and replaces the rules that
// are too wide.
func holdText(grammar string) string {
	lines := strings.Split(grammar, "\n")
	for i, line := range lines {
		name, body, _ := strings.Cut(line, " ::= ")
		narrow, ok := wide[body]
		switch {
		case name == "space" || name == "":
			continue
		case !ok:
			narrow = plainSets(body, strings.HasPrefix(body, `["] ( `))
		}
		lines[i] = name + " ::= " + narrow
	}
	return strings.Join(lines, "\n")
}

// plainSets takes what does not stand for itself out of the sets of a rule. In a rule that tells names from others, the sets
// that hold a quote alone begin and end the string.
func plainSets(rule string, names bool) string {
	var out strings.Builder
	for i := 0; i < len(rule); {
		end := i + 1
		switch rule[i] {
		case '"':
			end = closing(rule, i, '"')
			out.WriteString(rule[i:end])
		case '[':
			end = closing(rule, i, ']')
			if set := rule[i:end]; names && set == `["]` {
				out.WriteString(set)
			} else {
				out.WriteString(plainSet(set))
			}
		default:
			out.WriteByte(rule[i])
		}
		i = end
	}
	return out.String()
}

// closing is where a literal or a set that begins at from is over.
func closing(rule string, from int, end byte) int {
	for i := from + 1; i < len(rule); i++ {
		switch rule[i] {
		case '\\':
			i++
		case end:
			return i + 1
		}
	}
	return len(rule) // the grammar will not compile
}

// plainSet is a set without quotes, backslashes and control characters.
func plainSet(set string) string {
	const del = 0x7F
	escaped := []rune{'"', '\\', del}
	for r := range rune(' ') {
		escaped = append(escaped, r)
	}
	plain, err := gbnf.Except(set, escaped...)
	if err != nil {
		return set // the grammar will not compile
	}
	return plain
}
