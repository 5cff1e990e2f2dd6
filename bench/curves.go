package bench

import (
	"fmt"
	"slices"
	"time"
)

// Sizes of the charts. They are shown at about this many pixels, so that their letters have one size everywhere.
const (
	smallWidth, smallHeight = 352, 220
	wideWidth, wideHeight   = 1080, 210
	quantileSteps           = 200
	timelineSteps           = 540
)

// distribution is a latency that has a chart.
type distribution struct {
	name string
	of   func(*samples) []float64
}

var distributions = []distribution{
	{"TTFT", func(s *samples) []float64 { return s.ttft }},
	{"ITL", func(s *samples) []float64 { return s.itl }},
	{"E2EL", func(s *samples) []float64 { return s.e2el }},
}

// figure is a chart with its legend.
type figure struct {
	Title  string
	Chart  chart
	Legend []legendEntry
}

type legendEntry struct{ Class, Name string }

func (f *figure) add(l line) {
	f.Chart.lines = append(f.Chart.lines, l)
	f.Legend = append(f.Legend, legendEntry{l.class, l.name})
}

func systemClass(system int) string { return fmt.Sprintf("system%d", system) }

// phaseClass is the colour of a phase: the least load is the faintest.
func phaseClass(index, phases int) string {
	const colours = 6
	if phases == 1 {
		return fmt.Sprintf("phase%d", colours-2)
	}
	return fmt.Sprintf("phase%d", index*(colours-1)/(phases-1))
}

// pooled are the times of all rounds, sorted.
func pooled(s *SystemReport) *samples {
	var all samples
	all.add(s.records)
	slices.Sort(all.ttft)
	slices.Sort(all.itl)
	slices.Sort(all.e2el)
	return &all
}

// cumulative is the curve of a distribution: which part of the sorted values is at or below x.
func cumulative(sorted []float64) []point {
	if len(sorted) == 0 {
		return nil
	}
	points := make([]point, quantileSteps+1)
	for i := range points {
		part := float64(i) / quantileSteps
		points[i] = point{Percentile(sorted, 100*part), part}
	}
	return points
}

// latencyFigures are rows of charts, one for each distribution. Without a peer there is one row, with a line for each
// phase; with a peer there is a row for each phase, with a line for each system.
func (r *Report) latencyFigures() [][]figure {
	sorted := make([][]*samples, len(r.Phases))
	for i := range r.Phases {
		for j := range r.Phases[i].Systems {
			sorted[i] = append(sorted[i], pooled(&r.Phases[i].Systems[j]))
		}
	}
	rows := 1
	if r.compares() {
		rows = len(r.Phases)
	}
	figures := make([][]figure, rows)
	for _, d := range distributions {
		x := d.axis(sorted)
		for row := range figures {
			f := figure{Title: d.name, Chart: chart{
				width: smallWidth, height: smallHeight, x: x, y: axis{max: 1, ticks: []float64{0, .25, .5, .75, 1}}, xUnit: " ms",
				label: "Cumulative distribution of " + d.name,
				yText: func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) },
			}}
			if r.compares() {
				f.Title += ", " + r.Phases[row].Name
				for system, name := range r.Systems {
					f.add(line{name: name, class: systemClass(system), points: cumulative(d.of(sorted[row][system]))})
				}
			} else {
				for i := range r.Phases {
					f.add(line{name: r.Phases[i].Name, class: phaseClass(i, len(r.Phases)), points: cumulative(d.of(sorted[i][0]))})
				}
			}
			figures[row] = append(figures[row], f)
		}
	}
	return figures
}

// axis covers a distribution in all phases of all systems.
func (d *distribution) axis(sorted [][]*samples) axis {
	const least = 0.1 // ms: what is faster came at once
	low, high := 0.0, 0.0
	for _, systems := range sorted {
		for _, s := range systems {
			if values := d.of(s); len(values) > 0 {
				first := max(least, values[0])
				if low == 0 || first < low {
					low = first
				}
				high = max(high, values[len(values)-1])
			}
		}
	}
	return logAxis(low, high)
}

// throughputFigures are requests and tokens a second over the load.
func (r *Report) throughputFigures() []figure {
	var loads []float64
	for _, p := range r.Phases {
		loads = append(loads, p.load())
	}
	slices.Sort(loads)
	loads = slices.Compact(loads)
	unit := " at once"
	if len(r.Options.Rates) > 0 {
		unit = " a second"
	}
	var figures []figure
	for _, t := range throughputs[:3] {
		f := figure{Title: t.title}
		most := 0.0
		for system, name := range r.Systems {
			l := line{name: name, class: systemClass(system), marks: true}
			for i := range r.Phases {
				if m := &r.Phases[i].Systems[system].Median; len(r.Phases[i].Systems[system].Rounds) > 0 {
					v, _ := t.of(m)
					most = max(most, v)
					l.points = append(l.points, point{r.Phases[i].load(), v})
				}
			}
			slices.SortStableFunc(l.points, func(a, b point) int { return int(1e6 * (a.x - b.x)) })
			f.add(l)
		}
		f.Chart = chart{width: smallWidth, height: smallHeight, x: loadAxis(loads), y: linearAxis(most, 4), xUnit: unit,
			label: t.title + " over the load", lines: f.Chart.lines}
		figures = append(figures, f)
	}
	return figures
}

// timelines are what was in flight, and the KV of the nodes, over the time of the run.
func (r *Report) timelines() []figure {
	x := spanAxis(r.Seconds, 10)
	var bands []band
	for _, m := range r.marks {
		bands = append(bands, band{m.from.Seconds(), m.to.Seconds(), r.Phases[m.phase].Name, systemClass(m.system)})
	}
	f := figure{Title: "Requests in flight, and sessions that the nodes run"}
	most := 0.0
	for system, name := range r.Systems {
		points := r.inFlight(system)
		for _, p := range points {
			most = max(most, p.y)
		}
		f.add(line{name: name + " in flight", class: systemClass(system), points: points, step: true, area: true})
	}
	active := line{name: "active sessions of the nodes", class: "nodes", step: true}
	kv := line{name: "KV of the nodes", class: systemClass(0), step: true, area: true}
	mostKV := 0.0
	for _, o := range r.Occupancy {
		active.points = append(active.points, point{o.Seconds, float64(o.ActiveSessions)})
		kv.points = append(kv.points, point{o.Seconds, float64(o.KVBytes) / (1 << 20)})
		most, mostKV = max(most, float64(o.ActiveSessions)), max(mostKV, float64(o.KVBytes)/(1<<20))
	}
	if len(r.Occupancy) > 0 {
		f.add(active)
	}
	f.Chart = chart{width: wideWidth, height: wideHeight, x: x, y: linearAxis(most, 4), xUnit: " s", bands: bands, lines: f.Chart.lines,
		label: "Requests in flight over the time of the run"}
	figures := []figure{f}
	if len(r.Occupancy) > 0 {
		g := figure{Title: "KV that the nodes hold, MiB"}
		g.add(kv)
		g.Chart = chart{width: wideWidth, height: wideHeight - 50, x: x, y: linearAxis(mostKV, 3), xUnit: " s", lines: g.Chart.lines,
			label: "Bytes of KV over the time of the run"}
		figures = append(figures, g)
	}
	return figures
}

// inFlight is the most requests of a system at once in each of some hundred equal parts of the run.
func (r *Report) inFlight(system int) []point {
	if r.Seconds <= 0 {
		return nil
	}
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	for i := range r.Phases {
		for _, rec := range r.Phases[i].Systems[system].records {
			changes = append(changes, change{rec.Sent, 1}, change{rec.Sent + rec.End, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.by - b.by
	})
	var points []point
	now, next := 0, 0
	for part := range timelineSteps {
		end := r.Seconds * float64(part+1) / timelineSteps
		most := now
		for ; next < len(changes) && changes[next].at.Seconds() <= end; next++ {
			now += changes[next].by
			most = max(most, now)
		}
		if n := len(points); n == 0 || points[n-1].y != float64(most) {
			points = append(points, point{r.Seconds * float64(part) / timelineSteps, float64(most)})
		}
	}
	return append(points, point{r.Seconds, float64(now)})
}
