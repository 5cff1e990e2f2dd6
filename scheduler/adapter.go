package scheduler

import (
	"fmt"
	"slices"
	"strings"
)

// Adapter is a LoRA adapter that an engine has loaded beside its model. The zero value is the model without one.
type Adapter struct {
	Name   string
	Recipe string // what the KV depends on beside the model: of equal adapters it is equal, whatever their names
}

// Mark makes a fingerprint of the model one of the model with the adapter.
func (a Adapter) Mark(fingerprint string) string {
	if a == (Adapter{}) {
		return fingerprint
	}
	return fingerprint + "+" + a.Recipe
}

// Adapter is the adapter of a name; "" is the model without one. The error is a *FieldError that says what there is.
func (f Facts) Adapter(name string) (Adapter, error) {
	if name == "" {
		return Adapter{}, nil
	}
	var names []string
	for _, a := range f.Adapters {
		if a.Name == name {
			return a, nil
		}
		names = append(names, a.Name)
	}
	limit := "absent: no adapter is loaded"
	if len(names) > 0 {
		limit = "absent or one of those loaded: " + strings.Join(names, ", ")
	}
	return Adapter{}, fieldError("adapter", fmt.Sprintf("%.*q", MaxNameBytes, name), "%s", limit)
}

// checkAdapters says what is wrong with an engine's list.
func checkAdapters(adapters []Adapter) error {
	for i, a := range adapters {
		named := func(b Adapter) bool { return b.Name == a.Name }
		if a.Name == "" || a.Recipe == "" || slices.ContainsFunc(adapters[:i], named) {
			return fieldError("adapters", fmt.Sprintf("%q with recipe %q", a.Name, a.Recipe), "named and with a recipe, each name once")
		}
	}
	return nil
}

// Recipes are the restore fingerprints of what an engine saves: without an adapter, then with each of Facts().Adapters.
func Recipes(engine Engine) []string {
	restore := engine.Fingerprints().Restore
	recipes := []string{restore}
	for _, a := range engine.Facts().Adapters {
		recipes = append(recipes, a.Mark(restore))
	}
	return recipes
}

// groups calls with the members of a batch that are of one adapter, for each adapter there is among them. The first is that
// of the engine's last call, so that the engine changes as seldom as it can; from there on it goes round, so that over
// several ticks no adapter is always the last.
func (s *Scheduler) groups(batch []*turn, call func(group []*turn)) {
	kinds := len(s.facts.Adapters) + 1
	first := s.lastAdapter
	for i := range kinds {
		adapter := (first + i) % kinds
		s.group = s.group[:0]
		for _, t := range batch {
			if t.adapter == adapter && t.phase == phaseDecode && !t.marked() { // it may have been given up on during a call
				s.group = append(s.group, t)
			}
		}
		if len(s.group) > 0 {
			call(s.group)
		}
	}
}

// turnTo notes the adapter of the engine's next call, and says whether it is another than that of the last: the call then
// takes longer than its rows do.
func (s *Scheduler) turnTo(adapter int) (changed bool) {
	changed = adapter != s.lastAdapter
	s.lastAdapter = adapter
	return changed
}

// adapterIndex numbers the adapters from 1 on; 0 is none.
func (s *Scheduler) adapterIndex(name string) int {
	return 1 + slices.IndexFunc(s.facts.Adapters, func(a Adapter) bool { return a.Name == name })
}

// recipe is the restore fingerprint of a turn's KV.
func (s *Scheduler) recipe(t *turn) string { return s.recipes[t.adapter] }

// bind has what is evaluated in the turn's slot evaluated with its adapter. Called without the lock.
func (s *Scheduler) bind(t *turn) { s.engine.Bind(t.slot, t.req.Adapter) }
