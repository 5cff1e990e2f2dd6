package integration

import (
	"os"
	"testing"

	"github.com/meshnet/node/internal/natsserver/natsservertest"
)

// Whichever server of a cluster dies, the turns go on without it, and it comes back to the same ones.
func TestTurnsGoOnAndEndOnceThoughALeaderOfTheClusterIsKilled(t *testing.T) {
	leakNothing(t)
	for name, leader := range map[string]func(*natsservertest.Cluster) *natsservertest.Process{
		"meta":      (*natsservertest.Cluster).MetaLeader,
		"MESH_REQ":  leads(busPrefix.RequestStream()),
		"the turns": leads("KV_" + busPrefix.TurnBucket()),
		"MESH_TOK":  leads(busPrefix.EventStream()),
	} {
		t.Run(name, func(t *testing.T) {
			if _, large := os.LookupEnv(chaosTurnsEnv); !large && (name == "the turns" || name == "MESH_TOK") {
				t.Skip("the same at length: " + chaosTurnsEnv + " is not set")
			}
			t.Parallel() // most of it is waiting for elections
			cluster := natsservertest.StartCluster(t, 3)
			t.Cleanup(func() {
				for _, server := range cluster.Nodes {
					server.Kill() // to stop well is to wait for the others, who stop too
				}
			})
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
