package integration

import (
	"testing"

	"github.com/meshnet/node/internal/natsserver/natsservertest"
)

// Whichever server of a cluster dies, the turns go on without it, and it comes back to the same ones.
func TestTurnsGoOnAndEndOnceThoughALeaderOfTheClusterIsKilled(t *testing.T) {
	for name, leader := range map[string]func(*natsservertest.Cluster) *natsservertest.Process{
		"meta":      (*natsservertest.Cluster).MetaLeader,
		"MESH_REQ":  leads(busPrefix.RequestStream()),
		"the turns": leads("KV_" + busPrefix.TurnBucket()),
		"MESH_TOK":  leads(busPrefix.EventStream()),
	} {
		t.Run(name, func(t *testing.T) {
			leakNothing(t)
			cluster := natsservertest.StartCluster(t, 3)
			b := newBus(t, cluster.URL(), 3)
			b.worker("a", pace(loadStep))
			b.worker("b", pace(loadStep))
			turns, kills := loadSize()
			l := b.load(turns)
			for range kills {
				l.await(10)
				server := leader(cluster)
				server.Kill()
				l.await(10)
				server.Restart()
				cluster.AwaitHealthy()
			}
			l.await(10)
			l.finish()
			t.Logf("%d turns", len(l.finals))
			b.settled(l.finals)
		})
	}
}

func leads(stream string) func(*natsservertest.Cluster) *natsservertest.Process {
	return func(c *natsservertest.Cluster) *natsservertest.Process { return c.StreamLeader(stream) }
}
