package worker

import (
	"context"

	"github.com/meshnet/node/schemas"
)

// claim takes a place for a request in the node's own lane. It is a free one, else one that a fetch from the lane of all
// keeps and has not used: that fetch cannot be ended, and a hot session would wait for its expiry. Where all are held
// it is the first to be given back. It is nil if ctx ended first.
func (p *places) claim(ctx context.Context) *place {
	for {
		if place := p.tryClaim(); place != nil {
			return place
		}
		select {
		case <-p.returned:
		case <-ctx.Done():
			p.mu.Lock()
			p.claimed = false
			p.mu.Unlock()
			return nil
		}
	}
}

// tryClaim is claim, but does not wait: it keeps the next place back.
func (p *places) tryClaim() *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.claimableLocked() {
		p.claimed = true
		return nil
	}
	p.claimed = false
	p.pledged++
	return &place{of: p}
}

// claimableLocked says whether one more place can be pledged, and lends one where that is what it takes.
func (p *places) claimableLocked() bool {
	if p.closed || p.lonely > 0 {
		return false
	}
	if p.roomLocked() > 0 {
		return true
	}
	for i := len(p.lendable) - 1; i >= 0; i-- { // the last one is needed last
		if place := p.lendable[i]; place.state == placePledged {
			place.state = placeLent
			p.pledged--
			return true
		}
	}
	return false
}

// take is a place that is free now, for a look into the own lane; nil if there is none.
func (p *places) take() *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unclaimedLocked() == 0 {
		return nil
	}
	p.pledged++
	return &place{of: p}
}

// hold says that a tenant's request came for the place. It is false for a place that was lent, unless there is another one by
// now: then the request cannot run here.
func (p *place) hold(tenant schemas.Tenant) bool {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	switch {
	case p.state == placePledged:
		p.of.pledged--
	case p.of.roomLocked() == 0:
		return false
	}
	p.tenant, p.state = tenant, placeHeld
	p.of.count(placeHeld, tenant, 1)
	return true
}
