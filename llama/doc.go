// Package llama binds llama.cpp: it loads a model, turns text into tokens and back, and drives one context
// whose slots the scheduler fills (Engine implements scheduler.Engine).
//
// llama.cpp trusts its caller; this package trusts nobody. Token ids, positions and sizes are checked before
// any call, C++ exceptions are caught in the shim, and saved states carry a checked header.
//
// It never decides what runs (scheduler does) and never speaks to a network.
package llama

/*
#cgo pkg-config: llama
#cgo CXXFLAGS: -std=c++17 -O3 -Wall -Wextra -Wno-psabi
#cgo LDFLAGS: -lpthread -ldl
#include "shim.h"
*/
import "C"
