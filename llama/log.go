package llama

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
)

// logger receives llama.cpp's own log; it is process-wide because llama.cpp's log is.
var logger atomic.Pointer[slog.Logger]

// SetLogger sends llama.cpp's log lines of at least the given level to l. By default only errors go, to
// slog.Default. Process-wide; safe for concurrent use.
func SetLogger(l *slog.Logger, level slog.Level) {
	logger.Store(l)
	C.mn_log_level(ggmlLevel(level))
}

// ggmlLevel maps a slog level to llama.cpp's (1 debug … 4 error).
func ggmlLevel(level slog.Level) C.int {
	switch {
	case level <= slog.LevelDebug:
		return 1
	case level <= slog.LevelInfo:
		return 2
	case level <= slog.LevelWarn:
		return 3
	default:
		return 4
	}
}

//export meshnetLlamaLog
func meshnetLlamaLog(level C.int, text *C.char) {
	l := logger.Load()
	if l == nil {
		l = slog.Default()
	}
	levels := [...]slog.Level{1: slog.LevelDebug, 2: slog.LevelInfo, 3: slog.LevelWarn, 4: slog.LevelError}
	at := slog.LevelInfo
	if int(level) > 0 && int(level) < len(levels) {
		at = levels[level]
	}
	l.Log(context.Background(), at, "llama.cpp: "+strings.TrimSpace(C.GoString(text)))
}
