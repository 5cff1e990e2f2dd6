package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// demoMeshOf is a mesh in this process for as long as the test runs.
func demoMeshOf(t *testing.T) *demoMesh {
	t.Helper()
	mesh, err := newDemoMesh(context.Background(), newEnvironment(context.Background(), strings.NewReader(""), io.Discard, io.Discard))
	t.Cleanup(func() {
		if err := mesh.close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return mesh
}

// cancelWhen makes an environment whose Ctrl-C comes when the status line is set for the nth time.
func cancelWhen(t *testing.T, n int) *environment {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	line, terminal, _ := newFakeStatus(t)
	env := newEnvironment(ctx, strings.NewReader(""), io.Discard, terminal)
	env.status = line
	line.now = func() time.Time { // it is asked once for each line that begins
		if n--; n == 0 {
			cancel()
		}
		return time.Time{}
	}
	return env
}

// It would try until its deadline.
func TestCtrlCEndsASubmitThatFindsNoPlaceInTheQueue(t *testing.T) {
	mesh := demoMeshOf(t)
	const nobody = "served-by-nobody"
	for i := range demoQuota {
		stream, err := mesh.client.Generate(context.Background(), client.Request{
			Tenant: "default", Session: fmt.Sprintf("s%d", i), Turn: 1, Model: nobody, Prompt: "x", MaxNewTokens: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
	}
	env := cancelWhen(t, 2) // after that of the connection
	c := submitCommand{
		natsFlags: natsFlags{NATS: mesh.server.ClientURL(), SubjectPrefix: "mesh.v1"},
		Text:      "x", ServedAs: nobody, Tenant: "default", Session: "late", Turn: 1, MaxTokens: 1, Deadline: time.Hour,
	}
	c.TopP, c.RepeatPenalty = 1, 1
	if err := c.Run(env); !errors.Is(err, errCancelled) {
		t.Errorf("error %v", err)
	}
	standing, err := mesh.client.Status(context.Background(), "default", "late", 1)
	if err != nil {
		t.Fatal(err)
	}
	if standing.Final == nil || standing.Final.Reason != schemas.Cancelled {
		t.Errorf("in the mesh the turn stands at %+v", standing)
	}
}

func TestCtrlCEndsTheWaitForAServerThatDoesNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := silent.Accept()
		if err == nil {
			accepted <- conn
		}
		close(accepted)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	env := newEnvironment(ctx, strings.NewReader(""), io.Discard, io.Discard)
	ended := make(chan error)
	go func() {
		c := nodesCommand{natsFlags: natsFlags{NATS: "nats://" + silent.Addr().String(), SubjectPrefix: "mesh.v1"}}
		ended <- c.Run(env)
	}()
	conn := <-accepted
	cancel()
	if err := <-ended; !errors.Is(err, errCancelled) {
		t.Errorf("error %v", err)
	}
	conn.Close() // it ends the attempt
}

func TestThePasswordOfAServerIsNotShown(t *testing.T) {
	for servers, want := range map[string]string{
		"nats://bus:4222":                        "nats://bus:4222",
		"nats://ann:secret@a:4222, ben:s@b:4222": "nats://ann:xxxxx@a:4222,nats://ben:xxxxx@b:4222",
		"nats://ann:sec%ret@a":                   "a server whose URL cannot be read",
	} {
		if got := worker.WithoutPasswords(servers); got != want {
			t.Errorf("%s is shown as %s; want %s", servers, got, want)
		}
	}
	for _, servers := range []string{"nats://ann:secret@127.0.0.1:1", "nats://ann:secret%zz@127.0.0.1:1"} {
		if code, _, stderr := commandLine("", "nodes", "--nats", servers); code != exitFailed || strings.Contains(stderr, "secret") {
			t.Errorf("exit %d, stderr %q", code, stderr)
		}
	}
}

// The server refuses beside what was asked, so that the answer would be waited for until the deadline.
func TestACommandEndsWithWhatTheServerDoesNotPermit(t *testing.T) {
	for _, user := range []string{"WORKER", "OPERATOR", "ACME", "GLOBEX"} {
		t.Setenv("MESH_"+user+"_PASSWORD", "secret-"+user)
	}
	file, err := filepath.Abs("../../deploy/nats/permissions.conf")
	if err != nil {
		t.Fatal(err)
	}
	acme := []string{"--nats", natsservertest.Start(t, natsserver.Options{ConfigFile: file}).ClientURL(), "--user", "acme", "--password", "secret-ACME"}
	inbox := []string{"--inbox-prefix", "_INBOX_acme"}
	for name, c := range map[string]struct {
		args   []string
		denied string
	}{
		"submit for another tenant":       {append([]string{"submit", "--model", "m", "x"}, inbox...), "mesh.v1.tok.default."},
		"submit without the inbox prefix": {[]string{"submit", "--model", "m", "--tenant", "acme", "x"}, "_INBOX."},
		"cancel for another tenant":       {append([]string{"cancel", "s", "1"}, inbox...), "mesh.v1.turn.default"},
		"cancel without the inbox prefix": {[]string{"cancel", "--tenant", "acme", "s", "1"}, "_INBOX."},
		"nodes without the inbox prefix":  {[]string{"nodes", "--watch"}, "_INBOX."},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := commandLine("", append(c.args, acme...)...)
			if code != exitFailed || !strings.Contains(stderr, c.denied) || !strings.Contains(stderr, "--inbox-prefix") {
				t.Errorf("exit %d, stderr %q; want one that names %s", code, stderr, c.denied)
			}
		})
	}
}

func TestASubmitWhoseReaderIsGoneCancelsItsTurnAndSaysNothing(t *testing.T) {
	mesh := demoMeshOf(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	reader.Close()
	var stderr bytes.Buffer
	code := run([]string{"submit", "--nats", mesh.server.ClientURL(), "--session", "piped", "--turn", "1", "Once"}, strings.NewReader(""), writer, &stderr)
	if code != exitPipe || stderr.Len() > 0 {
		t.Errorf("exit %d, stderr %q", code, stderr.String())
	}
	standing, err := mesh.client.Status(t.Context(), "default", "piped", 1)
	if err != nil {
		t.Fatal(err)
	}
	if !standing.Cancelling && (standing.Final == nil || standing.Final.Reason != schemas.Cancelled) {
		t.Errorf("in the mesh the turn stands at %+v", standing)
	}
}

func TestATurnThatNobodyServedFailsAtItsDeadlineAndAsksForANode(t *testing.T) {
	err := refusedAs(&client.TurnError{Final: schemas.Final{Reason: schemas.Cancelled}, Overdue: true})
	var coded *exitError
	if errors.As(err, &coded) || !strings.Contains(err.Error(), "is there a node that serves its model?") {
		t.Errorf("error %v", err)
	}
}
