// Package models carries the story model inside the binary, so that a first run, the demo and the
// tests need no download. It holds bytes only: it neither parses nor loads them.
package models

import _ "embed"

// StoryName is the name under which the embedded model is served.
const StoryName = "stories1m"

//go:embed stories1m-q8_0.gguf
var story string

// Story returns the embedded model, a GGUF file of about 1 MB. Each call returns a copy of its own,
// which the caller may keep and change.
func Story() []byte {
	return []byte(story)
}
