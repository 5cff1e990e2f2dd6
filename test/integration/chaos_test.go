package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/schemas"
)

// chaosTurnsEnv asks for more turns than a usual test run has time for.
const chaosTurnsEnv = "MESHNET_CHAOS_TURNS"

const (
	chaosClients = 20
	chaosPrompts = 10 // different ones
	chaosTokens  = 120
	chaosKill    = 3 * time.Second // from one kill to the next, on average
)

// Workers are killed all the time; every turn has one final and one work record all the same, and its own text.
func TestKilledAndRestartedWorkersLoseAndDoubleNothing(t *testing.T) {
	turns := 60
	if n, err := strconv.Atoi(os.Getenv(chaosTurnsEnv)); err == nil {
		turns = n
	}
	server := natsservertest.Start(t, natsserver.Options{})
	args := []string{"--model", testmodel.Path(t, "30layers-tiny", "f16"), "--name", "m", "--ctx", "512", "--max-active", "4", "--exact"}
	names := []string{"a", "b", "c"}
	first := startWorker(t, server.ClientURL(), names[0], args...)
	c := meshClient(t, server.ClientURL())
	want := make([]string, chaosPrompts)
	for i := range want {
		result, err := generate(t, c, chaosRequest("baseline", i, i+1), nil)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = result.Text
	}
	workers := []*workerProcess{first, startWorker(t, server.ClientURL(), names[1], args...), startWorker(t, server.ClientURL(), names[2], args...)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runChaosClients(t, c, turns, want)
	}()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0)) // kills in step with leases would always meet the turns of the kill before
	kills := 0
	for ; ; kills++ {
		select {
		case <-time.After(chaosKill/2 + time.Duration(random.Int64N(int64(chaosKill)))):
			i := random.IntN(len(workers))
			workers[i].kill()
			workers[i] = startWorker(t, server.ClientURL(), names[i], args...)
			continue
		case <-done:
		}
		break
	}
	t.Logf("%d turns, %d kills, seed %d", turns, kills, seed)
	if t.Failed() {
		describeAttempts(t, server.ClientURL())
	}
	checkNothingLeft(t, server.ClientURL(), turns+chaosPrompts)
	checkIdle(t, c, names)
}

// checkIdle waits until every node says that it holds nothing.
func checkIdle(t *testing.T, c *client.Client, names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for tick := time.Tick(100 * time.Millisecond); ; {
		nodes, err := c.Nodes(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		idle := 0
		for _, n := range nodes {
			telemetry := n.Ad.Telemetry
			if telemetry.ActiveSessions == 0 && telemetry.QueueDepth == 0 && telemetry.KVReservedBytes == 0 {
				idle++
			}
		}
		if idle == len(names) && len(nodes) == len(names) {
			return
		}
		select {
		case <-tick:
		case <-ctx.Done():
			t.Errorf("%d of %d nodes are idle: %+v", idle, len(nodes), nodes)
			return
		}
	}
}

func chaosRequest(session string, prompt, turn int) client.Request {
	req := meshRequest(session, chaosTokens)
	req.Prompt = fmt.Sprintf("%d: Once upon a time there was a small fox.", prompt*prompt*37)
	req.Turn, req.RetryQuota = uint64(turn), true
	return req
}

// runChaosClients runs the turns from many clients at once and compares each text.
func runChaosClients(t *testing.T, c *client.Client, turns int, want []string) {
	next := make(chan int)
	var clients sync.WaitGroup
	for i := range chaosClients {
		clients.Go(func() {
			for n := range next {
				prompt := n % chaosPrompts
				result, err := generate(t, c, chaosRequest(fmt.Sprint("client", i), prompt, n+1), nil)
				if err != nil {
					t.Errorf("turn %d: %v", n+1, err)
				} else if result.Text != want[prompt] {
					t.Errorf("turn %d, attempt %d: %.100q, undisturbed %.100q", n+1, result.Final.Attempt, result.Text, want[prompt])
				}
			}
		})
	}
	for n := range turns {
		next <- n
	}
	close(next)
	clients.Wait()
}

// describeAttempts logs what the events say of each turn that did not complete.
func describeAttempts(t *testing.T, url string) {
	js, err := jetstream.New(natsservertest.Connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stories, failed := make(map[string][]string), make(map[string]bool)
	readStream(ctx, t, js, schemas.Prefix{}.EventStream(), func(msg jetstream.Msg) {
		event, err := schemas.DecodeEvent(msg.Data())
		if err != nil {
			return
		}
		line := fmt.Sprintf("attempt %d: %s", event.EventAttempt(), event.EventKind())
		switch e := event.(type) {
		case *schemas.Started:
			line += fmt.Sprintf(" on %s at %d", e.Node, e.ResumeIndex)
		case *schemas.Tokens:
			line += fmt.Sprintf(" from %d", e.Index)
		case *schemas.Final:
			failed[msg.Subject()] = failed[msg.Subject()] || e.Reason != schemas.Completed
		}
		if meta, err := msg.Metadata(); err == nil {
			line = meta.Timestamp.Format("05.000 ") + line
		}
		story := stories[msg.Subject()]
		if n := len(story); n > 0 && event.EventKind() == schemas.KindToken && strings.Contains(story[n-1], "token") {
			story = story[:n-1] // of a run of tokens the last
		}
		stories[msg.Subject()] = append(story, line)
	})
	for subject := range failed {
		if failed[subject] {
			t.Logf("%s:\n%s", subject, strings.Join(stories[subject], "\n"))
		}
	}
}

// checkNothingLeft looks at the stores: no request is left, and every turn has one final and one work record.
func checkNothingLeft(t *testing.T, url string, turns int) {
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var prefix schemas.Prefix
	requests, err := js.Stream(ctx, prefix.RequestStream())
	if err != nil {
		t.Fatal(err)
	}
	awaitEmpty(ctx, t, js, requests)
	checkConsumers(ctx, t, requests)
	finals, works := finalsOf(ctx, t, js), worksOf(ctx, t, js)
	if len(finals) != turns || len(works) != turns {
		t.Errorf("%d turns have a final and %d a work record; there were %d", len(finals), len(works), turns)
	}
	for subject, different := range finals {
		if len(different) != 1 {
			t.Errorf("%s has %d different finals", subject, len(different))
		}
	}
	for turn, n := range works {
		if n != 1 {
			t.Errorf("turn %s has %d work records", turn, n)
		}
	}
}

// checkConsumers looks for consumers that nobody needs, and for requests that one still waits for.
func checkConsumers(ctx context.Context, t *testing.T, requests jetstream.Stream) {
	list := requests.ListConsumers(ctx)
	names := 0
	for info := range list.Info() {
		names++
		if info.NumAckPending != 0 || info.NumPending != 0 {
			t.Errorf("consumer %s has %d pending and %d unacknowledged", info.Name, info.NumPending, info.NumAckPending)
		}
	}
	if list.Err() != nil || names != 1+3 {
		t.Errorf("%d consumers, not the shared one and one a node; %v", names, list.Err())
	}
}

// finalsOf are the different finals that are stored of each turn, by its subject.
func finalsOf(ctx context.Context, t *testing.T, js jetstream.JetStream) map[string]map[string]bool {
	finals := make(map[string]map[string]bool)
	readStream(ctx, t, js, schemas.Prefix{}.EventStream(), func(msg jetstream.Msg) {
		event, err := schemas.DecodeEvent(msg.Data())
		if err != nil {
			t.Error(err)
			return
		}
		if _, ok := event.(*schemas.Final); ok {
			if finals[msg.Subject()] == nil {
				finals[msg.Subject()] = make(map[string]bool)
			}
			finals[msg.Subject()][string(msg.Data())] = true
		}
	})
	return finals
}

// worksOf is how many work records there are of each turn.
func worksOf(ctx context.Context, t *testing.T, js jetstream.JetStream) map[schemas.TurnID]int {
	works := make(map[schemas.TurnID]int)
	readStream(ctx, t, js, schemas.Prefix{}.WorkStream(), func(msg jetstream.Msg) {
		record, err := schemas.Decode[schemas.WorkRecord](msg.Data())
		if err != nil {
			t.Error(err)
			return
		}
		works[record.ID()]++
	})
	return works
}

// awaitEmpty waits until no request is left: an ack that was lost with its worker is made good by the redelivery, which may be
// put off by half a minute.
func awaitEmpty(ctx context.Context, t *testing.T, js jetstream.JetStream, requests jetstream.Stream) {
	for tick := time.Tick(100 * time.Millisecond); ; {
		info, err := requests.Info(ctx, jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs == 0 {
			return
		}
		select {
		case <-tick:
			continue
		case <-ctx.Done():
		}
		t.Errorf("%d requests are left: %v", info.State.Msgs, info.State.Subjects)
		describeLeft(t, js, requests, info.State.FirstSeq, info.State.LastSeq)
		return
	}
}

// describeLeft logs the requests that are left, what the ledger says of them, and where the consumers are.
func describeLeft(t *testing.T, js jetstream.JetStream, requests jetstream.Stream, first, last uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	turns, err := js.KeyValue(ctx, schemas.Prefix{}.TurnBucket())
	if err != nil {
		t.Error(err)
		return
	}
	for seq := first; seq <= last; seq++ {
		msg, err := requests.GetMsg(ctx, seq)
		if err != nil {
			continue
		}
		id, err := schemas.DecodeTurnID(msg.Data)
		if err != nil {
			t.Error(err)
			continue
		}
		entry, err := turns.Get(ctx, id.Key())
		if err != nil {
			t.Logf("request %d (%s) of turn %s, headers %v: %v", seq, msg.Subject, id, msg.Header, err)
			continue
		}
		record, err := schemas.Decode[schemas.LedgerRecord](entry.Value())
		t.Logf("request %d (%s) of turn %s, headers %v: record %+v, running %+v, %v", seq, msg.Subject, id, msg.Header, record, record.Running, err)
	}
	for info := range requests.ListConsumers(ctx).Info() {
		t.Logf("consumer %s: %d pending, %d ack pending, %d redelivered, %d waiting, ack floor %d", info.Name, info.NumPending, info.NumAckPending,
			info.NumRedelivered, info.NumWaiting, info.AckFloor.Stream)
	}
}

// readStream calls f for every message that a stream holds now.
func readStream(ctx context.Context, t *testing.T, js jetstream.JetStream, name string, f func(jetstream.Msg)) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	for left := info.State.Msgs; left > 0; left-- {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		f(msg)
	}
}
