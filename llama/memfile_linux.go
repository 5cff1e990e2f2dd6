package llama

import (
	"os"

	"golang.org/x/sys/unix"
)

// inMemoryFile puts bytes behind a descriptor that exists only in memory; closing it frees them.
func inMemoryFile(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("meshnet-model", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return filled(os.NewFile(uintptr(fd), "embedded model"), data)
}
