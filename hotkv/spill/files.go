package spill

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// ErrInUse says that another process has the folder.
var ErrInUse = errors.New("the folder for spilled KV is in use")

// Files is the folder a store keeps its files in. Its methods are called without any lock, several at once.
type Files interface {
	List() ([]File, error)
	Create(name string) (io.WriteCloser, error) // a new file, for its owner only
	Open(name string) (io.ReadCloser, int64, error)
	Rename(from, to string) error
	Remove(name string) error
	Close() error
}

// File is one file of a folder.
type File struct {
	Name  string
	Bytes int64
}

// folderName is the folder that a store makes inside the one it is given, whose own permissions are the operator's business.
const folderName = "meshnet-kv"

// folder is a Files of the operating system. It is held open, so that nothing is ever written to another one of the same name.
type folder struct {
	root *os.Root
	lock *os.File // locked; the operating system ends that with the process, however it ends
}

// openFolder makes the folder inside dir if it is missing, and locks it. The error wraps ErrInUse where another process has it.
func openFolder(dir string) (*folder, error) {
	path := filepath.Join(dir, folderName)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	if err := checkOwner(path); err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o700); err != nil { //nolint:gosec // a folder has to be entered
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	lock, err := lockIn(root)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &folder{root, lock}, nil
}

// checkOwner refuses a folder that somebody else may have laid out.
func checkOwner(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder; remove it or choose another place", path)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, not to this process's, %d; choose another place", path, stat.Uid, os.Geteuid())
	}
	return nil
}

func lockIn(root *os.Root) (*os.File, error) {
	file, err := root.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another worker keeps its KV in %s; give each worker a folder of its own", ErrInUse, root.Name())
	}
	return nil, errors.Join(err, file.Close())
}

func (f *folder) List() ([]File, error) {
	dir, err := f.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // only read from
	entries, err := dir.ReadDir(-1)
	var files []File
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, File{Name: entry.Name(), Bytes: info.Size()})
		}
	}
	return files, err
}

func (f *folder) Create(name string) (io.WriteCloser, error) {
	return f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (f *folder) Open(name string) (io.ReadCloser, int64, error) {
	file, err := f.root.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

func (f *folder) Rename(from, to string) error { return f.root.Rename(from, to) }
func (f *folder) Remove(name string) error     { return f.root.Remove(name) }
func (f *folder) Close() error                 { return errors.Join(f.lock.Close(), f.root.Close()) }

// unusable stands for a folder that could not be opened: nothing is kept in it, for the reason it names.
type unusable struct{ err error }

func (u unusable) List() ([]File, error)                     { return nil, u.err }
func (u unusable) Create(string) (io.WriteCloser, error)     { return nil, u.err }
func (u unusable) Open(string) (io.ReadCloser, int64, error) { return nil, 0, u.err }
func (u unusable) Rename(string, string) error               { return u.err }
func (u unusable) Remove(string) error                       { return u.err }
func (unusable) Close() error                                { return nil }
