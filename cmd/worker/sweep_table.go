package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/scheduler"
)

// printSweep prints a report for people: speed by level, then what was the same.
func printSweep(w io.Writer, facts llama.ModelFacts, exact bool, report *scheduler.SweepReport) error {
	mode := "default"
	if exact {
		mode = "--exact"
	}
	p := &printer{w: w}
	p.line("%s, %s, %d requests, %s\n", facts.Name, facts.Quantisation, len(report.ReferenceOutputs), mode)
	p.results(report)
	p.line("")
	for _, s := range report.Settings {
		p.line("%-22s %s", s.Setting, sameness(w, s.CorruptionFree, s.BitExact))
		p.difference(s.FirstDifference)
	}
	for _, d := range report.SettingDifferences {
		p.line("%-22s %s", string(d.Setting)+" vs "+string(d.Against), apart(d))
	}
	p.line("\nBatches stop filling up at %d sessions.", report.SaturationConcurrency)
	return p.err
}

// printer writes lines and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) results(report *scheduler.SweepReport) {
	if p.err != nil {
		return
	}
	t := tabwriter.NewWriter(p.w, 0, 0, 3, ' ', tabwriter.AlignRight)
	const head = "sessions\tticks\tbatches\tdecoded\tprefilled\toccupancy avg\tmax\ttokens/tick\tdecode tok/s\tpeak KV\t\n"
	_, err := io.WriteString(t, head)
	for _, r := range report.Results {
		if err == nil {
			_, err = fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%d\t%.2f\t%d\t%.1f\t%.0f\t%s\t\n", r.Concurrency, r.Ticks, r.DecodeBatches, r.DecodeTokens,
				r.PrefillTokens, r.AvgBatchOccupancy, r.MaxBatchOccupancy, r.TokensPerTick, r.DecodeTokensPerSec, byteSize(r.PeakKVBytes))
		}
	}
	if err == nil {
		err = t.Flush()
	}
	p.err = err
}

func (p *printer) difference(d *scheduler.Difference) {
	if d == nil {
		return
	}
	what := "its logits differ"
	if d.TokensDiffer {
		what = fmt.Sprintf("token %d became %d", d.ReferenceToken, d.Token)
	}
	p.line("%-22s first at %d sessions: session %s, token %d: %s (gap between the two best logits: %.4g alone, %.4g in the crowd)",
		"", d.Level, d.Session, d.TokenIndex, what, d.ReferenceGap, d.Gap)
}

// sameness says in words how equal the levels of a setting were.
func sameness(w io.Writer, tokens bool, bits *bool) string {
	switch {
	case !tokens:
		return styled(w, styleRed, "CORRUPT: tokens depend on the crowd")
	case bits == nil:
		return styled(w, styleGreen, "same tokens at every level")
	case *bits:
		return styled(w, styleGreen, "same tokens and same bits at every level")
	default:
		return styled(w, styleGreen, "same tokens at every level") + ", not the same bits"
	}
}

func apart(d scheduler.SettingDifference) string {
	switch {
	case !d.TokensEqual:
		return fmt.Sprintf("other tokens, from token %d of session %s on", d.FirstDifference.TokenIndex, d.FirstDifference.Session)
	case d.BitsEqual == nil || *d.BitsEqual:
		return "the same"
	default:
		return "same tokens, not the same bits"
	}
}

func byteSize(n int64) string {
	const kib, mib = 1 << 10, 1 << 20
	switch {
	case n >= mib:
		return fmt.Sprintf("%.1f MiB", float64(n)/mib)
	case n >= kib:
		return fmt.Sprintf("%.1f KiB", float64(n)/kib)
	default:
		return fmt.Sprintf("%d B", n)
	}
}
