package worker

import (
	"testing"

	"github.com/meshnet/node/schemas"
)

func granted(s *seat) bool {
	select {
	case <-s.granted:
		return true
	default:
		return false
	}
}

func TestRoomIsWhatIsNeitherPledgedNorHeld(t *testing.T) {
	p := newPlaces(3, 0)
	first := p.pledge(2)
	if p.room() != 1 || len(p.pledge(5)) != 1 || p.room() != 0 {
		t.Error("more was pledged than there is")
	}
	if p.full() {
		t.Error("full by pledges alone")
	}
	first[0].hold(schemas.Tenant{})
	first[0].end()
	if p.room() != 1 {
		t.Errorf("room is %d after a turn's end", p.room())
	}
	first[0].release()
	first[0].release()
	first[1].release()
	if p.room() != 2 {
		t.Errorf("room is %d", p.room())
	}
}

func TestEndedTurnsDoNotPileUpWithoutBound(t *testing.T) {
	p := newPlaces(2, 0)
	for range 2 {
		for _, place := range p.pledge(2) {
			place.hold(schemas.Tenant{})
			place.end()
		}
	}
	if p.room() != 0 {
		t.Errorf("room is %d with four turns' outcomes not told", p.room())
	}
}

func TestTurnOfManyAttemptsRunsAlone(t *testing.T) {
	p := newPlaces(4, 0)
	a, b := p.seat(false), p.seat(false)
	if !granted(a) || !granted(b) {
		t.Fatal("ordinary turns are not seated together")
	}
	alone := p.seat(true)
	behind := p.seat(false)
	if granted(alone) || granted(behind) || p.room() != 0 {
		t.Error("it does not wait for the others, or others pass it")
	}
	a.leave()
	b.leave()
	if !granted(alone) || granted(behind) {
		t.Error("it is not alone")
	}
	alone.leave()
	if !granted(behind) || p.room() != 4 {
		t.Errorf("afterwards room is %d", p.room())
	}
}

func TestSeatThatIsNoLongerWantedIsPassedOn(t *testing.T) {
	p := newPlaces(4, 0)
	a := p.seat(false)
	alone := p.seat(true)
	behind := p.seat(false)
	alone.leave()
	if !granted(behind) {
		t.Error("who waits behind one that left is not seated")
	}
	a.leave()
	behind.leave()
}
