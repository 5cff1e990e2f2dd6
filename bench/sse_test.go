package bench

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func events(r io.Reader) (data []string, err error) {
	for e := newEventReader(r); ; {
		event, err := e.next()
		if err != nil {
			return data, err
		}
		data = append(data, string(event))
	}
}

func TestEventsAreThoseOfTheStandard(t *testing.T) {
	for claim, c := range map[string]struct {
		body string
		want []string
	}{
		"one":                        {"data: a\n\n", []string{"a"}},
		"without a space":            {"data:a\n\n", []string{"a"}},
		"one space only is dropped":  {"data:  a\n\n", []string{" a"}},
		"CR LF":                      {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		"CR":                         {"data: a\r\rdata: b\r\r", []string{"a", "b"}},
		"lines of one event":         {"data: a\ndata: b\n\n", []string{"a\nb"}},
		"comments keep it alive":     {": ping\n\n:\n\ndata: a\n: more\n\n", []string{"a"}},
		"other fields":               {"event: x\nid: 7\nretry: 5\ndata: a\n\nevent: none\n\n", []string{"a"}},
		"an empty one":               {"data\n\ndata:\n\n", []string{"", ""}},
		"a byte-order mark":          {"\xef\xbb\xbfdata: a\n\n", []string{"a"}},
		"no empty line at the end":   {"data: a\n", []string{"a"}},
		"no end of line at the end":  {"data: a\n\ndata: [DONE]", []string{"a", "[DONE]"}},
		"colons":                     {"data: {\"a\":\"b:c\"}\n\n", []string{`{"a":"b:c"}`}},
		"an unknown field with data": {"datum: a\ndata: b\n\n", []string{"b"}},
		"nothing":                    {"", nil},
	} {
		for name, reader := range map[string]io.Reader{
			"whole": strings.NewReader(c.body), "byte by byte": iotest.OneByteReader(strings.NewReader(c.body)), "with the error": iotest.DataErrReader(strings.NewReader(c.body)),
		} {
			if got, err := events(reader); !slices.Equal(got, c.want) || !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: %q, %v; want %q", claim, name, got, err, c.want)
			}
		}
	}
}

func TestAnEventBeyondTheLimitIsAnError(t *testing.T) {
	long := strings.Repeat("a", maxEventBytes)
	for _, body := range []string{"data: " + long + "\n\n", strings.Repeat("data: "+long[:1000]+"\n", 1100), ":" + long} {
		if _, err := events(strings.NewReader(body)); !errors.Is(err, errEventTooLong) {
			t.Errorf("%d bytes: %v", len(body), err)
		}
	}
}

func TestABrokenConnectionIsNoEndOfTheStream(t *testing.T) {
	broken := errors.New("reset")
	got, err := events(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)))
	if !slices.Equal(got, []string{"a"}) || !errors.Is(err, broken) {
		t.Errorf("%q, %v", got, err)
	}
}

var lineEnd = regexp.MustCompile(`\r\n|\r|\n`)

// plainEvents is the standard's algorithm over a whole body, with the last event taken without its empty line.
func plainEvents(body string) (data []string) {
	lines := lineEnd.Split(body, -1)
	lines[0] = strings.TrimPrefix(lines[0], "\xef\xbb\xbf")
	var event []string
	for _, line := range append(lines, "") {
		if line == "" && event != nil {
			data = append(data, strings.Join(event, "\n"))
			event = nil
		}
		if field, value, _ := strings.Cut(line, ":"); field == "data" {
			event = append(event, strings.TrimPrefix(value, " "))
		}
	}
	return data
}

func FuzzEventStream(f *testing.F) {
	f.Add([]byte("data: a\r\n\r\ndata:b\n\n: c\n\ndata: [DONE]"))
	f.Add([]byte("\r\rdata\r\n\ndata: \n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := events(iotest.HalfReader(bytes.NewReader(body)))
		if !errors.Is(err, io.EOF) || !slices.Equal(got, plainEvents(string(body))) {
			t.Fatalf("%q are %q, %v; want %q", body, got, err, plainEvents(string(body)))
		}
	})
}

func FuzzCompletionStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}],\"usage\":{\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"))
	f.Add([]byte("data: {\"error\":{\"message\":\"no\"}}\n\n"))
	f.Add([]byte("data: {\"choices\":null,\"usage\":null,\"error\":null}\n\ndata: []\n\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r Record
		answer, err := readCompletion(bytes.NewReader(body), &Listener{record: &r, heard: func() {}})
		var known *Failure
		if err != nil && !errors.As(err, &known) {
			t.Fatalf("%q: an error without a reason: %v", body, err)
		}
		if err == nil && (answer.Text == "") != (r.First == 0) {
			t.Fatalf("%q: text %q, first at %s", body, answer.Text, r.First)
		}
	})
}
