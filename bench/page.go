package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pageData is what the template shows.
type pageData struct {
	*Report
	Facts      []string
	Tiles      []tile
	Throughput []figure
	Latencies  [][]figure
	Timelines  []figure
	RateTable  pageTable
	TimeTable  pageTable
	PageNotes  []string
	Settings   [][2]string
}

// tile is a number that is seen first.
type tile struct{ Name, Value, Unit, More string }

// pageTable is a table whose first columns are words.
type pageTable struct {
	Head []string
	Rows []pageRow
	Left int
}

type pageRow struct {
	Class string
	Cells []string
}

// SVG draws the chart of a figure.
func (f figure) SVG() template.HTML { return f.Chart.svg() }

// IsWord says whether a column holds words.
func (t pageTable) IsWord(column int) bool { return column < t.Left }

// WritePage writes a report as one HTML page that refers to nothing outside of it.
func WritePage(w io.Writer, r *Report) error {
	data := pageData{
		Report: r, Facts: r.facts(), Tiles: r.tiles(), Throughput: r.throughputFigures(), Latencies: r.latencyFigures(), Timelines: r.timelines(),
		RateTable: tableOf(r.throughputRows(), 2), TimeTable: tableOf(r.latencyRows(), 3), PageNotes: r.Notes(), Settings: r.settings(),
	}
	return page.Execute(w, data)
}

func tableOf(rows [][]string, left int) pageTable {
	t := pageTable{Head: rows[0], Left: left}
	for _, cells := range rows[1:] {
		row := pageRow{Cells: cells}
		switch {
		case cells[left-1] == "ratio":
			row.Class = "ratio"
		case cells[0] != "":
			row.Class = "first"
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (r *Report) facts() []string {
	facts := []string{r.Began.Format("2 January 2006, 15:04 UTC"), "prompts of " + r.Prompts, "answers of " + r.Options.Output.String() + " tokens", r.roundsText()}
	if r.compares() {
		facts = append(facts, r.Systems[0]+" and "+r.Systems[1]+" in turns")
	}
	if r.Interrupted {
		facts = append(facts, "interrupted")
	}
	return facts
}

// tiles are of the phase with the highest load that was run.
func (r *Report) tiles() []tile {
	var top *PhaseReport
	for i := range r.Phases {
		if p := &r.Phases[i]; len(p.Systems[0].Rounds) > 0 && (top == nil || p.load() >= top.load()) {
			top = p
		}
	}
	if top == nil {
		return nil
	}
	m := &top.Systems[0].Median
	against := func(key string) string {
		if ratio, ok := top.Ratios[key]; ok {
			return fmt.Sprintf("%.2fx of %s, %s", ratio, r.Systems[1], top.Name)
		}
		return top.Name
	}
	failed := "none failed"
	if m.Failed > 0 {
		failed = fmt.Sprintf("%d failed", m.Failed)
	}
	return []tile{
		{"Output", number(m.OutputTokensPerSecond), "tok/s", against("output_tokens_per_second")},
		{"Median TTFT", summaryText(&m.TTFT, m.TTFT.Median), "ms", against(ratioKey("TTFT", "median"))},
		{"99th percentile ITL", summaryText(&m.ITL, m.ITL.P99), "ms", against(ratioKey("ITL", "p99"))},
		{"Completed", fmt.Sprint(m.Completed), "requests", failed + ", " + top.Name},
	}
}

func (r *Report) settings() [][2]string {
	o := &r.Options
	ends := "answers may end before their length"
	if o.IgnoreEOS {
		ends = "no answer ends before its length"
	}
	settings := [][2]string{
		{"Systems", strings.Join(r.Systems, ", ")}, {"Seed", fmt.Sprint(o.Seed)}, {"Temperature", fmt.Sprint(o.Temperature)}, {"End of text", ends},
		{"Warm-up", fmt.Sprintf("%d requests", o.Warmup)}, {"Rounds", fmt.Sprint(o.Rounds)},
		{"Given up", fmt.Sprintf("after %s, or after %s without text", o.Timeout, o.Stall)},
	}
	if r.hasSLO() {
		settings = append(settings, [2]string{"SLO", o.SLO.String()})
	}
	return settings
}
