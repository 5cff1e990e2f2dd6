package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// watch shows a turn in a row while it is told.
func (d *demo) watch(row int) func(*telling) error {
	return func(t *telling) error {
		label := fmt.Sprintf("%-6s %-6s %3d tok", t.req.Tenant, t.owner, len(t.tokens))
		d.view.show(row, label, t.req.Prompt+t.text)
		return nil
	}
}

// streams shows three tenants whose turns run at the same time.
func (d *demo) streams(step *demoStep) error {
	tellings := make([]*telling, 3)
	for i, prompt := range []string{"Once upon a time", "Long ago, a brave robot", "There was a kind baker"} {
		var err error
		if tellings[i], err = d.turn([]string{"ada", "ben", "cleo"}[i], "story", prompt); err != nil {
			return err
		}
	}
	if err := d.together(tellings, d.watch); err != nil {
		return err
	}
	d.keep(step, tellings...)
	lastFirst, firstLast, same := tellings[0].first, tellings[0].last, 0
	for _, t := range tellings {
		if t.first.After(lastFirst) {
			lastFirst = t.first
		}
		if t.last.Before(firstLast) {
			firstLast = t.last
		}
		if t.sameAlone() {
			same++
		}
	}
	step.claim(lastFirst.Before(firstLast), "all three were streaming before the first of them ended")
	step.claim(same == len(tellings), "%d of 3 texts are what `worker generate` says to the same prompt", same)
	return nil
}

// together tells turns at the same time.
func (d *demo) together(tellings []*telling, on func(int) func(*telling) error) error {
	errs := make([]error, len(tellings))
	var group sync.WaitGroup
	for i, t := range tellings {
		group.Go(func() { errs[i] = d.tell(t, on(i)) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// cancel ends a turn while it is told.
func (d *demo) cancel(step *demoStep) error {
	const at = 30
	t, err := d.turn("ada", "cancelled", "One day, a little fox")
	if err != nil {
		return err
	}
	stream, err := d.mesh.client.Generate(d.ctx, t.req)
	if err != nil {
		return err
	}
	var standing *client.Standing
	show := d.watch(0)
	err = t.read(stream, func(t *telling) (err error) {
		if len(t.tokens) >= at && standing == nil {
			standing, err = stream.Cancel(d.ctx)
		}
		return errors.Join(err, show(t))
	})
	if err != nil {
		return err
	}
	d.keep(step, t)
	step.claim(standing != nil && standing.Outcome == schemas.CancelMarked, "the cancel came in time, after %d tokens", at)
	step.claim(t.final.Reason == schemas.Cancelled, "the turn ended %s with %d tokens", t.final.Reason, t.final.Count)
	step.claim(t.beginsAlone(), "what was told is the beginning of the whole text (%d tokens)", len(t.alone.TokenIDs))
	if err := d.pause(20 * demoPace); err != nil { // the time of many tokens
		return err
	}
	after, err := d.lastEvent(stream.ID())
	if err != nil {
		return err
	}
	step.claim(after.EventKind() == schemas.KindFinal, "nothing followed the end")
	return nil
}

// lastEvent is the newest event that is stored of a turn.
func (d *demo) lastEvent(id schemas.TurnID) (schemas.Event, error) {
	js, err := jetstream.New(d.mesh.nc)
	if err != nil {
		return nil, err
	}
	var prefix schemas.Prefix
	stream, err := js.Stream(d.ctx, prefix.EventStream())
	if err != nil {
		return nil, err
	}
	msg, err := stream.GetLastMsgForSubject(d.ctx, prefix.Tokens(id))
	if err != nil {
		return nil, err
	}
	return schemas.DecodeEvent(msg.Data)
}

func (d *demo) pause(t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-d.ctx.Done():
		return d.ctx.Err()
	}
}

// quota fills a tenant's lane.
func (d *demo) quota(step *demoStep) error {
	tellings := make([]*telling, demoQuota)
	for i := range tellings {
		var err error
		if tellings[i], err = d.turn("dora", fmt.Sprintf("crowd-%d", i+1), "Once upon a time"); err != nil {
			return err
		}
	}
	more, err := d.turn("dora", "one-more", "Long ago, a brave robot")
	if err != nil {
		return err
	}
	streams := make([]*client.Stream, len(tellings))
	for i, t := range tellings {
		if streams[i], err = d.mesh.client.Generate(d.ctx, t.req); err != nil {
			return err
		}
		defer streams[i].Close()
	}
	refused := d.tell(more, nil)
	var quota *client.QuotaError
	step.claim(errors.As(refused, &quota), "%d requests of a tenant are taken (%d can run at once), the next is refused: quota", demoQuota, demoNodes*demoSlots)
	if quota == nil {
		return refused
	}
	more.req.RetryQuota = true
	all := append(tellings, more)
	if err := d.crowd(all, streams); err != nil {
		return err
	}
	d.keep(step, all...)
	same := 0
	for _, t := range all {
		if t.sameAlone() {
			same++
		}
	}
	step.claim(more.final.Reason == schemas.Completed, "with retries it was served once there was room")
	step.claim(same == len(all), "%d of %d texts are what `worker generate` says", same, len(all))
	return nil
}

// crowd reads turns that were submitted, and submits the last one.
func (d *demo) crowd(tellings []*telling, streams []*client.Stream) error {
	var done atomic.Int32
	errs := make([]error, len(tellings))
	var group sync.WaitGroup
	for i, t := range tellings {
		group.Go(func() {
			on := func(t *telling) error {
				n := done.Load()
				if !t.last.IsZero() {
					n = done.Add(1)
				}
				d.view.show(0, "dora", fmt.Sprintf("%d of %d turns told", n, len(tellings)))
				return nil
			}
			if i < len(streams) {
				errs[i] = t.read(streams[i], on)
			} else {
				errs[i] = d.tell(t, on)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// hot goes on with a conversation whose KV was kept.
func (d *demo) hot(step *demoStep) error {
	const newTokens = 40
	first, err := d.turn("ben", "chat", "Long ago, a brave robot")
	if err != nil {
		return err
	}
	first.req.MaxNewTokens, first.req.Keep = newTokens, true
	if first.alone, err = d.alone(first.req.Prompt, newTokens); err != nil {
		return err
	}
	if err := d.tell(first, d.watch(0)); err != nil {
		return err
	}
	second, err := d.turn("ben", "chat", first.req.Prompt+first.text+" The morning was quiet.")
	if err != nil {
		return err
	}
	second.req.Turn = 2
	if err := d.tell(second, d.watch(1)); err != nil {
		return err
	}
	d.keep(step, first, second)
	cached, all, err := d.cacheable(first, second)
	if err != nil {
		return err
	}
	u := second.final.Usage
	step.claim(first.final.Kept && second.final.Node == first.final.Node, "the second turn ran on %s, which kept the first", second.final.Node)
	step.claim(u.CachedTokens == cached && cached > first.final.Usage.PromptTokens, "%d of its %d prompt tokens were cached: all that the first turn left", u.CachedTokens, all)
	step.claim(u.PrefilledTokens == all-cached, "only the %d new ones were prefilled", u.PrefilledTokens)
	step.claim(second.sameAlone(), "its text is that of a cold start")
	return nil
}

// cacheable is how many tokens of the second turn's prompt the first one left in the KV, and how many there are. The
// newest token of a turn is not in the KV, and a prompt's last token is always evaluated.
func (d *demo) cacheable(first, second *telling) (cached, all int, err error) {
	left, err := d.mesh.model.Tokenize(first.req.Prompt, false)
	if err != nil {
		return 0, 0, err
	}
	for _, token := range first.tokens[:max(0, len(first.tokens)-1)] {
		left = append(left, scheduler.Token(token))
	}
	prompt, err := d.mesh.model.Tokenize(second.req.Prompt, false)
	if err != nil {
		return 0, 0, err
	}
	for cached < min(len(left), len(prompt)-1) && left[cached] == prompt[cached] {
		cached++
	}
	return cached, len(prompt), nil
}

// takeover kills the worker that tells a turn.
func (d *demo) takeover(step *demoStep) error {
	const at = 40
	t, err := d.turn("cleo", "disturbed", "There was a kind baker")
	if err != nil {
		return err
	}
	killed, had := "", 0
	show := d.watch(0)
	err = d.tell(t, func(t *telling) (err error) {
		if len(t.tokens) >= at && killed == "" {
			killed, had = t.owner, len(t.tokens)
			err = d.mesh.kill(killed)
		}
		return errors.Join(err, show(t))
	})
	if err != nil {
		return err
	}
	d.keep(step, t)
	f := t.final
	step.claim(f.Attempt >= 2 && f.Node.String() != killed, "%s was killed after %d tokens; %s finished the turn as attempt %d", killed, had, f.Node, f.Attempt)
	step.claim(t.resumed >= had && f.Usage.ReplayedTokens == t.resumed, "it went on at token %d, after a replay of those before", t.resumed)
	step.claim(t.misplaced == 0 && len(t.tokens) == f.Count, "no token was lost or doubled: %d came, each once and in its place", len(t.tokens))
	step.claim(t.sameAlone(), "the text is the undisturbed one")
	return nil
}

// accounts looks at what the mesh has kept of all turns, and shows the nodes.
func (d *demo) accounts(step *demoStep) error {
	js, err := jetstream.New(d.mesh.nc)
	if err != nil {
		return err
	}
	var prefix schemas.Prefix
	// The last ack comes after the final that its client reads.
	empty, err := d.patiently(func() (bool, error) {
		requests, err := js.Stream(d.ctx, prefix.RequestStream())
		return err == nil && requests.CachedInfo().State.Msgs == 0, err
	})
	if err != nil {
		return err
	}
	stream, err := js.Stream(d.ctx, prefix.WorkStream())
	if err != nil {
		return err
	}
	info, err := stream.Info(d.ctx, jetstream.WithSubjectFilter(prefix.WorkRecords()))
	if err != nil {
		return err
	}
	turns := make(map[schemas.TurnID]bool)
	for subject := range info.State.Subjects {
		id, _, err := prefix.ParseWork(subject)
		if err != nil {
			return err
		}
		turns[id] = true
	}
	step.claim(empty, "no request is left in the queue")
	step.claim(len(turns) == len(d.told) && info.State.Msgs == uint64(len(d.told)), "%d turns ran, and there are %d work records, one for each", len(d.told), info.State.Msgs)
	return d.nodes(step)
}

// nodes shows the nodes once they tell of the last turn's end.
func (d *demo) nodes(step *demoStep) error {
	var nodes []capability.Entry
	_, err := d.patiently(func() (done bool, err error) {
		nodes, err = d.mesh.client.Nodes(d.ctx)
		return d.mesh.quiet(nodes), err
	})
	if err != nil {
		return err
	}
	for _, n := range nodes {
		d.doc.Nodes = append(d.doc.Nodes, n.Ad)
	}
	step.claim(len(nodes) == demoNodes && d.mesh.quiet(nodes), "the living nodes are idle, the killed one is not heard of any more")
	d.view.line("")
	return printNodes(d.view.w, nodes, time.Now())
}

// patiently asks until something is so, for as long as a redelivery takes.
func (d *demo) patiently(ask func() (bool, error)) (done bool, err error) {
	for until := time.Now().Add(3 * demoAckWait); ; {
		if done, err = ask(); done || err != nil || time.Now().After(until) {
			return done, err
		}
		if err := d.pause(demoPace); err != nil {
			return false, err
		}
	}
}
