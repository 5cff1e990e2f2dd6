package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// Prompt is a text, or token ids where those are not nil.
type Prompt struct {
	Text     string
	TokenIDs []int64
}

// Prompts are where a run's prompts come from: a file, else chance.
type Prompts struct {
	lengths Lengths
	vocab   int // token ids are below it; 0: prompts are text
	prefix  Prompt
	file    []filePrompt
}

// RandomIDs are prompts of token ids, drawn evenly from a vocabulary, so that their lengths are exact. They begin with
// the same shared ids, beyond their length.
func RandomIDs(lengths Lengths, shared, vocab int, seed uint64) *Prompts {
	p := &Prompts{lengths: lengths, vocab: vocab}
	p.prefix = p.draw(stream(seed, warmupRound, 0, forPrefix), shared)
	return p
}

// RandomWords are prompts of English words, as many as the length says; a tokenizer may make more or fewer tokens of
// them. They begin with the same shared words, beyond their length.
func RandomWords(lengths Lengths, shared int, seed uint64) *Prompts {
	p := &Prompts{lengths: lengths}
	p.prefix = p.draw(stream(seed, warmupRound, 0, forPrefix), shared)
	return p
}

// LongestPrompt is how many tokens a prompt has at most; 0: that is not known.
func (p *Prompts) LongestPrompt() int {
	if p.vocab == 0 {
		return 0
	}
	return len(p.prefix.TokenIDs) + p.lengths.Max
}

// longestAnswer is the most tokens that a request of them asks for, where the file does not say so otherwise.
func (p *Prompts) longestAnswer(otherwise Lengths) int {
	longest := otherwise.Max
	for _, f := range p.file {
		longest = max(longest, f.MaxTokens)
	}
	return longest
}

// Describe says in a few words what the prompts are.
func (p *Prompts) Describe() string {
	if p.file != nil {
		return fmt.Sprintf("%d prompts of a file, in turn", len(p.file))
	}
	unit, shared := "random token ids", len(p.prefix.TokenIDs)
	if p.vocab == 0 {
		unit, shared = "random words", len(strings.Fields(p.prefix.Text))
	}
	text := fmt.Sprintf("%s %s", p.lengths, unit)
	if shared > 0 {
		text += fmt.Sprintf(" after %d that all share", shared)
	}
	return text
}

// make is the prompt of a request, and how long its answer may be if a file says so, else 0.
func (p *Prompts) make(random *rand.Rand, number int) (Prompt, int) {
	if p.file != nil {
		f := &p.file[number%len(p.file)]
		return f.Prompt, f.MaxTokens
	}
	own := p.draw(random, p.lengths.draw(random))
	if p.vocab > 0 {
		return Prompt{TokenIDs: append(p.prefix.TokenIDs[:len(p.prefix.TokenIDs):len(p.prefix.TokenIDs)], own.TokenIDs...)}, 0
	}
	return Prompt{Text: strings.TrimSpace(p.prefix.Text + " " + own.Text)}, 0
}

func (p *Prompts) draw(random *rand.Rand, n int) Prompt {
	if p.vocab > 0 {
		ids := make([]int64, n)
		for i := range ids {
			ids[i] = int64(random.IntN(p.vocab))
		}
		return Prompt{TokenIDs: ids}
	}
	picked := make([]string, n)
	for i := range picked {
		picked[i] = words[random.IntN(len(words))]
	}
	return Prompt{Text: strings.Join(picked, " ")}
}

// filePrompt is a prompt of a file.
type filePrompt struct {
	Prompt
	MaxTokens int // 0: the file does not say
}

// Limits of a file of prompts.
const (
	MaxFileBytes   = 32 << 20
	MaxPromptBytes = 1_032_192 // as one request of the mesh takes it
)

// ReadPrompts reads prompts from a file: one a line as text, or, where the first line begins with {, a JSON object a
// line with "prompt" (text, or a list of token ids) and perhaps "max_tokens". Empty lines are nothing.
func ReadPrompts(r io.Reader) (*Prompts, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > MaxFileBytes:
		return nil, fmt.Errorf("it has more than %d bytes, which is the limit; give fewer prompts", MaxFileBytes)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	p := &Prompts{}
	asJSON := bytes.HasPrefix(bytes.TrimSpace(data), []byte("{"))
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, MaxFileBytes+1)
	for number := 1; lines.Scan(); number++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		prompt, err := readPrompt(line, asJSON)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		p.file = append(p.file, prompt)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(p.file) == 0 {
		return nil, fmt.Errorf("it has %d bytes and no prompt; write one a line", len(data))
	}
	return p, nil
}

func readPrompt(line []byte, asJSON bool) (filePrompt, error) {
	if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
		return filePrompt{}, errors.New("it is no UTF-8 text")
	}
	prompt := filePrompt{Prompt: Prompt{Text: string(line)}}
	if asJSON {
		var err error
		if prompt, err = readObject(line); err != nil {
			return prompt, err
		}
	}
	switch {
	case len(prompt.Text) > MaxPromptBytes:
		return prompt, fmt.Errorf("the prompt has %d bytes; use at most %d", len(prompt.Text), MaxPromptBytes)
	case len(prompt.TokenIDs) > MaxLength:
		return prompt, fmt.Errorf("the prompt has %d token ids; use at most %d", len(prompt.TokenIDs), MaxLength)
	}
	return prompt, nil
}

func readObject(line []byte) (prompt filePrompt, err error) {
	var object struct {
		Prompt    json.RawMessage `json:"prompt"`
		MaxTokens *int            `json:"max_tokens"`
	}
	if err := json.Unmarshal(line, &object); err != nil {
		return prompt, fmt.Errorf("it is no JSON object with a prompt, as the first line is: %w", err)
	}
	if json.Unmarshal(object.Prompt, &prompt.Text) != nil {
		prompt.TokenIDs = []int64{}
		if json.Unmarshal(object.Prompt, &prompt.TokenIDs) != nil {
			return prompt, errors.New(`"prompt" is neither a text nor a list of token ids`)
		}
	}
	if prompt.Text == "" && len(prompt.TokenIDs) == 0 {
		return prompt, errors.New(`"prompt" is empty`)
	}
	for i, id := range prompt.TokenIDs {
		if id < 0 || id > 1<<31-1 {
			return prompt, fmt.Errorf(`"prompt"[%d] is %d; token ids are 0 to %d`, i, id, 1<<31-1)
		}
	}
	if object.MaxTokens != nil {
		prompt.MaxTokens = *object.MaxTokens
		if prompt.MaxTokens < 1 || prompt.MaxTokens > MaxLength {
			return prompt, fmt.Errorf(`"max_tokens" is %d; use 1 to %d`, prompt.MaxTokens, MaxLength)
		}
	}
	return prompt, nil
}
