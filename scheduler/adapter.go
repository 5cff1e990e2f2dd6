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

// groups calls with the members of a batch that are of one adapter, for each adapter there is among them.
func (s *Scheduler) groups(batch []*turn, call func(group []*turn)) {
	for _, adapter := range s.adapterOrder() {
		if group := s.groupOf(batch, adapter); len(group) > 0 {
			call(group)
		}
	}
}

// groupOf are the decoders in a batch that are of one adapter. The slice is valid until the next call.
func (s *Scheduler) groupOf(batch []*turn, adapter int) []*turn {
	s.group = s.group[:0]
	for _, t := range batch {
		if t.adapter == adapter && t.phase == phaseDecode && !t.marked() { // it may have been given up on during a call
			s.group = append(s.group, t)
		}
	}
	return s.group
}

// adapterOrder is the order in which a tick decodes the adapters. The first is that of the engine's last call; from there on it goes
// round, so that over several ticks no adapter is always the last; but those of which a prompt is to be prefilled come last, as
// the tick goes on with one. So the engine changes to none of them twice in a tick in which one session is prefilled. The slice is valid
// until the next call.
func (s *Scheduler) adapterOrder() []int {
	kinds := len(s.facts.Adapters) + 1
	s.kinds = append(s.kinds[:0], s.lastAdapter)
	for _, prefills := range []bool{false, true} {
		for i := 1; i < kinds; i++ {
			if adapter := (s.lastAdapter + i) % kinds; s.prefills(adapter) == prefills {
				s.kinds = append(s.kinds, adapter)
			}
		}
	}
	return s.kinds
}

// prefills says whether a prompt of an adapter is being prefilled.
func (s *Scheduler) prefills(adapter int) bool {
	for _, t := range s.active {
		if t.adapter == adapter && t.phase == phasePrefill && !t.marked() {
			return true
		}
	}
	return false
}

// slotFor is the free slot that a turn best takes; −1 if there is none. A call covers all slots from the first to the last of its
// adapter, with padding in those between. So a turn goes where the range of its adapter grows least, and of such slots, and where it is its
// adapter's first, to the one farthest from those of other adapters, which leaves both room to grow.
func (s *Scheduler) slotFor(t *turn) int {
	if len(s.facts.Adapters) == 0 {
		return s.lowestFree()
	}
	best, leastGrowth, mostRoom := -1, 0, 0
	for i := range s.slots {
		if s.slots[i].state != slotFree {
			continue
		}
		if growth, room := s.placing(t.adapter, i); best < 0 || growth < leastGrowth || growth == leastGrowth && room > mostRoom {
			best, leastGrowth, mostRoom = i, growth, room
		}
	}
	return best
}

// placing is by how many slots the range of an adapter's active sessions grows with one at a slot, and how far that is from the
// nearest of another adapter.
func (s *Scheduler) placing(adapter, at int) (growth, room int) {
	room = len(s.slots)
	low, high := at, at
	first, last := -1, -1
	for i := range s.slots {
		switch t := s.slots[i].turn; {
		case t == nil:
		case t.adapter != adapter:
			room = min(room, max(i-at, at-i))
		default:
			if first < 0 {
				first = i
			}
			last = i
			low, high = min(low, i), max(high, i)
		}
	}
	if first < 0 {
		return 0, room
	}
	return high - low - (last - first), room
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
