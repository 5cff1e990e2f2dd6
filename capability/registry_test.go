package capability_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
)

func registry(t testing.TB, b *bed, change func(*capability.RegistryConfig)) *capability.Registry {
	t.Helper()
	cfg := capability.RegistryConfig{Conn: b.conn, Log: quiet, Probe: 20 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	r, err := capability.NewRegistry(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func has(r *capability.Registry, node, boot string) func() bool {
	return func() bool {
		e, ok := r.Node(nodeName(node))
		return ok && e.Ad.Boot.String() == boot
	}
}

func hasNot(r *capability.Registry, node string) func() bool {
	return func() bool { _, ok := r.Node(nodeName(node)); return !ok }
}

func sighted(r *capability.Registry) func() bool {
	return func() bool { _, ok := r.HealthySince(); return ok }
}

func TestRegistryConforms(t *testing.T) {
	b := apart(t)
	t.Run("without a bucket", func(t *testing.T) {
		parttest.Conform(t, func() part.Part { return registry(t, b, nil) })
	})
	b.makeBucket(t)
	b.put(t, ad("n1", "b1"))
	t.Run("with one", func(t *testing.T) {
		parttest.Conform(t, func() part.Part { return registry(t, b, nil) })
	})
}

func TestRegistryKnowsAtItsStartWhoIsThere(t *testing.T) {
	b := newBed(t)
	b.put(t, ad("n2", "b1"))
	b.put(t, ad("n1", "b1"))
	r := registry(t, b, nil)
	start(t, r)
	if got := names(r); got != "n1/b1 n2/b1 " {
		t.Errorf("nodes %s", got)
	}
	if _, ok := r.HealthySince(); !ok {
		t.Error("it is not healthy though it has started")
	}
}

func TestRegistryHearsBeatsWithoutABucket(t *testing.T) {
	b := newBed(t)
	if err := b.js.DeleteKeyValue(waitCtx(t), mesh.NodeBucket()); err != nil {
		t.Fatal(err)
	}
	r := registry(t, b, nil)
	start(t, r)
	b.publish(t, ad("n1", "b1"))
	eventually(t, r, "n1 is known", has(r, "n1", "b1"))
	if _, ok := r.HealthySince(); ok {
		t.Error("healthy without a bucket")
	}
	b.makeBucket(t)
	eventually(t, r, "it is healthy once there is a bucket", sighted(r))
}

func TestNodeThatSaysGoodbyeIsGoneAtOnceAndStaysSo(t *testing.T) {
	b := newBed(t)
	r := registry(t, b, func(c *capability.RegistryConfig) { c.Clock = &parttest.Clock{} })
	start(t, r)
	b.put(t, ad("n1", "b1"))
	eventually(t, r, "n1 is known", has(r, "n1", "b1"))
	if err := b.kv.Delete(waitCtx(t), "n1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, r, "n1 is gone", hasNot(r, "n1"))
	late := ad("n1", "b1")
	late.Generation = 7
	b.publish(t, late) // was on the way
	b.publish(t, ad("n2", "b1"))
	eventually(t, r, "n2 is known", has(r, "n2", "b1"))
	if !hasNot(r, "n1")() {
		t.Error("a late beat brought n1 back")
	}
	b.publish(t, ad("n1", "b2"))
	eventually(t, r, "another start of n1 is known", has(r, "n1", "b2"))
}

func TestOldNewsDoNotCount(t *testing.T) {
	b := newBed(t)
	r := registry(t, b, func(c *capability.RegistryConfig) { c.Clock = &parttest.Clock{} })
	start(t, r)
	say := func(boot string, generation uint64) {
		a := ad("n1", boot)
		a.Generation = generation
		b.publish(t, a)
	}
	say("b1", 5)
	say("b1", 4)
	say("b2", 1)
	say("b1", 6) // of the start before
	b.publish(t, ad("n2", "b1"))
	eventually(t, r, "n2 is known", has(r, "n2", "b1"))
	if e, _ := r.Node(nodeName("n1")); e.Ad.Boot.String() != "b2" || e.Ad.Generation != 1 {
		t.Errorf("boot %s generation %d, want b2 and 1", e.Ad.Boot, e.Ad.Generation)
	}
}

func TestSilentNodeIsKnownButNotLive(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	r := registry(t, b, func(c *capability.RegistryConfig) { c.Clock = clock })
	start(t, r)
	b.publish(t, ad("n1", "b1"))
	eventually(t, r, "n1 is known", has(r, "n1", "b1"))
	model := schemas.Must(schemas.ParseModel("stories"))
	if !r.Live(nodeName("n1"), capability.Silence) || len(r.Feasible(model, 512)) != 1 {
		t.Error("n1 is not live though it was just heard of")
	}
	clock.Advance(capability.Silence)
	if r.Live(nodeName("n1"), capability.Silence) || len(r.Feasible(model, 512)) != 0 {
		t.Error("n1 is live after 15 s of silence")
	}
	if len(r.Nodes()) != 1 {
		t.Error("n1 is forgotten after 15 s")
	}
}

func TestForgottenAfterLongSilence(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	r := registry(t, b, func(c *capability.RegistryConfig) { c.Clock = clock; c.Forget = time.Hour })
	start(t, r)
	b.publish(t, ad("n1", "b1"))
	eventually(t, r, "n1 is known", has(r, "n1", "b1"))
	clock.Advance(time.Hour)
	eventually(t, r, "n1 is forgotten", hasNot(r, "n1"))
}

func TestFeasibleNodesAreThoseThatCouldRunIt(t *testing.T) {
	b := newBed(t)
	r := registry(t, b, nil)
	start(t, r)
	say := func(node string, change func(*schemas.Advertisement)) {
		a := ad(node, "b1")
		change(a)
		b.publish(t, a)
	}
	say("small", func(a *schemas.Advertisement) { a.MaxSessionTokens = 100 })
	say("other", func(a *schemas.Advertisement) { a.Model.Name = schemas.Must(schemas.ParseModel("chat")) })
	say("leaving", func(a *schemas.Advertisement) { a.State = schemas.NodeDraining })
	say("part", func(a *schemas.Advertisement) { a.Model.Tail = false })
	bard := schemas.Must(schemas.ParseAdapter("bard"))
	say("full", func(a *schemas.Advertisement) {
		a.Model.Adapters = []schemas.AdapterInfo{{Name: bard}}
		a.Telemetry.FreeSlots, a.Telemetry.QueueDepth = 0, 2
	})
	say("busy", func(a *schemas.Advertisement) { a.Telemetry.FreeSlots, a.Telemetry.QueueDepth = 0, 1 })
	say("free", func(a *schemas.Advertisement) { a.Telemetry.FreeSlots = 2 })
	eventually(t, r, "all are known", func() bool { return len(r.Nodes()) == 7 })
	model := schemas.Must(schemas.ParseModel("stories"))
	var got []string
	for _, e := range r.Feasible(model, 101) {
		got = append(got, e.Ad.Node.String())
	}
	if fmt.Sprint(got) != "[free busy full]" {
		t.Errorf("feasible: %v, want free, busy, full", got)
	}
	if node, ok := r.Fitting(model, schemas.Adapter{}, 101, nodeName("free")); !ok || node != nodeName("busy") {
		t.Errorf("beside free, %s fits (%t); want busy", node, ok)
	}
	if _, ok := r.Fitting(model, schemas.Adapter{}, 513, nodeName("free")); ok {
		t.Error("513 tokens fit where 512 do")
	}
	if node, ok := r.Fitting(model, bard, 101, nodeName("free")); !ok || node != nodeName("full") {
		t.Errorf("%s fits with the adapter (%t); want full, which alone has it", node, ok)
	}
}

// N9, msgpack#401: what is no advertisement is refused and counted, and harms nothing.
func TestWhatIsNoAdvertisementIsCountedAndIgnored(t *testing.T) {
	b := newBed(t)
	reasons := make(chan schemas.RejectReason, 10)
	r := registry(t, b, func(c *capability.RegistryConfig) {
		c.Rejected = func(reason schemas.RejectReason) { reasons <- reason }
	})
	start(t, r)
	good, err := schemas.Encode(ad("n1", "b1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		subject string
		payload []byte
		want    schemas.RejectReason
	}{
		{"mesh.v1.cap.n1", []byte{0xdf, 0xff, 0xff, 0xff, 0xff}, schemas.RejectTruncated},
		{"mesh.v1.cap.n1", append(good[:len(good):len(good)], 0), schemas.RejectTrailing},
		{"mesh.v1.cap.n2", good, schemas.RejectInvalid}, // another node's
		{"mesh.v1.cap.any", good, schemas.RejectInvalid},
		{"$KV." + mesh.NodeBucket() + ".n.1", good, schemas.RejectInvalid},
		{"$KV." + mesh.NodeBucket() + ".n3", good, schemas.RejectInvalid},
	} {
		if err := b.conn.Publish(c.subject, c.payload); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-reasons:
			if got != c.want {
				t.Errorf("%s: rejected as %s, want %s", c.subject, got, c.want)
			}
		case <-waitCtx(t).Done():
			t.Fatalf("%s: not rejected", c.subject)
		}
	}
	if r.Rejected() != 6 || len(r.Nodes()) != 0 {
		t.Errorf("%d rejected and nodes %s, want 6 and none", r.Rejected(), names(r))
	}
}

func TestRegistrySurvivesARestartOfTheServer(t *testing.T) {
	b := newBed(t)
	r := registry(t, b, nil)
	start(t, r)
	since, _ := r.HealthySince()
	b.restart(t)
	b.makeBucket(t) // as its provisioner does
	eventually(t, r, "it is healthy again", func() bool { s, ok := r.HealthySince(); return ok && s.After(since) })
	b.put(t, ad("n1", "b1"))
	eventually(t, r, "what is put is known", has(r, "n1", "b1"))
	b.publish(t, ad("n2", "b1"))
	eventually(t, r, "what is published is known", has(r, "n2", "b1"))
}

func TestRegistryWatchesABucketThatWasMadeAgain(t *testing.T) {
	b := newBed(t)
	r := registry(t, b, nil)
	start(t, r)
	since, _ := r.HealthySince()
	if err := b.js.DeleteKeyValue(waitCtx(t), mesh.NodeBucket()); err != nil {
		t.Fatal(err)
	}
	b.makeBucket(t)
	b.put(t, ad("n1", "b1"))
	eventually(t, r, "what is put into the new one is known", has(r, "n1", "b1"))
	eventually(t, r, "it is healthy since then only", func() bool { s, ok := r.HealthySince(); return ok && s.After(since) })
}

func TestWatchBeginsAnewAfterAReconnect(t *testing.T) {
	b := newBed(t)
	proxy := natsservertest.StartProxy(t, b.server.ClientURL())
	through := &bed{conn: natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers())}
	r := registry(t, through, func(c *capability.RegistryConfig) { c.Probe = time.Hour }) // it is not a check that finds out
	start(t, r)
	since, _ := r.HealthySince()
	proxy.Cut()
	b.put(t, ad("n1", "b1"))
	proxy.Heal()
	eventually(t, r, "what came meanwhile is known", has(r, "n1", "b1"))
	eventually(t, r, "it is healthy since then only", func() bool { s, ok := r.HealthySince(); return ok && s.After(since) })
}

func TestWatchOnAConnectionThatHangsIsNotHealthy(t *testing.T) {
	b := newBed(t)
	proxy := natsservertest.StartProxy(t, b.server.ClientURL())
	through := &bed{conn: natsservertest.Connect(t, proxy.URL(), nats.IgnoreDiscoveredServers())}
	r := registry(t, through, func(c *capability.RegistryConfig) { c.Request = 100 * time.Millisecond })
	start(t, r)
	since, ok := r.HealthySince()
	if !ok {
		t.Fatal("not healthy at the start")
	}
	proxy.Stall(natsservertest.BothWays)
	eventually(t, r, "it is not healthy", func() bool { _, ok := r.HealthySince(); return !ok })
	if r.Sighted(0) {
		t.Error("absence means something though nothing is seen")
	}
	proxy.Heal()
	eventually(t, r, "it is healthy since then only", func() bool { s, ok := r.HealthySince(); return ok && s.After(since) })
}

func TestRegistryIsBounded(t *testing.T) {
	b := newBed(t)
	clock := &parttest.Clock{}
	r := registry(t, b, func(c *capability.RegistryConfig) { c.Limit = 3; c.Clock = clock })
	start(t, r)
	for i := range 4 {
		b.publish(t, ad(fmt.Sprintf("n%d", i), "b1"))
	}
	again := ad("n0", "b1")
	again.Generation = 1
	b.publish(t, again)
	eventually(t, r, "n0 was heard again", func() bool { e, ok := r.Node(nodeName("n0")); return ok && e.Ad.Generation == 1 })
	if got := names(r); got != "n0/b1 n1/b1 n2/b1 " {
		t.Errorf("nodes %s, want the first three, which are live", got)
	}
	clock.Advance(capability.Silence)
	b.publish(t, ad("n4", "b1"))
	eventually(t, r, "n4 takes the place of a silent one", has(r, "n4", "b1"))
	if len(r.Nodes()) != 3 {
		t.Errorf("%d nodes, want 3", len(r.Nodes()))
	}
}

func TestWatcherThatStopsIsToldNoMore(t *testing.T) {
	b := newBed(t)
	r := registry(t, b, nil)
	start(t, r)
	changes, stop := r.Changes()
	stop()
	b.publish(t, ad("n1", "b1"))
	eventually(t, r, "n1 is known", has(r, "n1", "b1"))
	select {
	case <-changes:
		t.Error("it is told of a change")
	default:
	}
}

// BenchmarkRegistry hears 1,000 nodes, and reports the memory that they take.
func BenchmarkRegistry(b *testing.B) {
	bd := newBed(b)
	r := registry(b, bd, nil)
	start(b, r)
	const nodes = 1000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var generation atomic.Uint64
	for b.Loop() {
		n := generation.Add(1)
		for i := range nodes {
			a := ad(fmt.Sprintf("n%d", i), "b1")
			a.Generation = n
			bd.publish(b, a)
		}
		last := nodeName(fmt.Sprintf("n%d", nodes-1))
		eventually(b, r, "the last one is known", func() bool { e, ok := r.Node(last); return ok && e.Ad.Generation == n })
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/nodes, "bytes/node")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/nodes, "ns/advertisement")
	if len(r.Nodes()) != nodes {
		b.Fatalf("%d nodes", len(r.Nodes()))
	}
}
