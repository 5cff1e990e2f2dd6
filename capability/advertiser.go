package capability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
)

// AdvertiserConfig is what NewAdvertiser needs. Conn, Node and Source must be set; zero values of the others are
// the defaults given here.
type AdvertiserConfig struct {
	Conn   *nats.Conn
	Prefix schemas.Prefix
	Node   schemas.Node

	// Source is what the node is like now. It is called at each beat, from one goroutine of the advertiser, and
	// nothing waits for that goroutine: no answer of the server holds it up.
	Source func() *schemas.Advertisement

	Beat    time.Duration // 1 s: how often it is published
	Put     time.Duration // 5 s: how often it is put into the bucket
	Gap     time.Duration // 100 ms: the shortest time between two beats, whatever the changes
	Request time.Duration // 2 s: how long an answer of the server may take

	Clock part.Clock   // part.SystemClock
	Log   *slog.Logger // nil is slog.Default()
}

// Advertiser tells what a node can take: at every beat and on change on the node's capability subject, and less
// often in the bucket of live nodes, where those who come later find it. It is a part.Part. While the server
// is away, or the bucket is not there, it goes on trying quietly. Once it was stopped the bucket holds nothing of the node.
type Advertiser struct {
	part.Life
	cfg     AdvertiserConfig
	subject string
	nudged  chan struct{}

	generation uint64 // owned by the goroutine of beats

	mu     sync.Mutex
	newest []byte        // to be put into the bucket; nil: nothing new
	fresh  chan struct{} // newest was set
}

// NewAdvertiser makes an Advertiser that has to be started.
func NewAdvertiser(cfg AdvertiserConfig) (*Advertiser, error) {
	if cfg.Conn == nil || cfg.Source == nil || cfg.Node.IsZero() {
		return nil, errors.New("capability: an advertiser needs Conn, Node and Source")
	}
	cfg.Beat = cmp.Or(cfg.Beat, time.Second)
	cfg.Put = cmp.Or(cfg.Put, 5*time.Second)
	cfg.Gap = cmp.Or(cfg.Gap, 100*time.Millisecond)
	cfg.Request = cmp.Or(cfg.Request, 2*time.Second)
	if cfg.Clock == nil {
		cfg.Clock = part.SystemClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Advertiser{cfg: cfg, subject: cfg.Prefix.Capability(cfg.Node),
		nudged: make(chan struct{}, 1), fresh: make(chan struct{}, 1)}, nil
}

// Nudge says that something changed that others should know soon. It never waits; many calls are one.
func (a *Advertiser) Nudge() {
	select {
	case a.nudged <- struct{}{}:
	default:
	}
}

// Start implements part.Part.
func (a *Advertiser) Start(ctx context.Context) error {
	js, err := jetstream.New(a.cfg.Conn)
	if err != nil {
		return fmt.Errorf("capability: %w", err)
	}
	return a.Launch(ctx, nil, func(ctx context.Context, ready func()) error {
		a.Go(func(ctx context.Context) error { return a.keep(ctx, js) })
		return a.beat(ctx, ready)
	})
}

// beat publishes until ctx ends.
func (a *Advertiser) beat(ctx context.Context, ready func()) error {
	lastPut := a.cfg.Clock.Now()
	changed := true // the first one is news
	for {
		began := a.cfg.Clock.Now()
		next, gap := a.cfg.Clock.After(a.cfg.Beat), a.cfg.Clock.After(a.cfg.Gap)
		put := changed || began.Sub(lastPut) >= a.cfg.Put
		if put {
			lastPut = began
		}
		a.publish(put)
		ready()
		select {
		case <-gap:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-next:
			changed = false
		case <-a.nudged:
			changed = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *Advertiser) publish(put bool) {
	ad := *a.cfg.Source()
	a.generation++
	ad.Node, ad.Generation = a.cfg.Node, a.generation
	payload, err := schemas.Encode(&ad)
	if err != nil {
		a.cfg.Log.Error("the node cannot be advertised", "node", a.cfg.Node, "error", err)
		return
	}
	// Nothing waits here. While the connection is down it is lost, and another one follows in a second.
	if err := a.cfg.Conn.Publish(a.subject, payload); err != nil {
		a.cfg.Log.Debug("advertisement not published", "node", a.cfg.Node, "error", err)
	}
	if put {
		a.mu.Lock()
		a.newest = payload
		a.mu.Unlock()
		select {
		case a.fresh <- struct{}{}:
		default:
		}
	}
}

// keep puts the newest advertisement into the bucket until ctx ends, and then takes it out.
func (a *Advertiser) keep(ctx context.Context, js jetstream.JetStream) error {
	supervisor := part.Supervisor{Max: 5 * time.Second, Clock: a.cfg.Clock, Failed: func(err error, inARow int, wait time.Duration) {
		if inARow == 1 { // and quiet after that: it is the same server all the time
			a.cfg.Log.Info("advertisement not kept, will try again", "bucket", a.cfg.Prefix.NodeBucket(), "error", err)
		}
	}}
	// The first error after a spell of puts that worked brings the wait back.
	supervisor.Healthy = a.cfg.Put
	err := supervisor.Run(ctx, func(ctx context.Context) error {
		kv, err := a.bucket(ctx, js)
		for err == nil {
			select {
			case <-a.fresh:
				err = a.put(ctx, kv)
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return err
	})
	a.remove(context.WithoutCancel(ctx), js)
	return err
}

func (a *Advertiser) bucket(ctx context.Context, js jetstream.JetStream) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Request)
	defer cancel()
	return js.KeyValue(ctx, a.cfg.Prefix.NodeBucket())
}

func (a *Advertiser) put(ctx context.Context, kv jetstream.KeyValue) error {
	a.mu.Lock()
	payload := a.newest
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Request)
	defer cancel()
	if _, err := kv.Put(ctx, a.cfg.Node.String(), payload); err != nil {
		select {
		case a.fresh <- struct{}{}: // still to be put
		default:
		}
		return err
	}
	return nil
}

// remove lets everyone know at once that the node is gone. Where it cannot, the bucket forgets it by itself.
func (a *Advertiser) remove(ctx context.Context, js jetstream.JetStream) {
	if !a.cfg.Conn.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Request)
	defer cancel()
	kv, err := js.KeyValue(ctx, a.cfg.Prefix.NodeBucket())
	if err == nil {
		err = kv.Delete(ctx, a.cfg.Node.String())
	}
	if err != nil {
		a.cfg.Log.Debug("advertisement not deleted; it ends by itself", "node", a.cfg.Node, "error", err)
	}
}
