package llama

/*
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// BackendDirEnv names the environment variable with the folder to load compute backends from.
const BackendDirEnv = "MESHNET_GGML_DIR"

// RowKernelsEnv names the environment variable that says which kernels of our own serve products of quantised weights: those of
// an instruction set ("avx512", "avx2"), or none ("off"), which leaves llama.cpp its own. Without it they are the best that the
// processor runs.
const RowKernelsEnv = "MESHNET_ROW_KERNELS"

// rowKernels says whether kernels of our own are in the place of llama.cpp's; constant once the backends are loaded.
var rowKernels bool

// loadBackends runs once a process; llama.cpp cannot unload what it loaded.
var loadBackends = sync.OnceValue(func() error {
	var dir *C.char
	if d := os.Getenv(BackendDirEnv); d != "" {
		dir = C.CString(d)
		defer C.free(unsafe.Pointer(dir))
	}
	var cerr C.mn_error
	if !C.mn_backends_load(dir, &cerr) {
		return errors.New(errText(&cerr))
	}
	return loadRowKernels()
})

func loadRowKernels() error {
	var set *C.char
	switch name := os.Getenv(RowKernelsEnv); name {
	case "off":
		return nil
	case "avx2", "avx512":
		set = C.CString(name)
		defer C.free(unsafe.Pointer(set))
	case "":
	default:
		return fmt.Errorf("%s is %q; use off, avx2 or avx512, or leave it empty", RowKernelsEnv, name)
	}
	rowKernels = bool(C.mn_rows_install(set))
	return nil
}

// Version is the version of the llama.cpp library that is linked.
func Version() string { return C.GoString(C.mn_version()) }

// Device is a compute device that llama.cpp registered.
type Device struct {
	Name        string
	Description string
}

// Devices lists the compute devices. It loads the backends.
func Devices() ([]Device, error) {
	if err := loadBackends(); err != nil {
		return nil, err
	}
	const size = 256
	var devices []Device
	var name, description [size]C.char
	for i := C.size_t(0); C.mn_device(i, &name[0], size, &description[0], size); i++ {
		devices = append(devices, Device{Name: C.GoString(&name[0]), Description: C.GoString(&description[0])})
	}
	return devices, nil
}

// hardware describes what computes: the devices and the instruction sets of the CPU variant in use.
func hardware() (string, error) {
	devices, err := Devices()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, d := range devices {
		fmt.Fprintf(&b, "%s (%s); ", d.Name, d.Description)
	}
	b.WriteString(C.GoString(C.mn_system_info()))
	if rowKernels {
		b.WriteString("; row kernels")
	}
	return b.String(), nil
}

func errText(e *C.mn_error) string {
	return C.GoString(&e.text[0])
}
