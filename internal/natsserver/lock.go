package natsserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// lock is the right to use a data folder. The operating system ends it with the process, however that ends.
type lock struct{ file *os.File }

// lockDir makes the folder if it is missing, and locks it.
func lockDir(dir string) (*lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the server's data folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the server's data folder: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &lock{file}, nil
	}
	defer func() { _ = file.Close() }()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("cannot lock the server's data folder %s: %w", dir, err)
	}
	owner := "another process"
	if text, _ := io.ReadAll(io.LimitReader(file, 512)); len(text) > 0 {
		owner = string(text)
	}
	return nil, fmt.Errorf("%w: %s has its data in %s; connect to that server, stop it, or choose another folder", ErrDirInUse, owner, dir)
}

// sign writes who has the lock, for the error that the next one gets.
func (l *lock) sign(url string) error {
	owner := fmt.Appendf(nil, "the server at %s (process %d)", url, os.Getpid())
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt(owner, 0)
	return err
}

// release gives the folder back. The file stays: who removes it may remove a lock that another one just took.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), l.file.Close())
}
