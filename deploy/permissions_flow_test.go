package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/meshnet/node/schemas"
)

// undenied fails the test if the server refused anything that a connection did.
func undenied(t *testing.T, user string, conn *nats.Conn) {
	t.Helper()
	if denied(t, conn) {
		t.Errorf("the server refused something that %s needs: %v", user, conn.LastError())
	}
}

// next is the next message of a subscription.
func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	msg, err := sub.NextMsg(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// hears has one connection hear on a subject what another publishes.
func hears(t *testing.T, listener, speaker *nats.Conn, subject string) {
	t.Helper()
	sub, err := listener.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := speaker.Publish(subject, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := next(t, sub); string(got.Data) != "hello" {
		t.Errorf("on %s comes %q, want hello", subject, got.Data)
	}
}

// publish publishes in a stream and has it acknowledged.
func (m *mesh) publish(js jetstream.JetStream, subject, text string, options ...jetstream.PublishOpt) {
	m.t.Helper()
	if _, err := js.Publish(m.ctx(), subject, []byte(text), options...); err != nil {
		m.t.Fatalf("publishing on %s: %v", subject, err)
	}
}

// fetch takes one request from a worker's consumer.
func (m *mesh) fetch(js jetstream.JetStream, name, filter string) jetstream.Msg {
	m.t.Helper()
	consumer, err := js.CreateOrUpdateConsumer(m.ctx(), p.RequestStream(), jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		m.t.Fatal(err)
	}
	msg := <-batch.Messages()
	if msg == nil {
		m.t.Fatalf("consumer %s brings no request: %v", name, batch.Error())
	}
	return msg
}

// TestATurnNeedsNoMoreThanThePermissionsGive goes through a turn as client and worker do, with their users.
func TestATurnNeedsNoMoreThanThePermissionsGive(t *testing.T) {
	m := startMesh(t)
	turn := id(acme, "s1", 1)
	client, node := m.connect(acme), m.connect(worker)
	clientJS, nodeJS := m.jetStream(client), m.jetStream(node)

	events, err := client.SubscribeSync(p.Tokens(turn))
	if err != nil {
		t.Fatal(err)
	}
	m.publish(clientJS, p.Request(model, schemas.AnyLane, turn.Tenant), "request", jetstream.WithMsgID("acme/s1/1/x"))

	// The worker claims, moves the request to its own lane, and keeps the lease.
	ledger, err := nodeJS.KeyValue(m.ctx(), p.TurnBucket())
	if err != nil {
		t.Fatal(err)
	}
	revision, err := ledger.Create(m.ctx(), turn.Key(), []byte("running"))
	if err != nil {
		t.Fatal(err)
	}
	first := m.fetch(nodeJS, schemas.SharedConsumer(model), p.Shared(model))
	m.publish(nodeJS, p.Request(model, schemas.NodeLane(node1), turn.Tenant), "request")
	if err := first.DoubleAck(m.ctx()); err != nil {
		t.Fatalf("DoubleAck: %v", err)
	}
	msg := m.fetch(nodeJS, schemas.OwnConsumer(node1), p.Own(node1))
	if err := msg.InProgress(); err != nil {
		t.Fatalf("InProgress: %v", err)
	}
	hears(t, node, client, p.Control(turn))

	// It streams, and ends the turn.
	if err := node.Publish(p.Tokens(turn), []byte("token")); err != nil {
		t.Fatal(err)
	}
	if revision, err = ledger.Update(m.ctx(), turn.Key(), []byte("done"), revision); err != nil {
		t.Fatal(err)
	}
	if entry, err := ledger.Get(m.ctx(), turn.Key()); err != nil || entry.Revision() != revision {
		t.Fatalf("the ledger reads %v, %v; want revision %d", entry, err, revision)
	}
	m.publish(nodeJS, p.Tokens(turn), "final")
	m.publish(nodeJS, p.Work(turn, node1), "work", jetstream.WithExpectLastSequencePerSubject(0))
	if err := msg.DoubleAck(m.ctx()); err != nil {
		t.Fatalf("DoubleAck: %v", err)
	}
	for _, want := range []string{"token", "final"} {
		if got := next(t, events); string(got.Data) != want {
			t.Errorf("the client reads %q, want %q", got.Data, want)
		}
	}
	undenied(t, worker, node)
	undenied(t, acme, client)
}

func TestATenantFillsGapsFromItsOwnEvents(t *testing.T) {
	m := startMesh(t)
	own, others := id(acme, "s1", 1), id(globex, "s1", 1)
	nodeJS := m.jetStream(m.connect(worker))
	for i := range 3 {
		m.publish(nodeJS, p.Tokens(others), fmt.Sprint("secret", i))
		m.publish(nodeJS, p.Tokens(own), fmt.Sprint("token", i))
	}
	client := m.connect(acme)
	js := m.jetStream(client)
	consumer, err := js.OrderedConsumer(m.ctx(), p.EventStream(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{p.Tokens(own)}})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.Fetch(3, jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for msg := range batch.Messages() {
		got = append(got, string(msg.Data()))
	}
	if want := "token0 token1 token2"; strings.Join(got, " ") != want {
		t.Errorf("the gap is filled with %q, want %q", got, want)
	}
	last, err := client.Request("$JS.API.DIRECT.GET."+p.EventStream()+"."+p.Tokens(own), nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if string(last.Data) != "token2" {
		t.Errorf("the last event is %q, want token2", last.Data)
	}
	undenied(t, acme, client)
}

func TestLateJoinersSeeTheLiveNodes(t *testing.T) {
	m := startMesh(t)
	nodes, err := m.jetStream(m.connect(worker)).KeyValue(m.ctx(), p.NodeBucket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Put(m.ctx(), node1.String(), []byte("advertisement")); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{acme, worker, operator} {
		t.Run(user, func(t *testing.T) {
			conn := m.connect(user)
			bucket, err := m.jetStream(conn).KeyValue(m.ctx(), p.NodeBucket())
			if err != nil {
				t.Fatal(err)
			}
			if entry, err := bucket.Get(m.ctx(), node1.String()); err != nil || string(entry.Value()) != "advertisement" {
				t.Errorf("Get = %v, %v; want the advertisement", entry, err)
			}
			watcher, err := bucket.WatchAll(m.ctx())
			if err != nil {
				t.Fatal(err)
			}
			if entry := <-watcher.Updates(); entry == nil || entry.Key() != node1.String() {
				t.Errorf("the watch begins with %v, want the entry of %s", entry, node1)
			}
			if err := watcher.Stop(); err != nil {
				t.Error(err)
			}
			undenied(t, user, conn)
		})
	}
}

// TestAsksAreAnsweredInTheTenantsOwnInbox has a worker answer on its endpoints.
func TestAsksAreAnsweredInTheTenantsOwnInbox(t *testing.T) {
	m := startMesh(t)
	node := m.connect(worker)
	service, err := micro.AddService(node, micro.Config{Name: "mesh", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := service.Stop(); err != nil {
			t.Error(err)
		}
	}()
	answer := micro.HandlerFunc(func(r micro.Request) { _ = r.Respond([]byte("answer")) })
	turns, drain := p.Turns(), p.Node(node1, schemas.VerbDrain)
	for name, subject := range map[string]string{"turn": turns, "drain": drain} {
		if err := service.AddEndpoint(name, answer, micro.WithEndpointSubject(subject)); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ user, subject string }{
		{acme, p.Turn(id(acme, "s", 0).Tenant)},
		{globex, p.Turn(id(globex, "s", 0).Tenant)},
		{operator, p.Turn(id(acme, "s", 0).Tenant)},
		{operator, drain},
		{operator, "$SRV.PING.mesh"},
	} {
		t.Run(c.user+" on "+c.subject, func(t *testing.T) {
			conn := m.connect(c.user)
			for range 3 { // one answer each
				reply, err := conn.Request(c.subject, nil, 5*time.Second)
				if err != nil || len(reply.Data) == 0 {
					t.Fatalf("no answer: %v", err)
				}
			}
			undenied(t, c.user, conn)
		})
	}
	undenied(t, worker, node)
}

func TestAnOperatorRunsTheStores(t *testing.T) {
	m := startMesh(t)
	m.publish(m.jetStream(m.connect(worker)), p.Work(id(acme, "s", 1), node1), "work")
	conn := m.connect(operator)
	js := m.jetStream(conn)
	accounting, err := js.CreateOrUpdateConsumer(m.ctx(), p.WorkStream(), jetstream.ConsumerConfig{Durable: "accounting", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := accounting.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := msg.DoubleAck(m.ctx()); err != nil {
		t.Errorf("acking a work record: %v", err)
	}
	if err := js.DeleteStream(m.ctx(), p.EventStream()); err != nil {
		t.Errorf("deleting a stream: %v", err)
	}
	undenied(t, operator, conn)
}

// TestATenantCannotWidenItsConsumer asks for another filter in the request than in its subject.
func TestATenantCannotWidenItsConsumer(t *testing.T) {
	m := startMesh(t)
	own, others := p.Tokens(id(acme, "s", 1)), p.Tokens(id(globex, "s", 1))
	conn := m.connect(acme)
	for name, c := range map[string]struct{ filter, config string }{
		"another filter":        {own, fmt.Sprintf(`"filter_subject":%q`, others)},
		"no filter":             {own, `"ack_policy":"none"`},
		"a second filter":       {own, fmt.Sprintf(`"filter_subject":%q,"filter_subjects":[%q]`, own, others)},
		"only several":          {own, fmt.Sprintf(`"filter_subjects":[%q,%q]`, own, others)},
		"everybody's":           {"mesh.v1.tok.acme.>", `"filter_subject":"mesh.v1.tok.>"`},
		"acks as deliveries":    {own, fmt.Sprintf(`"filter_subject":%q,"deliver_subject":"$JS.ACK.MESH_REQ.req-story.1.1.1.1.0"`, own)},
		"deletion as delivery":  {own, fmt.Sprintf(`"filter_subject":%q,"deliver_subject":"$JS.API.STREAM.DELETE.MESH_REQ"`, own)},
		"others' events as own": {own, fmt.Sprintf(`"filter_subject":%q,"deliver_subject":%q`, own, others)},
	} {
		t.Run(name, func(t *testing.T) {
			request := fmt.Sprintf(`{"stream_name":"MESH_TOK","config":{"name":"x",%s}}`, c.config)
			reply, err := conn.Request("$JS.API.CONSUMER.CREATE.MESH_TOK.x."+c.filter, []byte(request), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(reply.Data), `"error":{`) {
				t.Errorf("the server answers %s, want an error", reply.Data)
			}
		})
	}
	undenied(t, acme, conn) // it was the server's check, not the permission
}

// TestAReplyCannotBeAnAPIRequest has the server answer a tenant's request where that would act.
func TestAReplyCannotBeAnAPIRequest(t *testing.T) {
	m := startMesh(t)
	for _, reply := range []string{"$JS.API.STREAM.DELETE.MESH_REQ", "$JS.ACK.MESH_REQ.req-story.1.1.1.1.0"} {
		t.Run(reply, func(t *testing.T) {
			conn := m.connect(acme)
			if err := conn.PublishRequest(p.Request(model, schemas.AnyLane, id(acme, "s", 0).Tenant), reply, nil); err != nil {
				t.Fatal(err)
			}
			_ = conn.FlushTimeout(10 * time.Second)
			if err := conn.LastError(); err == nil {
				t.Error("the server takes it")
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := m.jetStream(m.connect(worker)).Stream(ctx, p.RequestStream()); errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Error("the stream of requests is gone")
	}
}

// TestTheDocumentedLimitIsStillOne keeps the file's remarks true: permissions do not bind where JetStream
// acknowledges. When a server closes this, the remarks can go.
func TestTheDocumentedLimitIsStillOne(t *testing.T) {
	m := startMesh(t)
	ledger := "$KV.MESH_TURNS." + others.Key()
	watch := m.connect(operator)
	sub, err := watch.SubscribeSync(ledger)
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Flush(); err != nil {
		t.Fatal(err)
	}
	conn := m.connect(acme)
	if err := conn.PublishRequest(shared(acme), ledger, nil); err != nil {
		t.Fatal(err)
	}
	if got := next(t, sub); !strings.Contains(string(got.Data), `"stream":"MESH_REQ"`) {
		t.Errorf("in the ledger is %s, want an acknowledgement", got.Data)
	}
}
