// Command sim runs the scenarios of docs/scale.md: a mesh of many workers on a virtual clock.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/meshnet/node/internal/sim"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("sim", flag.ContinueOnError)
	workers := flags.Int("workers", 1000, "workers of the mesh")
	sessions := flags.Int("sessions", 100_000, "sessions, or turns where a session has several")
	seed := flags.Uint64("seed", 1, "of all that is drawn")
	only := flags.String("scenario", "", "names, with commas; all without")
	quota := flags.Int("quota", 0, "requests of a tenant in one lane; 0 is the scenario's")
	file := flags.String("speeds", "", "file of speeds; those that were measured without")
	asJSON := flags.Bool("json", false, "one line of JSON for each scenario, with all its figures")
	if err := flags.Parse(args); err != nil {
		return err
	}
	speeds := sim.Measured()
	if *file != "" {
		data, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		if speeds, err = sim.ParseSpeeds(data); err != nil {
			return err
		}
	}
	chosen, err := choose(sim.Scenarios(*workers, *sessions, *seed), *only)
	if err != nil {
		return err
	}
	var results []*sim.Result
	for _, scenario := range chosen {
		if *quota > 0 {
			scenario.Quota = *quota
		}
		began := time.Now()
		result, err := sim.Run(scenario, speeds)
		if err != nil {
			return fmt.Errorf("%s: %w", scenario.Name, err)
		}
		results = append(results, result)
		if *asJSON {
			if err := json.NewEncoder(out).Encode(result); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(os.Stderr, "%s: simulated in %s\n", scenario.Name, time.Since(began).Round(time.Second/10))
	}
	if *asJSON {
		return nil
	}
	return report(out, results)
}

// choose are the scenarios of those names.
func choose(all []sim.Scenario, names string) ([]sim.Scenario, error) {
	if names == "" {
		return all, nil
	}
	var chosen []sim.Scenario
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s sim.Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// column is one of the report.
type column struct {
	name  string
	value func(*sim.Result) string
}

func report(out io.Writer, results []*sim.Result) error {
	for _, columns := range [][]column{served(), bus()} {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		row := func(cell func(column) string) {
			cells := make([]string, len(columns))
			for i, c := range columns {
				cells[i] = cell(c)
			}
			fmt.Fprintln(table, strings.Join(cells, "\t"))
		}
		row(func(c column) string { return c.name })
		for _, r := range results {
			row(func(c column) string { return c.value(r) })
		}
		fmt.Fprintln(table)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func served() []column {
	return []column{
		{"scenario", func(r *sim.Result) string { return r.Scenario }},
		{"turns/s", func(r *sim.Result) string { return fmt.Sprintf("%.0f", r.TurnsPerSec) }},
		{"tokens/s", func(r *sim.Result) string { return fmt.Sprintf("%.0f", r.TokensPerSec) }},
		{"first p50", func(r *sim.Result) string { return seconds(r.FirstP50) }},
		{"p99", func(r *sim.Result) string { return seconds(r.FirstP99) }},
		{"quiet p50", func(r *sim.Result) string { return seconds(r.QuietP50) }},
		{"p99", func(r *sim.Result) string { return seconds(r.QuietP99) }},
		{"busy", func(r *sim.Result) string { return percent(r.Busy) }},
		{"rows/step", func(r *sim.Result) string { return fmt.Sprintf("%.1f", r.Occupancy) }},
		{"hot", func(r *sim.Result) string { return percent(r.HotHits) }},
		{"Jain", func(r *sim.Result) string { return fmt.Sprintf("%.3f", r.Fairness) }},
		{"suspended", func(r *sim.Result) string { return fmt.Sprint(r.Suspensions) }},
		{"deaths", func(r *sim.Result) string { return fmt.Sprint(r.Deaths) }},
		{"takeovers", func(r *sim.Result) string { return fmt.Sprint(r.Takeovers) }},
		{"lost work", func(r *sim.Result) string { return percent(r.Lost) }},
		{"not completed", func(r *sim.Result) string { return fmt.Sprint(r.Turns - r.Outcomes["completed"]) }},
	}
}

func bus() []column {
	of := func(kind sim.Kind) column {
		return column{kind.String(), func(r *sim.Result) string {
			return fmt.Sprintf("%.0f", float64(r.Messages[kind.String()])/r.Virtual.Seconds())
		}}
	}
	columns := []column{
		{"messages/s of", func(r *sim.Result) string { return r.Scenario }},
		{"all", func(r *sim.Result) string { return fmt.Sprintf("%.0f", r.MessagesPerSec) }},
		{"peak", func(r *sim.Result) string { return fmt.Sprint(r.PeakPerSec) }},
	}
	for _, kind := range sim.Kinds() {
		columns = append(columns, of(kind))
	}
	return append(columns,
		column{"registry", func(r *sim.Result) string { return fmt.Sprintf("%.0f", r.RegistryPerSec) }},
		column{"file writes/s", func(r *sim.Result) string { return fmt.Sprintf("%.0f", r.WritesPerSec) }},
		column{"swaps/s", func(r *sim.Result) string { return fmt.Sprintf("%.0f", r.SwapsPerSec) }},
		column{"moves", func(r *sim.Result) string { return fmt.Sprint(r.Moves) }},
		column{"guests", func(r *sim.Result) string { return fmt.Sprint(r.Guests) }},
		column{"refusals", func(r *sim.Result) string { return fmt.Sprint(r.Refusals) }},
	)
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fs", d.Seconds())
}

func percent(part float64) string { return fmt.Sprintf("%.1f%%", 100*part) }
