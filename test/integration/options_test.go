package integration

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/meshnet/node/client"
	"github.com/meshnet/node/internal/natsserver"
	"github.com/meshnet/node/internal/natsserver/natsservertest"
	"github.com/meshnet/node/internal/testmodel"
	"github.com/meshnet/node/llama"
	"github.com/meshnet/node/sampling"
	"github.com/meshnet/node/schemas"
)

const (
	optionContext = 512 // tokens of the model, which is also how many its vocabulary has
	optionVocab   = 512
	// optionTemplate has a place for tools, in the form by which llama.cpp finds it.
	optionTemplate = `{%- if tools %}{%- for tool in tools %}{{- tool['function']['name'] + '\n' }}{%- endfor %}{%- endif %}` +
		`{%- for message in messages %}{{- message['role'] + ': ' + message['content'] + '\n' }}{%- endfor %}{{- 'assistant: ' }}`
)

// fields are changes of a request as a map; nil takes a field away.
type fields map[string]any

// option is what is known of a field of a request that bears on what its turn says.
type option struct {
	effect  func(*optionRig) // fails unless the turn says what the option is documented to make it say
	valid   []fields         // at the option's limits
	refused []refusal        // beyond them
}

type refusal struct {
	field  string // the path that is blamed
	change fields
	reason schemas.Reason // rejected-invalid without it
}

// notOfTheText are the fields of a request that say whose turn it is, where it runs and how long it may take.
var notOfTheText = []string{"v", "tenant", "session", "turn", "epoch", "model", "nonce", "keep", "require_hot", "deadline_ms", "priority", "heartbeat_ms"}

// Whoever adds an option has to say here what it does, what it takes and what it refuses.
func TestEveryOptionHasItsEffectItsLimitsAndItsRefusalsOnTheWire(t *testing.T) {
	options := allOptions()
	for _, name := range optionNames(t) {
		if o, ok := options[name]; !ok || o.effect == nil || len(o.valid) == 0 || len(o.refused) == 0 {
			t.Errorf("%s: %+v; want an effect, valid values and refused ones", name, o)
		}
	}
	r := newOptionRig(t)
	for name, o := range options {
		if !slices.Contains(optionNames(t), name) {
			t.Errorf("no field of a request is %s", name)
		}
		t.Run(name, func(t *testing.T) {
			r := *r
			r.T = t
			for i, change := range o.valid {
				if final := r.send(change); final.Reason != schemas.Completed {
					t.Errorf("valid value %d: ended %s: %+v", i, final.Reason, final.Error)
				}
			}
			for _, bad := range o.refused {
				reason := bad.reason
				if reason == "" {
					reason = schemas.RejectedInvalid
				}
				final := r.send(bad.change)
				if e := final.Error; final.Reason != schemas.Rejected || e == nil || e.Reason != reason || e.Field != bad.field || e.Message == "" {
					t.Errorf("%.200s: ended %s, %+v; want %s with the field %s", fmt.Sprint(bad.change), final.Reason, e, reason, bad.field)
				}
			}
			o.effect(&r)
		})
	}
	for field, value := range map[string]any{"epoch": 1.5, "keep": 1, "require_hot": "no", "deadline_ms": -1, "priority": 9, "heartbeat_ms": 99, "nonce": "a b"} {
		if final := r.send(fields{field: value}); final.Error == nil || final.Error.Reason != schemas.RejectedInvalid || final.Error.Field != field {
			t.Errorf("%s %v: ended %s, %+v", field, value, final.Reason, final.Error)
		}
	}
}

// optionNames are the fields of the messages, and those of the document's tables.
func optionNames(t *testing.T) []string {
	t.Helper()
	names := make(map[string]bool)
	add := func(of reflect.Type, path string) {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("msgpack"), ",")
			if name != "" && !slices.Contains(notOfTheText, name) && path+name != "sampling" {
				names[path+name] = true
			}
		}
	}
	add(reflect.TypeFor[schemas.Request](), "")
	add(reflect.TypeFor[schemas.Sampling](), "sampling.")
	text, err := os.ReadFile("../../docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1)
	if len(rows) != len(sampling.Numbers())+8 {
		t.Errorf("docs/options.md has %d options", len(rows))
	}
	for _, row := range rows {
		if !names[row[1]] && !names["sampling."+row[1]] {
			t.Errorf("docs/options.md tells of %s, which is no field", row[1])
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// allOptions are the numbers of the package sampling, and what is not one.
func allOptions() map[string]option {
	options := make(map[string]option)
	for _, table := range []map[string]option{listOptions(), endingOptions(), promptOptions(), answerOptions()} {
		maps.Copy(options, table)
	}
	for _, n := range sampling.Numbers() {
		step := 1e-9
		if n.Integer {
			step = 1
		}
		least := n.Min
		if n.Above {
			least += step
		}
		value := func(v float64) any {
			if n.Integer {
				return int64(v)
			}
			return v
		}
		path := "sampling." + n.Name
		refused := func(v any) refusal { return refusal{field: path, change: sampled(n.Name, v)} }
		o := option{
			effect:  numberEffects[n.Name],
			valid:   []fields{sampled(n.Name, value(least)), sampled(n.Name, value(n.Max))},
			refused: []refusal{refused(value(least - step)), refused(value(n.Max + step)), refused("1"), refused(math.NaN()), refused(math.Inf(1))},
		}
		options[path] = o
	}
	return options
}

// sampled changes one option of the sampling.
func sampled(name string, value any) fields { return fields{"sampling": fields{name: value}} }

func biases(n int, bias any) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = fields{"token_id": i, "bias": bias}
	}
	return list
}

// texts are n of so many bytes.
func texts(n, bytes int) []string { return slices.Repeat([]string{strings.Repeat("x", bytes)}, n) }

// prompted has token ids for a prompt.
func prompted(ids ...int64) fields { return fields{"prompt": nil, "token_ids": ids} }

var (
	say  = []any{fields{"role": "user", "content": "hi"}}
	chat = fields{"prompt": nil, "messages": say}
)

const tool = `[{"type":"function","function":{"name":"weather","description":"of a place","parameters":{"type":"object","properties":{}}}}]`

// listOptions are those of the sampling that are no numbers.
func listOptions() map[string]option {
	bias := func(list ...any) fields { return sampled("logit_bias", list) }
	return map[string]option{
		"sampling.dry_sequence_breakers": {breakersEffect,
			[]fields{sampled("dry_sequence_breakers", []string{}), sampled("dry_sequence_breakers", texts(16, 40))},
			[]refusal{
				{field: "sampling.dry_sequence_breakers", change: sampled("dry_sequence_breakers", texts(17, 1))},
				{field: "sampling.dry_sequence_breakers[0]", change: sampled("dry_sequence_breakers", texts(1, 41))},
				{field: "sampling.dry_sequence_breakers[1]", change: sampled("dry_sequence_breakers", []string{"x", ""})},
				{field: "sampling.dry_sequence_breakers[0]", change: sampled("dry_sequence_breakers", []string{"\x00"})},
			}},
		"sampling.logit_bias": {biasEffect,
			[]fields{bias(biases(optionVocab, 100.0)...), bias(biases(3, -100)...), bias(biases(3, math.Inf(-1))...)},
			[]refusal{
				{field: "sampling.logit_bias", change: bias(biases(513, 1)...)},
				{field: "sampling.logit_bias", change: bias(append(biases(3, 1), fields{"token_id": 2, "bias": 1})...)},
				{field: "sampling.logit_bias[3]", change: bias(append(biases(3, 1), fields{"token_id": optionVocab, "bias": 1})...)},
				{field: "sampling.logit_bias[0]", change: bias(fields{"token_id": -1, "bias": 1})},
				{field: "sampling.logit_bias[0]", change: bias(fields{"token_id": int64(1) << 31, "bias": 1})},
				{field: "sampling.logit_bias[0]", change: bias(biases(1, 100.5)...)},
				{field: "sampling.logit_bias[0]", change: bias(biases(1, math.Inf(1))...)},
				{field: "sampling.logit_bias[0]", change: bias(biases(1, math.NaN())...)},
				{field: "sampling.logit_bias[0].bias", change: bias(fields{"token_id": 1})},
			}},
		"sampling.seed": {seedEffect,
			[]fields{sampled("seed", 0), sampled("seed", uint64(math.MaxUint64))},
			[]refusal{{field: "sampling.seed", change: sampled("seed", -1)}, {field: "sampling.seed", change: sampled("seed", 1.5)}}},
		"sampling.ignore_eos": {ignoreEOSEffect,
			[]fields{sampled("ignore_eos", false), sampled("ignore_eos", true)},
			[]refusal{{field: "sampling.ignore_eos", change: sampled("ignore_eos", 1)}}},
	}
}

func endingOptions() map[string]option {
	return map[string]option{
		"max_new_tokens": {mostEffect,
			[]fields{{"max_new_tokens": 1}, merged(prompted(300, 301), fields{"max_new_tokens": optionContext - 1, "sampling": fields{"ignore_eos": true}})},
			[]refusal{
				{field: "max_new_tokens", change: fields{"max_new_tokens": 0}},
				{field: "max_new_tokens", change: fields{"max_new_tokens": 1<<24 + 1}},
				{field: "max_new_tokens", change: fields{"max_new_tokens": 1 << 24}, reason: schemas.RejectedContext},
				{field: "max_new_tokens", change: merged(prompted(300, 301), fields{"max_new_tokens": optionContext}), reason: schemas.RejectedContext},
			}},
		"min_new_tokens": {leastEffect,
			[]fields{{"min_new_tokens": 0}, {"min_new_tokens": 2}},
			[]refusal{{field: "min_new_tokens", change: fields{"min_new_tokens": -1}}, {field: "min_new_tokens", change: fields{"min_new_tokens": 3}}}},
		"stop": {stopEffect,
			[]fields{{"stop": texts(16, 256)}, {"stop": []string{}}},
			[]refusal{
				{field: "stop", change: fields{"stop": texts(17, 1)}},
				{field: "stop[0]", change: fields{"stop": texts(1, 257)}},
				{field: "stop[1]", change: fields{"stop": []string{"x", ""}}},
				{field: "stop[0]", change: fields{"stop": []string{"\x00"}}},
			}},
		"raw": {rawEffect, []fields{{"raw": true}, {"raw": false}}, []refusal{{field: "raw", change: fields{"raw": "yes"}}}},
	}
}

func promptOptions() map[string]option {
	return map[string]option{
		"prompt": {promptEffect, []fields{{"prompt": "x"}, {"prompt": "\x00"}},
			[]refusal{
				{field: "prompt", change: fields{"prompt": ""}},
				{field: "prompt", change: fields{"prompt": nil}},
				{field: "prompt", change: fields{"messages": say}},
				{field: "prompt", change: fields{"prompt": strings.Repeat("x", schemas.MaxPromptBytes)}}, // it cannot fit the context
			}},
		"token_ids": {tokensEffect, []fields{prompted(0), prompted(optionVocab - 1)},
			[]refusal{
				{field: "token_ids", change: prompted([]int64{}...)},
				{field: "token_ids[1]", change: prompted(1, -1)},
				{field: "token_ids[1]", change: prompted(1, optionVocab)},
				{field: "token_ids[0]", change: prompted(1 << 31)},
			}},
		"messages": {messagesEffect, []fields{chat},
			[]refusal{
				{field: "messages", change: fields{"prompt": nil, "messages": []any{}}},
				{field: "messages[0].role", change: fields{"prompt": nil, "messages": []any{fields{"role": "root", "content": "hi"}}}},
			}},
		"tools": {toolsEffect, []fields{merged(chat, fields{"tools": "[]"}), merged(chat, fields{"tools": tool})},
			[]refusal{
				{field: "tools", change: fields{"tools": tool}},
				{field: "tools", change: merged(chat, fields{"tools": "{}"})},
				{field: "tools", change: merged(chat, fields{"tools": "[" + strings.Repeat(" ", 256<<10)})},
			}},
		"special": {specialEffect, []fields{{"special": true}, {"special": false}},
			[]refusal{{field: "special", change: merged(chat, fields{"special": true})}}},
	}
}

func answerOptions() map[string]option {
	return map[string]option{
		"json_schema": {schemaEffect, []fields{{"json_schema": `{"const":1}`}},
			[]refusal{
				{field: "json_schema", change: fields{"json_schema": "{"}},
				{field: "json_schema", change: fields{"json_schema": `{"not":{}}`}},
				{field: "json_schema", change: fields{"json_schema": `{"const":1}` + strings.Repeat(" ", 64<<10)}},
			}},
		"grammar": {grammarEffect, []fields{{"grammar": "root ::= [a-z]*"}},
			[]refusal{
				{field: "grammar", change: fields{"grammar": "root ::= nobody"}},
				{field: "grammar", change: fields{"grammar": "root ::= [a]\n#" + strings.Repeat("x", 64<<10)}},
				{field: "grammar", change: fields{"grammar": "root ::= [a]", "json_schema": "{}"}},
			}},
		"adapter": {adapterEffect, []fields{{"adapter": "bard"}},
			[]refusal{{field: "adapter", change: fields{"adapter": "nobody"}}, {field: "adapter", change: fields{"adapter": "a bard"}}}},
	}
}

func merged(a, b fields) fields {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// optionRig is a worker with everything that a request may ask for.
type optionRig struct {
	*testing.T
	client *client.Client
	nc     *nats.Conn
	js     jetstream.JetStream
	model  *llama.Model // the worker's, to know its tokens
	count  *int         // of turns so far
}

func newOptionRig(t *testing.T) *optionRig {
	t.Helper()
	shape, err := testmodel.Lookup("tiny")
	if err != nil {
		t.Fatal(err)
	}
	shape.Template = optionTemplate
	path := filepath.Join(t.TempDir(), "options.gguf")
	if err := testmodel.Write(path, shape, 1); err != nil {
		t.Fatal(err)
	}
	model, err := llama.Load(t.Context(), llama.FromFile(path), llama.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(model.Free)
	server := natsservertest.Start(t, natsserver.Options{})
	startWorker(t, server.ClientURL(), "a", "--model", path, "--name", "m", "--allow-grammar", "--lora", "bard="+testmodel.Adapter(t, "tiny", 1))
	r := &optionRig{T: t, client: meshClient(t, server.ClientURL()), nc: natsservertest.Connect(t, server.ClientURL()), model: model, count: new(int)}
	if r.js, err = jetstream.New(r.nc); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *optionRig) session() string {
	*r.count++
	return fmt.Sprintf("s%d", *r.count)
}

// send submits a small request with some changes, past the client and its checks, and returns how it ended.
func (r *optionRig) send(changes fields) *schemas.Final {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	session := r.session()
	request := merged(fields{"v": 1, "tenant": "t", "session": session, "turn": 1, "model": "m", "nonce": "n", "prompt": "once", "max_new_tokens": 2}, changes)
	maps.DeleteFunc(request, func(_ string, v any) bool { return v == nil })
	data, err := msgpack.Marshal(request)
	if err != nil {
		r.Fatal(err)
	}
	events, err := r.nc.SubscribeSync("mesh.v1.tok.t." + session + ".1")
	if err != nil {
		r.Fatal(err)
	}
	defer events.Unsubscribe() //nolint:errcheck // the connection ends with the test
	if err := r.nc.Flush(); err != nil {
		r.Fatal(err)
	}
	if _, err := r.js.Publish(ctx, "mesh.v1.req.m.any.t", data, jetstream.WithMsgID("t/"+session+"/1/n")); err != nil {
		r.Fatal(err)
	}
	for {
		msg, err := events.NextMsgWithContext(ctx)
		if err != nil {
			r.Fatalf("%.200s: %v", fmt.Sprint(changes), err)
		}
		event, err := schemas.DecodeEvent(msg.Data)
		if err != nil {
			r.Fatal(err)
		}
		if final, ok := event.(*schemas.Final); ok {
			return final
		}
	}
}
