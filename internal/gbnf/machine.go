package gbnf

import (
	"encoding/binary"
	"slices"
)

// machine follows a grammar over characters. A state is a set of stacks, each a way of reading the text so far: the steps that
// are to be taken, innermost first. Stacks share their tails. States are numbered as they are met, and what a character does to
// them is remembered: most texts come back to few states.
type machine struct {
	g      *Grammar
	cells  []cell
	ids    map[cell]int32
	states [][]int32 // of each state its stacks, sorted; 0 is the stack without steps: the text may end
	known  map[string]int32
	next   map[transition]int32
	held   int // stacks in all states
	work   int // stacks that were looked at since begin

	todo []int32 // reused by every step
	seen map[int32]bool
}

// transition is a character of a class behind a state.
type transition struct{ state, class int32 }

// cell is the top of a stack: a step, and the stack below it.
type cell struct{ pos, below int32 }

// dead is the state in which no way is left.
const dead = -1

// maxHeld bounds what a machine remembers of each kind, before it starts afresh from where it is.
const maxHeld = 1 << 20

// newMachine is at the beginning of a text, in state 0.
func newMachine(g *Grammar) (*machine, error) {
	m := &machine{g: g, seen: map[int32]bool{}}
	m.forget()
	m.todo = m.todo[:0]
	for _, begin := range g.rules[0] {
		m.todo = append(m.todo, m.push(begin, 0))
	}
	state, err := m.settle()
	if err == nil && state == dead {
		err = &SyntaxError{Line: 1, Column: 1, Reason: "the grammar takes no text at all: its rules lead to no character and no end"}
	}
	return m, err
}

// forget empties the memory.
func (m *machine) forget() {
	m.cells, m.ids = []cell{{}}, map[cell]int32{}
	m.states, m.next, m.known, m.held = nil, map[transition]int32{}, map[string]int32{}, 0
}

// push is a stack with one more step on top, unless there is nothing to do in it.
func (m *machine) push(pos, below int32) int32 {
	if m.g.ops[pos].kind == opEnd {
		return below
	}
	c := cell{pos, below}
	id, ok := m.ids[c]
	if !ok {
		id = int32(len(m.cells))
		m.cells = append(m.cells, c)
		m.ids[c] = id
	}
	return id
}

// begin starts a piece of work of bounded time.
func (m *machine) begin() { m.work = 0 }

// look notes how much is looked at, and ends what takes too long.
func (m *machine) look(stacks int) error {
	if m.work += stacks; m.work > maxWork {
		return &AmbiguousError{}
	}
	return nil
}

// settle follows calls from the stacks in todo to where each takes a character or is over, and returns that state.
func (m *machine) settle() (int32, error) {
	clear(m.seen)
	var stacks []int32
	for len(m.todo) > 0 {
		id := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		if err := m.look(1); err != nil {
			return dead, err
		}
		if m.seen[id] {
			continue
		}
		if m.seen[id] = true; len(m.seen) > maxStacks {
			return dead, &AmbiguousError{}
		}
		c := m.cells[id]
		if id == 0 || m.g.ops[c.pos].kind == opSet {
			stacks = append(stacks, id)
			continue
		}
		below := m.push(c.pos+1, c.below)
		for _, begin := range m.g.rules[m.g.ops[c.pos].arg] {
			m.todo = append(m.todo, m.push(begin, below))
		}
	}
	if len(stacks) == 0 {
		return dead, nil
	}
	slices.Sort(stacks)
	return m.state(stacks), nil
}

func (m *machine) state(stacks []int32) int32 {
	key := make([]byte, 0, 4*len(stacks))
	for _, id := range stacks {
		key = binary.LittleEndian.AppendUint32(key, uint32(id))
	}
	if id, ok := m.known[string(key)]; ok {
		return id
	}
	id := int32(len(m.states))
	m.known[string(key)] = id
	m.states = append(m.states, stacks)
	m.held += len(stacks)
	return id
}

// step is the state behind a character of a class.
func (m *machine) step(state, class int32) (int32, error) {
	at := transition{state, class}
	if to, ok := m.next[at]; ok {
		return to, nil
	}
	if err := m.look(len(m.states[state])); err != nil {
		return dead, err
	}
	m.todo = m.todo[:0]
	for _, id := range m.states[state] {
		if id != 0 && m.takes(id, class) {
			c := m.cells[id]
			m.todo = append(m.todo, m.push(c.pos+1, c.below))
		}
	}
	to, err := m.settle()
	if err == nil {
		m.next[at] = to
	}
	return to, err
}

// takes says whether the step on top of a stack takes characters of a class.
func (m *machine) takes(stack, class int32) bool {
	return takes(m.g.sets[m.g.ops[m.cells[stack].pos].arg], class)
}

// mayTake says whether some character from low to high can follow.
func (m *machine) mayTake(state int32, low, high rune) (bool, error) {
	for class := m.g.alphabet.class(low); class <= m.g.alphabet.class(high); class++ {
		if err := m.look(len(m.states[state])); err != nil {
			return false, err
		}
		for _, id := range m.states[state] {
			if id != 0 && m.takes(id, class) {
				return true, nil
			}
		}
	}
	return false, nil
}

// mayEnd says whether the text may be over.
func (m *machine) mayEnd(state int32) bool { return m.states[state][0] == 0 }

// trim forgets all but a state, where there is too much to remember, and returns its new number.
func (m *machine) trim(state int32) int32 {
	if len(m.cells) < maxHeld && len(m.next) < maxHeld && m.held < maxHeld {
		return state
	}
	cells, kept := m.cells, m.states[state]
	m.forget()
	stacks := make([]int32, len(kept))
	for i, id := range kept {
		var steps []int32
		for ; id != 0; id = cells[id].below {
			steps = append(steps, cells[id].pos)
		}
		for _, pos := range slices.Backward(steps) {
			stacks[i] = m.push(pos, stacks[i])
		}
	}
	slices.Sort(stacks)
	return m.state(stacks)
}
