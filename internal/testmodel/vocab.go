package testmodel

import (
	"fmt"
	"strings"
)

// Kinds of vocabulary entries, as llama.cpp numbers them.
const (
	kindNormal  int32 = 1
	kindUnknown int32 = 2
	kindControl int32 = 3
	kindByte    int32 = 6
)

// Ids of the vocabulary's fixed entries. Shapes without Chat have normal pieces in place of the last two.
const (
	unknownID = 0
	bosID     = 1
	eosID     = 2
	firstByte = 3
)

const chatTemplate = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

const space = "\u2581" // how SentencePiece writes a space

// vocabulary is a SentencePiece vocabulary of synthetic pieces. Any text round-trips through it: what no piece covers is spelt in bytes.
type vocabulary struct {
	pieces []string
	scores []float32
	kinds  []int32
	size   int
	seen   map[string]bool
}

// buildVocabulary returns exactly shape.Vocab entries.
func buildVocabulary(shape Shape) vocabulary {
	v := vocabulary{size: shape.Vocab, seen: make(map[string]bool)}
	v.add("<unk>", kindUnknown)
	v.add("<s>", kindControl)
	v.add("</s>", kindControl)
	for b := range 256 {
		v.add(fmt.Sprintf("<0x%02X>", b), kindByte)
	}
	if shape.Chat {
		v.add("<|im_start|>", kindControl)
		v.add("<|im_end|>", kindControl)
	}
	for _, text := range strings.Fields(shape.Controls) {
		v.add(text, kindControl)
	}
	v.add(space, kindNormal)
	for c := '!'; c <= '~'; c++ {
		v.add(string(c), kindNormal)
	}
	v.addPairs()
	v.addLongerPieces()
	return v
}

// add appends an entry unless it is there already or the vocabulary is full. Earlier pieces have higher
// scores: the tokenizer merges them first.
func (v *vocabulary) add(piece string, kind int32) {
	if len(v.pieces) == v.size || v.seen[piece] {
		return
	}
	v.seen[piece] = true
	v.pieces = append(v.pieces, piece)
	v.kinds = append(v.kinds, kind)
	if kind == kindNormal {
		v.scores = append(v.scores, -float32(len(v.pieces)))
	} else {
		v.scores = append(v.scores, 0)
	}
}

// addPairs adds what English text is mostly made of, then the other syllables of two letters.
func (v *vocabulary) addPairs() {
	for _, pair := range strings.Fields("th he in er an re nd on en at ou ed ha to or it is hi es ng ll ch sh st") {
		v.add(pair, kindNormal)
	}
	for c := 'a'; c <= 'z'; c++ {
		v.add(space+string(c), kindNormal)
	}
	const vowels = "aeiou"
	for c := 'a'; c <= 'z'; c++ {
		for _, vowel := range vowels {
			v.add(string(c)+string(vowel), kindNormal)
		}
	}
	for _, vowel := range vowels {
		for c := 'a'; c <= 'z'; c++ {
			v.add(string(vowel)+string(c), kindNormal)
		}
	}
}

// addLongerPieces fills the vocabulary up. Every new piece is the join of two that are there: the tokenizer
// reaches a piece by merging pairs only.
func (v *vocabulary) addLongerPieces() {
	isLetters := func(piece string) bool { return strings.Trim(piece, "abcdefghijklmnopqrstuvwxyz") == "" }
	var syllables []string
	for i, piece := range v.pieces {
		if v.kinds[i] == kindNormal && len(piece) == 2 && isLetters(piece) {
			syllables = append(syllables, piece)
		}
	}
	for _, syllable := range syllables {
		v.add(space+syllable, kindNormal)
	}
	for _, first := range syllables {
		for _, second := range syllables {
			v.add(first+second, kindNormal)
			v.add(space+first+second, kindNormal)
		}
	}
}
