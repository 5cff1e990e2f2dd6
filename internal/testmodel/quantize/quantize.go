// Package quantize turns F16 models into quantised ones with llama.cpp's own quantiser. It is for tests and tools only.
package quantize

/*
#cgo pkg-config: llama
#include <stdlib.h>
#include "quantize.h"
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

var ftypes = map[string]C.enum_llama_ftype{
	"q4_0":   C.LLAMA_FTYPE_MOSTLY_Q4_0,
	"q8_0":   C.LLAMA_FTYPE_MOSTLY_Q8_0,
	"q4_k_m": C.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}

// serial guards llama.cpp's log callback, which is one for the process, while a quantiser borrows it.
var serial sync.Mutex

// File writes the model at from to the path to, its weights in the given type: q4_0, q8_0 or q4_k_m. Calls
// run one after the other. The same input gives the same output for one release of llama.cpp.
func File(from, to, weights string) error {
	ftype, ok := ftypes[weights]
	if !ok {
		return fmt.Errorf("quantize: weights of type %q are not supported; there are q4_0, q8_0 and q4_k_m", weights)
	}
	in, out := C.CString(from), C.CString(to)
	defer C.free(unsafe.Pointer(in))
	defer C.free(unsafe.Pointer(out))
	complaint := (*C.char)(C.calloc(1, C.MESHNET_COMPLAINT_BYTES))
	defer C.free(unsafe.Pointer(complaint))

	serial.Lock()
	defer serial.Unlock()
	if C.meshnet_quantize(in, out, ftype, complaint) == 0 {
		return nil
	}
	err := fmt.Errorf("quantize: %s to %s: %s", from, weights, strings.TrimSpace(C.GoString(complaint)))
	if gone := os.Remove(to); gone != nil && !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// Version names the quantiser; another version may give other bytes.
func Version() string { return C.GoString(C.ggml_version()) }
