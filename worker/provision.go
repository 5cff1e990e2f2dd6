package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
)

const (
	duplicateWindow = 10 * time.Minute
	requestMaxAge   = 2 * time.Hour
	eventMaxAge     = 15 * time.Minute
	eventMaxBytes   = 256 << 20
	turnTTL         = 24 * time.Hour
	nodeTTL         = 15 * time.Second
	workMaxAge      = 30 * 24 * time.Hour
	consumerWaiting = 4096
)

// provisioner makes or verifies the stores and consumers of the mesh.
type provisioner struct {
	js     jetstream.JetStream
	prefix schemas.Prefix
	cfg    *Config
	lost   func() // is told when the stream of events is not the one that it was

	mu   sync.Mutex // guards what follows
	made time.Time  // when the stream of events was; zero: not known yet
}

func (p *provisioner) requestStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 p.prefix.RequestStream(),
		Description:          "requests until their turns are done",
		Subjects:             []string{p.prefix.Requests()},
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    int64(p.cfg.TenantQuota),
		MaxMsgSize:           schemas.MaxRequestBytes,
		Duplicates:           duplicateWindow,
		MaxAge:               requestMaxAge,
		Replicas:             p.cfg.Replicas,
	}
}

func (p *provisioner) eventStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        p.prefix.EventStream(),
		Description: "events of turns, for readers who come later",
		Subjects:    []string{p.prefix.Events()},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.MemoryStorage,
		MaxAge:      eventMaxAge,
		MaxBytes:    eventMaxBytes,
		Discard:     jetstream.DiscardOld,
		AllowDirect: true,
		Duplicates:  time.Minute,
		Replicas:    p.cfg.Replicas, // else no turn could end while one server of a cluster is down
	}
}

func (p *provisioner) workStream() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        p.prefix.WorkStream(),
		Description: "work records, for accounting",
		Subjects:    []string{p.prefix.WorkRecords()},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		MaxAge:      workMaxAge,
		Replicas:    p.cfg.Replicas,
	}
}

func (p *provisioner) turnBucket() jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{
		Bucket:      p.prefix.TurnBucket(),
		Description: "the ledger: what became of each turn",
		History:     1,
		TTL:         turnTTL,
		Storage:     jetstream.FileStorage,
		Replicas:    p.cfg.Replicas,
	}
}

func (p *provisioner) nodeBucket() jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{
		Bucket:      p.prefix.NodeBucket(),
		Description: "nodes that are alive, and what they offer",
		History:     1,
		TTL:         nodeTTL,
		Storage:     jetstream.MemoryStorage,
		Replicas:    p.cfg.Replicas,
	}
}

func (p *provisioner) consumer(name, filter string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       p.cfg.Periods.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: -1,
		MaxWaiting:    consumerWaiting,
	}
}

func (p *provisioner) sharedConsumer(model schemas.Model) jetstream.ConsumerConfig {
	return p.consumer(schemas.SharedConsumer(model), p.prefix.Shared(model))
}

func (p *provisioner) ownConsumer(node schemas.Node) jetstream.ConsumerConfig {
	return p.consumer(schemas.OwnConsumer(node), p.prefix.Own(node))
}

// stores makes or verifies all stores and returns the ledger's bucket.
func (p *provisioner) stores(ctx context.Context) (jetstream.KeyValue, error) {
	auto := p.cfg.Provision == ProvisionAuto
	if _, err := p.stream(ctx, p.requestStream(), auto); err != nil {
		return nil, err
	}
	if _, err := p.stream(ctx, p.workStream(), auto); err != nil {
		return nil, err
	}
	turns, err := p.bucket(ctx, p.turnBucket(), auto)
	if err != nil {
		return nil, err
	}
	return turns, p.memoryStores(ctx)
}

// memoryStores makes again what a restart of the server loses, whatever the way to provision.
func (p *provisioner) memoryStores(ctx context.Context) error {
	made, err := p.stream(ctx, p.eventStream(), true)
	if err != nil {
		return err
	}
	p.mu.Lock()
	before := p.made
	p.made = made
	p.mu.Unlock()
	if !before.IsZero() && !made.Equal(before) {
		p.lost()
	}
	_, err = p.bucket(ctx, p.nodeBucket(), true)
	return err
}

// stream makes or verifies a stream, and says when it was made.
func (p *provisioner) stream(ctx context.Context, want jetstream.StreamConfig, make bool) (made time.Time, err error) {
	stream, err := p.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) && make {
		stream, err = p.js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another worker was quicker
			stream, err = p.js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("stream %s: %w", want.Name, err)
	}
	return stream.CachedInfo().Created, differences("stream "+want.Name, streamSettings(want, stream.CachedInfo().Config))
}

func (p *provisioner) bucket(ctx context.Context, want jetstream.KeyValueConfig, make bool) (jetstream.KeyValue, error) {
	kv, err := p.js.KeyValue(ctx, want.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) && make {
		kv, err = p.js.CreateKeyValue(ctx, want)
		if errors.Is(err, jetstream.ErrBucketExists) {
			kv, err = p.js.KeyValue(ctx, want.Bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", want.Bucket, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", want.Bucket, err)
	}
	return kv, differences("bucket "+want.Bucket, []setting{
		{"history", want.History, uint8(status.History())},
		{"ttl", want.TTL, status.TTL()},
		{"storage", want.Storage, storageOf(status)},
	})
}

// storageOf is where a bucket is kept, which its status tells only through its stream.
func storageOf(status jetstream.KeyValueStatus) any {
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		return s.StreamInfo().Config.Storage
	}
	return "unknown"
}

// durable makes or verifies a consumer. Its filter is never edited: a consumer with another one is an error.
func (p *provisioner) durable(ctx context.Context, want jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	stream := p.prefix.RequestStream()
	consumer, err := p.js.Consumer(ctx, stream, want.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) && p.cfg.Provision == ProvisionAuto {
		consumer, err = p.js.CreateConsumer(ctx, stream, want)
		if errors.Is(err, jetstream.ErrConsumerExists) {
			consumer, err = p.js.Consumer(ctx, stream, want.Durable)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s of stream %s: %w", want.Durable, stream, err)
	}
	got := consumer.CachedInfo().Config
	return consumer, differences("consumer "+want.Durable, []setting{
		{"filter_subject", want.FilterSubject, got.FilterSubject},
		{"ack_policy", want.AckPolicy, got.AckPolicy},
		{"ack_wait", want.AckWait, got.AckWait},
		{"max_deliver", want.MaxDeliver, got.MaxDeliver},
		{"max_ack_pending", want.MaxAckPending, got.MaxAckPending},
		{"backoff (steps)", 0, len(got.BackOff)},
	})
}

// setting is one setting of a store as it must be and as it is.
type setting struct {
	name      string
	want, got any
}

func streamSettings(want, got jetstream.StreamConfig) []setting {
	return []setting{
		{"subjects", fmt.Sprint(want.Subjects), fmt.Sprint(slices.Sorted(slices.Values(got.Subjects)))},
		{"retention", want.Retention, got.Retention},
		{"storage", want.Storage, got.Storage},
		{"discard", want.Discard, got.Discard},
		{"discard_new_per_subject", want.DiscardNewPerSubject, got.DiscardNewPerSubject},
		{"max_age", want.MaxAge, got.MaxAge},
		{"allow_direct", want.AllowDirect, got.AllowDirect && want.AllowDirect},
	}
}

// settingError says that a store or consumer that is there cannot be used.
type settingError struct {
	store, name string
	got, want   any
}

func (e *settingError) Error() string {
	return fmt.Sprintf("%s: %s is %v; it must be %v: change it there, or use another prefix", e.store, e.name, e.got, e.want)
}

// differences is the error that names every setting that is not as it must be.
func differences(store string, settings []setting) error {
	var errs []error
	for _, s := range settings {
		if s.want != s.got {
			errs = append(errs, &settingError{store: store, name: s.name, got: s.got, want: s.want})
		}
	}
	return errors.Join(errs...)
}
