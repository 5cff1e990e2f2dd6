package capability

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/internal/part"
	"github.com/meshnet/node/schemas"
)

// errReconnected ends a watch whose connection was another one for a while: what was said meanwhile is missed.
var errReconnected = errors.New("the connection was lost")

// watch keeps a watch on the bucket of live nodes, and opens it again after whatever ended it.
func (r *Registry) watch(ctx context.Context, js jetstream.JetStream, ready func()) error {
	supervisor := part.Supervisor{Max: 2 * time.Second, Clock: r.cfg.Clock, Failed: func(err error, inARow int, _ time.Duration) {
		ready() // there may be no bucket for long; the beats are heard without it
		if inARow == 1 {
			r.cfg.Log.Info("watch on nodes ended, will open it again", "bucket", r.cfg.Prefix.NodeBucket(), "error", err)
		}
	}}
	return supervisor.Run(ctx, func(ctx context.Context) error {
		err := r.watchOnce(ctx, js, ready)
		r.blind()
		return err
	})
}

// watchOnce watches until something is wrong.
func (r *Registry) watchOnce(ctx context.Context, js jetstream.JetStream, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	status := r.cfg.Conn.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CONNECTED, nats.CLOSED)
	defer r.cfg.Conn.RemoveStatusListener(status)

	kv, made, err := r.open(ctx, js)
	if err != nil {
		return err
	}
	late := time.AfterFunc(r.cfg.Request, cancel) // the watch needs a context that lives as long as it does
	watcher, err := kv.WatchAll(ctx)
	if !late.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if watcher != nil {
		defer drain(watcher)
	}
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", r.cfg.Prefix.NodeBucket(), err)
	}
	probe := r.cfg.Clock.After(r.cfg.Probe)
	for {
		select {
		case entry, ok := <-watcher.Updates():
			switch {
			case !ok:
				return errors.New("the watch was closed")
			case entry == nil: // all that was there has come
				r.sees()
				ready()
			default:
				r.entry(entry)
			}
		case <-probe:
			if err := r.check(ctx, kv, made); err != nil {
				return err
			}
			probe = r.cfg.Clock.After(r.cfg.Probe)
		case <-status:
			return errReconnected
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// open finds the bucket, and when it was made.
func (r *Registry) open(ctx context.Context, js jetstream.JetStream) (jetstream.KeyValue, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Request)
	defer cancel()
	kv, err := js.KeyValue(ctx, r.cfg.Prefix.NodeBucket())
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("bucket %s: %w", r.cfg.Prefix.NodeBucket(), err)
	}
	made, err := madeAt(ctx, kv)
	return kv, made, err
}

// check asks whether the bucket is still the one that is watched: a watch on one that was lost with its server, or
// on a connection that hangs, is silent for ever.
func (r *Registry) check(ctx context.Context, kv jetstream.KeyValue, made time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Request)
	defer cancel()
	now := r.cfg.Clock.Now()
	is, err := madeAt(ctx, kv)
	if err != nil {
		return err
	}
	if !is.Equal(made) {
		return errors.New("the bucket was made again")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table.expire(now, r.cfg.Forget)
	return nil
}

func madeAt(ctx context.Context, kv jetstream.KeyValue) (time.Time, error) {
	status, err := kv.Status(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("bucket %s: %w", kv.Bucket(), err)
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return time.Time{}, fmt.Errorf("bucket %s: its status does not tell when it was made", kv.Bucket())
	}
	return bucket.StreamInfo().Created, nil
}

// entry takes one change of the bucket.
func (r *Registry) entry(entry jetstream.KeyValueEntry) {
	node, err := schemas.ParseNode(entry.Key())
	switch {
	case err != nil:
		r.reject(schemas.RejectInvalid)
	case entry.Operation() == jetstream.KeyValuePut:
		r.take(node, entry.Value())
	default:
		r.goodbye(node)
	}
}

// sees begins a spell in which nothing is missed.
func (r *Registry) sees() {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.healthy = now
}

// missed begins a new one.
func (r *Registry) missed() {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.healthy.IsZero() {
		r.healthy = now
	}
}

// blind ends it.
func (r *Registry) blind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.healthy = time.Time{}
}

// drain stops a watcher and waits for its end. Its goroutine may be waiting to hand over an update.
func drain(watcher jetstream.KeyWatcher) {
	if watcher.Stop() != nil {
		return // its connection is closed, and ends it
	}
	for range watcher.Updates() { // emptied
	}
}
