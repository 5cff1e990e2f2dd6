package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// WriteTable writes a report for people: throughput, latencies, then what went wrong.
func WriteTable(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, answers of %s tokens, %s\n", r.Model, r.Prompts, r.Options.Output, r.roundsText())
	b.WriteString("\n")
	writeGrid(&b, 2, r.throughputRows())
	b.WriteString("\n")
	writeGrid(&b, 3, r.latencyRows())
	for _, note := range r.Notes() {
		fmt.Fprintf(&b, "\n%s", note)
	}
	if len(r.Notes()) > 0 {
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) roundsText() string {
	if r.Options.Rounds == 1 {
		return "one round"
	}
	return fmt.Sprintf("medians of %d rounds", r.Options.Rounds)
}

// compares says whether there is a peer.
func (r *Report) compares() bool { return len(r.Systems) == 2 }

func (r *Report) throughputRows() [][]string {
	head := []string{"", "", "completed", "failed"}
	for _, t := range throughputs {
		if r.hasSLO() || t.title != goodputTitle {
			head = append(head, t.title)
		}
	}
	rows := [][]string{head}
	for i := range r.Phases {
		p := &r.Phases[i]
		name := p.Name
		for _, s := range p.Systems {
			row := []string{name, s.System, fmt.Sprint(s.Median.Completed), fmt.Sprint(s.Median.Failed)}
			name = ""
			for _, t := range throughputs {
				if v, ok := t.of(&s.Median); ok {
					row = append(row, number(v))
				}
			}
			rows = append(rows, row)
		}
		if r.compares() {
			row := []string{"", "ratio", "", ""}
			for _, t := range throughputs {
				if r.hasSLO() || t.title != goodputTitle {
					row = append(row, ratioText(p.Ratios, t.key))
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *Report) hasSLO() bool { return r.Options.SLO != (SLO{}) }

func (r *Report) latencyRows() [][]string {
	head := []string{"", "ms", ""}
	for _, n := range summaryNumbers {
		head = append(head, n.name)
	}
	rows := [][]string{head}
	for i := range r.Phases {
		p := &r.Phases[i]
		name := p.Name
		for _, l := range latencies {
			metric := l.name
			for _, s := range p.Systems {
				row := []string{name, metric, s.System}
				name, metric = "", ""
				summary := l.of(&s.Median)
				for _, n := range summaryNumbers {
					row = append(row, summaryText(summary, *n.of(summary)))
				}
				rows = append(rows, row)
			}
			if r.compares() {
				row := []string{"", "", "ratio"}
				for _, n := range summaryNumbers {
					row = append(row, ratioText(p.Ratios, ratioKey(l.name, n.name)))
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

func summaryText(s *Summary, value float64) string {
	if s.Count == 0 {
		return "-"
	}
	return number(value)
}

func ratioText(ratios map[string]float64, key string) string {
	ratio, ok := ratios[key]
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2fx", ratio)
}

// number has three digits or so: as many as a measurement deserves.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// Notes are what has to be known beside the numbers, a sentence each.
func (r *Report) Notes() []string {
	var notes []string
	if r.compares() {
		notes = append(notes, fmt.Sprintf("Ratios are %s : %s. Above 1 is better for a rate, below 1 for a time.", r.Systems[0], r.Systems[1]))
	}
	if r.Interrupted {
		notes = append(notes, "The run was interrupted: this is what was measured until then.")
	}
	same, compared := 0, 0
	for i := range r.Phases {
		same += r.Phases[i].SameTexts
		compared += r.Phases[i].ComparedTexts
	}
	if compared > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d answers have the same text on both sides.", same, compared))
	}
	for i := range r.Phases {
		for j := range r.Phases[i].Systems {
			notes = append(notes, r.Phases[i].Systems[j].notes(r.Phases[i].Name)...)
		}
	}
	return notes
}

func (s *SystemReport) notes(phase string) []string {
	var notes []string
	for _, reason := range slices.Sorted(maps.Keys(s.Median.Failures)) {
		notes = append(notes, fmt.Sprintf("%s, %s: %d failed %s: %s", phase, s.System, s.Median.Failures[reason], reason, s.Examples[reason]))
	}
	if n := s.Median.Cut; n > 0 {
		notes = append(notes, fmt.Sprintf("%s, %s: %d were in flight when the run was interrupted, and were cancelled.", phase, s.System, n))
	}
	if n := s.Median.Short; n > 0 {
		notes = append(notes, fmt.Sprintf("%s, %s: %d answers are shorter than asked for.", phase, s.System, n))
	}
	if n := s.Median.Estimated; n > 0 {
		notes = append(notes, fmt.Sprintf("%s, %s: %d answers came without a count of tokens; pieces of text are counted.", phase, s.System, n))
	}
	return notes
}

// writeGrid aligns columns: so many at the left to the left, the others to the right.
func writeGrid(b *strings.Builder, left int, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < left {
				line.WriteString(cell + pad + "  ")
			} else {
				line.WriteString(" " + pad + cell + " ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
