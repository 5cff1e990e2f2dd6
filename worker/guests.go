package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/meshnet/node/schemas"
	"github.com/meshnet/node/worker/ledger"
)

// guests looks for requests of tenants that have no turn here while this worker is full. The lane of all is first come, first served:
// without that a tenant with one request waits behind all those of a tenant that floods the lane, and never reaches the scheduler, which
// would give it the next slot.
//
// A consumer hands out requests in their order and no other. So a guest's request is read from the stream where it waits, and a copy of it
// put into this node's own lane: the ledger lets one of the two run, wherever they are delivered. The rest of the lane does not notice. It
// belongs to the goroutine of pullFull.
type guests struct {
	p      *puller
	looked map[schemas.Tenant]uint64 // up to which stream sequence a tenant's requests were looked at
	failed int                       // looks in a row
	next   time.Time                 // no look before
}

// listing is the pause that follows a look for each tenant that waits: to list ten thousand of them takes the server milliseconds.
const listing = 100 * time.Microsecond

// errCodeStore is JetStream's code of a request that finds no room: its tenant has its quota in the lane.
const errCodeStore = 10077

// mostRead is how many requests one look reads: it has to end before long, however many tenants wait.
const mostRead = 64

func newGuests(p *puller) *guests { return &guests{p: p, looked: map[schemas.Tenant]uint64{}} }

// look copies the first request of each tenant that waits and has no turn here into the own lane, as far as there are places for guests.
// It says whether something came there. What fails is tried again, with growing pauses: guests are no reason not to serve the others.
func (g *guests) look(ctx context.Context) (came bool) {
	if !g.p.s.places.full() || time.Now().Before(g.next) {
		return false
	}
	copied, err := g.invite(ctx)
	if err == nil || ctx.Err() != nil {
		g.failed = 0
		return copied > 0
	}
	pause := g.p.s.cfg.Periods.Guests << min(g.failed, 7)
	g.failed++
	g.next = time.Now().Add(pause)
	g.p.s.log.Warn("looking past the head of the lane failed; requests of tenants that have no turn here wait in their order meanwhile",
		"error", err, "in_a_row", g.failed, "wait", pause)
	return copied > 0
}

// invite is look. It reads no more of the lane than how much of it nobody was offered, unless tenants wait that have nothing here.
func (g *guests) invite(ctx context.Context) (copied int, err error) {
	s := g.p.s
	short, cancel := context.WithTimeout(ctx, s.cfg.Periods.Request)
	defer cancel()
	consumer, err := g.p.shared.Info(short)
	if err != nil {
		return 0, err
	}
	if consumer.NumPending == 0 {
		return 0, nil // everyone was offered, to this worker or another
	}
	stream, err := s.js.Stream(short, s.cfg.Prefix.RequestStream())
	if err != nil {
		return 0, err
	}
	info, err := stream.Info(short, jetstream.WithSubjectFilter(s.cfg.Prefix.Shared(s.cfg.Model)))
	if err != nil {
		return 0, err
	}
	g.next = time.Now().Add(time.Duration(len(info.State.Subjects)) * listing)
	waiting, room := g.waiting(info)
	for read := 0; len(waiting) > 0 && copied < room && read < mostRead; read++ {
		tenant := waiting[0]
		msg, err := stream.GetMsg(short, max(consumer.Delivered.Stream, g.looked[tenant])+1,
			jetstream.WithGetMsgSubject(s.cfg.Prefix.Request(s.cfg.Model, schemas.AnyLane, tenant)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			g.looked[tenant], waiting = info.State.LastSeq, waiting[1:]
			continue
		}
		if err != nil {
			return copied, err
		}
		invited, err := g.consider(short, tenant, msg)
		if err != nil {
			return copied, err
		}
		g.looked[tenant] = msg.Sequence
		if invited {
			copied, waiting = copied+1, waiting[1:]
		}
	}
	return copied, nil
}

// waiting are the tenants that have no turn here and may have requests that nobody was offered, and how many of them there is room for.
// Their order is drawn, so that none is behind another each time.
func (g *guests) waiting(info *jetstream.StreamInfo) (tenants []schemas.Tenant, room int) {
	present := map[schemas.Tenant]bool{}
	for subject := range info.State.Subjects {
		parsed, err := g.p.s.cfg.Prefix.ParseRequest(subject)
		if err != nil {
			continue
		}
		present[parsed.Tenant] = true
		if g.looked[parsed.Tenant] < info.State.LastSeq {
			tenants = append(tenants, parsed.Tenant)
		}
	}
	maps.DeleteFunc(g.looked, func(tenant schemas.Tenant, seq uint64) bool {
		return !present[tenant] || seq > info.State.LastSeq // of a stream that was before this one
	})
	tenants, room = g.p.s.places.guests(tenants)
	rand.Shuffle(len(tenants), func(i, j int) { tenants[i], tenants[j] = tenants[j], tenants[i] })
	return tenants, room
}

// consider copies a request into the own lane if its turn could begin or go on with that, and says whether it did.
func (g *guests) consider(ctx context.Context, tenant schemas.Tenant, msg *jetstream.RawStreamMsg) (invited bool, err error) {
	s := g.p.s
	id, err := schemas.DecodeTurnID(msg.Data)
	if err != nil || id.Tenant != tenant {
		return false, nil // whoever is offered it will drop it
	}
	route, err := schemas.ParseRoute(msg.Header)
	if err != nil {
		return false, nil // likewise, or refuse it
	}
	rec, err := s.ledger.readUntil(ctx, id)
	if err != nil {
		return false, err
	}
	if garbled(rec) {
		return false, nil
	}
	// A copy may take over what its original may, but for turns that run on the original itself.
	may := ledger.Message{Lineage: route.From, PayloadHash: ledger.Hash(schemas.PayloadHash(msg.Data))}
	if rec.State != ledger.Absent && !ledger.MayTakeOver(rec, may, ledger.Self{}) {
		return false, nil // it runs elsewhere, or has ended
	}
	twin := &nats.Msg{Subject: s.cfg.Prefix.Request(s.cfg.Model, schemas.NodeLane(s.cfg.Node), tenant), Header: nats.Header{}, Data: msg.Data}
	maps.Copy(twin.Header, msg.Header)
	twin.Header.Del(jetstream.MsgIDHeader) // else the server drops the copy as a repeat of the original
	route.Copied(msg.Sequence, msg.Time).Set(twin.Header)
	_, err = s.js.PublishMsg(ctx, twin)
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == errCodeStore:
		return false, nil
	case err != nil:
		s.metrics.publishErrors.WithLabelValues("copy").Inc()
		return false, fmt.Errorf("copy a request: %w", err)
	}
	s.log.Debug("request of a guest", "turn", id, "sequence", msg.Sequence)
	return true, nil
}

// admit finds a place for a request from the own lane that came without one, because its tenant has nothing else here; nil if there is none.
func (s *Service) admit(msg jetstream.Msg) *place {
	subject, err := s.cfg.Prefix.ParseRequest(msg.Subject())
	if err != nil {
		return nil
	}
	place := s.places.admit(subject.Tenant)
	if place != nil {
		s.metrics.guests.Inc()
	}
	return place
}

// dropTwin takes the request from the lane of all of which this one, whose turn is done, was a copy: it would count to its tenant's quota until it is
// delivered. Where that fails it is delivered in its order, and only tells the outcome again.
func (s *Service) dropTwin(d *delivery) {
	if d.route.Twin == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.hard, s.cfg.Periods.Request)
	defer cancel()
	err := s.drop(ctx, d.id, d.route.Twin)
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && s.hard.Err() == nil {
		s.log.Debug("the request that a guest's was a copy of is left in its lane", "turn", d.id, "sequence", d.route.Twin, "error", err)
	}
}

// drop deletes a request if it is one of that turn: a header alone is no reason to believe that.
func (s *Service) drop(ctx context.Context, id schemas.TurnID, seq uint64) error {
	stream, err := s.js.Stream(ctx, s.cfg.Prefix.RequestStream())
	if err != nil {
		return err
	}
	msg, err := stream.GetMsg(ctx, seq)
	if err != nil {
		return err
	}
	subject, err := s.cfg.Prefix.ParseRequest(msg.Subject)
	if err != nil {
		return err
	}
	if of, err := schemas.DecodeTurnID(msg.Data); err != nil || of != id || subject.Tenant != id.Tenant {
		return fmt.Errorf("it is no request of turn %s", id)
	}
	return stream.DeleteMsg(ctx, seq)
}
