package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// outputFile is a file that is complete or not there: it is written beside its place, and moved there. It is made before what
// it will hold, so that one that cannot be written is found out at once. A nil one is none.
type outputFile struct {
	path   string
	file   *os.File
	direct bool // the place is no regular file, as /dev/null is none
}

func createOutput(path string) (*outputFile, error) {
	if path == "" || path == "-" {
		return nil, nil
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		return &outputFile{path: path, file: file, direct: true}, err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return nil, err
	}
	return &outputFile{path: path, file: file}, nil
}

// outputs makes the files that the flags name.
func (c *benchCommand) outputs() (jsonFile, htmlFile *outputFile, err error) {
	if jsonFile, err = createOutput(c.JSON); err != nil {
		return nil, nil, usageError("--json: %v", err)
	}
	if htmlFile, err = createOutput(c.HTML); err != nil {
		jsonFile.abandon()
		return nil, nil, usageError("--html: %v", err)
	}
	return jsonFile, htmlFile, nil
}

// write fills the file and puts it in its place.
func (o *outputFile) write(content func(io.Writer) error) error {
	if o == nil {
		return nil
	}
	buffer := bufio.NewWriter(o.file)
	err := content(buffer)
	if err == nil {
		err = buffer.Flush()
	}
	if err == nil && !o.direct {
		const readable = 0o644
		err = o.file.Chmod(readable)
	}
	if closed := o.file.Close(); err == nil {
		err = closed
	}
	if err == nil && !o.direct {
		err = os.Rename(o.file.Name(), o.path)
	}
	return err
}

// abandon removes what is not in its place. After write it does nothing, and on nil.
func (o *outputFile) abandon() {
	if o == nil {
		return
	}
	if err := o.file.Close(); errors.Is(err, os.ErrClosed) && o.direct {
		return
	}
	if !o.direct {
		os.Remove(o.file.Name()) //nolint:errcheck // it was moved, or is only in the way
	}
}
