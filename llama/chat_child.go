package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
	"unsafe"
)

// templateFacts are what a template does with conversations.
type templateFacts struct {
	SystemRole, OnlyParts, Tools, ToolCalls, ObjectArguments bool
}

// templateAsk is what a child is told: the template at first, then a conversation to render as often as one comes.
type templateAsk struct {
	Template string

	Conversation []byte // JSON
	BOS, EOS     string
	Now          int64 // Unix seconds
}

// templateSaid answers a templateAsk.
type templateSaid struct {
	Refused string // why there is nothing else
	Facts   templateFacts
	Text    []byte
	Input   []bool // for each byte of Text: it is marked as the conversation's
}

// templateError is why a template does not take a conversation.
type templateError struct{ reason string }

func (e *templateError) Error() string { return e.reason }

// templateChild is a process that runs one template. One caller at a time.
type templateChild struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	asks  *gob.Encoder
	says  *gob.Decoder
	ended bool // the process is gone
}

// startTemplate starts a child for a template. The error is a *templateError where the template is at fault.
func startTemplate(ctx context.Context, source string) (*templateChild, templateFacts, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, templateFacts{}, fmt.Errorf("%w: chat templates run in this program run again: %w", ErrChatLost, err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childEnv+"="+childChat)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, templateFacts{}, fmt.Errorf("%w: %w", ErrChatLost, err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, templateFacts{}, fmt.Errorf("%w: %w", ErrChatLost, err)
	}
	child := &templateChild{cmd: cmd, in: in, asks: gob.NewEncoder(in), says: gob.NewDecoder(bufio.NewReader(out))}
	said, err := child.ask(ctx, &templateAsk{Template: source})
	if err != nil {
		child.end()
		return nil, templateFacts{}, err
	}
	return child, said.Facts, nil
}

// startTime is what a child may take to start, beside renderTime, on a busy machine.
const startTime = 8 * time.Second

// ask has the child do one thing. The child has ended where that is not done: by its limits, or by the context.
func (c *templateChild) ask(ctx context.Context, ask *templateAsk) (*templateSaid, error) {
	limited, cancel := context.WithTimeout(ctx, startTime+renderTime)
	defer cancel()
	stop := context.AfterFunc(limited, func() { _ = c.cmd.Process.Kill() }) // where it is gone, that is all the same
	said := new(templateSaid)
	err := c.asks.Encode(ask)
	if err == nil {
		err = c.says.Decode(said)
	}
	if !stop() || err != nil {
		c.end()
	}
	switch {
	case err == nil && said.Refused != "":
		return nil, &templateError{said.Refused}
	case err == nil:
		return said, nil
	}
	what := "for these messages"
	if ask.Template != "" {
		what = "when it is tried out"
	}
	switch state := c.cmd.ProcessState; {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil, state.ExitCode() == exitTooLong:
		return nil, &templateError{"it takes too long " + what}
	case signalled(state, syscall.SIGKILL):
		return nil, fmt.Errorf("%w: it was killed", ErrChatLost)
	}
	return nil, &templateError{"it takes too much memory " + what + ", or calls itself without end"}
}

func signalled(state *os.ProcessState, by syscall.Signal) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == by
}

// end ends the process, whatever it does.
func (c *templateChild) end() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.in.Close()
	// Most end by themselves now, or have a reason of their own, which is of interest.
	late := time.AfterFunc(time.Second, func() { _ = c.cmd.Process.Kill() })
	_ = c.cmd.Wait() // how it ended is in its state
	late.Stop()
}

// fencedBytes is how many bytes one may be with a fence.
const fencedBytes = 4

// Exit codes of a child whose template ran for too long, or wanted too much memory.
const (
	exitTooLong  = 4
	exitTooLarge = 5
)

// serveTemplate is the child: it reads asks, writes what it has to say, and returns the exit code when there are no more.
func serveTemplate(in io.Reader, out io.Writer) int {
	if err := limitProcess(0); err != nil {
		return 1
	}
	asks, says := gob.NewDecoder(in), gob.NewEncoder(out)
	var chat *C.mn_chat
	for {
		ask := new(templateAsk)
		err := asks.Decode(ask)
		if errors.Is(err, io.EOF) {
			return 0
		}
		if err != nil {
			return 1
		}
		limit := time.AfterFunc(renderTime, func() { os.Exit(exitTooLong) })
		said := new(templateSaid)
		if ask.Template != "" {
			chat = newTemplate(ask.Template, said)
		} else {
			renderTemplate(chat, ask, said)
		}
		limit.Stop()
		if err := says.Encode(said); err != nil {
			return 1
		}
	}
}

// refusal is why llama.cpp's engine gave up. A template may have cut it within a character. Where memory was short, the process
// ends: it would keep what it took.
func refusal(cerr *C.mn_error) string {
	why := strings.TrimPrefix(errText(cerr), "chat template: ")
	if why == "std::bad_alloc" {
		os.Exit(exitTooLarge)
	}
	return strings.ToValidUTF8(why, string(utf8.RuneError))
}

func newTemplate(source string, said *templateSaid) *C.mn_chat {
	text := C.CString(source)
	defer C.free(unsafe.Pointer(text))
	var cerr C.mn_error
	chat := C.mn_chat_new(text, &cerr)
	if chat == nil {
		said.Refused = refusal(&cerr)
		return nil
	}
	var facts C.mn_chat_facts
	C.mn_chat_facts_get(chat, &facts)
	said.Facts = templateFacts{SystemRole: bool(facts.system_role), OnlyParts: bool(facts.only_parts), Tools: bool(facts.tools),
		ToolCalls: bool(facts.tool_calls), ObjectArguments: bool(facts.object_arguments)}
	return chat
}

func renderTemplate(chat *C.mn_chat, ask *templateAsk, said *templateSaid) {
	bos, eos := C.CString(ask.BOS), C.CString(ask.EOS)
	defer C.free(unsafe.Pointer(bos))
	defer C.free(unsafe.Pointer(eos))
	conversation := C.CBytes(ask.Conversation)
	defer C.free(conversation)
	in := C.mn_chat_input{conversation: (*C.char)(conversation), conversation_len: C.size_t(len(ask.Conversation)),
		limit_bytes: fencedBytes * MaxTextBytes, bos: bos, eos: eos, now: C.int64_t(ask.Now)}
	var out C.mn_text
	var cerr C.mn_error
	if !C.mn_chat_render(chat, &in, &out, &cerr) { //nolint:gocritic // what it dislikes is cgo's own code
		said.Refused = refusal(&cerr)
		return
	}
	defer C.mn_text_free(&out) //nolint:gocritic // what it dislikes is cgo's own code
	said.Text = C.GoBytes(unsafe.Pointer(out.bytes), C.int(out.len))
	said.Input = make([]bool, len(said.Text))
	copy(said.Input, unsafe.Slice((*bool)(unsafe.Pointer(out.input)), len(said.Text)))
}
