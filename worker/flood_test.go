package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

// flood are n requests in the lane of all, of each of those tenants in turn.
func (m *mesh) flood(n, newTokens int, tenants ...string) []*schemas.Request {
	m.t.Helper()
	const atOnce = 250 // the workers need the server as well
	flood := make([]*schemas.Request, n)
	for i := range flood {
		if i%atOnce == 0 {
			m.published()
		}
		req := tenant(tenants[i%len(tenants)], request(fmt.Sprint("flood", i), 1, newTokens))
		data, err := schemas.Encode(req)
		m.check(err)
		_, err = m.js.PublishAsync(prefix.Request(model, schemas.AnyLane, req.Tenant), data, jetstream.WithMsgID(req.MsgID()))
		m.check(err)
		flood[i] = req
	}
	m.published()
	return flood
}

// published waits until the stream has all that was published.
func (m *mesh) published() {
	m.t.Helper()
	select {
	case <-m.js.PublishAsyncComplete():
	case <-m.ctx.Done():
		m.t.Fatal("the flood was not published in time")
	}
}

// deliveries are how many the consumer of the lane of all has made, and of how many requests.
func (m *mesh) deliveries() (made, requests uint64) {
	m.t.Helper()
	consumer, err := m.js.Consumer(m.ctx, prefix.RequestStream(), schemas.SharedConsumer(model))
	m.check(err)
	info, err := consumer.Info(m.ctx)
	m.check(err)
	return info.Delivered.Consumer, info.Delivered.Stream
}

// tenant is the request made another tenant's.
func tenant(name string, req *schemas.Request) *schemas.Request {
	req.Tenant = schemas.Must(schemas.ParseTenant(name))
	return req
}

// manyRequests lets a tenant have a flood.
func manyRequests(c *worker.Config, _ *goengine.Config) {
	c.TenantQuota, c.DrainTimeout, c.Periods = 20_000, -1, worker.Periods{Guests: 20 * time.Millisecond}
}

// waitingOf is how many requests of a tenant are in the lane of all.
func (m *mesh) waitingOf(tenant schemas.Tenant) uint64 {
	m.t.Helper()
	stream, err := m.js.Stream(m.ctx, prefix.RequestStream())
	m.check(err)
	subject := prefix.Request(model, schemas.AnyLane, tenant)
	info, err := stream.Info(m.ctx, jetstream.WithSubjectFilter(subject))
	m.check(err)
	return info.State.Subjects[subject]
}

// However long the queue is, and whoever fills it: full workers find the request behind it, one of them takes it, and nothing of the queue
// is delivered for that. Afterwards nothing is left of it.
func TestRequestBehindTenThousandOthersIsFoundAtOnce(t *testing.T) {
	for name, flooders := range map[string][]string{"of one tenant": {"acme"}, "of two tenants": {"acme", "globex"}} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t)
			var gates []*goengine.Gate
			for i := range 3 {
				n, gate := m.startGated(fmt.Sprint("n", i), slots(len(flooders)), manyRequests)
				gates = append(gates, gate)
				for _, flooder := range flooders {
					req := tenant(flooder, request("runs-on-"+n.id.String(), 1, 400))
					m.submit(req, schemas.NodeLane(n.id))
					m.poll("it runs", func() bool { return m.ledger(req.ID()) != nil })
				}
			}
			m.poll("no worker asks for more", func() bool { return m.consumerInfo().NumWaiting == 0 })
			m.flood(10_000/len(flooders), 400, flooders...)
			guest := tenant("quiet", request("guest", 1, 8))
			g := m.follow(guest, schemas.AnyLane)
			m.poll("a worker has claimed it", func() bool { return m.ledger(guest.ID()) != nil })
			if made, _ := m.deliveries(); made != 0 {
				t.Errorf("%d deliveries of requests that nobody has a place for", made)
			}
			for _, gate := range gates {
				gate.Open()
			}
			g.whole(guest)
			m.poll("nothing is left of it", func() bool { return m.waitingOf(guest.Tenant) == 0 })
			if work := m.onlyWork(guest.ID()); work.Attempt != 1 {
				t.Errorf("it took %d attempts", work.Attempt)
			}
		})
	}
}

// The largest request there may be is read and copied like any other.
func TestLargestRequestCanBeAGuests(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", slots(1), manyRequests)
	long := request("long", 1, 100)
	m.submit(long, schemas.AnyLane)
	m.arrived(gate)
	guest := tenant("quiet", request("guest", 1, 4))
	prompt := strings.Repeat("x", schemas.MaxPromptBytes)
	guest.Prompt = &prompt
	g := m.follow(guest, schemas.AnyLane)
	final := g.final() // the toy's context is smaller
	if final.Reason != schemas.Rejected || m.counter(n, "meshnet_guests_total") != 1 {
		t.Errorf("ended %s, %v guests", final.Reason, m.counter(n, "meshnet_guests_total"))
	}
	m.poll("nothing is left of it", func() bool { return m.waitingOf(guest.Tenant) == 0 })
}

// Guests come between, and the flood's own order is kept: the one worker claims its turns as they were submitted, each in one attempt.
func TestGuestsLeaveTheOrderOfAFloodAsItIs(t *testing.T) {
	m := newMesh(t)
	_, gate := m.startGated("n1", slots(1), manyRequests)
	flood := m.flood(30, 100, "acme")
	var guests []*schemas.Request
	for i := range 5 {
		guest := tenant(fmt.Sprint("quiet", i), request("guest", 1, 4))
		guests = append(guests, guest)
		m.submit(guest, schemas.AnyLane)
	}
	m.arrived(gate)
	gate.Open()
	m.empty()
	claimed := int64(0)
	for i, req := range flood {
		work := m.onlyWork(req.ID())
		if work.Attempt != 1 || work.StartedMS < claimed {
			t.Errorf("turn %d of the flood was claimed at %d in attempt %d, the one before it at %d", i, work.StartedMS, work.Attempt, claimed)
		}
		claimed = work.StartedMS
	}
	for _, guest := range guests {
		m.onlyWork(guest.ID())
	}
}

// A request whose turn is done counts no more to a guest's quota, though all the flood is still before it.
func TestDoneRequestOfAGuestLeavesItsQuotaToTheNext(t *testing.T) {
	m := newMesh(t)
	n, gate := m.startGated("n1", slots(1), func(c *worker.Config, _ *goengine.Config) { c.TenantQuota, c.Periods.Guests = 1, 10*time.Millisecond })
	long := request("long", 1, 400)
	m.submit(long, schemas.NodeLane(n.id))
	m.arrived(gate)
	gate.Pass()
	waits := request("waits", 1, 4)
	m.submit(waits, schemas.AnyLane)
	for i := range 3 {
		guest := tenant("quiet", request(fmt.Sprint("guest", i), 1, 4))
		g := m.follow(guest, schemas.AnyLane)
		m.poll("the guest waits", func() bool { return m.counter(n, `meshnet_admissions_total{reason="queued"}`) == float64(i+1) })
		m.stepUntilSuspended(n, gate, 1)
		m.stepUntilSuspended(n, gate, 0)
		g.whole(guest)
		m.poll("its request is gone", func() bool { return m.waitingOf(guest.Tenant) == 0 })
	}
	if rec := m.ledger(waits.ID()); rec != nil {
		t.Error("the request that the guests passed was claimed")
	}
	gate.Open()
	m.empty()
}

// The copy is in the lane of the node that died, and the original waits where it was: the turn goes on once, and ends once.
func TestGuestOfADeadNodeIsGoneOnWith(t *testing.T) {
	m := newMesh(t)
	mortal := func(c *worker.Config, _ *goengine.Config) {
		c.Periods.Guests, c.Periods.DeadAfter, c.Periods.Rescue = 10*time.Millisecond, 2*time.Second, 300*time.Millisecond
	}
	dying, gate := m.startGated("n1", slots(1), mortal)
	long, guest := request("long", 1, 200), tenant("quiet", request("guest", 1, 8))
	l := m.follow(long, schemas.AnyLane)
	m.arrived(gate)
	g := m.follow(guest, schemas.AnyLane)
	m.poll("the guest waits", func() bool { return m.counter(dying, `meshnet_admissions_total{reason="queued"}`) == 1 })
	dying.Abort()
	gate.Open()
	m.start("n2", mortal)
	if final := g.whole(guest); final.Node.String() != "n2" || final.Attempt != 2 {
		t.Errorf("it ended on %s in attempt %d", final.Node, final.Attempt)
	}
	l.whole(long)
	m.empty()
	m.onlyWork(guest.ID())
	m.onlyWork(long.ID())
}

// Anyone may write headers. What is dropped with a turn is a request of that turn and no other.
func TestForgedHeaderDropsNoOtherRequest(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1")
	absent := schemas.NodeLane(schemas.Must(schemas.ParseNode("absent")))
	for i, other := range []*schemas.Request{request("other", 1, 4), tenant("globex", request("forger1", 1, 4))} {
		seq := m.submit(other, absent)
		forger := request(fmt.Sprint("forger", i), 1, 4)
		r := m.read(forger.ID())
		m.publishMoved(forger, schemas.AnyLane, schemas.Route{Twin: seq})
		r.whole(forger)
	}
	n.Stop()
	if waiting := m.waiting(); waiting != 2 {
		t.Errorf("%d requests are left, want both", waiting)
	}
}

// A worker that may not look past the head of the lane serves it in its order.
func TestWorkerWithoutLeaveToReadRequestsServesThemInOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.conf")
	conf := `authorization { users = [
		{ user: admin, password: admin }
		{ user: worker, password: worker, permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.MESH_REQ"] } } }
	] }`
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMeshOf(t, natsserver.Options{ConfigFile: file}, nats.UserInfo("admin", "admin"))
	refused := make(chan struct{}, 2)
	n, gate := m.startGated("n1", slots(1), func(c *worker.Config, _ *goengine.Config) {
		c.Periods.Guests = 10 * time.Millisecond
		c.Options = []nats.Option{nats.UserInfo("worker", "worker"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {
			select {
			case refused <- struct{}{}:
			default:
			}
		})}
	})
	first, guest := request("first", 1, 20), tenant("quiet", request("guest", 1, 4))
	f := m.follow(first, schemas.AnyLane)
	m.arrived(gate)
	g := m.follow(guest, schemas.AnyLane)
	for range 2 { // it tries again
		select {
		case <-refused:
		case <-m.ctx.Done():
			t.Fatal("nothing was refused")
		}
	}
	if state := n.State(); state != schemas.NodeReady {
		t.Errorf("the worker is %s", state)
	}
	gate.Open()
	f.whole(first)
	g.whole(guest)
	m.empty()
}

// flooded is a mesh of four full workers with two places each, behind which so many requests of those tenants wait.
func flooded(b *testing.B, requests int, tenants ...string) *mesh {
	m := newMesh(b)
	m.ctx = b.Context() // it takes longer than a test may
	for i := range 4 {
		m.start(fmt.Sprint("n", i), slots(2), func(c *worker.Config, e *goengine.Config) {
			c.Periods, c.TenantQuota, c.DrainTimeout = worker.Periods{}, 20_000, -1
			e.OnCall = func(call goengine.Call) {
				if call.Op == goengine.OpDecode {
					<-time.After(5 * time.Millisecond)
				}
			}
		})
	}
	m.flood(requests, 400, tenants...)
	return m
}

// BenchmarkQuietTenantBehindAFlood is when full workers begin the one request of a tenant behind 10,000 of another. Of the time before that,
// and while its turn runs, it says what the server and the workers together (all are in this process) take of a core, and how many
// deliveries of the lane of all there are beyond one for each request.
func BenchmarkQuietTenantBehindAFlood(b *testing.B) {
	m := flooded(b, 10_000, "acme")
	metrics := map[string]float64{}
	m.measure("before", metrics)
	var slowest, sum time.Duration
	n := 0
	for b.Loop() {
		n++
		req := tenant("quiet", request(fmt.Sprint("quiet", n), 1, 400))
		r := m.read(req.ID())
		began := time.Now()
		m.submit(req, schemas.AnyLane)
		r.until(func(e schemas.Event) bool { return e.EventKind() == schemas.KindStarted })
		sum, slowest = sum+time.Since(began), max(slowest, time.Since(began))
		m.measure("meanwhile", metrics)
		r.final()
	}
	metrics["ms-to-start"], metrics["ms-to-start-max"] = float64(sum.Milliseconds())/float64(n), float64(slowest.Milliseconds())
	for unit, value := range metrics {
		b.ReportMetric(value, unit)
	}
}

// BenchmarkManyWaitingTenants is the same without a quiet tenant: what full workers cost that have nothing to look for, with as many turns
// as they hold, and behind a request each of many tenants, every one of which is a guest.
func BenchmarkManyWaitingTenants(b *testing.B) {
	for _, n := range []int{0, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := flooded(b, 8, "acme")
			var names []string
			for i := range n {
				names = append(names, fmt.Sprint("tenant", i))
			}
			m.flood(n, 400, names...)
			metrics := map[string]float64{}
			for b.Loop() {
				m.measure("full", metrics)
			}
			for unit, value := range metrics {
				b.ReportMetric(value, unit)
			}
		})
	}
}

// measure adds to metrics what a second takes.
func (m *mesh) measure(name string, metrics map[string]float64) {
	m.t.Helper()
	made, of := m.deliveries()
	spent := cpu()
	<-time.After(time.Second)
	metrics["cpu%-"+name] = 100 * (cpu() - spent).Seconds()
	madeNow, ofNow := m.deliveries()
	metrics["again/s-"+name] = float64(int(madeNow-made) - int(ofNow-of))
}

// cpu is what this process has taken.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for another pid
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
