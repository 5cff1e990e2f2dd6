package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func splitWords(text string) []string { return strings.Fields(text) }

func TestLengthsAreANumberOrARange(t *testing.T) {
	for text, want := range map[string]Lengths{"64": {64, 64}, "64-192": {64, 192}, "1": {1, 1}, "7 - 9": {7, 9}, "65280": {65280, 65280}} {
		var l Lengths
		if err := l.UnmarshalText([]byte(text)); err != nil || l != want {
			t.Errorf("%q is %+v, %v", text, l, err)
		}
	}
	for text, want := range map[string]string{
		"0": "0 tokens; use 1 to 65280", "65281": "65281 tokens; use 1 to 65280", "9-7": "begins at 9 and ends at 7", "-5": "no length",
		"": "no length", "x": "no length", "1-": "no length", "1-2-3": "no length", "1e3": "no length", "99999999999999999999": "no length",
	} {
		var l Lengths
		if err := l.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestAnSLOIsReadAndWrittenAlike(t *testing.T) {
	var slo SLO
	if err := slo.UnmarshalText([]byte("itl=50ms, ttft=1.5s")); err != nil || slo != (SLO{TTFT: 1500 * ms, ITL: 50 * ms}) || slo.String() != "ttft=1.5s,itl=50ms" {
		t.Errorf("%v, %v", slo, err)
	}
	for text, want := range map[string]string{
		"ttft=0": "no limit", "ttft=-1s": "no limit", "ttft": "no limit", "ttft=5": "no limit", "ttfx=1s": "ttft, tpot, itl and e2el", "": "names no latency",
		"itl=1s,itl=2s": "twice, as 1s and as 2s",
	} {
		if err := new(SLO).UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestOptionsThatCannotBeRunAreRefusedWithBothNumbers(t *testing.T) {
	o := options()
	if err := o.Validate(2); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"--concurrency has 0; use 1 to 4096":                    func(o *Options) { o.Concurrency = []int{4, 0} },
		"--concurrency has 4097; use 1 to 4096":                 func(o *Options) { o.Concurrency = []int{4097} },
		"--requests is 40, less than the 41 of --concurrency":   func(o *Options) { o.Concurrency = []int{41} },
		"--rate has NaN; use more than 0, and at most 10000":    func(o *Options) { o.Concurrency, o.Rates = nil, []float64{math.NaN()} },
		"--rate has -1; use more than 0":                        func(o *Options) { o.Concurrency, o.Rates = nil, []float64{-1} },
		"--rate has +Inf; use more than 0":                      func(o *Options) { o.Concurrency, o.Rates = nil, []float64{math.Inf(1)} },
		"--concurrency has 1 phases and --rate has 1; give one": func(o *Options) { o.Rates = []float64{1} },
		"--requests is -1; use 1 to 1000000":                    func(o *Options) { o.Concurrency, o.Rates, o.Requests = nil, []float64{1}, -1 },
		"--warmup is -1; use 0 to 10000":                        func(o *Options) { o.Warmup = -1 },
		"--rounds is 0; use 1 to 1000":                          func(o *Options) { o.Rounds = 0 },
		"--temperature is NaN; use 0 to 100":                    func(o *Options) { o.Temperature = math.NaN() },
		"--timeout is 10ms; use 1s to 59m50s":                   func(o *Options) { o.Timeout = 10 * time.Millisecond },
		"--stall is 0s; use 100ms to 59m50s":                    func(o *Options) { o.Stall = 0 },
		"make 80000000 requests; use at most 1000000":           func(o *Options) { o.Requests, o.Rounds = 40_000, 1000 },
		"make 61200000 tokens to time; use at most 20000000":    func(o *Options) { o.Requests, o.Output.Max = 51_000, 600 },
	} {
		o := options()
		change(&o)
		if err := o.Validate(2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAFileOfPromptsIsTextALineOrAnObjectALine(t *testing.T) {
	p, err := ReadPrompts(strings.NewReader("\ufeffOne prompt.\r\n\n  another {one}  \nthe last"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"One prompt.", "another {one}", "the last", "One prompt."} {
		if got, most := p.make(nil, i); got.Text != want || got.TokenIDs != nil || most != 0 {
			t.Errorf("prompt %d is %+v, %d", i, got, most)
		}
	}
	p, err = ReadPrompts(strings.NewReader(`{"prompt":"a\nb","max_tokens":5,"other":1}` + "\n" + `{"prompt":[1,2,3]}`))
	if err != nil {
		t.Fatal(err)
	}
	first, most := p.make(nil, 0)
	second, none := p.make(nil, 1)
	if first.Text != "a\nb" || most != 5 || fmt.Sprint(second.TokenIDs) != "[1 2 3]" || none != 0 {
		t.Errorf("%+v with %d, %+v with %d", first, most, second, none)
	}
	if p.longestAnswer(Lengths{1, 4}) != 5 || p.longestAnswer(Lengths{1, 9}) != 9 {
		t.Error("the longest answer is not that of the file or of the flag")
	}
}

func TestAFileThatIsNoneOfPromptsIsRefused(t *testing.T) {
	for claim, c := range map[string]struct{ content, want string }{
		"empty":           {"", "0 bytes and no prompt"},
		"blank lines":     {"\n \n\t\n", "no prompt"},
		"NUL":             {"fine\na\x00b", "line 2: it is no UTF-8 text"},
		"binary":          {"\x7fELF\xff\xfe", "line 1: it is no UTF-8 text"},
		"broken object":   {`{"prompt":"a"}` + "\n{", "line 2: it is no JSON object"},
		"text after JSON": {`{"prompt":"a"}` + "\nhello", "line 2: it is no JSON object"},
		"no prompt":       {`{"text":"a"}`, "neither a text nor a list"},
		"null":            {`{"prompt":null}`, "is empty"},
		"number":          {`{"prompt":5}`, "neither a text nor a list"},
		"floats":          {`{"prompt":[1.5]}`, "neither a text nor a list"},
		"negative id":     {`{"prompt":[1,-1]}`, `"prompt"[1] is -1; token ids are 0 to 2147483647`},
		"large id":        {`{"prompt":[2147483648]}`, `is 2147483648; token ids are 0 to 2147483647`},
		"no tokens":       {`{"prompt":"a","max_tokens":0}`, `"max_tokens" is 0; use 1 to 65280`},
		"long prompt":     {strings.Repeat("a", MaxPromptBytes+1), "1032193 bytes; use at most 1032192"},
		"many ids":        {`{"prompt":[` + strings.Repeat("1,", MaxLength) + `1]}`, "65281 token ids; use at most 65280"},
	} {
		if _, err := ReadPrompts(strings.NewReader(c.content)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", claim, err, c.want)
		}
	}
}

// endless counts what was read of a file of any size.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return copy(p, bytes.Repeat([]byte("word\n"), len(p)/5+1)), nil
}

func TestAHugeFileIsRefusedOnceItsLimitIsRead(t *testing.T) {
	file := &endless{}
	_, err := ReadPrompts(file)
	if err == nil || !strings.Contains(err.Error(), "more than 33554432 bytes") {
		t.Error(err)
	}
	if file.read > 2*MaxFileBytes {
		t.Errorf("%d bytes were read", file.read)
	}
}

func FuzzReadPrompts(f *testing.F) {
	f.Add([]byte("a\nb"))
	f.Add([]byte(`{"prompt":[1,2],"max_tokens":3}`))
	f.Add([]byte("\xef\xbb\xbf{\"prompt\":\"\\u0000\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadPrompts(bytes.NewReader(data))
		if (p == nil) != (err != nil) {
			t.Fatalf("%v, %v", p, err)
		}
		if err != nil {
			return
		}
		for i := range p.file {
			prompt, most := p.make(nil, i)
			if prompt.Text == "" && len(prompt.TokenIDs) == 0 || most < 0 || most > MaxLength {
				t.Fatalf("prompt %d is %+v with %d", i, prompt, most)
			}
		}
	})
}

func TestAReportIsJSON(t *testing.T) {
	o := options()
	o.SLO.ITL = 50 * ms
	var read struct {
		Options struct {
			Output string `json:"output_tokens"`
			SLO    string `json:"slo"`
		} `json:"options"`
	}
	data, err := json.Marshal(&Report{Options: o})
	if err == nil {
		err = json.NewDecoder(io.LimitReader(bytes.NewReader(data), 1<<20)).Decode(&read)
	}
	if err != nil || read.Options.Output != "4-9" || read.Options.SLO != "itl=50ms" {
		t.Errorf("%s: %v", data, err)
	}
}
