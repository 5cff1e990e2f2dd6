package natsservertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/meshnet/node/internal/natsserver"
)

// Process is a server in a process of its own: the test's own program, started again. Its methods are
// safe for concurrent use.
type Process struct {
	t    testing.TB
	opts natsserver.Options // with the port that was drawn
	url  string

	mu      sync.Mutex // guards what follows, and is held while the process starts, answers and ends
	command *exec.Cmd  // nil while it is down
	in      io.WriteCloser
	out     *bufio.Reader
	errors  *bytes.Buffer
}

// StartProcess runs a server in a process of its own, on a random port unless opts names one.
func StartProcess(t testing.TB, opts natsserver.Options) *Process {
	t.Helper()
	complete(t, &opts)
	p := &Process{t: t, opts: opts}
	t.Cleanup(func() { p.Stop() })
	p.Restart()
	if p.command == nil {
		t.FailNow()
	}
	return p
}

// URL is where clients connect. It stays the same through Restart.
func (p *Process) URL() string { return p.url }

// Name is the server's name, as stream information gives it.
func (p *Process) Name() string { return p.opts.Name }

// Kill ends the server with SIGKILL and waits until it is gone. A server that is down stays so.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command != nil {
		_ = p.command.Process.Kill()
		p.wait()
	}
}

// Stop shuts the server down and waits until it is gone. A server that is down stays so.
func (p *Process) Stop() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == nil {
		return
	}
	_ = p.in.Close()
	if state := p.wait(); !state.Success() {
		p.t.Errorf("the NATS server did not shut down cleanly: %s\n%s", state, p.errors)
	}
}

// wait reaps the process; mu is held.
func (p *Process) wait() *os.ProcessState {
	_ = p.command.Wait() // the state says it all
	state := p.command.ProcessState
	_ = p.in.Close()
	p.command = nil
	return state
}

// Restart starts a server that is down, with the folder and port it had, and returns when it takes connections.
// One that is up is shut down first. If it does not start, the test has failed, and it stays down.
func (p *Process) Restart() {
	p.t.Helper()
	p.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.start(); err != nil {
		p.t.Error(err)
	}
}

// start runs the process until its server takes connections; mu is held.
func (p *Process) start() error {
	options, err := json.Marshal(p.opts)
	if err != nil {
		return err
	}
	command := exec.Command(os.Args[0]) //nolint:gosec // itself
	command.Env = append(os.Environ(), childOptions+"="+string(options))
	p.errors = &bytes.Buffer{}
	command.Stderr = p.errors
	if p.in, err = command.StdinPipe(); err != nil {
		return err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	p.command, p.out = command, bufio.NewReader(out)
	url, err := p.out.ReadString('\n')
	if err != nil {
		state := p.wait()
		return fmt.Errorf("the NATS server does not start: %s\n%s", state, p.errors)
	}
	if p.url == "" { // later starts get the same port, and URL may be called meanwhile
		p.url = strings.TrimSpace(url)
		p.opts.Port, err = strconv.Atoi(p.url[strings.LastIndexByte(p.url, ':')+1:])
	}
	return err
}

// LeadsMeta is whether the server is up and leads its cluster's JetStream.
func (p *Process) LeadsMeta() bool { return p.ask(askMeta) }

// LeadsStream is whether the server is up and leads a stream.
func (p *Process) LeadsStream(stream string) bool { return p.ask(askStream + " " + stream) }

// Healthy is whether the server is up and its JetStream, streams and consumers are up to date.
func (p *Process) Healthy() bool { return p.ask(askHealth) }

func (p *Process) ask(question string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == nil {
		return false
	}
	if _, err := fmt.Fprintln(p.in, question); err != nil {
		return false // it has died by itself; Stop tells
	}
	line, err := p.out.ReadString('\n')
	return err == nil && strings.TrimSpace(line) == yes
}
