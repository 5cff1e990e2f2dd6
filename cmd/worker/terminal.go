package main

import (
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// isTerminal says whether w is a terminal that understands colours and line control.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
}

// terminalWidth is how many characters a line of a terminal has, or otherwise where w is none.
func terminalWidth(w io.Writer, otherwise int) int {
	if file, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return otherwise
}

// shown is text of a model, or of somebody else in the mesh, as it may be printed to w: a terminal would obey its
// control characters.
func shown(w io.Writer, text string) string {
	if !isTerminal(w) {
		return text
	}
	return visible(text)
}

// visible is text whose control characters are pictures of them, but for those that end lines and columns.
func visible(text string) string {
	const pictures, pictureOfDelete = 0x2400, 0x2421
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', !unicode.IsControl(r):
			return r
		case r < ' ':
			return pictures + r
		case r == '\x7f':
			return pictureOfDelete
		default: // 0x80 to 0x9f, which have no pictures
			return unicode.ReplacementChar
		}
	}, text)
}

// Styles, on a terminal only.
const (
	styleDim   = "\x1b[2m"
	styleRed   = "\x1b[31m"
	styleGreen = "\x1b[32m"
	styleReset = "\x1b[0m"
)

// styled wraps text in a style where w is a terminal and NO_COLOR is not set.
func styled(w io.Writer, style, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return style + text + styleReset
}
