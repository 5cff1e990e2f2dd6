// LoRA adapters: small matrices that are added to a model's while it computes.
#include "shim_internal.h"

mn_adapter * mn_adapter_load(mn_model * m, const char * path, mn_error * err) {
    return mn_guard(err, "loading the adapter", (mn_adapter *) nullptr, [&]() -> mn_adapter * {
        mn_log_forget();
        llama_adapter_lora * adapter = llama_adapter_lora_init(m->model, path);
        if (adapter == nullptr) {
            mn_fail(err, "llama.cpp cannot load this adapter", mn_log_recall());
        }
        return (mn_adapter *) adapter;
    });
}

bool mn_use_adapter(mn_engine * e, mn_adapter * adapter, float scale, mn_error * err) {
    return mn_guard(err, "changing the adapter", false, [&] {
        llama_adapter_lora * one = (llama_adapter_lora *) adapter;
        if (llama_set_adapters_lora(e->ctx, &one, one == nullptr ? 0 : 1, &scale) != 0) {
            mn_fail(err, "llama.cpp does not take the adapter", "");
            return false;
        }
        return true;
    });
}
