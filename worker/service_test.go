package worker_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/goengine"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/internal/part/parttest"
	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker"
)

func TestServiceIsAPart(t *testing.T) {
	server := natsservertest.StartProcess(t, natsserver.Options{}) // whose goroutines are not looked for here
	m := &mesh{t: t}
	parttest.Conform(t, func() part.Part {
		cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) {
			c.URL, c.Periods.FetchExpiry = server.URL(), 20*time.Millisecond
		})
		service, err := worker.New(cfg)
		m.check(err)
		return service
	})
}

func TestConfigErrorsNameEachField(t *testing.T) {
	_, err := worker.New(worker.Config{Provision: "maybe", TenantQuota: -1, Periods: worker.Periods{AckWait: 1, FetchExpiry: 1}})
	if err == nil {
		t.Fatal("an empty configuration is taken")
	}
	for _, word := range []string{"node", "model", "engine", "provision", "quota", "ack wait"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}

// Their tenants could never send anything: who wrote them meant another name.
func TestWeightsOfNamesThatNoTenantHasAreRefused(t *testing.T) {
	m := &mesh{t: t}
	cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) {
		c.Scheduler.Weights = map[string]float64{"acme": 2, "a.b": 2, "*": 2, "": 2, "ä": 2, "x y": 2, "nul\x00": 2, strings.Repeat("n", 65): 2}
	})
	_, err := worker.New(cfg)
	if err == nil {
		t.Fatal("they are taken")
	}
	if n := strings.Count(err.Error(), "weights["); n != 7 || strings.Contains(err.Error(), "acme") {
		t.Errorf("%d names are refused, want 7: %v", n, err)
	}
}

func TestStoresAreProvisionedAsTheProtocolSays(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	config := func(name string) jetstream.StreamConfig {
		stream, err := m.js.Stream(m.ctx, name)
		m.check(err)
		return stream.CachedInfo().Config
	}
	req := config("MESH_REQ")
	if req.Retention != jetstream.WorkQueuePolicy || req.Storage != jetstream.FileStorage || req.Discard != jetstream.DiscardNew ||
		!req.DiscardNewPerSubject || req.MaxMsgsPerSubject != 64 || req.Duplicates != 10*time.Minute || req.MaxAge != 2*time.Hour || req.AllowMsgTTL {
		t.Errorf("MESH_REQ is %+v", req)
	}
	tok := config("MESH_TOK")
	if tok.Retention != jetstream.LimitsPolicy || tok.Storage != jetstream.MemoryStorage || tok.MaxAge != 15*time.Minute || tok.MaxBytes <= 0 || !tok.AllowDirect {
		t.Errorf("MESH_TOK is %+v", tok)
	}
	turns := config("KV_MESH_TURNS")
	if turns.Storage != jetstream.FileStorage || turns.MaxMsgsPerSubject != 1 || turns.MaxAge != 24*time.Hour {
		t.Errorf("MESH_TURNS is %+v", turns)
	}
	nodes := config("KV_MESH_NODES")
	if nodes.Storage != jetstream.MemoryStorage || nodes.MaxAge != 15*time.Second {
		t.Errorf("MESH_NODES is %+v", nodes)
	}
	work := config("MESH_WORK")
	if work.Retention != jetstream.LimitsPolicy || work.Storage != jetstream.FileStorage || work.MaxAge != 30*24*time.Hour {
		t.Errorf("MESH_WORK is %+v", work)
	}
	for name, filter := range map[string]string{"req-toy": "mesh.v1.req.toy.any.*", "node-n1": "mesh.v1.req.*.n1.*"} {
		consumer, err := m.js.Consumer(m.ctx, "MESH_REQ", name)
		m.check(err)
		c := consumer.CachedInfo().Config
		if c.FilterSubject != filter || c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver != -1 || c.MaxAckPending != -1 || c.MaxWaiting != 4096 || len(c.BackOff) != 0 {
			t.Errorf("%s is %+v", name, c)
		}
	}
}

func TestWorkerSaysWhichSettingOfAStoreDiffers(t *testing.T) {
	m := newMesh(t)
	_, err := m.js.CreateStream(m.ctx, jetstream.StreamConfig{Name: "MESH_REQ", Subjects: []string{"mesh.v1.req.*.*.*"}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage})
	m.check(err)
	cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) { c.Provision = worker.ProvisionVerify })
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	defer service.Stop()
	err = part.Ready(m.ctx, service)
	if err == nil || !strings.Contains(err.Error(), "MESH_REQ: retention is Limits; it must be WorkQueue") {
		t.Errorf("error is %v", err)
	}
}

func TestWorkerWithAnotherAckWaitThanTheConsumersEndsWithAnError(t *testing.T) {
	m := newMesh(t)
	m.start("n1")
	cfg, _ := m.config("n2", func(c *worker.Config, _ *goengine.Config) { c.Periods.AckWait = 7 * time.Second })
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	defer service.Stop()
	if err := part.Ready(m.ctx, service); err == nil || !strings.Contains(err.Error(), "consumer req-toy: ack_wait is 1.5s; it must be 7s") {
		t.Errorf("error is %v", err)
	}
}

func TestWorkerThatOnlyVerifiesMakesNoFileStore(t *testing.T) {
	m := newMesh(t)
	cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) { c.Provision = worker.ProvisionVerify })
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	defer service.Stop()
	other := m.start("n2") // makes them, and its own consumers
	_ = other
	if _, err := m.js.Consumer(m.ctx, prefix.RequestStream(), "node-n1"); err == nil {
		t.Error("the consumer was made")
	}
	if service.Ready() {
		t.Error("it is ready without its consumer")
	}
}

func TestWorkerWaitsForItsServer(t *testing.T) {
	m := newMesh(t)
	proxy := natsservertest.StartProxy(t, m.server.ClientURL())
	proxy.Cut()
	cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) { c.URL = proxy.URL() })
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	defer service.Stop()
	proxy.Heal()
	m.check(part.Ready(m.ctx, service))
}

func TestAWorkerThatTheServerDoesNotLetInEndsAndSaysWhy(t *testing.T) {
	m := newMesh(t)
	file := filepath.Join(t.TempDir(), "nats.conf")
	m.check(os.WriteFile(file, []byte(`authorization { user: ann, password: right }`), 0o600))
	closed := natsservertest.Start(t, natsserver.Options{ConfigFile: file})
	cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) {
		c.URL, c.Options = closed.ClientURL(), []nats.Option{nats.UserInfo("ann", "wrong")}
	})
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	t.Cleanup(service.Stop)
	select {
	case <-service.Stopped():
	case <-m.ctx.Done():
		t.Fatal("it tries for ever")
	}
	if err := service.Err(); !errors.Is(err, nats.ErrAuthorization) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("it ends with %v", err)
	}
}

func TestAWorkerThatWaitsForItsServerSaysWhyItIsNotConnected(t *testing.T) {
	m := newMesh(t)
	said := make(chan string, 1)
	cfg, _ := m.config("n1", func(c *worker.Config, _ *goengine.Config) {
		c.URL = "tls://" + strings.TrimPrefix(m.server.ClientURL(), "nats://") // which speaks none
		c.Log = slog.New(slog.NewTextHandler(firstLine(said), nil))
	})
	service, err := worker.New(cfg)
	m.check(err)
	m.check(service.Start(context.Background()))
	t.Cleanup(service.Stop)
	select {
	case line := <-said:
		if !strings.Contains(line, "waiting for NATS") || !strings.Contains(line, "secure connection not available") {
			t.Errorf("it says %s", line)
		}
	case <-m.ctx.Done():
		t.Fatal("it says nothing")
	}
}

// firstLine has room for one line, and drops those that follow.
type firstLine chan<- string

func (c firstLine) Write(p []byte) (int, error) {
	select {
	case c <- string(p):
	default:
	}
	return len(p), nil
}

// nats-server#4786: who was cut off past its lease acts on nothing when it returns.
func TestWorkerThatWasCutOffPastItsLeaseSaysNothingMore(t *testing.T) {
	m := newMesh(t)
	proxy := natsservertest.StartProxy(t, m.server.ClientURL())
	gate := goengine.NewGate(goengine.OpDecode)
	first := m.start("n1", gated(gate), func(c *worker.Config, _ *goengine.Config) { c.URL = proxy.URL() })
	defer gate.Open()
	req := request("s1", 1, 20)
	r := m.follow(req, schemas.AnyLane)
	m.step(gate, 5)
	r.untilTokens(6)
	proxy.Stall(natsservertest.BothWays)
	m.start("n2")
	final := r.whole(req)
	m.poll("the lease is lost", func() bool { return m.counter(first, "meshnet_leases_lost_total") == 1 })
	proxy.Heal()
	gate.Open()
	if final.Attempt != 2 {
		t.Errorf("final is %+v", final)
	}
	next := request("s2", 1, 5)
	nr := m.follow(next, schemas.AnyLane)
	nr.whole(next)
	m.empty()
	m.onlyWork(req.ID())
	m.check(m.conn.Flush())
	if pending, _, err := r.sub.Pending(); err != nil || pending > 0 {
		for range pending {
			if e := r.next(); e.EventKind() == schemas.KindFinal {
				t.Errorf("a second final: %+v", e)
			}
		}
	}
}

func TestProbesAndMetricsAreServed(t *testing.T) {
	m := newMesh(t)
	n := m.start("n1", func(c *worker.Config, _ *goengine.Config) { c.HTTP = "127.0.0.1:0" })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		answer, err := client.Get("http://" + n.HTTPAddr().String() + path)
		m.check(err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		m.check(err)
		return answer.StatusCode, string(body)
	}
	if code, body := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d %s", code, body)
	}
	if code, body := get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, body)
	}
	_, body := get("/metrics")
	for _, name := range []string{"admissions_total", "sessions_total", "tokens_total", "batch_occupancy_bucket", "time_to_first_token_seconds_bucket",
		"inter_token_seconds_bucket", "queue_seconds_bucket", "active_sessions", "queue_depth", "kv_bytes", "hot_lookups_total", "prefix_hits_total", "prefix_tokens_total", "spill_bytes", "spill_states_total", "fetches_total", "redeliveries_total",
		"takeovers_total", "leases_lost_total", "moves_total", "publish_errors_total", "guard_rejects_total", "nats_reconnects_total", "build_info", "model_info"} {
		if !strings.Contains(body, "\nmeshnet_"+name) {
			t.Errorf("no metric %s", name)
		}
	}
	n.Drain(true)
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
		t.Errorf("readyz while draining: %d %s", code, body)
	}
}
