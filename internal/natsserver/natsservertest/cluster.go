package natsservertest

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/natsserver"
)

// Cluster is several servers, each in a process of its own, that keep replicas for each other.
type Cluster struct {
	t     testing.TB
	Nodes []*Process
}

// StartCluster runs a cluster of size servers, and returns when it has a JetStream leader and all are up to date.
func StartCluster(t testing.TB, size int) *Cluster {
	t.Helper()
	ports := freePorts(t, size)
	var routes []string
	for _, port := range ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	c := &Cluster{t: t}
	for i, port := range ports {
		c.Nodes = append(c.Nodes, StartProcess(t, natsserver.Options{
			Name:    fmt.Sprintf("n%d", i+1),
			Cluster: &natsserver.Cluster{Name: "test", Port: port, Routes: routes},
		}))
	}
	c.MetaLeader()
	c.AwaitHealthy()
	return c
}

// freePorts finds ports for routes, which the servers have to know of each other before any of them runs.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }() // all at the end, so that no port is drawn twice
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// URL is the list of all servers, as nats.Connect takes it.
func (c *Cluster) URL() string {
	var urls []string
	for _, node := range c.Nodes {
		urls = append(urls, node.URL())
	}
	return strings.Join(urls, ",")
}

// MetaLeader waits until a server leads the cluster's JetStream, and returns it.
func (c *Cluster) MetaLeader() *Process {
	c.t.Helper()
	return c.leader("a JetStream leader is elected", (*Process).LeadsMeta)
}

// StreamLeader waits until a server leads a stream, and returns it.
func (c *Cluster) StreamLeader(stream string) *Process {
	c.t.Helper()
	return c.leader("a leader of stream "+stream+" is elected", func(p *Process) bool { return p.LeadsStream(stream) })
}

// leader waits until exactly one server says that it leads. For a moment after an election, one that was
// voted out may not know it yet.
func (c *Cluster) leader(what string, leads func(*Process) bool) *Process {
	c.t.Helper()
	var leader *Process
	poll(c.t, what, func() bool {
		leaders := 0
		for _, node := range c.Nodes {
			if leads(node) {
				leader = node
				leaders++
			}
		}
		return leaders == 1
	})
	return leader
}

// AwaitHealthy waits until every server that is up says that its JetStream is up to date.
func (c *Cluster) AwaitHealthy() {
	c.t.Helper()
	poll(c.t, "all servers are up to date", func() bool {
		for _, node := range c.Nodes {
			if node.up() && !node.Healthy() {
				return false
			}
		}
		return true
	})
}

func (p *Process) up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.command != nil
}
