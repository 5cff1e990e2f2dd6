// One llama.cpp context: its life, its threads and the KV of its slots.
#include "shim_internal.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <cstring>

namespace {

// The CPU backend is loaded at run time, so its functions are asked for by name.
template <typename F> F * cpu_function(const char * name) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return dev == nullptr ? nullptr : (F *) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), name);
}

bool on_abort(void * data) {
    return ((mn_engine *) data)->interrupted.load(std::memory_order_relaxed);
}

// The pool of one size, made at its first use. Without a pool ggml starts and joins its threads at every call. A pool
// lives as long as the context: the CPU backend keeps a pointer to the one it used last, and pauses it at the next change.
// Null where it cannot be made.
ggml_threadpool * pool_of(mn_engine * e, int n_threads) {
    for (const auto & known : e->pools) {
        if (known.first == n_threads) {
            return known.second;
        }
    }
    auto * new_fn = cpu_function<decltype(ggml_threadpool_new)>("ggml_threadpool_new");
    if (new_fn == nullptr) {
        return nullptr;
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    ggml_threadpool *      pool   = new_fn(&params);
    if (pool != nullptr) {
        e->pools.emplace_back(n_threads, pool);
    }
    return pool;
}

// One pool serves decode and prefill; ggml wants its size to be the thread count exactly.
bool use_threads(mn_engine * e, int n_threads) {
    ggml_threadpool * pool = pool_of(e, n_threads);
    if (pool == nullptr) {
        return false;
    }
    llama_attach_threadpool(e->ctx, pool, pool);
    llama_set_n_threads(e->ctx, n_threads, n_threads);
    return true;
}

llama_context_params context_params(mn_engine * e, const mn_engine_params * p) {
    llama_context_params c = llama_context_default_params();
    c.n_ctx                = (uint32_t) p->n_ctx_seq * (uint32_t) p->n_seq_max;
    c.n_batch              = (uint32_t) p->n_batch;
    c.n_ubatch             = (uint32_t) p->n_batch;
    c.n_seq_max            = (uint32_t) p->n_seq_max;
    c.n_outputs_max        = (uint32_t) p->n_seq_max;  // logits only where a token is chosen
    c.n_threads            = p->n_threads;
    c.n_threads_batch      = p->n_threads;
    c.flash_attn_type      = LLAMA_FLASH_ATTN_TYPE_AUTO;
    c.kv_unified           = false;
    c.swa_full             = p->full_windows;
    c.no_perf              = true;
    c.abort_callback       = on_abort;
    c.abort_callback_data  = e;
    return c;
}

void destroy(mn_engine * e) {
    for (auto & sampler : e->samplers) {
        sampler.reset();
    }
    if (e->ctx != nullptr) {
        llama_free(e->ctx);
    }
    for (const auto & known : e->pools) {  // after the context: it still uses them while it ends
        cpu_function<decltype(ggml_threadpool_free)>("ggml_threadpool_free")(known.second);
    }
    if (e->batch.token != nullptr) {
        llama_batch_free(e->batch);
    }
    delete e;
}

// Makes every value of a state finite, be it of 16 or of 32 bits: where the upper half word has the exponent of infinity
// and NaN in half precision, so has it in single precision. A state's counts and sizes stay: they are small.
void make_finite(uint8_t * state, size_t size) {
    constexpr uint16_t exponent = 0x7c00;
    for (size_t i = 0; i + 2 <= size; i += 2) {
        uint16_t half;
        memcpy(&half, state + i, sizeof(half));
        if ((half & exponent) == exponent) {
            memset(state + i, 0, sizeof(half));
        }
    }
}

int resolved_flash() {
    if (mn_log_saw("Flash Attention enabled")) {
        return MN_FLASH_ON;
    }
    return mn_log_saw("Flash Attention not supported") ? MN_FLASH_OFF : MN_FLASH_UNKNOWN;
}

}  // namespace

mn_engine * mn_engine_new(mn_model * model, const mn_engine_params * p, mn_error * err) {
    mn_engine * e = new mn_engine;
    const bool ok = mn_guard(err, "making the context", false, [&] {
        mn_log_forget();
        e->model = model;
        e->audit = p->audit;
        e->ctx   = llama_init_from_model(model->model, context_params(e, p));
        if (e->ctx == nullptr) {
            mn_fail(err, "llama.cpp cannot make a context", mn_log_recall());
            return false;
        }
        e->memory = llama_get_memory(e->ctx);
        if (e->memory == nullptr) {
            mn_fail(err, "the model keeps no state between calls", "it cannot generate text token by token");
            return false;
        }
        e->n_batch = std::min((int32_t) llama_n_batch(e->ctx), (int32_t) llama_n_ubatch(e->ctx));
        e->batch   = llama_batch_init(std::max(e->n_batch, p->n_seq_max), 0, 1);
        e->samplers.resize((size_t) p->n_seq_max);
        e->candidates.resize((size_t) model->n_vocab);
        if (!use_threads(e, p->n_threads)) {
            mn_fail(err, "no thread pool of this size can be made", std::to_string(p->n_threads));
            return false;
        }
        e->flash = resolved_flash();
        return true;
    });
    if (!ok) {
        destroy(e);
        return nullptr;
    }
    return e;
}

void mn_engine_free(mn_engine * e) {
    if (e != nullptr) {
        destroy(e);
    }
}

void mn_engine_facts_get(const mn_engine * e, mn_engine_facts * out) {
    out->n_seq_max = (int32_t) llama_n_seq_max(e->ctx);
    out->n_ctx_seq = (int32_t) llama_n_ctx_seq(e->ctx);
    out->n_batch   = e->n_batch;
    out->flash     = e->flash;
}

bool mn_set_threads(mn_engine * e, int n_threads, mn_error * err) {
    return mn_guard(err, "setting threads", false, [&] {
        if (!use_threads(e, n_threads)) {
            mn_fail(err, "no thread pool of this size can be made", std::to_string(n_threads));
            return false;
        }
        return true;
    });
}

void mn_interrupt(mn_engine * e, bool on) {
    e->interrupted.store(on);
}

mn_span mn_slot_span(const mn_engine * e, int32_t slot) {
    return { llama_memory_seq_pos_min(e->memory, slot), llama_memory_seq_pos_max(e->memory, slot) };
}

bool mn_slot_trim(mn_engine * e, int32_t slot, int32_t keep) {
    return mn_guard(nullptr, "trimming", false, [&] { return llama_memory_seq_rm(e->memory, slot, keep, -1); });
}

void mn_slot_clear(mn_engine * e, int32_t slot) {
    mn_guard(nullptr, "clearing", false, [&] { return llama_memory_seq_rm(e->memory, slot, -1, -1); });
}

bool mn_slot_scrub(mn_engine * e, int32_t slot) {
    const bool ok = mn_guard(nullptr, "scrubbing the slot", false, [&] {
        const size_t size = mn_slot_size(e, slot);
        if (e->transfer.size() < size) {
            e->transfer.resize(size);
        }
        if (size == 0 || mn_slot_save(e, slot, e->transfer.data(), size, nullptr) != size) {
            return false;
        }
        make_finite(e->transfer.data(), size);
        mn_slot_clear(e, slot);
        return mn_slot_restore(e, slot, e->transfer.data(), size, nullptr);  // into the cells it came from
    });
    mn_slot_clear(e, slot);
    return ok;
}

size_t mn_slot_size(mn_engine * e, int32_t slot) {
    return mn_guard(nullptr, "sizing", (size_t) 0, [&] { return llama_state_seq_get_size(e->ctx, slot); });
}

size_t mn_slot_save(mn_engine * e, int32_t slot, void * out, size_t size, mn_error * err) {
    return mn_guard(err, "saving the slot", (size_t) 0,
                    [&] { return llama_state_seq_get_data(e->ctx, (uint8_t *) out, size, slot); });
}

bool mn_slot_restore(mn_engine * e, int32_t slot, const void * in, size_t size, mn_error * err) {
    return mn_guard(err, "restoring the slot", false, [&] {
        mn_log_forget();
        const size_t read = llama_state_seq_set_data(e->ctx, (const uint8_t *) in, size, slot);
        if (read != size) {
            mn_fail(err, "llama.cpp did not take the whole state", mn_log_recall());
        }
        return read == size;
    });
}

bool mn_slot_move(mn_engine * e, int32_t from, int32_t to, mn_error * err) {
    return mn_guard(err, "moving the slot", false, [&] {
        const size_t size = mn_slot_size(e, from);
        if (e->transfer.size() < size) {
            e->transfer.resize(size);
        }
        const mn_span before = mn_slot_span(e, from);
        const bool    copied = mn_slot_save(e, from, e->transfer.data(), size, err) == size && size > 0 &&
                            mn_slot_restore(e, to, e->transfer.data(), size, err);
        const mn_span after = mn_slot_span(e, to);
        // A state leaves out what an attention window has passed; the window before the next token, at max + 1, must be there.
        const int32_t window = llama_model_n_swa(e->model->model);
        const int32_t latest = window > 0 ? std::max(before.min, before.max + 1 - window) : before.min;
        if (copied && (after.min < before.min || after.min > latest || after.max != before.max)) {
            mn_fail(err, "the slot's positions changed", std::to_string(after.min) + " to " + std::to_string(after.max));
        } else if (copied) {
            std::swap(e->samplers[from], e->samplers[to]);
            mn_slot_clear(e, from);
            return true;
        }
        mn_slot_clear(e, to);
        return false;
    });
}
