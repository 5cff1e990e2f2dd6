package schemas_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/meshnet/node/schemas"
)

// wantReject checks that err refuses a payload for a reason.
func wantReject(t *testing.T, name string, err error, want schemas.RejectReason) {
	t.Helper()
	var de *schemas.DecodeError
	if !errors.As(err, &de) {
		t.Errorf("%s: error is %v, want a *DecodeError", name, err)
		return
	}
	if de.Reason != want {
		t.Errorf("%s: refused as %q (%v), want %q", name, de.Reason, err, want)
	}
	if !slices.Contains(schemas.RejectReasons(), de.Reason) {
		t.Errorf("%s: %q is not in the closed set", name, de.Reason)
	}
}

// wantField checks that err names a field.
func wantField(t *testing.T, name string, err error, want string) {
	t.Helper()
	var fe *schemas.FieldError
	if !errors.As(err, &fe) {
		t.Errorf("%s: error is %v, want a *FieldError", name, err)
		return
	}
	if fe.Field != want {
		t.Errorf("%s: error is about %q (%v), want %q", name, fe.Field, err, want)
	}
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for name, c := range codecs() {
		for _, sample := range c.samples {
			again, _, err := c.recode(sample)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !bytes.Equal(again, sample) {
				t.Errorf("%s: encoded again it is\n%x, was\n%x", name, again, sample)
			}
		}
	}
	want := textRequest()
	got, err := schemas.Decode[schemas.Request](mustEncode(schemas.Encode(want)))
	if err != nil {
		t.Fatal(err)
	}
	if want.V = 1; !reflect.DeepEqual(got, want) {
		t.Errorf("decoded %+v, want %+v", got, want)
	}
}

func TestEncodeLeavesTheMessageAsItIs(t *testing.T) {
	m := advertisement()
	mustEncode(schemas.Encode(m))
	if !reflect.DeepEqual(m, advertisement()) {
		t.Errorf("encoding changed the message to %+v", m)
	}
}

func TestDecodedMessageHoldsNothingOfThePayload(t *testing.T) {
	data := mustEncode(schemas.Encode(&schemas.LedgerRecord{Done: &schemas.DoneRecord{Reason: schemas.Cancelled, Final: []byte("final")}}))
	m, err := schemas.Decode[schemas.LedgerRecord](data)
	if err != nil {
		t.Fatal(err)
	}
	clear(data)
	if string(m.Done.Final) != "final" {
		t.Errorf("final changed with the payload to %q", m.Done.Final)
	}
}

func TestJSONHasTheNamesOfTheWire(t *testing.T) {
	for name, c := range codecs() {
		for _, sample := range c.samples {
			m, err := c.decode(sample)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var loose map[string]any
			if err := json.Unmarshal(text, &loose); err != nil {
				t.Fatal(err)
			}
			got, want := keys(loose), keys(asMap(t, sample))
			if !slices.Equal(got, want) {
				t.Errorf("%s: JSON has the fields %v, msgpack %v", name, got, want)
			}
			back := reflect.New(reflect.TypeOf(m).Elem()).Interface()
			if err := json.Unmarshal(text, back); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !reflect.DeepEqual(back, m) {
				t.Errorf("%s: JSON gives back %+v, want %+v", name, back, m)
			}
		}
	}
}

func keys(m map[string]any) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

func TestNewerVersionIsRefusedClearly(t *testing.T) {
	for name, c := range codecs() {
		m := asMap(t, c.samples[0])
		m["v"] = 2
		m["turn"] = "of another type in version 2"
		_, err := c.decode(pack(t, m))
		wantReject(t, name, err, schemas.RejectVersion)
		var ve *schemas.VersionError
		if !errors.As(err, &ve) || ve.Got != 2 || ve.Want != 1 {
			t.Errorf("%s: %v does not say which versions", name, err)
		}
	}
}

func TestVersionThatNeverWasIsRefused(t *testing.T) {
	for _, v := range []any{-1, 0, 1.0, nil, "1", uint64(math.MaxUint64)} {
		m := asMap(t, mustEncode(schemas.Encode(textRequest())))
		m["v"] = v
		if r, err := schemas.Decode[schemas.Request](pack(t, m)); err == nil {
			t.Errorf("v %v is decoded as %d", v, r.V)
		}
	}
	m := asMap(t, mustEncode(schemas.Encode(textRequest())))
	delete(m, "v")
	_, err := schemas.Decode[schemas.Request](pack(t, m))
	wantField(t, "no version", err, "v")
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	for name, c := range codecs() {
		m := asMap(t, c.samples[0])
		m["a_field_of_tomorrow"] = map[string]any{"deep": []any{1, "two", nil, 3.5}}
		m[""] = true
		got, _, err := c.recode(pack(t, m))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !bytes.Equal(got, c.samples[0]) {
			t.Errorf("%s: unknown fields changed it", name)
		}
	}
}

func TestEveryMissingOrWrongFieldIsNamed(t *testing.T) {
	for name, c := range codecs() {
		for _, sample := range c.samples {
			for field := range asMap(t, sample) {
				m := asMap(t, sample)
				m[field] = []any{map[string]any{}}
				_, err := c.decode(pack(t, m))
				if err == nil {
					t.Errorf("%s: %s may be a list of maps", name, field)
					continue
				}
				var fe *schemas.FieldError
				if !errors.As(err, &fe) || !strings.HasPrefix(fe.Field, field) {
					t.Errorf("%s: wrong %s is told as %v", name, field, err)
				}
				delete(m, field)
				if _, err := c.decode(pack(t, m)); err != nil && !errors.As(err, &fe) {
					t.Errorf("%s: missing %s is told as %v", name, field, err)
				}
			}
		}
	}
}

func TestWhatTheMsgpackLibraryWouldBendIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		field  string
		value  any
		want   schemas.RejectReason
		blamed string
	}{
		"negative into unsigned":     {"turn", -1, schemas.RejectInvalid, "turn"},
		"2^63 into signed":           {"max_new_tokens", uint64(1) << 63, schemas.RejectInvalid, "max_new_tokens"},
		"2^64-1 into a float":        {"sampling", map[string]any{"presence_penalty": uint64(math.MaxUint64)}, schemas.RejectInvalid, "sampling.presence_penalty"},
		"2^64-1 in a list":           {"token_ids", []uint64{1, math.MaxUint64}, schemas.RejectInvalid, "token_ids[1]"},
		"float into integer":         {"max_new_tokens", 5.0, schemas.RejectBadType, "max_new_tokens"},
		"bytes into string":          {"tenant", []byte("acme"), schemas.RejectBadType, "tenant"},
		"array into struct":          {"sampling", []any{0.5, 1, 1.0, 0.0, 1.0, 0.0, 0.0, 64, nil, false}, schemas.RejectBadType, "sampling"},
		"nil where one must be":      {"model", nil, schemas.RejectBadType, "model"},
		"nil in a list":              {"token_ids", []any{1, nil}, schemas.RejectBadType, "token_ids[1]"},
		"nil for a default":          {"sampling", map[string]any{"top_p": nil}, schemas.RejectBadType, "sampling.top_p"},
		"string into boolean":        {"keep", "true", schemas.RejectBadType, "keep"},
		"integer into string":        {"nonce", 17, schemas.RejectBadType, "nonce"},
		"string that is not UTF-8":   {"prompt", "\xff\xfe", schemas.RejectInvalid, "prompt"},
		"a key twice in known field": {"sampling", rawTwice{}, schemas.RejectDuplicateKey, ""},
	} {
		m := asMap(t, mustEncode(schemas.Encode(textRequest())))
		if c.field == "token_ids" {
			delete(m, "prompt")
		}
		m[c.field] = c.value
		_, err := schemas.Decode[schemas.Request](pack(t, m))
		wantReject(t, name, err, c.want)
		if c.blamed != "" {
			wantField(t, name, err, c.blamed)
		}
	}
}

// rawTwice is a map with a key twice.
type rawTwice struct{}

func (rawTwice) MarshalMsgpack() ([]byte, error) {
	return []byte{0x82, 0xa5, 't', 'o', 'p', '_', 'k', 1, 0xa5, 't', 'o', 'p', '_', 'k', 2}, nil
}

func TestNilIsAbsentWhereAFieldIsOptional(t *testing.T) {
	m := asMap(t, mustEncode(schemas.Encode(textRequest())))
	for _, field := range []string{"epoch", "token_ids", "messages", "tools", "json_schema", "grammar", "special", "sampling", "stop", "keep", "require_hot", "deadline_ms", "heartbeat_ms"} {
		m[field] = nil
	}
	got, err := schemas.Decode[schemas.Request](pack(t, m))
	if err != nil {
		t.Fatal(err)
	}
	if got.Epoch != 0 || got.TokenIDs != nil || got.Sampling != nil || got.Keep || got.Deadline() != schemas.DefaultDeadline || got.Heartbeat() != 0 {
		t.Errorf("nil fields came to %+v", got)
	}
}

func TestPayloadThatIsNoMapIsRefused(t *testing.T) {
	for name, c := range codecs() {
		for _, data := range [][]byte{{0x90}, {0xc0}, {0x01}, {0xa1, 'x'}} {
			_, err := c.decode(data)
			wantReject(t, name, err, schemas.RejectBadType)
		}
	}
}

// A request of 1,223,632 bytes against a limit of 1 MiB: dynamo#9734.
func TestTooLargeNamesBothNumbers(t *testing.T) {
	_, err := schemas.Decode[schemas.Request](make([]byte, 1_223_632))
	wantReject(t, "large request", err, schemas.RejectTooLarge)
	var tl *schemas.TooLargeError
	if !errors.As(err, &tl) || tl.Bytes != 1_223_632 || tl.Limit != 1<<20 {
		t.Errorf("error is %v; want one with 1223632 and 1048576", err)
	}
	big := textRequest()
	big.Prompt = ptr(strings.Repeat("x", 1_223_632))
	_, err = schemas.Encode(big)
	wantField(t, "large prompt", err, "prompt")
	if err == nil || !strings.Contains(err.Error(), "1223632") || !strings.Contains(err.Error(), "1032192") {
		t.Errorf("error is %v; want one with both numbers", err)
	}
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	longest := textRequest()
	longest.Prompt = ptr(strings.Repeat("x", schemas.MaxPromptBytes))
	most := tokenRequest()
	most.TokenIDs = slices.Repeat([]int64{schemas.MaxTokenID}, schemas.MaxPromptTokens)
	for name, m := range map[string]*schemas.Request{"longest prompt": longest, "most tokens": most} {
		if _, err := schemas.Decode[schemas.Request](mustEncode(schemas.Encode(m))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	reply := nodeReply()
	reply.Sessions = slices.Repeat(reply.Sessions, schemas.MaxSessions)
	if _, err := schemas.Decode[schemas.NodeReply](mustEncode(schemas.Encode(reply))); err != nil {
		t.Error(err)
	}
}

func TestDecodingTakesMemoryInProportionToThePayload(t *testing.T) {
	most := tokenRequest()
	most.TokenIDs = slices.Repeat([]int64{0}, schemas.MaxPromptTokens)
	data := mustEncode(schemas.Encode(most))
	for name, data := range map[string][]byte{
		"most tokens":     data,
		"costliest maps":  costly(),
		"nested":          append([]byte{0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<20-3)...),
		"claims of 4 GiB": {0x81, 0xa6, 'p', 'r', 'o', 'm', 'p', 't', 0xdb, 0xff, 0xff, 0xff, 0xff},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = schemas.Decode[schemas.Request](data)
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(32*len(data)+64<<10); got > most {
			t.Errorf("%s: %d bytes allocated for %d, want at most %d", name, got, len(data), most)
		}
	}
}

func TestTurnOfAnInvalidRequestIsReadable(t *testing.T) {
	m := asMap(t, mustEncode(schemas.Encode(textRequest())))
	m["max_new_tokens"], m["v"], m["prompt"] = -1, 9, []int{}
	id, err := schemas.DecodeTurnID(pack(t, m))
	if err != nil || id != turnID {
		t.Errorf("DecodeTurnID = %v, %v; want %v", id, err, turnID)
	}
	m["session"] = "a.b"
	_, err = schemas.DecodeTurnID(pack(t, m))
	wantReject(t, "session", err, schemas.RejectInvalid)
	wantField(t, "session", err, "session")
	delete(m, "turn")
	_, err = schemas.DecodeTurnID(pack(t, m))
	wantField(t, "turn", err, "turn")
	_, err = schemas.DecodeTurnID([]byte{0x92, 1})
	wantReject(t, "bytes", err, schemas.RejectTruncated)
}

func TestEqualMessagesHaveEqualBytes(t *testing.T) {
	a, b := advertisement(), advertisement()
	b.Telemetry.RejectedByReason = schemas.Counts{"rejected-context": 1, "rejected-queue-full": 2}
	first := mustEncode(schemas.Encode(a))
	for range 20 {
		if !bytes.Equal(first, mustEncode(schemas.Encode(b))) {
			t.Fatal("the order of a map shows in the bytes")
		}
	}
}
