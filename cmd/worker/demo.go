package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/meshnet/node/models"
	"github.com/meshnet/node/schemas"
)

// demoCommand shows a whole mesh in one process, and checks what it shows.
type demoCommand struct {
	JSON bool `help:"Print one JSON document at the end, and nothing else." name:"json"`
}

// Help is the long help of the command.
func (demoCommand) Help() string {
	return `Starts a NATS server and three workers with the embedded story model in this process, lets clients use them, kills a
worker, and checks every claim that it makes. Everything is removed at the end. Exits 1 when a claim does not hold.

Examples:
  worker demo
  worker demo --json | jq '.steps[] | {name, passed}'`
}

// demoLimit is how long the whole demo may take before it is given up.
const demoLimit = time.Minute

// demo is one run of the command.
type demo struct {
	env  *environment
	ctx  context.Context
	view *demoView
	mesh *demoMesh
	doc  demoDocument
	told []*telling // every turn that a worker claimed
}

// demoDocument is what --json prints.
type demoDocument struct {
	SchemaVersion int                      `json:"schema_version"`
	Model         string                   `json:"model"`
	Passed        bool                     `json:"passed"`
	Seconds       float64                  `json:"seconds"`
	Steps         []*demoStep              `json:"steps"`
	Nodes         []*schemas.Advertisement `json:"nodes"`
}

// demoStep is what one step came to.
type demoStep struct {
	Name   string      `json:"name"`
	Passed bool        `json:"passed"`
	Claims []demoClaim `json:"claims"`
	Turns  []demoTurn  `json:"turns,omitempty"`

	view *demoView
}

type demoClaim struct {
	Claim string `json:"claim"`
	Holds bool   `json:"holds"`
}

// claim notes and shows whether something is true.
func (s *demoStep) claim(holds bool, format string, args ...any) {
	c := demoClaim{Claim: fmt.Sprintf(format, args...), Holds: holds}
	s.Claims = append(s.Claims, c)
	s.Passed = s.Passed && holds
	s.view.claim(c)
}

// demoScenes are the steps, in their order.
func demoScenes() []demoScene {
	return []demoScene{
		{"streams", "Three tenants stream at once", (*demo).streams},
		{"cancel", "A turn is cancelled in the middle of its text", (*demo).cancel},
		{"quota", "A tenant asks for more than its quota", (*demo).quota},
		{"hot", "The second turn of a conversation that is hot", (*demo).hot},
		{"takeover", "A worker is killed in the middle of a turn", (*demo).takeover},
		{"accounts", "What is left", (*demo).accounts},
	}
}

type demoScene struct {
	name, title string
	play        func(*demo, *demoStep) error
}

// Run is called by the command-line parser.
func (c *demoCommand) Run(env *environment) (err error) {
	out := env.stdout
	if c.JSON {
		out = io.Discard
	}
	ctx, cancel := context.WithTimeout(env.ctx, demoLimit)
	defer cancel()
	began := time.Now()
	d := &demo{env: env, ctx: ctx, view: newDemoView(out)}
	d.doc = demoDocument{SchemaVersion: 1, Model: models.StoryName}
	d.mesh, err = newDemoMesh(ctx, env)
	env.status.silence() // from here on the view is the only one that writes
	if err == nil {
		err = d.play()
	}
	if d.mesh != nil {
		err = errors.Join(err, d.mesh.close())
	}
	if env.ctx.Err() != nil {
		d.view.close()
		return errCancelled
	}
	d.doc.Passed = err == nil
	d.doc.Seconds = time.Since(began).Seconds()
	if c.JSON {
		return errors.Join(err, json.NewEncoder(env.stdout).Encode(d.doc))
	}
	if err == nil {
		d.view.line("\n%s", styled(out, styleGreen, d.summary()))
	}
	return errors.Join(err, d.view.err)
}

func (d *demo) summary() string {
	claims := 0
	for _, s := range d.doc.Steps {
		claims += len(s.Claims)
	}
	return fmt.Sprintf("All %d claims hold: %d turns said no other word than one model alone, and each ended once, through a cancel, a full queue\n"+
		"and a crash; %.0f s.", claims, len(d.told), d.doc.Seconds)
}

// play runs the steps up to the first that fails.
func (d *demo) play() error {
	d.view.line("%d workers and a NATS server in this process, model %s, slowed to %s a token so that it can be watched",
		len(d.mesh.nodes), models.StoryName, demoPace)
	for i, scene := range demoScenes() {
		d.view.heading(i+1, scene.title)
		step := &demoStep{Name: scene.name, Passed: true, view: d.view}
		d.doc.Steps = append(d.doc.Steps, step)
		err := scene.play(d, step)
		d.view.close()
		if err != nil {
			step.Passed = false
			return fmt.Errorf("the demo failed at %q: %w", scene.name, err)
		}
		if !step.Passed {
			return fmt.Errorf("the demo failed at %q: a claim does not hold; --verbose shows what the nodes did", scene.name)
		}
	}
	return nil
}
