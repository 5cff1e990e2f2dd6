package worker

import (
	"testing"
	"time"

	"github.com/meshnet/node/internal/sim"
)

// However many workers are full, the lane is looked through as often as eight of them would.
func TestManyWorkersShareTheLooksOfEight(t *testing.T) {
	for _, c := range []struct {
		vain, serving int
		want          time.Duration
	}{
		{0, 0, 250 * time.Millisecond}, // none is known yet
		{0, 1, 250 * time.Millisecond},
		{0, 8, 250 * time.Millisecond},
		{0, 12, 375 * time.Millisecond},
		{0, 1000, 31250 * time.Millisecond},
		{3, 8, 2 * time.Second},
		{9, 16, 4 * time.Second},
	} {
		if got := lookEvery(250*time.Millisecond, c.vain, c.serving); got != c.want {
			t.Errorf("%d in vain, %d serve: every %s, want %s", c.vain, c.serving, got, c.want)
		}
	}
}

// What internal/sim says of many workers holds while it has the rules of one.
func TestSimulationHasTheWorkersRules(t *testing.T) {
	var p Periods
	p.setDefaults()
	for _, c := range []struct {
		name      string
		here, sim any
	}{
		{"AckWait", p.AckWait, sim.AckWait},
		{"FetchExpiry", p.FetchExpiry, sim.FetchExpiry},
		{"LaneSweep", p.LaneSweep, sim.LaneSweep},
		{"Rescue", p.Rescue, sim.RescueEvery},
		{"Guests", p.Guests, sim.GuestsEvery},
		{"mostVain", mostVain, sim.MostVain},
		{"lookers", lookers, sim.Lookers},
		{"lookAhead", lookAhead, sim.LookAhead},
		{"quota", defaultQuota, sim.DefaultQuota},
	} {
		if c.here != c.sim {
			t.Errorf("%s is %v here and %v in the simulation", c.name, c.here, c.sim)
		}
	}
}
