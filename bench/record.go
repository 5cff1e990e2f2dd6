package bench

import (
	"hash/fnv"
	"time"
)

// Record is one request as it was measured. Times are since it was sent, or was to be sent in an open loop.
type Record struct {
	Number int
	Sent   time.Duration   // since the run began
	First  time.Duration   // the first text
	Last   time.Duration   // the last text
	End    time.Duration   // the answer was known to be complete; or it failed
	Gaps   []time.Duration // between each text and the one before

	MaxTokens int
	Answer    Answer // without its text
	textHash  uint64
	Failure   *Failure // nil: it completed
}

// TPOT is the mean time of an output token after the first; 0 where there is one only.
func (r *Record) TPOT() time.Duration {
	if r.Answer.OutputTokens < 2 {
		return 0
	}
	return (r.Last - r.First) / time.Duration(r.Answer.OutputTokens-1)
}

// Listener takes the times of one request. Its methods are called by the goroutine that reads the answer.
type Listener struct {
	began  time.Time
	record *Record
	heard  func() // is told of each text
	ended  bool
}

// Text says that text has come. One without a character is none: nobody would see it.
func (l *Listener) Text(text string) {
	if text == "" {
		return
	}
	at := time.Since(l.began)
	r := l.record
	if r.First == 0 {
		r.First = at
	} else {
		r.Gaps = append(r.Gaps, at-r.Last)
	}
	r.Last = at
	l.heard()
}

// End says that the answer is known to be complete. What its system does after that is not timed.
func (l *Listener) End() {
	if !l.ended {
		l.ended = true
		l.record.End = time.Since(l.began)
	}
}

// finish completes the record by how Generate ended.
func (l *Listener) finish(answer Answer, failure *Failure) {
	r := l.record
	l.End()
	if failure == nil && r.First == 0 {
		failure = &Failure{reasonNoText, "the answer has no character"}
	}
	hash := fnv.New64a()
	hash.Write([]byte(answer.Text)) // it never fails
	r.textHash = hash.Sum64()
	answer.Text = ""
	r.Answer, r.Failure = answer, failure
}
