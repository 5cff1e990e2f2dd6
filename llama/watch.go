package llama

import "time"

// advice is what the watch on step times says about the thread count.
type advice int

const (
	adviceStay advice = iota
	adviceFallBack
	adviceRecover
)

// How the watch judges. Contention makes spinning threads 10 to 100 times slower, growth of contexts at most a few times.
const (
	watchSlowFactor = 5  // a step this many times slower than usual is slow
	watchSlowSteps  = 6  // so many slow ones in a row are contention
	watchLearnSteps = 16 // steps before anything is judged
	watchFirstRest  = 30 * time.Second
	watchLongRest   = 10 * time.Minute
)

// threadWatch notices when decode steps become much slower than they were, as happens when another busy process
// takes a processor from ggml's spinning threads. The driving goroutine owns it.
type threadWatch struct {
	usual   float64 // seconds a step usually takes, for its rows; a slow average
	seen    int
	slow    int           // slow steps in a row
	rest    time.Duration // the next fall-back lasts so long; doubles while they follow each other
	until   time.Time     // fallen back until then
	resumed time.Time
}

// expect tells the watch how long a step of so many rows took when nothing disturbed it. Without it the first steps are
// taken for undisturbed ones.
func (w *threadWatch) expect(rows int, took time.Duration) {
	w.usual, w.seen = took.Seconds()/weight(rows), watchLearnSteps
}

// step takes in one decode step and says what to do.
func (w *threadWatch) step(at time.Time, rows int, took time.Duration) advice {
	if !w.until.IsZero() {
		if at.Before(w.until) {
			return adviceStay
		}
		w.until, w.resumed = time.Time{}, at
		w.slow = 0
		return adviceRecover
	}
	seconds := took.Seconds() / weight(rows)
	if w.seen >= watchLearnSteps && seconds > watchSlowFactor*w.usual {
		if w.slow++; w.slow >= watchSlowSteps {
			w.fallBack(at)
			return adviceFallBack
		}
		return adviceStay
	}
	w.slow = 0
	w.learn(seconds)
	return adviceStay
}

func (w *threadWatch) fallBack(at time.Time) {
	if w.rest == 0 || at.Sub(w.resumed) > watchLongRest {
		w.rest = watchFirstRest
	} else {
		w.rest = min(2*w.rest, watchLongRest)
	}
	w.until = at.Add(w.rest)
}

// learn moves the usual time slowly, and at once where it has little to go by.
func (w *threadWatch) learn(seconds float64) {
	w.seen++
	share := max(1/float64(w.seen), 1.0/64)
	w.usual += (seconds - w.usual) * share
}

// weight is roughly how much longer a step of so many rows takes than a step of one.
func weight(rows int) float64 {
	return 1 + 0.3*float64(rows-1)
}
