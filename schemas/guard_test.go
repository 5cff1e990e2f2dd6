package schemas_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/meshnet/node/schemas"
)

// Payloads that make a decoder allocate or recurse without bound: msgpack#401, msgpack#376.
func hostile() map[string]struct {
	data []byte
	want schemas.RejectReason
} {
	type c = struct {
		data []byte
		want schemas.RejectReason
	}
	return map[string]c{
		"nothing":                       {nil, schemas.RejectTruncated},
		"map32 of 4 G entries":          {[]byte{0xdf, 0xff, 0xff, 0xff, 0xff}, schemas.RejectTruncated},
		"array32 of 4 G elements":       {[]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, schemas.RejectTruncated},
		"bin32 of 2 GiB":                {[]byte{0xc6, 0x80, 0, 0, 0}, schemas.RejectTruncated},
		"str32 of 4 GiB":                {[]byte{0xdb, 0xff, 0xff, 0xff, 0xff, 'x'}, schemas.RejectTruncated},
		"8 MB of nested arrays":         {bytes.Repeat([]byte{0x91}, 8<<20), schemas.RejectTooDeep},
		"8 MB of nested maps":           {bytes.Repeat([]byte{0x81, 0xa1, 'k'}, 8<<20/3), schemas.RejectTooDeep},
		"maps as keys":                  {bytes.Repeat([]byte{0x81}, 64), schemas.RejectKeyType},
		"17 arrays within each other":   {append(bytes.Repeat([]byte{0x91}, 16), 0x90), schemas.RejectTooDeep},
		"8 MB of nils in an array":      {append([]byte{0xdd, 0, 0x7f, 0xff, 0xfb}, bytes.Repeat([]byte{0xc0}, 8<<20-5)...), schemas.RejectTooManyNodes},
		"a map of 65 keys":              {manyKeys(65), schemas.RejectTooManyKeys},
		"trailing bytes":                {[]byte{0x80, 0xc0}, schemas.RejectTrailing},
		"two values":                    {[]byte{0x80, 0x80}, schemas.RejectTrailing},
		"a timestamp extension":         {[]byte{0xd6, 0xff, 0, 0, 0, 0}, schemas.RejectExtension},
		"ext32 of 4 GiB":                {[]byte{0xc9, 0xff, 0xff, 0xff, 0xff, 1}, schemas.RejectExtension},
		"an extension before a map":     {[]byte{0xc7, 0, 5, 0x80}, schemas.RejectExtension},
		"0xc1":                          {[]byte{0x91, 0xc1}, schemas.RejectBadCode},
		"an integer as key":             {[]byte{0x81, 0x01, 0x01}, schemas.RejectKeyType},
		"bytes as key":                  {[]byte{0x81, 0xc4, 0x01, 'v', 0x01}, schemas.RejectKeyType},
		"nil as key":                    {[]byte{0x81, 0xc0, 0xc0}, schemas.RejectKeyType},
		"a key twice":                   {[]byte{0x82, 0xa1, 'v', 1, 0xa1, 'v', 2}, schemas.RejectDuplicateKey},
		"a key twice, in other formats": {[]byte{0x82, 0xa1, 'v', 1, 0xd9, 1, 'v', 2}, schemas.RejectDuplicateKey},
		"an empty key twice":            {[]byte{0x82, 0xa0, 1, 0xa0, 2}, schemas.RejectDuplicateKey},
		"a key without value":           {[]byte{0x81, 0xa1, 'v'}, schemas.RejectTruncated},
		"half a float":                  {[]byte{0xcb, 0, 0, 0}, schemas.RejectTruncated},
		"half a length":                 {[]byte{0xdb, 0, 0}, schemas.RejectTruncated},
	}
}

// manyKeys is a map of n keys of one length.
func manyKeys(n int) []byte {
	data := binary.BigEndian.AppendUint16([]byte{0xde}, uint16(n))
	for i := range n {
		data = fmt.Appendf(append(data, 0xa4), "%04d", i)
		data = append(data, 0xc0)
	}
	return data
}

// costly is what costs the guard the most: as many full maps of like keys as it lets pass.
func costly() []byte {
	const maps = schemas.MaxNodes/(2*schemas.MaxKeys+1) - 1
	data := binary.BigEndian.AppendUint16([]byte{0xdc}, maps)
	return append(data, bytes.Repeat(manyKeys(schemas.MaxKeys), maps)...)
}

func TestGuardRefusesHostileBytesWithoutAllocating(t *testing.T) {
	for name, c := range hostile() {
		t.Run(name, func(t *testing.T) {
			var got schemas.RejectReason
			allocs := testing.AllocsPerRun(10, func() { got = schemas.Guard(c.data) })
			if got != c.want {
				t.Errorf("Guard = %q, want %q", got, c.want)
			}
			if allocs != 0 {
				t.Errorf("%v allocations, want none", allocs)
			}
		})
	}
}

func TestGuardLetsPassUpToItsLimits(t *testing.T) {
	for name, data := range map[string][]byte{
		"16 arrays within each other": append(bytes.Repeat([]byte{0x91}, 15), 0x90),
		"64 keys":                     manyKeys(schemas.MaxKeys),
		"65536 nodes":                 append([]byte{0xdc, 0xff, 0xff}, bytes.Repeat([]byte{0xc0}, schemas.MaxNodes-1)...),
		"the costliest maps":          costly(),
		"a lone nil":                  {0xc0},
		"every width of integer":      {0x99, 0xcc, 1, 0xcd, 0, 1, 0xce, 0, 0, 0, 1, 0xcf, 0, 0, 0, 0, 0, 0, 0, 1, 0xd0, 1, 0xd1, 0, 1, 0xd2, 0, 0, 0, 1, 0xd3, 0, 0, 0, 0, 0, 0, 0, 1, 0xff},
		"the same key in two maps":    {0x92, 0x81, 0xa1, 'v', 1, 0x81, 0xa1, 'v', 1},
		"a key also in its own value": {0x81, 0xa1, 'v', 0x81, 0xa1, 'v', 1},
	} {
		if got := schemas.Guard(data); got != "" {
			t.Errorf("%s: Guard = %q, want it to pass", name, got)
		}
	}
}

func TestGuardRefusesEveryCutMessageAsTruncated(t *testing.T) {
	for name, c := range codecs() {
		for _, sample := range c.samples {
			if got := schemas.Guard(sample); got != "" {
				t.Errorf("%s: Guard = %q, want it to pass", name, got)
			}
			for n := range len(sample) {
				if got := schemas.Guard(sample[:n]); got != schemas.RejectTruncated {
					t.Fatalf("%s cut to %d bytes: Guard = %q, want %q", name, n, got, schemas.RejectTruncated)
				}
			}
		}
	}
}

func TestHostileBytesAreNoMessage(t *testing.T) {
	for name, c := range hostile() {
		if len(c.data) > schemas.MaxControlBytes {
			c.want = schemas.RejectTooLarge
		}
		_, err := schemas.Decode[schemas.Control](c.data)
		wantReject(t, name, err, c.want)
	}
}

func BenchmarkGuard(b *testing.B) {
	run := func(name string, data []byte) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				schemas.Guard(data)
			}
		})
	}
	for name, c := range codecs() {
		for i, sample := range c.samples {
			run(fmt.Sprintf("%s/%d", name, i), sample)
		}
	}
	for name, c := range hostile() {
		run(name, c.data)
	}
	run("the costliest maps", costly())
}

// BenchmarkDecode is what a message costs its reader: the guard, decoding and validation.
func BenchmarkDecode(b *testing.B) {
	eachSample(b, func(b *testing.B, c codec, data []byte, _ any) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := c.decode(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	eachSample(b, func(b *testing.B, c codec, _ []byte, m any) {
		for b.Loop() {
			if _, err := c.encode(m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// eachSample runs a benchmark for every sample of every message, named after its type.
func eachSample(b *testing.B, run func(b *testing.B, c codec, data []byte, m any)) {
	for _, c := range codecs() {
		for i, data := range c.samples {
			m, err := c.decode(data)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/%d", strings.TrimPrefix(fmt.Sprintf("%T", m), "*schemas."), i), func(b *testing.B) {
				b.ReportAllocs()
				run(b, c, data, m)
			})
		}
	}
}
