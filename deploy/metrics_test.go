package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	dashboardFile = "grafana/dashboards/mesh.json"
	alertsFile    = "prometheus/alerts.yml"
)

// metric is what a worker exports: the labels it sets, apart from those that Prometheus adds.
type metric struct {
	histogram bool
	labels    string
}

// exported are all metrics of a worker, without their prefix.
var exported = map[string]metric{
	"admissions_total":            {labels: "reason"},
	"sessions_total":              {labels: "reason cause"},
	"tokens_total":                {labels: "phase"},
	"batch_occupancy":             {histogram: true},
	"tick_seconds":                {histogram: true, labels: "phase"},
	"time_to_first_token_seconds": {histogram: true},
	"inter_token_seconds":         {histogram: true},
	"queue_seconds":               {histogram: true},
	"active_sessions":             {},
	"queue_depth":                 {},
	"kv_bytes":                    {labels: "state"},
	"hot_lookups_total":           {labels: "result"},
	"prefix_hits_total":           {},
	"prefix_tokens_total":         {},
	"spill_bytes":                 {},
	"spill_states_total":          {labels: "result"},
	"fetches_total":               {labels: "result"},
	"redeliveries_total":          {},
	"takeovers_total":             {},
	"leases_lost_total":           {},
	"moves_total":                 {labels: "cause"},
	"publish_errors_total":        {labels: "kind"},
	"guard_rejects_total":         {labels: "reason"},
	"nats_reconnects_total":       {},
	"build_info":                  {},
	"model_info":                  {},
}

type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

// queries are all PromQL expressions of the dashboard and the alerts, by where they are.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all["panel "+panel.Title+" "+target.RefID] = target.Expr
		}
	}
	var rules alertRules
	readYAML(t, alertsFile, &rules)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			all["alert "+rule.Alert] = rule.Expr
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d queries were found", len(all))
	}
	return all
}

var (
	metricUse = regexp.MustCompile(`\bmeshnet_(\w+)(\{[^}]*\})?`)
	labelUse  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping  = regexp.MustCompile(`\b(?:by|on|ignoring|without)\s*\(([^)]*)\)`)
)

// resolve finds a metric by the name of one of its series.
func resolve(name string) (metric, bool) {
	if m, ok := exported[name]; ok {
		return m, !m.histogram // a histogram has no series of its own name
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && exported[base].histogram {
			return exported[base], true
		}
	}
	return metric{}, false
}

func TestEveryMetricAndLabelInUseIsExported(t *testing.T) {
	for where, query := range queries(t) {
		known := []string{"instance", "job", "le"}
		for _, use := range metricUse.FindAllStringSubmatch(query, -1) {
			m, ok := resolve(use[1])
			if !ok {
				t.Errorf("%s: no worker exports meshnet_%s", where, use[1])
				continue
			}
			labels := append(strings.Fields(m.labels), "instance", "job")
			known = append(known, labels...)
			for _, label := range labelUse.FindAllStringSubmatch(use[2], -1) {
				if !slices.Contains(labels, label[1]) {
					t.Errorf("%s: meshnet_%s has no label %s", where, use[1], label[1])
				}
			}
		}
		for _, group := range grouping.FindAllStringSubmatch(query, -1) {
			for _, label := range strings.FieldsFunc(group[1], func(r rune) bool { return r == ',' || r == ' ' }) {
				if !slices.Contains(known, label) {
					t.Errorf("%s: none of its metrics has the label %s", where, label)
				}
			}
		}
	}
}

func TestEveryMetricIsOnTheDashboard(t *testing.T) {
	var shown strings.Builder
	for where, query := range queries(t) {
		if strings.HasPrefix(where, "panel ") {
			shown.WriteString(query + "\n")
		}
	}
	for name := range exported {
		if !strings.Contains(shown.String(), "meshnet_"+name) {
			t.Errorf("no panel shows meshnet_%s", name)
		}
	}
}

func TestEveryAlertSaysWhatIsWrongAndHowUrgent(t *testing.T) {
	var rules alertRules
	readYAML(t, alertsFile, &rules)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s has no summary or no description", rule.Alert)
			}
			if severity := rule.Labels["severity"]; severity != "page" && severity != "ticket" {
				t.Errorf("%s has severity %q, want page or ticket", rule.Alert, severity)
			}
		}
	}
}

// TestPromtoolAcceptsAllQueries runs Prometheus' own checks where they are installed.
func TestPromtoolAcceptsAllQueries(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed; the queries' names were checked, their syntax was not")
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$worker", ".*")
	type rule struct{ Record, Expr string }
	var recorded []rule
	all := queries(t)
	for i, where := range slices.Sorted(maps.Keys(all)) {
		recorded = append(recorded, rule{fmt.Sprint("query_", i), variables.Replace(all[where])})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "all", "rules": recorded}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{
		{"check", "rules", file},
		{"check", "config", "prometheus/prometheus.yml"},
		{"test", "rules", "prometheus/alerts_test.yml"},
	} {
		if output, err := exec.Command(promtool, arguments...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
	}
}
