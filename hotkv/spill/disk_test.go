package spill_test

import (
	"bytes"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/meshnet/node/hotkv/spill"
)

var errFull error = &os.PathError{Op: "write", Path: "kv", Err: syscall.ENOSPC}

// brokenDisk is a folder whose calls fail, or wait, as a test says.
type brokenDisk struct {
	mu      sync.Mutex
	files   map[string][]byte
	refuse  map[string]error // by op
	hold    map[string]chan struct{}
	arrived chan string
	watch   func(bytes int64) // told of the size of all files after each write
	space   int               // bytes that can be written; negative is no bound
}

func newDisk() *brokenDisk {
	return &brokenDisk{files: map[string][]byte{}, refuse: map[string]error{}, hold: map[string]chan struct{}{}, arrived: make(chan string, 100), space: -1}
}

func (d *brokenDisk) set(op string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse[op] = err
}

// block makes the op wait until the returned function is called.
func (d *brokenDisk) block(op string) func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.hold[op] = gate
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.hold, op)
		close(gate)
	}
}

func (d *brokenDisk) enter(op string) error {
	d.mu.Lock()
	err, gate := d.refuse[op], d.hold[op]
	d.mu.Unlock()
	if gate != nil {
		d.arrived <- op
		<-gate
	}
	return err
}

func (d *brokenDisk) names() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.files {
		names = append(names, name)
	}
	return names
}

func (d *brokenDisk) bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytesLocked()
}

func (d *brokenDisk) bytesLocked() (sum int64) {
	for _, content := range d.files {
		sum += int64(len(content))
	}
	return sum
}

func (d *brokenDisk) List() ([]spill.File, error) {
	if err := d.enter("list"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var files []spill.File
	for name, content := range d.files {
		files = append(files, spill.File{Name: name, Bytes: int64(len(content))})
	}
	return files, nil
}

type diskFile struct {
	disk *brokenDisk
	name string
}

func (f diskFile) Write(b []byte) (int, error) {
	if err := f.disk.enter("write"); err != nil {
		return 0, err
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	n := len(b)
	if f.disk.space >= 0 {
		n = min(n, f.disk.space)
		f.disk.space -= n
	}
	f.disk.files[f.name] = append(f.disk.files[f.name], b[:n]...)
	if f.disk.watch != nil {
		f.disk.watch(f.disk.bytesLocked())
	}
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func (f diskFile) Close() error { return f.disk.enter("close") }

func (d *brokenDisk) Create(name string) (io.WriteCloser, error) {
	if err := d.enter("create"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[name] = nil
	return diskFile{d, name}, nil
}

func (d *brokenDisk) Open(name string) (io.ReadCloser, int64, error) {
	if err := d.enter("open"); err != nil {
		return nil, 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	content, ok := d.files[name]
	if !ok {
		return nil, 0, os.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(bytes.Clone(content))), int64(len(content)), nil
}

func (d *brokenDisk) Rename(from, to string) error {
	if err := d.enter("rename"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[to] = d.files[from]
	delete(d.files, from)
	return nil
}

func (d *brokenDisk) Remove(name string) error {
	if err := d.enter("remove"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.files[name]; !ok {
		return os.ErrNotExist
	}
	if d.space >= 0 {
		d.space += len(d.files[name])
	}
	delete(d.files, name)
	return nil
}

func (d *brokenDisk) Close() error { return nil }

func on(d *brokenDisk) change { return func(o *spill.Options) { o.Files = d } }
