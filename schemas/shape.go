package schemas

import (
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// shape is the form of a message on the wire, made once from its struct. The decoder behind it is lenient
// where this is not: it would read −1 into an unsigned field as 2^64 − 1, cut numbers to narrower fields and take arrays for structs.
type shape struct {
	kind     shapeKind
	bits     int          // of integers
	size     int          // of bytes: how many; 0 is any number
	fields   []fieldShape // of objects, at most MaxKeys
	required uint64       // bits of the fields that must be there
	elem     *shape       // of lists and dictionaries
}

type fieldShape struct {
	name  string
	shape *shape
	isOpt bool // may be nil
}

type shapeKind uint8

const (
	shapeBool shapeKind = iota
	shapeInt
	shapeUint
	shapeFloat
	shapeString
	shapeBytes
	shapeList
	shapeDict
	shapeObject
)

func (k shapeKind) String() string {
	return [...]string{"a boolean", "an integer", "an integer, not negative", "a number", "a string", "bytes", "an array", "a map", "a map"}[k]
}

// shaper is a type that writes itself in another form than its Go one.
type shaper interface{ wireShape() shape }

func (Name[K]) wireShape() shape { return shape{kind: shapeString} }
func (h Hash) wireShape() shape  { return shape{kind: shapeBytes, size: len(h)} }

var shapes sync.Map // reflect.Type → *shape

// shapeFor is the shape of a message.
func shapeFor[T any]() *shape {
	t := reflect.TypeFor[T]()
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, shapeOf(t))
	return s.(*shape)
}

func shapeOf(t reflect.Type) *shape {
	if t.Implements(reflect.TypeFor[shaper]()) {
		s := reflect.Zero(t).Interface().(shaper).wireShape()
		return &s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shapeOf(t.Elem())
	case reflect.Bool:
		return &shape{kind: shapeBool}
	case reflect.Int, reflect.Int64:
		return &shape{kind: shapeInt, bits: t.Bits()}
	case reflect.Uint64:
		return &shape{kind: shapeUint, bits: t.Bits()}
	case reflect.Float64:
		return &shape{kind: shapeFloat}
	case reflect.String:
		return &shape{kind: shapeString}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &shape{kind: shapeBytes}
		}
		return &shape{kind: shapeList, elem: shapeOf(t.Elem())}
	case reflect.Map:
		return &shape{kind: shapeDict, elem: shapeOf(t.Elem())}
	case reflect.Struct:
		s := &shape{kind: shapeObject}
		s.addFields(t)
		return s
	}
	panic("schemas: a message cannot hold a " + t.String())
}

func (s *shape) addFields(t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			s.addFields(f.Type)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("msgpack"), ",")
		if len(s.fields) == MaxKeys {
			panic("schemas: " + t.String() + " has more fields than the guard lets pass")
		}
		isOpt := options == "omitempty"
		if !isOpt && f.Tag.Get("wire") != "default" {
			s.required |= 1 << len(s.fields)
		}
		s.fields = append(s.fields, fieldShape{name, shapeOf(f.Type), isOpt})
	}
}

// misfit is where bytes do not have a shape.
type misfit struct {
	reason RejectReason
	field  *FieldError
}

// within puts the error below a field or an element.
func (m *misfit) within(name string) *misfit {
	if m.field.Field == "" || m.field.Field[0] == '[' {
		m.field.Field = name + m.field.Field
	} else {
		m.field.Field = name + "." + m.field.Field
	}
	return m
}

func wrongType(h head, want shapeKind) *misfit {
	return &misfit{RejectBadType, fieldError("", h.kind, "%s", want)}
}

// check walks over the value at an offset of bytes that passed Guard, and returns the offset behind it. It
// allocates only for an error, and recurses no deeper than the message's type.
func (s *shape) check(data []byte, at int) (int, *misfit) {
	h, _ := readHead(data, at)
	switch s.kind {
	case shapeObject:
		return s.checkObject(data, h)
	case shapeList:
		return s.checkList(data, h)
	case shapeDict:
		return s.checkDict(data, h)
	case shapeString, shapeBytes:
		return s.checkBytes(data, h)
	case shapeInt, shapeUint:
		return h.next, s.checkInteger(h)
	case shapeFloat:
		if h.kind != headFloat && h.kind != headUint && h.kind != headNegative {
			return 0, wrongType(h, s.kind)
		}
		if h.kind == headUint && h.n > math.MaxInt64 { // the decoder would read it as a negative one
			return 0, &misfit{RejectInvalid, fieldError("", h.n, "at most %d, or a float", math.MaxInt64)}
		}
	case shapeBool:
		if h.kind != headBool {
			return 0, wrongType(h, s.kind)
		}
	}
	return h.next, nil
}

func (s *shape) checkInteger(h head) *misfit {
	switch {
	case h.kind != headUint && h.kind != headNegative:
		return wrongType(h, s.kind)
	case s.kind == shapeUint:
		if h.kind == headNegative {
			return &misfit{RejectInvalid, fieldError("", int64(h.n), "at least 0")}
		}
	case h.kind == headUint && h.n > uint64(math.MaxInt64)>>(64-s.bits):
		return &misfit{RejectInvalid, fieldError("", h.n, "at most %d", int64(math.MaxInt64)>>(64-s.bits))}
	case h.kind == headNegative && int64(h.n) < int64(math.MinInt64)>>(64-s.bits):
		return &misfit{RejectInvalid, fieldError("", int64(h.n), "at least %d", int64(math.MinInt64)>>(64-s.bits))}
	}
	return nil
}

func (s *shape) checkBytes(data []byte, h head) (int, *misfit) {
	if isText := s.kind == shapeString; isText && h.kind != headString || !isText && h.kind != headBytes {
		return 0, wrongType(h, s.kind)
	}
	end := h.next + int(h.n)
	switch {
	case s.kind == shapeString && !utf8.Valid(data[h.next:end]):
		return 0, &misfit{RejectInvalid, fieldError("", "not UTF-8", "UTF-8 text")}
	case s.size > 0 && int(h.n) != s.size:
		return 0, &misfit{RejectInvalid, fieldError("", fmt.Sprintf("%d bytes long", h.n), "%d bytes long", s.size)}
	}
	return end, nil
}

func (s *shape) checkList(data []byte, h head) (int, *misfit) {
	if h.kind != headArray {
		return 0, wrongType(h, s.kind)
	}
	at := h.next
	for i := range int(h.n) {
		next, bad := s.elem.check(data, at)
		if bad != nil {
			return 0, bad.within("[" + strconv.Itoa(i) + "]")
		}
		at = next
	}
	return at, nil
}

func (s *shape) checkDict(data []byte, h head) (int, *misfit) {
	if h.kind != headMap {
		return 0, wrongType(h, s.kind)
	}
	at := h.next
	for range int(h.n) {
		key, value := readKey(data, at)
		next, bad := s.elem.check(data, value)
		if bad != nil {
			return 0, bad.within(shown(string(key)))
		}
		at = next
	}
	return at, nil
}

func (s *shape) checkObject(data []byte, h head) (int, *misfit) {
	if h.kind != headMap {
		return 0, wrongType(h, s.kind)
	}
	at, guess := h.next, 0
	var seen uint64
	for range int(h.n) {
		key, value := readKey(data, at)
		i := s.find(key, guess)
		if i < 0 {
			at = skip(data, value)
			continue
		}
		f := &s.fields[i]
		guess = i + 1
		if v, _ := readHead(data, value); v.kind == headNil && f.isOpt {
			at = v.next
			continue
		}
		next, bad := f.shape.check(data, value)
		if bad != nil {
			return 0, bad.within(f.name)
		}
		seen |= 1 << i
		at = next
	}
	if missing := s.required &^ seen; missing != 0 {
		f := s.fields[bits.TrailingZeros64(missing)]
		return 0, &misfit{RejectInvalid, fieldError(f.name, "missing", "%s", f.shape.kind)}
	}
	return at, nil
}

// find is the index of a field, −1 for none. Senders mostly keep the struct's order: guess is tried first.
func (s *shape) find(key []byte, guess int) int {
	if guess < len(s.fields) && s.fields[guess].name == string(key) {
		return guess
	}
	for i := range s.fields {
		if s.fields[i].name == string(key) {
			return i
		}
	}
	return -1
}

// readKey reads a key of a map in bytes that passed Guard, and the offset of its value.
func readKey(data []byte, at int) (key []byte, value int) {
	h, _ := readHead(data, at)
	value = h.next + int(h.n)
	return data[h.next:value], value
}

// skip is the offset behind a value in bytes that passed Guard.
func skip(data []byte, at int) int {
	for pending := uint64(1); pending > 0; pending-- {
		h, _ := readHead(data, at)
		at = h.next
		switch h.kind {
		case headString, headBytes:
			at += int(h.n)
		case headArray:
			pending += h.n
		case headMap:
			pending += 2 * h.n
		}
	}
	return at
}

// lookup finds the value of a key of the outermost map in bytes that passed Guard and are a map.
func lookup(data []byte, name string) (h head, found bool) {
	root, _ := readHead(data, 0)
	at := root.next
	for range int(root.n) {
		key, value := readKey(data, at)
		if string(key) == name {
			h, _ = readHead(data, value)
			return h, true
		}
		at = skip(data, value)
	}
	return head{}, false
}
