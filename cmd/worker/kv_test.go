package main

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/meshnet/node/hotkv"
	"github.com/meshnet/node/hotkv/spill"
	"github.com/meshnet/node/scheduler"
)

func TestSpillFolderOfAnotherWorkerIsAClearError(t *testing.T) {
	dir := t.TempDir()
	store, err := spill.Open(spill.Options{Dir: dir, BudgetBytes: 1, Load: loadNothing})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(t.Context())
	code, _, stderr := commandLine("", "run", "--threads", "1", "--kv-spill", dir)
	if code != exitUsage || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "another worker") {
		t.Errorf("exit %d, stderr %q; want %d and the folder's name", code, stderr, exitUsage)
	}
}

func TestSharingIsOffAcrossTenantsUnlessTheOperatorSaysSo(t *testing.T) {
	for flag, want := range map[string]scheduler.Sharing{
		"none": scheduler.ShareNothing, "tenant": scheduler.ShareTenant, "all": scheduler.ShareAll,
	} {
		if got := (&kvFlags{SharePrefixes: flag}).sharing(); got != want {
			t.Errorf("--share-prefixes %s is %d, want %d", flag, got, want)
		}
	}
	field, _ := reflect.TypeFor[kvFlags]().FieldByName("SharePrefixes")
	if got := field.Tag.Get("default"); got != "tenant" {
		t.Errorf("the default is %s, want tenant", got)
	}
}

func loadNothing(int64, io.Reader) (hotkv.State, error) { return nil, errors.ErrUnsupported }

func TestSpillBudgetMustBeSomething(t *testing.T) {
	code, _, stderr := commandLine("", "run", "--kv-spill", t.TempDir(), "--kv-spill-budget", "0")
	if code != exitUsage || !strings.Contains(stderr, "--kv-spill-budget is 0") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestSpillOfAWorkerThatKeepsNothingIsRefused(t *testing.T) {
	code, _, stderr := commandLine("", "run", "--kv-spill", t.TempDir(), "--hot-budget", "0")
	if code != exitUsage || !strings.Contains(stderr, "--hot-budget of 0 would write nothing") {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}
