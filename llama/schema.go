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
}

type schemaHash = [sha256.Size]byte

type keptGrammar struct {
	schema  schemaHash
	grammar string
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

// recall is the grammar of a schema that was converted before.
func (c *Converter) recall(schema schemaHash) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.kept[schema]
	if !ok {
		return "", false
	}
	c.order.MoveToFront(at)
	return at.Value.(keptGrammar).grammar, true
}

func (c *Converter) keep(schema schemaHash, grammar string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept[schema] != nil {
		return // by another at the same time
	}
	c.kept[schema] = c.order.PushFront(keptGrammar{schema, grammar})
	if c.order.Len() > keptGrammars {
		oldest := c.order.Remove(c.order.Back()).(keptGrammar)
		delete(c.kept, oldest.schema)
	}
}

// Grammar is a grammar in GBNF of the JSON texts that a schema takes, or of some of them: each one fulfils the schema. What
// grammars cannot tell is refused. An error of the schema is a *SchemaError.
func (c *Converter) Grammar(ctx context.Context, schema string) (string, error) {
	if err := checkSchema(schema); err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(schema))
	if grammar, ok := c.recall(key); ok {
		return grammar, nil
	}
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	grammar, err := c.convert(ctx, schema)
	if err != nil {
		return "", err
	}
	grammar = holdText(grammar)
	if _, err := gbnf.Compile(grammar); err != nil {
		return "", &SchemaError{"it makes a grammar that cannot be used: " + err.Error()}
	}
	c.keep(key, grammar)
	return grammar, nil
}

// killedByOthers says whether a process ended by a signal that its limits do not send: it says nothing about the schema.
func killedByOthers(p *os.ProcessState) bool {
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
	case ended != nil && limited.Err() == nil && !grammar.full && killedByOthers(ended.ProcessState):
		return "", fmt.Errorf("converting a JSON Schema: the process was killed (%w)", err)
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
