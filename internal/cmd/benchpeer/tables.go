package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/meshnet/node/bench"
)

// The marks between which the tables stand in the document.
const (
	beginMark = "<!-- bench-peer: written by make bench-peer -->"
	endMark   = "<!-- bench-peer: end -->"
)

func tables(results []result) string {
	var b strings.Builder
	for _, r := range results {
		fmt.Fprintf(&b, "**%s** (%s).\n\n", strings.ToUpper(r.name[:1])+r.name[1:], r.about)
		switch r.table {
		case throughput:
			throughputTable(&b, r)
		case prefix:
			prefixTable(&b, r)
		case gap:
			gapTable(&b, r)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func throughputTable(b *strings.Builder, r result) {
	b.WriteString("| at once | tokens/s, mesh | llama-server | ratio | TTFT median, ms | llama-server | TPOT median, ms | llama-server | same texts |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, report := range r.reports {
		for _, p := range report.Phases {
			mesh, peer := p.Systems[0].Median, p.Systems[1].Median
			fmt.Fprintf(b, "| %d | %.0f | %.0f | **%.2f** | %.0f | %.0f | %.1f | %.1f | %d of %d |\n", p.Concurrency,
				mesh.OutputTokensPerSecond, peer.OutputTokensPerSecond, bench.Median(roundRatios(p)), mesh.TTFT.Median, peer.TTFT.Median,
				mesh.TPOT.Median, peer.TPOT.Median, p.SameTexts, p.ComparedTexts)
		}
	}
}

// roundRatios are those of tokens a second, a round each: the two halves of a round ran one after the other.
func roundRatios(p bench.PhaseReport) []float64 {
	var list []float64
	for i, mesh := range p.Systems[0].Rounds {
		list = append(list, mesh.OutputTokensPerSecond/p.Systems[1].Rounds[i].OutputTokensPerSecond)
	}
	return list
}

func prefixTable(b *strings.Builder, r result) {
	var rates [2][]float64
	var first [2][]float64
	var whole [2][]float64
	for _, report := range r.reports {
		for i := range 2 {
			m := report.Phases[0].Systems[i].Median
			rates[i] = append(rates[i], m.RequestsPerSecond)
			first[i] = append(first[i], m.TTFT.Mean)
			whole[i] = append(whole[i], m.E2EL.Max)
		}
	}
	b.WriteString("| | mesh | llama-server | ratio |\n|---|---|---|---|\n")
	row(b, "requests/s", rates, "%.2f")
	row(b, "TTFT, mean, ms", first, "%.0f")
	row(b, "until all 8 are answered, ms", whole, "%.0f")
}

func gapTable(b *strings.Builder, r result) {
	var longest, first [2][]float64
	for _, report := range r.reports {
		for i := range 2 {
			system := report.Phases[0].Systems[i]
			worst, long := 0.0, 0.0
			for _, req := range system.Requests {
				if req.PromptTokens > 1000 {
					long = req.TTFT
				} else {
					worst = max(worst, req.MaxITL)
				}
			}
			longest[i], first[i] = append(longest[i], worst), append(first[i], long)
		}
	}
	b.WriteString("| | mesh | llama-server | ratio |\n|---|---|---|---|\n")
	row(b, "longest gap of the four, ms", longest, "%.0f")
	row(b, "TTFT of the long one, ms", first, "%.0f")
}

// row has the medians of both, and the median of the rounds' ratios.
func row(b *strings.Builder, name string, values [2][]float64, format string) {
	ratios := make([]float64, len(values[0]))
	for i := range ratios {
		ratios[i] = values[0][i] / values[1][i]
	}
	fmt.Fprintf(b, "| %s | "+format+" | "+format+" | **%.2f** |\n", name, bench.Median(values[0]), bench.Median(values[1]), bench.Median(ratios))
}

// splice puts the tables between the marks of a document.
func splice(path, text string) error {
	document, err := os.ReadFile(path) //nolint:gosec // the document that was asked for
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(document), beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !found || !ended {
		return fmt.Errorf("%s has no marks %q and %q", path, beginMark, endMark)
	}
	return os.WriteFile(path, []byte(before+beginMark+"\n\n"+text+endMark+after), 0o600)
}
