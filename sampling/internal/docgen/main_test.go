package main

import (
	"os"
	"testing"
)

func TestTheDocumentIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../../docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != document() {
		t.Error("docs/options.md is not that of the table: run go generate ./sampling")
	}
}
