package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/meshnet/node/internal/sim"
)

func TestReportHasARowForEachScenario(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"-workers", "2", "-sessions", "30", "-scenario", "uniform-80,burst"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"uniform-80 ", "burst "} {
		if n := strings.Count(out.String(), row); n != 2 { // one of what was served, one of the bus
			t.Errorf("%q is %d times in\n%s", row, n, &out)
		}
	}
}

func TestJSONHasAllFigures(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"-workers", "2", "-sessions", "30", "-scenario", "burst", "-json"}, &out); err != nil {
		t.Fatal(err)
	}
	var r sim.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Scenario != "burst" || r.Outcomes["completed"] != 30 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestUnknownScenarioIsRefused(t *testing.T) {
	if err := run([]string{"-scenario", "calm"}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "calm") {
		t.Errorf("%v, want an error that names it", err)
	}
}
