package spill

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/meshnet/node/hotkv"
)

// A file is this header, the names of tenant and session, the token ids (32 bits each) and the state's blob, little-endian:
//
//	0  magic "MNSP"     40 epoch                       60 tokens                  72 blob bytes
//	4  version          48 last use, Unix nanoseconds  64 length of the tenant    80 CRC-32C of token ids and blob
//	8  SHA-256 of the   56 exact_len                   66 length of the session   84 CRC-32C of all before it, and of
//	   recipe                                          68 CRC-32C of the exact       the names
//	                                                      fingerprint
const (
	magic      = "MNSP"
	version    = 1
	headerSize = 88
	maxName    = 1 << 10 // bytes of a tenant's or a session's name
	tokenBytes = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errCorrupt = errors.New("not a whole file of this store")
	errRecipe  = errors.New("saved under another recipe")
)

// header is what a file says before its token ids and its blob.
type header struct {
	key              hotkv.Key
	recipe           string
	epoch            uint64
	used             int64 // Unix nanoseconds
	exactLen, tokens int
	blob             int64 // bytes
	exact, sum       uint32
}

func headerOf(e *hotkv.Entry) header {
	return header{key: e.Key, recipe: e.Recipe, epoch: e.Epoch, used: e.Used.UnixNano(), exactLen: e.ExactLen, tokens: len(e.Tokens), blob: e.State.Bytes()}
}

// fileSize is how long the whole file is, in bytes.
func (h *header) fileSize() int64 {
	return int64(headerSize+len(h.key.Tenant)+len(h.key.Session)+h.tokens*tokenBytes) + h.blob
}

// storable says whether the format can hold it.
func (h *header) storable() bool {
	return len(h.key.Tenant) <= maxName && len(h.key.Session) <= maxName && h.tokens <= 1<<31-1
}

// bytes are the header and the names.
func (h *header) bytes() []byte {
	le := binary.LittleEndian
	recipe := digestOf(h.recipe)
	b := make([]byte, headerSize, headerSize+len(h.key.Tenant)+len(h.key.Session))
	copy(b, magic)
	le.PutUint32(b[4:], version)
	copy(b[8:], recipe[:])
	le.PutUint64(b[40:], h.epoch)
	le.PutUint64(b[48:], uint64(h.used))
	le.PutUint32(b[56:], uint32(h.exactLen))
	le.PutUint32(b[60:], uint32(h.tokens))
	le.PutUint16(b[64:], uint16(len(h.key.Tenant)))
	le.PutUint16(b[66:], uint16(len(h.key.Session)))
	le.PutUint32(b[68:], h.exact)
	le.PutUint64(b[72:], uint64(h.blob))
	le.PutUint32(b[80:], h.sum)
	b = append(append(b, h.key.Tenant...), h.key.Session...)
	le.PutUint32(b[84:], headerSum(b))
	return b
}

// exactMark stands for an exact fingerprint.
func exactMark(fingerprint string) uint32 { return crc32.Checksum([]byte(fingerprint), castagnoli) }

func headerSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:84], castagnoli), castagnoli, b[headerSize:])
}

// digest is of a recipe.
type digest [sha256.Size]byte

func digestOf(recipe string) digest { return sha256.Sum256([]byte(recipe)) }

// readHeader takes nothing from a file of size bytes but what its checksum covers. The error wraps errCorrupt or errRecipe, or
// is that of r.
func readHeader(r io.Reader, size int64, recipes map[digest]string) (header, error) {
	le := binary.LittleEndian
	b := make([]byte, headerSize, headerSize+2*maxName)
	if _, err := io.ReadFull(r, b); err != nil {
		return header{}, cut(err)
	}
	if string(b[:4]) != magic || le.Uint32(b[4:]) != version {
		return header{}, fmt.Errorf("%w: it begins with %q", errCorrupt, b[:8])
	}
	tenant, session := int(le.Uint16(b[64:])), int(le.Uint16(b[66:]))
	if tenant > maxName || session > maxName {
		return header{}, fmt.Errorf("%w: names of %d and %d bytes, at most %d", errCorrupt, tenant, session, maxName)
	}
	b = b[:headerSize+tenant+session]
	if _, err := io.ReadFull(r, b[headerSize:]); err != nil {
		return header{}, cut(err)
	}
	if headerSum(b) != le.Uint32(b[84:]) {
		return header{}, fmt.Errorf("%w: the header's checksum differs", errCorrupt)
	}
	names := string(b[headerSize:])
	h := header{
		key:   hotkv.Key{Tenant: names[:tenant], Session: names[tenant:]},
		epoch: le.Uint64(b[40:]), used: int64(le.Uint64(b[48:])), exactLen: int(le.Uint32(b[56:])), tokens: int(le.Uint32(b[60:])),
		exact: le.Uint32(b[68:]), blob: int64(le.Uint64(b[72:])), sum: le.Uint32(b[80:]),
	}
	if h.blob < 0 || h.fileSize() != size {
		return header{}, fmt.Errorf("%w: %d bytes, the header says %d", errCorrupt, size, h.fileSize())
	}
	recipe, known := recipes[digest(b[8:40])]
	if !known {
		return header{}, errRecipe
	}
	h.recipe = recipe
	return h, nil
}

// cut tells a file that ends too early from one that cannot be read.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends early", errCorrupt)
	}
	return err
}

// watched remembers why a reader failed, whatever whoever reads from it makes of that.
type watched struct {
	io.Reader
	err error
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		w.err = err
	}
	return n, err
}

// readEntry reads what follows the header. The error is that of r, or else wraps errCorrupt.
func readEntry(r io.Reader, h *header, load func(int64, io.Reader) (hotkv.State, error)) (hotkv.Entry, error) {
	sum := crc32.New(castagnoli)
	source := &watched{Reader: io.TeeReader(r, sum)}
	ids := make([]byte, h.tokens*tokenBytes)
	_, err := io.ReadFull(source, ids)
	var state hotkv.State
	if err == nil {
		state, err = load(h.blob, io.LimitReader(source, h.blob))
	}
	switch {
	case source.err != nil && err != nil:
		return hotkv.Entry{}, source.err
	case err != nil:
		return hotkv.Entry{}, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if sum.Sum32() != h.sum || state.Bytes() != h.blob || state.Tokens() != h.tokens {
		state.Free()
		return hotkv.Entry{}, fmt.Errorf("%w: its checksum differs", errCorrupt)
	}
	tokens := make([]int32, h.tokens)
	for i := range tokens {
		tokens[i] = int32(binary.LittleEndian.Uint32(ids[i*tokenBytes:]))
	}
	return hotkv.Entry{
		Key: h.key, Epoch: h.epoch, Recipe: h.recipe, Tokens: tokens, ExactLen: h.exactLen,
		Slot: hotkv.NoSlot, State: state, Bytes: h.blob, Used: time.Unix(0, h.used),
	}, nil
}

// writeEntry writes a whole file. exact is the mark of the exact fingerprint.
func writeEntry(w io.Writer, e *hotkv.Entry, exact uint32) error {
	h := headerOf(e)
	h.exact = exact
	ids := make([]byte, 0, len(e.Tokens)*tokenBytes)
	for _, id := range e.Tokens {
		ids = binary.LittleEndian.AppendUint32(ids, uint32(id))
	}
	blob := e.State.Blob()
	h.sum = crc32.Update(crc32.Checksum(ids, castagnoli), castagnoli, blob)
	for _, part := range [][]byte{h.bytes(), ids, blob} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// The name of a file is a hash of its session, which says nothing of the session's own name, and a number that no other
// file has, so that a file that is to be removed is never taken for its successor.
const (
	nameSuffix = ".kv"
	tempSuffix = ".tmp"
	hashDigits = 32
)

func fileName(key hotkv.Key, number uint64) string {
	hash := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", len(key.Tenant), key.Tenant, key.Session))
	return fmt.Sprintf("%x-%016x%s", hash[:hashDigits/2], number, nameSuffix)
}

// parseName says whether a file is one of this store's, and whether it was never finished.
func parseName(name string) (number uint64, temporary, ours bool) {
	name, temporary = strings.CutSuffix(name, tempSuffix)
	name, ours = strings.CutSuffix(name, nameSuffix)
	hash, digits, found := strings.Cut(name, "-")
	if !ours || !found || len(hash) != hashDigits || len(digits) != 16 {
		return 0, false, false
	}
	_, err := hex.DecodeString(hash)
	number, err2 := strconv.ParseUint(digits, 16, 64)
	return number, temporary, err == nil && err2 == nil
}
