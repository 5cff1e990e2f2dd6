package ledger_test

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// exploration is what a breadth-first walk through every reachable world found.
type exploration struct {
	states int
	bad    string   // the first violation, or the first world from which no way leads to an end
	trace  []string // the steps that lead there
	full   bool     // false where the limit on states was met first
}

// node is a visited world: how it was reached, and where its fault-free steps lead.
type node struct {
	parent int32
	via    step
	edges  [2]int32 // its part of the explorer's edges
	over   bool
}

type explorer struct {
	model   model
	seed    maphash.Seed
	index   map[uint64]int32
	nodes   []node
	edges   []int32
	current int32
	next    []world
	nextIDs []int32
	bad     string
	badNode int32
}

// explore walks through every world reachable from start, shortest histories first, and then checks
// that from each of them a way without any further fault leads to an end.
func explore(r rules, start world, limit int) exploration {
	e := &explorer{seed: maphash.MakeSeed(), index: make(map[uint64]int32), badNode: -1}
	e.model = model{rules: r, emit: e.visit}
	e.add(start, -1, step{name: "start"})
	for len(e.next) > 0 && e.bad == "" {
		layer, ids := e.next, e.nextIDs
		e.next, e.nextIDs = nil, nil
		for i, w := range layer {
			if e.bad != "" {
				break
			}
			if len(e.nodes) > limit {
				return exploration{states: len(e.nodes)}
			}
			e.current = ids[i]
			from := int32(len(e.edges))
			e.model.next(w)
			e.nodes[e.current].edges = [2]int32{from, int32(len(e.edges))}
		}
	}
	if e.bad == "" {
		e.checkEnds()
	}
	return exploration{states: len(e.nodes), bad: e.bad, trace: e.trace(), full: true}
}

func (e *explorer) add(w world, parent int32, via step) int32 {
	key := maphash.Comparable(e.seed, w)
	if id, known := e.index[key]; known {
		return id
	}
	id := int32(len(e.nodes))
	e.index[key] = id
	e.nodes = append(e.nodes, node{parent: parent, via: via, over: w.settled()})
	e.next = append(e.next, w)
	e.nextIDs = append(e.nextIDs, id)
	return id
}

func (e *explorer) visit(st step, w world, bad string) {
	if e.bad != "" {
		return
	}
	id := e.add(w, e.current, st)
	if bad != "" {
		// The world may be known by a harmless way: the trace must show this one.
		e.nodes = append(e.nodes, node{parent: e.current, via: st})
		e.bad, e.badNode = bad, int32(len(e.nodes)-1)
		return
	}
	if !st.fault && id != e.current {
		e.edges = append(e.edges, id)
	}
}

// checkEnds walks back from the worlds in which all is over; what is not met is stuck.
func (e *explorer) checkEnds() {
	starts := make([]int32, len(e.nodes)+1)
	for _, to := range e.edges {
		starts[to+1]++
	}
	for i := range len(e.nodes) {
		starts[i+1] += starts[i]
	}
	back := make([]int32, len(e.edges))
	fill := append([]int32(nil), starts...)
	var todo []int32
	ends := make([]bool, len(e.nodes))
	for id, n := range e.nodes {
		for _, to := range e.edges[n.edges[0]:n.edges[1]] {
			back[fill[to]] = int32(id)
			fill[to]++
		}
		if n.over {
			ends[id] = true
			todo = append(todo, int32(id))
		}
	}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range back[starts[id]:starts[id+1]] {
			if !ends[from] {
				ends[from] = true
				todo = append(todo, from)
			}
		}
	}
	for id, ok := range ends {
		if !ok {
			e.bad, e.badNode = "stuck: no way without a further fault leads to an end", int32(id)
			return
		}
	}
}

// successors returns what may follow a world under the real rules, and what each of it violates.
func successors(w world) (worlds []world, steps []step, bad []string) {
	m := model{rules: realRules(), emit: func(st step, next world, violation string) {
		worlds, steps, bad = append(worlds, next), append(steps, st), append(bad, violation)
	}}
	m.next(w)
	return worlds, steps, bad
}

// findEnd looks, depth first, for a way without a fault that leads from a world to an end.
func findEnd(start world) string {
	seen := map[world]bool{start: true}
	for todo := []world{start}; len(todo) > 0 && len(seen) < 100_000; {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if w.settled() {
			return ""
		}
		worlds, steps, bad := successors(w)
		for i, next := range worlds {
			if bad[i] != "" {
				return bad[i]
			}
			if !steps[i].fault && !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	return "no way to an end was found"
}

func (e *explorer) trace() []string {
	var steps []string
	for id := e.badNode; id >= 0; id = e.nodes[id].parent {
		steps = append([]string{e.nodes[id].via.String()}, steps...)
	}
	return steps
}

func (s step) String() string {
	if s.who == 0 {
		return s.name
	}
	return fmt.Sprintf("%s (%d)", s.name, s.who)
}

func (x exploration) String() string {
	return fmt.Sprintf("%s, after:\n  %s", x.bad, strings.Join(x.trace, "\n  "))
}
