package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// MaxTextBytes is the longest text that Tokenize takes.
const MaxTextBytes = 2 << 20

// ErrTextTooLong says that the text is longer than MaxTextBytes, or than so many tokens can be.
var ErrTextTooLong = errors.New("text too long")

// Tokenize turns a prompt into tokens. A beginning-of-sequence token is put first where the model wants one, once,
// also when the text begins with its spelling. With special unset, spellings of control tokens are plain text; that is
// the safe way for text from a user.
//
// llama.cpp's SentencePiece takes time with the square of how many characters the vocabulary has no piece for: 64 KiB
// of them take a tenth of a second, 1 MiB more than ten seconds. See TokenizeWithin.
func (m *Model) Tokenize(text string, special bool) ([]int32, error) {
	tokens, err := m.tokenize(text, m.facts.AddsBOS, special)
	if err != nil {
		return nil, err
	}
	if m.facts.AddsBOS && len(tokens) >= 2 && tokens[0] == m.facts.BOS && tokens[1] == m.facts.BOS {
		tokens = tokens[1:]
	}
	return tokens, nil
}

// TokenizeWithin is Tokenize for a prompt that may have limit tokens at most, such as a slot's context. A text that
// cannot be so few, since no token has more than so many bytes, is refused before any work is done for it.
func (m *Model) TokenizeWithin(limit int, text string, special bool) ([]int32, error) {
	if most := limit * m.facts.LongestPiece; len(text) > most {
		return nil, fmt.Errorf("%w: %d bytes; %d tokens of this model have %d at most", ErrTextTooLong, len(text), limit, most)
	}
	return m.Tokenize(text, special)
}

func (m *Model) tokenize(text string, addSpecial, parseSpecial bool) ([]int32, error) {
	if len(text) > MaxTextBytes {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", ErrTextTooLong, len(text), MaxTextBytes)
	}
	ctext := (*C.char)(unsafe.Pointer(unsafe.StringData(text)))
	if text == "" {
		ctext = (*C.char)(unsafe.Pointer(&emptyText[0]))
	}
	var cerr C.mn_error
	tokens := make([]int32, len(text)+16) // a token a byte at most, so that a long text is hardly ever done twice
	for {
		n := C.mn_tokenize(m.c, ctext, C.int32_t(len(text)), (*C.int32_t)(unsafe.Pointer(&tokens[0])), C.int32_t(len(tokens)),
			C.bool(addSpecial), C.bool(parseSpecial), &cerr)
		switch {
		case n >= 0:
			return slices.Clone(tokens[:n]), nil
		case n == math.MinInt32:
			return nil, errors.New(errText(&cerr))
		default:
			tokens = make([]int32, -n)
		}
	}
}

// emptyText is what an empty string points to on the C side, where nil has another meaning.
var emptyText = [1]byte{}

// Piece is the raw text of one token; it may end inside a UTF-8 character. Control tokens are empty unless special is set. A
// token outside the vocabulary is an error.
func (m *Model) Piece(token int32, special bool) ([]byte, error) {
	return m.AppendPiece(nil, token, special)
}

// AppendPiece appends what Piece returns to dst.
func (m *Model) AppendPiece(dst []byte, token int32, special bool) ([]byte, error) {
	if err := m.checkToken(token); err != nil {
		return dst, err
	}
	const usual = 64
	at := len(dst)
	dst = append(dst, make([]byte, usual)...)
	n := C.mn_piece(m.c, C.int32_t(token), (*C.char)(unsafe.Pointer(&dst[at])), usual, C.bool(special))
	if n < 0 {
		dst = append(dst[:at], make([]byte, -n)...)
		n = C.mn_piece(m.c, C.int32_t(token), (*C.char)(unsafe.Pointer(&dst[at])), -n, C.bool(special))
	}
	return dst[:at+int(max(n, 0))], nil
}

// AppendText appends the token's part of a text: AppendPiece without special ones.
func (m *Model) AppendText(dst []byte, token int32) ([]byte, error) {
	return m.AppendPiece(dst, token, false)
}

// Detokenize is the inverse of Tokenize, for the tokens of a whole text: beginning and end tokens and the leading
// space that the model adds are left out. Control tokens are empty unless special is set. The tokens of a text that goes on
// from another, such as generated ones, would lose their leading space: AppendText has it.
func (m *Model) Detokenize(tokens []int32, special bool) (string, error) {
	for i, t := range tokens {
		if err := m.checkToken(t); err != nil {
			return "", fmt.Errorf("token %d: %w", i, err)
		}
	}
	if m.facts.AddsBOS && len(tokens) > 0 && tokens[0] == m.facts.BOS {
		tokens = tokens[1:] // llama.cpp drops it too, but keeps the leading space then
	}
	if len(tokens) == 0 {
		return "", nil
	}
	var cerr C.mn_error
	text := make([]byte, 8*len(tokens)+16)
	for {
		n := C.mn_detokenize(m.c, (*C.int32_t)(unsafe.Pointer(&tokens[0])), C.int32_t(len(tokens)),
			(*C.char)(unsafe.Pointer(&text[0])), C.int32_t(len(text)), true, C.bool(special), &cerr)
		switch {
		case n >= 0:
			return string(text[:n]), nil
		case n == math.MinInt32:
			return "", errors.New(errText(&cerr))
		default:
			text = make([]byte, -n)
		}
	}
}

// IsEOG says whether the token ends a generation. False outside the vocabulary.
func (m *Model) IsEOG(token int32) bool {
	return m.checkToken(token) == nil && bool(C.mn_is_eog(m.c, C.int32_t(token)))
}

// IsControl says whether the token is a control token. False outside the vocabulary.
func (m *Model) IsControl(token int32) bool {
	return m.checkToken(token) == nil && bool(C.mn_is_control(m.c, C.int32_t(token)))
}

func (m *Model) checkToken(token int32) error {
	if token < 0 || int(token) >= m.facts.VocabTokens {
		return fmt.Errorf("token id %d is outside the vocabulary [0, %d)", token, m.facts.VocabTokens)
	}
	return nil
}
