package capability_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/meshnet/node/capability"
	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/scheduler"
	"github.com/meshnet/node/schemas"
)

// filled has another value in each field.
func filled(t *testing.T) scheduler.Telemetry {
	t.Helper()
	var tel scheduler.Telemetry
	v := reflect.ValueOf(&tel).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(i + 1))
		case reflect.Uint64:
			f.SetUint(uint64(i + 1))
		case reflect.Float64:
			f.SetFloat(float64(i) + 0.123456)
		case reflect.Map:
		default:
			t.Fatalf("field %s has a kind that this test does not fill", v.Type().Field(i).Name)
		}
	}
	tel.RejectedByReason = map[scheduler.Reason]int64{scheduler.RejectedQueueFull: 3, scheduler.RejectedContext: 1}
	tel.HotMissesTotal = map[hotkv.Miss]int64{hotkv.MissNever: 5}
	tel.SpillLostTotal = map[spill.Lost]int64{spill.LostBudget: 7}
	return tel
}

func TestAdvertisedTelemetryHasTheSchedulersNamesValuesAndRounding(t *testing.T) {
	tel := filled(t)
	a := ad("n1", "b1")
	a.Telemetry = capability.Snapshot(&capability.Identity{}, &capability.Moment{Telemetry: tel, FreeSlots: 2}).Telemetry
	payload, err := schemas.Encode(a)
	if err != nil {
		t.Fatal(err)
	}
	got, err := schemas.Decode[schemas.Advertisement](payload)
	if err != nil {
		t.Fatal(err)
	}
	want, have := fields(t, tel), fields(t, got.Telemetry)
	for name, value := range want {
		if !reflect.DeepEqual(have[name], value) {
			t.Errorf("%s is %v, want %v", name, have[name], value)
		}
	}
	if got.Telemetry.FreeSlots != 2 {
		t.Errorf("free_slots is %d, want 2", got.Telemetry.FreeSlots)
	}
}

func fields(t *testing.T, v any) (m map[string]any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSnapshotTellsModelAndRecipe(t *testing.T) {
	a := capability.Snapshot(&capability.Identity{
		Node: nodeName("n1"), Boot: schemas.Must(schemas.ParseBoot("b1")), Version: "v1", Features: []string{"exact"},
		Model: schemas.Must(schemas.ParseModel("m")), Architecture: "llama", Parameters: 135, Quantisation: "Q4_K", WindowBytes: 7, FlashAttention: "on",
	}, &capability.Moment{
		State:        schemas.NodeDraining,
		Facts:        scheduler.Facts{ContextTokens: 512, BytesPerToken: 9, FixedBytes: 8, VocabTokens: 100, LastLayer: 29, Head: true, Tail: true, Trim: scheduler.TrimWindow, CanPad: true},
		Fingerprints: scheduler.Fingerprints{Restore: "r", Exact: "e"},
		FreeSlots:    -1, MaxSessionTokens: 300,
	})
	want := schemas.ModelInfo{
		Name: a.Model.Name, Fingerprints: schemas.Fingerprints{Restore: "r", Exact: "e"}, Architecture: "llama", Parameters: 135, Quantisation: "Q4_K",
		ContextTokens: 512, VocabTokens: 100, LastLayer: 29, Head: true, Tail: true,
		Probes: schemas.Probes{Trim: "window", CanPad: true, BytesPerToken: 9, FixedBytes: 8, WindowBytes: 7, FlashAttention: "on"},
	}
	if !reflect.DeepEqual(a.Model, want) {
		t.Errorf("model %+v, want %+v", a.Model, want)
	}
	if a.State != schemas.NodeDraining || a.MaxSessionTokens != 300 || a.Telemetry.FreeSlots != 0 || a.Features[0] != "exact" {
		t.Errorf("%+v", a)
	}
	if unset := ad("n1", "b1"); unset.MaxSessionTokens != 512 {
		t.Errorf("max_session_tokens is %d where the context is 512", unset.MaxSessionTokens)
	}
	if _, err := schemas.Encode(a); err != nil {
		t.Error(err)
	}
}
