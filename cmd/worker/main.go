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
	"reflect"
	"slices"
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
	exitPipe      = 141 // nobody reads the output any more, as a shell says it of any writer
)

type commands struct {
	Run      runCommand      `cmd:"" help:"Serve a model in the mesh."`
	Demo     demoCommand     `cmd:"" help:"Show and check a whole mesh in this process."`
	Submit   submitCommand   `cmd:"" help:"Ask the mesh for one turn and print it as it comes."`
	Cancel   cancelCommand   `cmd:"" help:"Cancel a turn."`
	Nodes    nodesCommand    `cmd:"" help:"List the nodes of the mesh."`
	Generate generateCommand `cmd:"" help:"Continue a text with a model, in this process."`
	Sweep    sweepCommand    `cmd:"" help:"Prove that many sessions at once yield what one at a time yields."`
	Bench    benchCommand    `cmd:"" help:"Measure the mesh under load, and another server beside it."`

	Config  string           `help:"YAML or JSON file of settings: flags of all commands by name, and those of one command under its name." placeholder:"FILE"`
	Verbose bool             `help:"Log what the node and llama.cpp do." short:"v"`
	Version kong.VersionFlag `help:"Print the version and exit." setting:"-"`
}

// environment is what a command has of the process around it.
type environment struct {
	ctx    context.Context // cancelled by Ctrl-C and SIGTERM, and by what the mesh does not permit the command
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	status *statusLine // on stderr
	log    *slog.Logger
}

// newEnvironment makes an environment that logs nothing until the flags say what.
func newEnvironment(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) *environment {
	return &environment{
		ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, status: newStatusLine(stderr), log: slog.New(slog.DiscardHandler),
	}
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

// denied is what the mesh does not permit the command, for which the context has ended; nil if it has not, or by Ctrl-C.
func (e *environment) denied() error {
	var denied *permissionError
	if errors.As(context.Cause(e.ctx), &denied) {
		return denied
	}
	return nil
}

// ended is why the environment's context is over: what the command may not do, else Ctrl-C.
func (e *environment) ended() error {
	if denied := e.denied(); denied != nil {
		return denied
	}
	return errCancelled
}

// errCancelled ends a command that Ctrl-C stopped.
var errCancelled = &exitError{exitCancelled, errors.New("cancelled")}

func main() {
	llama.ServeIfChild()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	env := newEnvironment(context.Background(), stdin, stdout, stderr)
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
	// Until here Ctrl-C ends the process as usual, whatever it waits for.
	ctx, stop := signal.NotifyContext(env.ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // and so does a second one
	env.ctx = ctx
	return finish(env, parsed.Run(env))
}

// finish ends a command, and is its exit code.
func finish(env *environment, err error) int {
	env.status.clear()
	if env.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = env.ended()
	}
	return report(env.stderr, err)
}

const description = `Makes any machine with a GGUF model a node of an inference mesh.

Every flag is also an environment variable, which its help shows, and a key of the file of --config. A flag on the
command line ranks first, then a variable that is not empty, then the file.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 rejected, 4 cancelled, 141 nobody reads the output any more.`

func newParser(env *environment, exit func(int)) (*kong.Kong, error) {
	var cli commands
	return kong.New(&cli,
		kong.Name("worker"),
		kong.Description(description),
		kong.PostBuild(func(k *kong.Kong) error {
			k.Model.HelpFlag.Help = "Show this help and exit."
			return nil
		}),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.ValueFormatter(helpText),
		kong.Vars{"version": fmt.Sprintf("worker %s (llama.cpp %s)", version, llama.Version())},
		samplingVars(),
		kong.Writers(env.stdout, env.stderr),
		kong.Exit(exit),
		kong.WithHyphenPrefixedParameters(true),
		decimals(),
		kong.WithAfterApply(func(parsed *kong.Context) error {
			env.log = newLogger(env.status, cli.Verbose)
			if slices.ContainsFunc(parsed.Selected().Flags, asksForJSON) {
				env.status.silence()
			}
			return nil
		}),
	)
}

// asksForJSON says whether a flag is --json and set, with which a command is for programs; one that names a file is not.
func asksForJSON(flag *kong.Flag) bool {
	if flag.Name != "json" {
		return false
	}
	if flag.Target.Kind() == reflect.String {
		return flag.Target.String() == "-"
	}
	return flag.Target.Bool()
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
	if errors.Is(err, syscall.EPIPE) {
		return exitPipe
	}
	fmt.Fprintln(stderr, "worker:", shown(stderr, err.Error()))
	return code
}
