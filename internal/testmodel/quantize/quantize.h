#pragma once

#include <llama.h>

#define MESHNET_COMPLAINT_BYTES 1024

// Returns 0, or what llama_model_quantize returned and its last error line in complaint. It replaces the
// process's log callback while it runs.
uint32_t meshnet_quantize(const char * from, const char * to, enum llama_ftype ftype, char * complaint);
