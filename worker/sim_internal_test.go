package worker

import (
	"testing"

	"github.com/meshnet/node/internal/sim"
)

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
		{"mostRead", mostRead, sim.MostRead},
		{"listing", listing, sim.Listing},
		{"quota", defaultQuota, sim.DefaultQuota},
	} {
		if c.here != c.sim {
			t.Errorf("%s is %v here and %v in the simulation", c.name, c.here, c.sim)
		}
	}
}
