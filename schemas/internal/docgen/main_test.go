package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	source = "../.."
	target = "../../../docs/schemas"
)

func TestCheckedInDocumentsAreCurrent(t *testing.T) {
	files, err := generate(source)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(target, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/schemas/%s is not what the structs say (%v): run go generate ./schemas", name, err)
		}
	}
	entries, err := os.ReadDir(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if _, ok := files[entry.Name()]; !ok && strings.HasSuffix(entry.Name(), ".json") {
			t.Errorf("docs/schemas/%s is of no message any more: remove it", entry.Name())
		}
	}
}

func TestEveryMessageIsDescribed(t *testing.T) {
	c, err := readComments(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages() {
		if c[m.Name()] == "" {
			t.Errorf("%s has no comment", m.Name())
		}
	}
}

func TestEveryMessageIsOnAChannel(t *testing.T) {
	used := map[string]bool{}
	for _, ch := range channels {
		for _, m := range ch.messages {
			used[m] = true
		}
		for _, p := range ch.parameters {
			if parameters[p] == "" || !strings.Contains(ch.address, "{"+p+"}") {
				t.Errorf("channel %s: parameter %s is not described or not in its address", ch.id, p)
			}
		}
		if strings.Count(ch.address, "{") != len(ch.parameters) {
			t.Errorf("channel %s: not every part of %s is a parameter", ch.id, ch.address)
		}
	}
	for _, m := range messages() {
		if !used[m.Name()] {
			t.Errorf("%s is on no channel", m.Name())
		}
	}
}
