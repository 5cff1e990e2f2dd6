package sim

import "time"

// agenda is the virtual clock and what is to happen, in order of time; of the same time, in the order in which it was planned.
type agenda struct {
	now    time.Duration // since the beginning
	events []event       // a heap
	count  uint64
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	return e.seq < o.seq
}

// after plans something for later.
func (a *agenda) after(d time.Duration, do func()) { a.at(a.now+d, do) }

// at plans something for a time; for one that has passed it is now.
func (a *agenda) at(at time.Duration, do func()) {
	a.count++
	a.events = append(a.events, event{max(at, a.now), a.count, do})
	for i := len(a.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !a.events[i].before(&a.events[parent]) {
			break
		}
		a.events[i], a.events[parent] = a.events[parent], a.events[i]
		i = parent
	}
}

// next lets the next event happen; false where there is none.
func (a *agenda) next() bool {
	if len(a.events) == 0 {
		return false
	}
	first, last := a.events[0], len(a.events)-1
	a.events[0] = a.events[last]
	a.events[last] = event{}
	a.events = a.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if a.events[child].before(&a.events[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		a.events[i], a.events[least] = a.events[least], a.events[i]
		i = least
	}
	a.now = first.at
	first.do()
	return true
}

// queue is first in, first out.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

// pop takes the first one; there is one.
func (q *queue[T]) pop() T {
	var none T
	item := q.items[q.head]
	q.items[q.head] = none
	q.head++
	if q.head > 64 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return item
}
