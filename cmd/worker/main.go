// Command worker makes this machine a node of an inference mesh, and tries the node's parts by themselves.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/meshnet/node/llama"
)

// version is set by the linker.
var version = "unknown"

// The exit codes.
const (
	exitDone      = 0
	exitFailed    = 1
	exitUsage     = 2
	exitRejected  = 3
	exitCancelled = 4
)

type commands struct {
	Run      runCommand      `cmd:"" help:"Serve a model in the mesh."`
	Demo     demoCommand     `cmd:"" help:"Show and check a whole mesh in this process."`
	Submit   submitCommand   `cmd:"" help:"Ask the mesh for one turn and print it as it comes."`
	Cancel   cancelCommand   `cmd:"" help:"Cancel a turn."`
	Nodes    nodesCommand    `cmd:"" help:"List the nodes of the mesh."`
	Generate generateCommand `cmd:"" help:"Continue a text with a model, in this process."`
	Sweep    sweepCommand    `cmd:"" help:"Prove that many sessions at once yield what one at a time yields."`

	Verbose bool             `help:"Log what the node and llama.cpp do." short:"v"`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

// environment is what a command has of the process around it.
type environment struct {
	ctx    context.Context // cancelled by Ctrl-C and SIGTERM
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	log    *slog.Logger
}

// exitError carries the exit code of an error that is not a plain failure.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// errCancelled ends a command that Ctrl-C stopped.
var errCancelled = &exitError{exitCancelled, errors.New("cancelled")}

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends the process as usual.
	context.AfterFunc(ctx, stop)

	env := &environment{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}
	var exited *int
	parser, err := newParser(env, func(code int) { exited = &code })
	if err != nil {
		fmt.Fprintln(stderr, "worker:", err)
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if exited != nil { // --help or --version
		return *exited
	}
	if err != nil {
		return report(stderr, &exitError{exitUsage, err})
	}
	return report(stderr, parsed.Run(env))
}

func newParser(env *environment, exit func(int)) (*kong.Kong, error) {
	var cli commands
	return kong.New(&cli,
		kong.Name("worker"),
		kong.Description("Makes any machine with a GGUF model a node of an inference mesh."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.Vars{"version": fmt.Sprintf("worker %s (llama.cpp %s)", version, llama.Version())},
		samplingVars(),
		kong.Writers(env.stdout, env.stderr),
		kong.Exit(exit),
		kong.WithHyphenPrefixedParameters(true),
		kong.WithAfterApply(func() error {
			env.log = newLogger(env.stderr, cli.Verbose)
			return nil
		}),
	)
}

func newLogger(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	llamaLevel := slog.LevelError
	if verbose {
		level, llamaLevel = slog.LevelDebug, slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	llama.SetLogger(log, llamaLevel)
	return log
}

// report prints an error for people and returns the exit code it stands for.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	code := exitFailed
	var coded *exitError
	if errors.As(err, &coded) {
		code = coded.code
	}
	fmt.Fprintln(stderr, "worker:", err)
	return code
}
