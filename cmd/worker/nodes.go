package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/client"
	"github.com/meshnet/node/schemas"
)

// nodesCommand lists the nodes of the mesh.
type nodesCommand struct {
	natsFlags `embed:"" group:"NATS:"`

	Watch bool `help:"Show the list anew every second until Ctrl-C."`
	JSON  bool `help:"Print JSON and nothing else: one document, or one a line with --watch." name:"json"`
}

// Help is the long help of the command.
func (nodesCommand) Help() string {
	return `Examples:
  worker nodes
  worker nodes --watch
  worker nodes --json | jq '.nodes[].telemetry.active_sessions'`
}

const watchEvery = time.Second

// Run is called by the command-line parser.
func (c *nodesCommand) Run(env *environment) error {
	mesh, done, err := c.client(env)
	if err != nil {
		return err
	}
	defer done()
	if err := c.show(env, mesh); err != nil || !c.Watch {
		return err
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-env.ctx.Done():
			return env.denied()
		case <-tick.C:
			if err := c.show(env, mesh); err != nil {
				return err
			}
		}
	}
}

func (c *nodesCommand) show(env *environment, mesh *client.Client) error {
	nodes, err := mesh.Nodes(env.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		document := struct {
			Nodes []*schemas.Advertisement `json:"nodes"`
		}{[]*schemas.Advertisement{}}
		for _, n := range nodes {
			document.Nodes = append(document.Nodes, n.Ad)
		}
		return json.NewEncoder(env.stdout).Encode(document)
	}
	if c.Watch && isTerminal(env.stdout) {
		const clearScreen = "\x1b[H\x1b[2J"
		if _, err := io.WriteString(env.stdout, clearScreen); err != nil {
			return err
		}
	}
	return printNodes(env.stdout, nodes, time.Now())
}

func printNodes(w io.Writer, nodes []capability.Entry, now time.Time) error {
	if len(nodes) == 0 {
		_, err := fmt.Fprintln(w, "no nodes")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	const head = "NODE\tMODEL\tSTATE\tACTIVE\tQUEUE\tKV\tHOT\tTOKENS/S\tREJECTED\tSEEN"
	adapted := slices.ContainsFunc(nodes, func(n capability.Entry) bool { return len(n.Ad.Model.Adapters) > 0 })
	if _, err := fmt.Fprintln(t, withColumn(head, "ADAPTERS", adapted)); err != nil {
		return err
	}
	for _, n := range nodes {
		tel := &n.Ad.Telemetry
		line := fmt.Sprintf("%s\t%s\t%s\t%d/%d\t%d/%d\t%.0f %%\t%d\t%.0f\t%d\t%s ago", n.Ad.Node, n.Ad.Model.Name, n.Ad.State,
			tel.ActiveSessions, tel.MaxActiveSessions, tel.QueueDepth, tel.MaxQueueDepth, 100*tel.KVPressure, tel.HotSessions,
			tel.DecodeTokensPerSec10s, tel.RejectedAdmissionsTotal, now.Sub(n.Seen).Round(100*time.Millisecond))
		if _, err := fmt.Fprintln(t, withColumn(line, adapterNames(&n.Ad.Model), adapted)); err != nil {
			return err
		}
	}
	return t.Flush()
}

// withColumn adds a last column to a line of a table, where it has one.
func withColumn(line, text string, has bool) string {
	if !has {
		return line
	}
	return line + "\t" + text
}

// adapterNames lists what requests to a node may choose from.
func adapterNames(m *schemas.ModelInfo) string {
	if len(m.Adapters) == 0 {
		return "-"
	}
	var names []string
	for _, a := range m.Adapters {
		names = append(names, a.Name.String())
	}
	return strings.Join(names, ",")
}
