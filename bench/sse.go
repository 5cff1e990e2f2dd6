package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxEventBytes bounds an event of a stream. One of a completion has some hundred bytes.
const maxEventBytes = 1 << 20

var errEventTooLong = fmt.Errorf("an event of the stream has more than %d bytes", maxEventBytes)

// eventReader reads server-sent events as the HTML standard has them, and takes one at the end of the body even without the
// empty line that should end it.
type eventReader struct {
	r       *bufio.Reader
	begun   bool
	afterCR bool // the last line ended with CR: a LF that follows belongs to it
	line    []byte
}

func newEventReader(r io.Reader) *eventReader { return &eventReader{r: bufio.NewReader(r)} }

// next is the data of the next event that has any. Comments, other fields and events without data are passed over. The error
// is io.EOF at the end of the body.
func (e *eventReader) next() ([]byte, error) {
	var data []byte
	has := false
	for {
		err := e.readLine()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		field, value, _ := bytes.Cut(e.line, []byte(":"))
		switch {
		case string(field) == "data":
			if has {
				data = append(data, '\n')
			}
			has = true
			data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
			if len(data) > maxEventBytes {
				return nil, errEventTooLong
			}
		case len(e.line) == 0 && has:
			return data, nil
		}
		if err != nil {
			if has {
				return data, nil
			}
			return nil, err
		}
	}
}

// readLine reads a line without its end, which is LF, CR LF or CR. With an error comes what there is of the last one.
func (e *eventReader) readLine() error {
	e.line = e.line[:0]
	for {
		b, err := e.r.ReadByte()
		if err != nil {
			return err
		}
		skip := b == '\n' && e.afterCR && len(e.line) == 0
		e.afterCR = b == '\r'
		switch {
		case skip:
		case b == '\n' || b == '\r':
			e.dropMark()
			return nil
		case len(e.line) >= maxEventBytes:
			return errEventTooLong
		default:
			e.line = append(e.line, b)
		}
	}
}

// dropMark takes a byte-order mark from the first line.
func (e *eventReader) dropMark() {
	if !e.begun {
		e.begun = true
		e.line = bytes.TrimPrefix(e.line, []byte("\xef\xbb\xbf"))
	}
}
