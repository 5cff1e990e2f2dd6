package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
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

const (
	cancelTurns   = 100
	cancelClients = 10
	cancelsAKill  = 5
	cancelSeed    = 20
)

// moment is where in the life of its turn a cancel is sent.
type moment int

const (
	beforePublish moment = iota
	withPublish          // at the same time
	onceStored           // whether it is claimed by then is the race
	atAToken
	atTheLastToken // so that it races the final
	afterFinal
	moments
)

func (m moment) String() string {
	return [...]string{"before the publish", "with the publish", "once stored", "at a token", "at the last token", "after the final"}[m]
}

// cancelCase is one turn and its cancel.
type cancelCase struct {
	req    client.Request
	prompt int
	at     moment
	token  int  // of atAToken: how many there are by then
	kill   bool // a worker is killed at that moment: the turn's owner, where it is known

	reply *schemas.TurnReply
	asked int // more than once where the worker that was to answer died
	text  string
	final schemas.Final
}

// A cancel binds everybody by what it answers, wherever in a turn's life it comes and whoever dies meanwhile.
func TestCancelsThatRaceClaimsFinalsAndKillsAgreeWithEveryRecord(t *testing.T) {
	server := natsservertest.Start(t, natsserver.Options{})
	url := server.ClientURL()
	args := []string{"--model", testmodel.Path(t, "30layers-tiny", "f16"), "--name", "m", "--ctx", "512", "--max-active", "4", "--exact"}
	names := []string{"a", "b", "c"}
	workers := map[string]*workerProcess{names[0]: startWorker(t, url, names[0], args...)}
	c := meshClient(t, url)
	want := make([]string, chaosPrompts)
	for i := range want {
		result, err := generate(t, c, chaosRequest("baseline", i, i+1), nil)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = result.Text
	}
	for _, name := range names[1:] {
		workers[name] = startWorker(t, url, name, args...)
	}
	cases := drawCancels(cancelSeed)
	kills := newKillOrders()
	go func() {
		defer close(kills.names)
		runCancels(t, c, natsservertest.Connect(t, url), cases, names, kills)
	}()
	killed := 0
	for name := range kills.names {
		if kills.carryOut(workers[name].kill) {
			workers[name] = startWorker(t, url, name, args...)
			killed++
		}
	}
	stores := readStores(t, url)
	told := make(map[string]int)
	for _, k := range cases {
		k.check(t, stores, want[k.prompt])
		if k.reply != nil {
			told[fmt.Sprint(k.at, ": ", k.reply.Outcome)]++
		}
	}
	for _, line := range slices.Sorted(maps.Keys(told)) {
		t.Logf("%3d cancels %s", told[line], line)
	}
	t.Logf("%d kills", killed)
}

// killOrders are the workers to kill. One that might be the third that some turn loses without a new token in between
// waits: that turn might rightly end as one that kills workers. Safe for concurrent use.
type killOrders struct {
	names chan string

	mu     sync.Mutex          // held while a worker is killed; guards what follows
	flying map[*cancelCase]int // kills since a turn that has not ended was begun, or had its newest token
	news   *sync.Cond          // of flying
}

func newKillOrders() *killOrders {
	o := &killOrders{names: make(chan string, cancelTurns), flying: make(map[*cancelCase]int)}
	o.news = sync.NewCond(&o.mu)
	return o
}

// carryOut kills a worker as soon as it may, unless all turns have ended by then.
func (o *killOrders) carryOut(kill func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for slices.Contains(slices.Collect(maps.Values(o.flying)), 2) {
		o.news.Wait()
	}
	if len(o.flying) == 0 {
		return false
	}
	for k := range o.flying {
		o.flying[k]++
	}
	kill()
	return true
}

// alive says that a turn has begun or has a new token.
func (o *killOrders) alive(k *cancelCase) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flying[k] = 0
	o.news.Signal()
}

func (o *killOrders) end(k *cancelCase) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.flying, k)
	o.news.Signal()
}

func drawCancels(seed uint64) []*cancelCase {
	random := rand.New(rand.NewPCG(seed, 1))
	cases := make([]*cancelCase, cancelTurns)
	for i := range cases {
		k := &cancelCase{prompt: i % chaosPrompts, at: moment(i % int(moments)), token: 1 + random.IntN(chaosTokens-1)}
		k.req = chaosRequest(fmt.Sprint("cancelled", i), k.prompt, 1)
		cases[i] = k
	}
	random.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	for i := 0; i < len(cases); i += cancelsAKill {
		cases[i].kill = true
	}
	return cases
}

// runCancels runs all turns, many at once, and names the workers to kill.
func runCancels(t *testing.T, c *client.Client, nc *nats.Conn, cases []*cancelCase, names []string, kills *killOrders) {
	next := make(chan int)
	var clients sync.WaitGroup
	for range cancelClients {
		clients.Go(func() {
			for i := range next {
				k := cases[i]
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				if err := k.run(ctx, c, nc, names[i%len(names)], kills); err != nil {
					t.Errorf("turn of %s, cancelled %s: %v", k.req.Session, k.at, err)
				}
				cancel()
			}
		})
	}
	for i := range cases {
		next <- i
	}
	close(next)
	clients.Wait()
}

// run submits the turn, cancels it at its moment and reads it to its end.
func (k *cancelCase) run(ctx context.Context, c *client.Client, nc *nats.Conn, owner string, kills *killOrders) error {
	kills.alive(k)
	defer kills.end(k)
	asked := make(chan error, 1)
	var once sync.Once
	fire := func(wait bool) {
		once.Do(func() {
			if k.kill {
				kills.names <- owner
			}
			go func() { asked <- k.cancel(ctx, nc) }()
			if wait {
				asked <- <-asked
			}
		})
	}
	if k.at <= withPublish {
		fire(k.at == beforePublish)
	}
	stream, err := c.Generate(ctx, k.req)
	if err != nil {
		return err
	}
	if k.at == onceStored {
		fire(false)
	}
	for event, err := range stream.Events() {
		var ended *client.TurnError
		var incomplete *client.IncompleteError
		if err != nil && (!errors.As(err, &ended) || errors.As(err, &incomplete)) {
			return err
		}
		switch e := event.(type) {
		case client.Started:
			owner = e.Node.String()
		case client.Reset:
			k.text = k.text[:e.TextBytes]
		case client.Text:
			kills.alive(k)
			k.text += e.Text
			tokens := e.Index + len(e.TokenIDs)
			if k.at == atAToken && tokens >= k.token || k.at == atTheLastToken && tokens >= chaosTokens {
				fire(false)
			}
		case client.Final:
			k.final = e.Final
		}
	}
	fire(false) // after the final, or where the moment did not come
	return <-asked
}

// cancel asks until somebody answers.
func (k *cancelCase) cancel(ctx context.Context, nc *nats.Conn) error {
	id := k.id()
	data, err := schemas.Encode(&schemas.TurnRequest{Op: schemas.OpCancel, Tenant: id.Tenant, Session: id.Session, Turn: id.Turn})
	if err != nil {
		return err
	}
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		k.asked++
		attempt, done := context.WithTimeout(ctx, 5*time.Second)
		msg, err := nc.RequestWithContext(attempt, schemas.Prefix{}.Turn(id.Tenant), data)
		done()
		if err == nil {
			if k.reply, err = schemas.Decode[schemas.TurnReply](msg.Data); err == nil && k.reply.Error != nil {
				err = k.reply.Error
			}
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (k *cancelCase) id() schemas.TurnID {
	return schemas.TurnID{Tenant: schemas.Must(schemas.ParseTenant(k.req.Tenant)), Session: schemas.Must(schemas.ParseSession(k.req.Session)), Turn: schemas.Turn(k.req.Turn)}
}

// stores is what the mesh keeps of its turns, by the turn's key.
type stores struct {
	finals  map[string][][]byte // different ones
	works   map[string][][]byte // all
	records map[string]*schemas.LedgerRecord
}

// readStores waits until no request is left and reads what the turns have left behind.
func readStores(t *testing.T, url string) *stores {
	js, err := jetstream.New(natsservertest.Connect(t, url))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var prefix schemas.Prefix
	requests, err := js.Stream(ctx, prefix.RequestStream())
	if err != nil {
		t.Fatal(err)
	}
	awaitEmpty(ctx, t, js, requests)
	s := &stores{finals: make(map[string][][]byte), works: make(map[string][][]byte), records: make(map[string]*schemas.LedgerRecord)}
	readStream(ctx, t, js, prefix.EventStream(), func(msg jetstream.Msg) {
		event, err := schemas.DecodeEvent(msg.Data())
		id, bad := prefix.ParseTokens(msg.Subject())
		if err != nil || bad != nil {
			t.Errorf("%s: %v, %v", msg.Subject(), err, bad)
		} else if key := id.Key(); event.EventKind() == schemas.KindFinal && !slices.ContainsFunc(s.finals[key], func(b []byte) bool { return bytes.Equal(b, msg.Data()) }) {
			s.finals[key] = append(s.finals[key], msg.Data())
		}
	})
	readStream(ctx, t, js, prefix.WorkStream(), func(msg jetstream.Msg) {
		id, _, err := prefix.ParseWork(msg.Subject())
		if err != nil {
			t.Error(err)
		}
		s.works[id.Key()] = append(s.works[id.Key()], msg.Data())
	})
	turns, err := js.KeyValue(ctx, prefix.TurnBucket())
	if err != nil {
		t.Fatal(err)
	}
	for key := range s.finals {
		entry, err := turns.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if s.records[key], err = schemas.Decode[schemas.LedgerRecord](entry.Value()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// check compares what the cancel answered, what the client read, and what the mesh keeps.
func (k *cancelCase) check(t *testing.T, s *stores, want string) {
	key := k.id().Key()
	fail := func(format string, args ...any) {
		t.Errorf("turn %s, cancelled %s, kill %t, asked %d times: %s", key, k.at, k.kill, k.asked, fmt.Sprintf(format, args...))
	}
	record := s.records[key]
	if k.reply == nil || record == nil || record.Done == nil || len(s.finals[key]) != 1 {
		fail("reply %+v, record %+v, %d different finals", k.reply, record, len(s.finals[key]))
		return
	}
	done, works := record.Done, s.works[key]
	if !bytes.Equal(s.finals[key][0], done.Final) {
		fail("the final on the bus is %x, in the ledger %x", s.finals[key][0], done.Final)
	}
	if encoded, err := schemas.Encode(&k.final); err != nil || !bytes.Equal(encoded, done.Final) {
		fail("the client read %+v (%v), the ledger has %x", k.final, err, done.Final)
	}
	if claimed := done.Attempt > 0; claimed != (len(works) == 1) || claimed != (len(done.Work) > 0) || claimed && !bytes.Equal(works[0], done.Work) {
		fail("attempt %d, work records %x, in the ledger %x", done.Attempt, works, done.Work)
	}
	switch {
	case done.Reason != k.final.Reason:
		fail("the final says %s, the ledger %s", k.final.Reason, done.Reason)
	case done.Reason == schemas.Completed && (k.text != want || k.final.Count != chaosTokens):
		fail("%d tokens: %.100q, undisturbed %.100q", k.final.Count, k.text, want)
	case done.Reason == schemas.Cancelled && !strings.HasPrefix(want, k.text):
		fail("%.100q is no beginning of %.100q", k.text, want)
	case done.Reason != schemas.Completed && done.Reason != schemas.Cancelled:
		fail("attempt %d ended %s %s", done.Attempt, done.Reason, k.final.Cause)
	}
	k.checkReply(fail, done)
}

// checkReply compares what the cancel answered with the turn's end.
func (k *cancelCase) checkReply(fail func(string, ...any), done *schemas.DoneRecord) {
	switch k.reply.Outcome {
	case schemas.CancelEnded:
		if done.Reason != schemas.Cancelled || done.Attempt != 0 || !bytes.Equal(k.reply.Final, done.Final) {
			fail("the reply is that it ended unclaimed, the ledger says %s, attempt %d", done.Reason, done.Attempt)
		}
	case schemas.CancelMarked:
		if done.Reason != schemas.Cancelled || done.Attempt == 0 {
			fail("the reply is that it is marked, the ledger says %s, attempt %d", done.Reason, done.Attempt)
		}
	case schemas.CancelTooLate:
		if !bytes.Equal(k.reply.Final, done.Final) {
			fail("the reply has final %x, the ledger %x", k.reply.Final, done.Final)
		}
		if done.Reason == schemas.Cancelled && k.asked == 1 { // else it may find the cancel of an answer that was lost
			fail("the reply is that it is too late, but nobody else has cancelled it")
		}
	}
	switch {
	case k.at == beforePublish && (done.Reason != schemas.Cancelled || done.Attempt != 0):
		fail("cancelled before it was published, it ended %s, attempt %d", done.Reason, done.Attempt)
	case k.at == afterFinal && (done.Reason != schemas.Completed || k.reply.Outcome != schemas.CancelTooLate):
		fail("cancelled after its final, it ended %s; the reply is %s", done.Reason, k.reply.Outcome)
	}
}
