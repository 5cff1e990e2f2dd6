package gbnf

import "testing"

func TestAMachineThatForgetsGoesOnFromWhereItWas(t *testing.T) {
	g, err := Compile("root ::= \"(\" (root | \"[\" root \"]\")* \")\"")
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(g)
	if err != nil {
		t.Fatal(err)
	}
	state := int32(0)
	for i, c := range "(([()]()[(([()]))]))" {
		m.held = maxHeld
		state = m.trim(state)
		if len(m.states) != 1 {
			t.Fatalf("character %d: %d states are remembered, want 1", i, len(m.states))
		}
		m.begin()
		if state, err = m.step(state, g.alphabet.class(c)); err != nil || state == dead {
			t.Fatalf("character %d: state %d, %v", i, state, err)
		}
	}
	if !m.mayEnd(state) {
		t.Error("the text may not end")
	}
}
