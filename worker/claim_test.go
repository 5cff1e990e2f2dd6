package worker

import (
	"context"
	"testing"

	"github.com/meshnet/node/schemas"
)

func TestOwnLaneBorrowsAPlaceThatAFetchHasNotUsed(t *testing.T) {
	p := newPlaces(2, 0)
	shared := p.pledge(2)
	own := p.claim(t.Context())
	if !own.hold(schemas.Tenant{}) || p.held != 1 || p.pledged != 1 || p.room() != 0 {
		t.Fatalf("%d held, %d pledged, room %d; not 1, 1, 0", p.held, p.pledged, p.room())
	}
	if !shared[0].hold(schemas.Tenant{}) {
		t.Error("the fetch lost more than it lent")
	}
	if shared[1].hold(schemas.Tenant{}) || p.held != 2 || p.pledged != 0 {
		t.Errorf("a lent place was used twice: %d held, %d pledged", p.held, p.pledged)
	}
	shared[1].release()
	shared[0].release()
	own.release()
	if p.room() != 2 {
		t.Errorf("room is %d at last", p.room())
	}
}

func TestLentPlaceThatIsNotUsedIsThereForItsFetch(t *testing.T) {
	p := newPlaces(1, 0)
	shared := p.pledge(1)
	p.claim(t.Context()).release()
	if !shared[0].hold(schemas.Tenant{}) || p.held != 1 || p.pledged != 0 {
		t.Errorf("%d held, %d pledged; not 1, 0", p.held, p.pledged)
	}
	shared[0].release()
	if p.room() != 1 {
		t.Errorf("room is %d at last", p.room())
	}
}

func TestFirstPlaceGivenBackIsTheOwnLanes(t *testing.T) {
	p := newPlaces(1, 0)
	running := p.pledge(1)[0]
	running.hold(schemas.Tenant{})
	if p.tryClaim() != nil {
		t.Fatal("a place in use was lent")
	}
	running.release()
	if p.room() != 0 || len(p.pledge(1)) != 0 {
		t.Error("the lane of all comes first")
	}
	own := p.claim(t.Context())
	if own == nil || p.pledged != 1 {
		t.Fatal("it is not the own lane's")
	}
	own.release()
	if p.room() != 1 {
		t.Errorf("room is %d afterwards", p.room())
	}
}

func TestLookBorrowsNothing(t *testing.T) {
	p := newPlaces(2, 0)
	shared := p.pledge(1)
	free := p.take()
	if free == nil || p.take() != nil {
		t.Fatal("a look took another place than the free one")
	}
	if !shared[0].hold(schemas.Tenant{}) || !free.hold(schemas.Tenant{}) || p.held != 2 || p.room() != 0 {
		t.Errorf("%d held, room %d; not 2, 0", p.held, p.room())
	}
}

func TestClaimThatIsGivenUpKeepsNoPlaceBack(t *testing.T) {
	p := newPlaces(1, 0)
	running := p.pledge(1)[0]
	running.hold(schemas.Tenant{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p.claim(ctx) != nil {
		t.Fatal("a place in use was lent")
	}
	running.release()
	if p.room() != 1 {
		t.Errorf("room is %d", p.room())
	}
}

func TestNothingIsClaimedWhileFetchingHasEndedOrATurnRunsAlone(t *testing.T) {
	p := newPlaces(2, 0)
	p.shut(true)
	if p.tryClaim() != nil {
		t.Error("a place was given out while draining")
	}
	p.shut(false)
	alone := p.seat(true)
	if p.tryClaim() != nil {
		t.Error("a place was given out beside a turn that runs alone")
	}
	alone.leave()
	if p.tryClaim() == nil {
		t.Error("there is room, and no place")
	}
}
