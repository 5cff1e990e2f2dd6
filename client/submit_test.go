package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// N10, NATS subject rules: a name that would change a subject's meaning is refused before anything is sent.
func TestNamesThatAreNoneAreRefusedAtTheClient(t *testing.T) {
	b := newBed(t)
	c := b.connect(t)
	for _, name := range []string{"", ".", "a.b", "*", ">", "a b", "a\nb", "a\x00b", strings.Repeat("x", 5000), "é"} {
		for field, change := range map[string]func(*client.Request){
			"tenant":  func(r *client.Request) { r.Tenant = name },
			"session": func(r *client.Request) { r.Session = name },
			"model":   func(r *client.Request) { r.Model = name },
		} {
			r := request()
			change(&r)
			_, err := c.Generate(waitCtx(t), r)
			if wrong := (*schemas.FieldError)(nil); !errors.As(err, &wrong) || wrong.Field != field {
				t.Errorf("%s %.20q: %v", field, name, err)
			}
		}
		for _, err := range []error{
			second(c.Attach(waitCtx(t), "acme", name, 1, 0)), second(c.Cancel(waitCtx(t), name, "s1", 1)), second(c.Status(waitCtx(t), "acme", name, 1)),
		} {
			if wrong := (*schemas.FieldError)(nil); !errors.As(err, &wrong) {
				t.Errorf("%.20q: %v", name, err)
			}
		}
	}
	if n := b.requests(t); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	generate(t, c, request()) // the connection is as it was
}

func second[T any](_ T, err error) error { return err }

func TestInvalidRequestIsRefusedAtTheClient(t *testing.T) {
	c := newBed(t).connect(t)
	for _, bad := range []struct {
		field  string
		change func(*client.Request)
	}{
		{"prompt", func(r *client.Request) { r.Prompt = "" }},
		{"adapter", func(r *client.Request) { r.Adapter = "a bard" }},
		{"max_new_tokens", func(r *client.Request) { r.MaxNewTokens = -1 }},
		{"min_new_tokens", func(r *client.Request) { r.MinNewTokens = r.MaxNewTokens + 1 }},
		{"stop[0]", func(r *client.Request) { r.Stop = []string{""} }},
		{"sampling.typical_p", func(r *client.Request) {
			s := schemas.DefaultSampling()
			s.TypicalP = 0
			r.Sampling = &s
		}},
		{"token_ids[1]", func(r *client.Request) { r.Prompt, r.TokenIDs = "", []int64{1, 5279552648203111001} }},
		{"deadline_ms", func(r *client.Request) { r.Deadline = 2 * time.Hour }},
		{"deadline_ms", func(r *client.Request) { r.Deadline = time.Microsecond }},
		{"heartbeat_ms", func(r *client.Request) { r.Heartbeat = -time.Second }},
		{"heartbeat_ms", func(r *client.Request) { r.Heartbeat = time.Millisecond }},
		{"node", func(r *client.Request) { r.HotNode = "a.b" }},
	} {
		r := request()
		bad.change(&r)
		_, err := c.Generate(waitCtx(t), r)
		if wrong := (*schemas.FieldError)(nil); !errors.As(err, &wrong) || wrong.Field != bad.field {
			t.Errorf("%s: %v", bad.field, err)
		}
	}
}

// V8, dynamo#9734: a request that is too large is refused at the client, with both numbers.
func TestTooLargeRequestIsRefusedNamingBothNumbers(t *testing.T) {
	b := newBed(t)
	r := request()
	r.Prompt = strings.Repeat("x", 1_223_632)
	_, err := b.connect(t).Generate(waitCtx(t), r)
	var large *schemas.TooLargeError
	if !errors.As(err, &large) || large.Bytes != 1_223_632 || large.Limit != schemas.MaxPromptBytes {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(err.Error(), "1223632") || !strings.Contains(err.Error(), "1032192") {
		t.Errorf("%q does not name both numbers", err)
	}
}

func TestServersLimitIsKeptToo(t *testing.T) {
	const limit = 64 << 10
	server := natsservertest.Start(t, natsserver.Options{MaxPayloadBytes: limit})
	c := clientOn(t, natsservertest.Connect(t, server.ClientURL()))
	r := request()
	r.Prompt = strings.Repeat("x", limit)
	_, err := c.Generate(waitCtx(t), r)
	if large := (*schemas.TooLargeError)(nil); !errors.As(err, &large) || large.Bytes <= limit || large.Limit >= limit {
		t.Errorf("%v", err)
	}
}

// N12: a publish to a server that just died is tried again, and runs once.
func TestRequestIsPublishedOnceThoughTheServerDied(t *testing.T) {
	server := natsservertest.StartProcess(t, natsserver.Options{})
	b := bedOn(t, server.URL())
	conn := natsservertest.Connect(t, b.url, nats.ReconnectBufSize(-1))
	lost := conn.StatusChanged(nats.RECONNECTING)
	defer conn.RemoveStatusListener(lost)
	c := clientOn(t, conn)
	server.Kill()
	<-lost
	type outcome struct {
		s   *client.Stream
		err error
	}
	came := make(chan outcome, 1)
	go func() {
		s, err := c.Generate(waitCtx(t), request())
		came <- outcome{s, err}
	}()
	server.Restart()
	o := <-came
	if o.err != nil {
		t.Fatal(o.err)
	}
	defer o.s.Close()
	if n := b.requests(t); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestRequestIsPublishedOnceThoughItsAnswerWasLost(t *testing.T) {
	b := newBed(t)
	proxy := natsservertest.StartProxy(t, b.url)
	conn := natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers(), nats.ReconnectBufSize(-1))
	arrived := make(chan struct{}, 10)
	b.work(t, func(*schemas.Request, schemas.Lane) { arrived <- struct{}{} })
	c := clientOn(t, conn)
	s, err := c.Attach(waitCtx(t), "acme", "s9", 1, 0) // so that the connection has done all it does at first
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	came := make(chan error, 1)
	proxy.Stall(natsservertest.ToClient)
	go func() {
		s, err := c.Generate(waitCtx(t), request())
		if err == nil {
			s.Close()
		}
		came <- err
	}()
	<-arrived
	<-arrived // the second try
	proxy.Heal()
	if err := <-came; err != nil {
		t.Fatal(err)
	}
	if n := b.requests(t); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestNobodyTakingRequestsIsUnreachable(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	clock := &parttest.Clock{}
	c := clientOn(t, natsservertest.Connect(t, server.ClientURL()), client.WithClock(clock))
	stop := goOn(t, clock)
	defer stop()
	_, err := c.Generate(waitCtx(t), request())
	if unreachable := (*client.UnreachableError)(nil); !errors.As(err, &unreachable) || unreachable.Doing != "publish" {
		t.Errorf("%v", err)
	}
}

func turn(n uint64) client.Request {
	r := request()
	r.Turn = n
	return r
}

func TestFullQuotaIsATypedError(t *testing.T) {
	b := newBed(t)
	c := b.connect(t)
	generate(t, c, turn(1))
	generate(t, c, turn(2))
	_, err := c.Generate(waitCtx(t), turn(3))
	var quota *client.QuotaError
	if !errors.As(err, &quota) || quota.Tenant != turn1.Tenant || quota.Lane != schemas.AnyLane {
		t.Fatalf("%v", err)
	}
	if n := b.requests(t); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

func TestFullQuotaIsTriedAgainUntilTheDeadlineWhereAsked(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	c := b.connect(t, client.WithClock(clock))
	generate(t, c, turn(1))
	generate(t, c, turn(2))
	r := turn(3)
	r.RetryQuota = true
	r.Deadline = 3 * time.Second
	stop := goOn(t, clock)
	_, err := c.Generate(waitCtx(t), r)
	stop()
	if quota := (*client.QuotaError)(nil); !errors.As(err, &quota) {
		t.Fatalf("after the deadline: %v", err)
	}
	came := make(chan error, 1)
	go func() {
		s, err := c.Generate(waitCtx(t), r)
		if err == nil {
			s.Close()
		}
		came <- err
	}()
	if err := clock.Await(waitCtx(t), 1); err != nil { // it was refused, and waits
		t.Fatal(err)
	}
	stream, err := b.js.Stream(waitCtx(t), mesh.RequestStream())
	if err == nil {
		err = stream.DeleteMsg(waitCtx(t), 1) // a turn ended
	}
	if err != nil {
		t.Fatal(err)
	}
	clock.Advance(100 * time.Millisecond)
	if err := <-came; err != nil {
		t.Errorf("after a turn ended: %v", err)
	}
}

// advertise lets n1 be a live node for a while.
func (b *bed) advertise(t *testing.T, change func(*schemas.Advertisement)) {
	t.Helper()
	ad := capability.Snapshot(&capability.Identity{Node: node1, Boot: schemas.Must(schemas.ParseBoot("b1")), Model: schemas.Must(schemas.ParseModel("stories"))},
		&capability.Moment{State: schemas.NodeReady, Facts: scheduler.Facts{ContextTokens: 512, Head: true, Tail: true}})
	ad.Generation = 1
	if change != nil {
		change(ad)
	}
	payload, err := schemas.Encode(ad)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := b.js.KeyValue(waitCtx(t), mesh.NodeBucket())
	if err == nil {
		_, err = kv.Put(waitCtx(t), node1.String(), payload)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keepTurn plays a turn whose KV n1 keeps.
func keepTurn(t *testing.T, b *bed, c *client.Client) {
	t.Helper()
	r := request()
	r.Keep = true
	s := generate(t, c, r)
	final := completed(1, 0)
	final.Kept = true
	b.say(t, turn1, started(1, 0), final)
	if _, err := s.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestNextTurnGoesToTheNodeThatKeptTheSession(t *testing.T) {
	b := newBed(t)
	b.advertise(t, nil)
	c := b.connect(t)
	keepTurn(t, b, c)
	if lane := generate(t, c, turn(2)).Lane(); lane != schemas.NodeLane(node1) {
		t.Errorf("the second turn goes to lane %s, want n1", lane)
	}
	other := request()
	other.Session = "s2"
	if lane := generate(t, c, other).Lane(); lane != schemas.AnyLane {
		t.Errorf("another session goes to lane %s, want any", lane)
	}
}

func TestHintFromAnEarlierProcessLeadsToTheNode(t *testing.T) {
	b := newBed(t)
	b.advertise(t, nil)
	r := request()
	r.HotNode = "n1"
	if lane := generate(t, b.connect(t), r).Lane(); lane != schemas.NodeLane(node1) {
		t.Errorf("lane %s, want n1", lane)
	}
}

func TestNodeThatIsGoneOrLeavingGetsNoTurn(t *testing.T) {
	for claim, change := range map[string]func(*schemas.Advertisement){
		"gone":             nil,
		"draining":         func(ad *schemas.Advertisement) { ad.State = schemas.NodeDraining },
		"of another model": func(ad *schemas.Advertisement) { ad.Model.Name = schemas.Must(schemas.ParseModel("chat")) },
	} {
		t.Run(claim, func(t *testing.T) {
			b := newBed(t)
			if change != nil {
				b.advertise(t, change)
			}
			c := b.connect(t)
			keepTurn(t, b, c)
			if lane := generate(t, c, turn(2)).Lane(); lane != schemas.AnyLane {
				t.Errorf("lane %s, want any", lane)
			}
		})
	}
}

func TestSessionThatIsNotKeptAnyMoreGoesToAnyNode(t *testing.T) {
	b := newBed(t)
	b.advertise(t, nil)
	c := b.connect(t)
	keepTurn(t, b, c)
	s := generate(t, c, turn(2))
	b.say(t, s.ID(), started(1, 0), completed(1, 0))
	if _, err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	if lane := generate(t, c, turn(3)).Lane(); lane != schemas.AnyLane {
		t.Errorf("lane %s after a turn that was not kept, want any", lane)
	}
}

func TestNodeThatIsSilentGetsNoTurn(t *testing.T) {
	b := newBed(t)
	b.advertise(t, nil)
	clock := &parttest.Clock{}
	c := b.connect(t, client.WithClock(clock))
	keepTurn(t, b, c)
	if lane := generate(t, c, turn(2)).Lane(); lane != schemas.NodeLane(node1) {
		t.Fatalf("lane %s while it is live, want n1", lane)
	}
	clock.Advance(capability.Silence)
	if lane := generate(t, c, turn(3)).Lane(); lane != schemas.AnyLane {
		t.Errorf("lane %s after 15 s of silence, want any", lane)
	}
}

func TestFullLaneOfANodeLeadsToTheLaneOfAll(t *testing.T) {
	b := newBed(t)
	b.advertise(t, nil)
	c := b.connect(t)
	for n := range uint64(2) {
		r := turn(n + 1)
		r.HotNode = "n1"
		generate(t, c, r)
	}
	r := turn(3)
	r.HotNode = "n1"
	if lane := generate(t, c, r).Lane(); lane != schemas.AnyLane {
		t.Errorf("lane %s, want any", lane)
	}
}

func TestHeartbeatsComeUntilTheStreamEnds(t *testing.T) {
	b := newBed(t)
	heard, err := b.conn.SubscribeSync(mesh.Control(turn1))
	b.settle(t, err)
	r := request()
	r.Heartbeat = 300 * time.Millisecond
	clock := &parttest.Clock{}
	s := generate(t, b.connect(t, client.WithClock(clock)), r)
	for range 3 {
		msg, err := heard.NextMsgWithContext(waitCtx(t))
		if err != nil {
			t.Fatal(err)
		}
		if control, err := schemas.Decode[schemas.Control](msg.Data); err != nil || control.Kind != schemas.ControlHeartbeat {
			t.Errorf("%+v, %v", control, err)
		}
		if err := clock.Await(waitCtx(t), 1); err != nil {
			t.Fatal(err)
		}
		clock.Advance(100 * time.Millisecond)
	}
	s.Close() // and waits for whoever beats: goleak sees it otherwise
}

func TestRequestThatNobodyAsksForAnyMoreIsNotTriedAgain(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	clock := &parttest.Clock{}
	c := clientOn(t, natsservertest.Connect(t, server.ClientURL()), client.WithClock(clock))
	ctx, cancel := context.WithCancel(waitCtx(t))
	came := make(chan error, 1)
	go func() { came <- second(c.Generate(ctx, request())) }()
	if err := clock.Await(ctx, 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-came; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestNodesAreListed(t *testing.T) {
	b := newBed(t)
	b.advertise(t, nil)
	c := b.connect(t)
	nodes, err := c.Nodes(waitCtx(t))
	if err != nil || len(nodes) != 1 || nodes[0].Ad.Node != node1 {
		t.Errorf("%v, %v", nodes, err)
	}
	c.Close()
	c.Close()
}
