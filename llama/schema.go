package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/meshnet/node/internal/gbnf"
)

// Limits of a JSON Schema.
const (
	MaxSchemaBytes = 64 << 10

	convertTime          = 10 * time.Second // on a busy machine
	convertProcessorTime = 2 * time.Second
	convertAtOnce        = 2
	keptGrammars         = 256
	keptBytes            = 32 << 20 // of what is kept of them
	maxComplaintBytes    = 16 << 10
)

// SchemaError says why a JSON Schema or a grammar cannot be used, and where.
type SchemaError struct{ Reason string }

func (e *SchemaError) Error() string { return e.Reason }

// Converter turns JSON Schemas into grammars. llama.cpp's conversion can be made to crash or to run for ever: it happens in
// a short-lived process with limits. Grammars are kept by the schema's hash. Safe for concurrent use.
type Converter struct {
	program string
	places  chan struct{} // has room for as many conversions as run at once

	mu    sync.Mutex // guards what follows
	kept  map[schemaHash]*list.Element
	order list.List // of keptGrammar, the last used first
	bytes int       // of their grammars and complaints
}

type schemaHash = [sha256.Size]byte

// keptGrammar is what came of a schema.
type keptGrammar struct {
	schema  schemaHash
	grammar string
	wrong   *SchemaError // of a schema that the conversion does not take, by its limits for one
}

func (k *keptGrammar) size() int {
	if k.wrong != nil {
		return len(k.wrong.Reason)
	}
	return len(k.grammar)
}

// ErrNoSchemas says that the linked llama.cpp came without its common library.
var ErrNoSchemas = errors.New("this node takes no JSON Schemas: the llama.cpp that is linked came without its common library")

// NewConverter runs this program again for each conversion: its main has to call ServeIfChild before all else. The error
// may be ErrNoSchemas.
func NewConverter() (*Converter, error) {
	if !bool(C.mn_has_common()) {
		return nil, ErrNoSchemas
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("JSON Schemas are converted by this program run again: %w", err)
	}
	return &Converter{program: program, places: make(chan struct{}, convertAtOnce), kept: make(map[schemaHash]*list.Element)}, nil
}

// recall is what came of a schema before.
func (c *Converter) recall(schema schemaHash) (kept keptGrammar, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.kept[schema]
	if !ok {
		return kept, false
	}
	c.order.MoveToFront(at)
	return at.Value.(keptGrammar), true
}

func (c *Converter) keep(kept keptGrammar) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept[kept.schema] != nil {
		return // by another at the same time
	}
	c.kept[kept.schema] = c.order.PushFront(kept)
	c.bytes += kept.size()
	for c.order.Len() > keptGrammars || c.bytes > keptBytes {
		oldest := c.order.Remove(c.order.Back()).(keptGrammar)
		delete(c.kept, oldest.schema)
		c.bytes -= oldest.size()
	}
}

// Grammar is a grammar in GBNF of the JSON texts that a schema takes, or of some of them: each one fulfils the schema. What
// grammars cannot tell is refused. An error of the schema is a *SchemaError.
func (c *Converter) Grammar(ctx context.Context, schema string) (string, error) {
	if err := checkSchema(schema); err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(schema))
	kept, ok := c.recall(key)
	if !ok {
		select {
		case c.places <- struct{}{}:
			defer func() { <-c.places }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if kept, ok = c.recall(key); !ok { // by another in the meantime
			var err error
			if kept, err = c.make(ctx, key, schema); err != nil {
				return "", err
			}
			c.keep(kept)
		}
	}
	if kept.wrong != nil {
		return "", kept.wrong
	}
	return kept.grammar, nil
}

// make finds out what comes of a schema. The error is not the schema's.
func (c *Converter) make(ctx context.Context, key schemaHash, schema string) (keptGrammar, error) {
	grammar, err := c.convert(ctx, schema)
	if err == nil {
		grammar = holdText(grammar)
		if _, wrong := gbnf.Compile(grammar); wrong != nil {
			err = &SchemaError{"it makes a grammar that cannot be used: " + wrong.Error()}
		}
	}
	var wrong *SchemaError
	if errors.As(err, &wrong) {
		return keptGrammar{schema: key, wrong: wrong}, nil
	}
	return keptGrammar{schema: key, grammar: grammar}, err
}

// starved says whether a process was killed by somebody else than its limit, or for the time it waited for a processor: that says
// nothing about the schema.
func starved(p *os.ProcessState) bool {
	status, ok := p.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL && p.UserTime()+p.SystemTime() < convertProcessorTime/2
}

// convert runs the process.
func (c *Converter) convert(ctx context.Context, schema string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, convertTime)
	defer cancel()
	cmd := exec.CommandContext(limited, c.program)
	cmd.Env = append(os.Environ(), childEnv+"="+childSchema)
	cmd.Stdin = strings.NewReader(schema)
	grammar, complaint := &limitedBuffer{most: gbnf.MaxBytes}, &limitedBuffer{most: maxComplaintBytes}
	cmd.Stdout, cmd.Stderr = grammar, complaint
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	said := strings.TrimSpace(complaint.String())
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &ended) && ended.ExitCode() == convertRefused:
		return "", &SchemaError{said}
	case ended != nil && !grammar.full && starved(ended.ProcessState):
		return "", fmt.Errorf("converting a JSON Schema: the process was killed before it had its time (%w)", err)
	case ended != nil, limited.Err() != nil, grammar.full:
		return "", &SchemaError{"llama.cpp cannot make a grammar of it within its limits of time and memory; make it smaller"}
	case err != nil:
		return "", fmt.Errorf("converting a JSON Schema: %w", err)
	case said != "": // of patterns, it names what it left out
		return "", &SchemaError{"a grammar cannot hold all of it: " + strings.TrimPrefix(said, "WARNING: JSON schema conversion was incomplete: ")}
	}
	return grammar.String(), nil
}

// limitedBuffer keeps the beginning of what is written to it.
type limitedBuffer struct {
	bytes.Buffer
	most int
	full bool // more was written
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	room := min(len(p), b.most-b.Len())
	b.full = b.full || room < len(p)
	b.Buffer.Write(p[:room])
	if b.full {
		return room, io.ErrShortWrite // ends the process that writes
	}
	return len(p), nil
}

// convertRefused is the exit code of a process whose schema is at fault.
const convertRefused = 3

// convertSchema reads a schema, writes a grammar, and returns the exit code. It limits this process first.
func convertSchema(in io.Reader, out, complaints io.Writer) int {
	fail := func(code int, why string) int {
		_, _ = io.WriteString(complaints, why+"\n") // nobody is left to be told
		return code
	}
	if err := limitProcess(convertProcessorTime); err != nil {
		return fail(1, err.Error())
	}
	schema, err := io.ReadAll(io.LimitReader(in, MaxSchemaBytes))
	if err != nil {
		return fail(1, err.Error())
	}
	text := C.CString(string(schema))
	defer C.free(unsafe.Pointer(text))
	var cerr C.mn_error
	grammar := C.mn_schema_to_grammar(text, &cerr)
	if grammar == nil {
		why := strings.TrimPrefix(errText(&cerr), "JSON schema: ")
		return fail(convertRefused, strings.TrimPrefix(why, "JSON schema conversion failed:\n"))
	}
	defer C.free(unsafe.Pointer(grammar))
	if _, err := io.WriteString(out, C.GoString(grammar)); err != nil {
		return 1
	}
	return 0
}
