package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/meshnet/node/client"
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
