package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/schemas"
)

// exampleMesh is a server with a worker that tells one story. A real program only needs nats.Connect.
func exampleMesh() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "mesh-example")
	if err != nil {
		return "", nil, err
	}
	server, err := natsserver.Start(natsserver.Options{Dir: dir, Port: natsserver.RandomPort})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	closed := make(chan struct{})
	conn, err := nats.Connect(server.ClientURL(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return "", nil, errors.Join(err, server.Shutdown(), os.RemoveAll(dir))
	}
	stop = func() {
		conn.Close()
		<-closed
		_ = server.Shutdown()
		_ = os.RemoveAll(dir)
	}
	js, err := jetstream.New(conn)
	if err == nil {
		err = makeStores(context.Background(), js)
	}
	if err == nil {
		err = tellStories(conn)
	}
	if err != nil {
		stop()
		return "", nil, err
	}
	return server.ClientURL(), stop, nil
}

func tellStories(conn *nats.Conn) error {
	_, err := conn.Subscribe(mesh.Requests(), func(msg *nats.Msg) {
		r, err := schemas.Decode[schemas.Request](msg.Data)
		if err != nil {
			return
		}
		say := func(payload []byte, _ error) { _ = conn.Publish(mesh.Tokens(r.ID()), payload) }
		say(schemas.Encode(started(1, 0)))
		say(schemas.Encode(tokens(1, 0, " there was", 11, 12)))
		if r.Session.String() == "long" { // which is told until it is cancelled
			return
		}
		say(schemas.Encode(tokens(1, 2, " a robot.", 13, 14, 15)))
		say(schemas.Encode(completed(1, 5)))
	})
	if err != nil {
		return err
	}
	_, err = conn.Subscribe(mesh.Turns(), func(msg *nats.Msg) {
		q, err := schemas.Decode[schemas.TurnRequest](msg.Data)
		if err != nil {
			return
		}
		final := completed(1, 5)
		if q.Op == schemas.OpCancel {
			final = &schemas.Final{Reason: schemas.Cancelled, Attempt: 1, Node: node1, Count: 2}
		}
		reply := done(final)
		if reply.Op = q.Op; q.Op == schemas.OpCancel {
			reply.Outcome = schemas.CancelEnded
			_ = conn.Publish(mesh.Tokens(q.ID()), reply.Final)
		}
		payload, err := schemas.Encode(reply)
		if err != nil {
			return
		}
		_ = msg.Respond(payload)
	})
	if err != nil {
		return err
	}
	return conn.Flush()
}

// connect makes a client and what closes it.
func connect(url string) (*client.Client, func(), error) {
	closed := make(chan struct{})
	conn, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(conn, client.WithLog(quiet))
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return c, func() { c.Close(); conn.Close(); <-closed }, nil
}

// A turn is submitted, and its text read as it comes.
func Example() {
	url, stop, err := exampleMesh()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	c, closeClient, err := connect(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeClient()

	stream, err := c.Generate(context.Background(), client.Request{
		Tenant: "acme", Session: "story", Turn: 1, Model: "stories",
		Prompt: "Once upon a time", MaxNewTokens: 32, Deadline: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for event, err := range stream.Events() {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch e := event.(type) {
		case client.Text:
			fmt.Print(e.Text)
		case client.Reset: // another worker took over, and says something else from here on
			fmt.Printf("\n[from token %d on:]", e.Index)
		case client.Final:
			fmt.Printf("\n%s after %d tokens\n", e.Finish, e.Count)
		}
	}
	// Output:
	// there was a robot.
	// stop after 5 tokens
}

// A client that lost its stream, or a process that comes after one that crashed, goes on where that was.
func ExampleClient_Attach() {
	url, stop, err := exampleMesh()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	c, closeClient, err := connect(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeClient()

	ctx := context.Background()
	stream, err := c.Generate(ctx, client.Request{Tenant: "acme", Session: "story", Turn: 1, Model: "stories", Prompt: "Once", MaxNewTokens: 32})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := stream.Wait(); err != nil {
		fmt.Println(err)
		return
	}

	stream, err = c.Attach(ctx, "acme", "story", 1, 2) // two tokens are known
	if err != nil {
		fmt.Println(err)
		return
	}
	for event, err := range stream.Events() {
		if err != nil {
			fmt.Println(err)
			return
		}
		if text, ok := event.(client.Text); ok {
			fmt.Printf("%d: %q\n", text.Index, text.Text)
		}
	}
	// Output: 2: " a robot."
}

// A cancel answers which came first, and the turn's stream ends with what the answer says.
func ExampleClient_Cancel() {
	url, stop, err := exampleMesh()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	c, closeClient, err := connect(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeClient()

	ctx := context.Background()
	stream, err := c.Generate(ctx, client.Request{Tenant: "acme", Session: "long", Turn: 1, Model: "stories", Prompt: "Once", MaxNewTokens: 32})
	if err != nil {
		fmt.Println(err)
		return
	}
	standing, err := c.Cancel(ctx, "acme", "long", 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(standing.Outcome, standing.Final.Reason)

	result, err := stream.Wait()
	var ended *client.TurnError
	if errors.As(err, &ended) {
		fmt.Printf("%q %s\n", result.Text, ended.Final.Reason)
	}
	// Output:
	// ended cancelled
	// " there was" cancelled
}
