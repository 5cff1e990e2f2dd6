#include "quantize.h"

#include <stdio.h>

static void keep_last_error(enum ggml_log_level level, const char * text, void * complaint) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        snprintf(complaint, MESHNET_COMPLAINT_BYTES, "%s", text);
    }
}

uint32_t meshnet_quantize(const char * from, const char * to, enum llama_ftype ftype, char * complaint) {
    ggml_log_callback log;
    void * log_data;
    llama_log_get(&log, &log_data);
    llama_log_set(keep_last_error, complaint);

    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = ftype;
    params.nthread = 1;
    const uint32_t result = llama_model_quantize(from, to, &params);

    llama_log_set(log, log_data);
    return result;
}
