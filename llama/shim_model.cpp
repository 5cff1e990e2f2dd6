// Loading a model and its vocabulary.
#include "shim_internal.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace {

bool on_progress(float fraction, void * data) {
    auto * progress = (mn_progress *) data;
    __atomic_store_n(&progress->permille, (uint32_t) (fraction * 1000.0f), __ATOMIC_RELAXED);
    return __atomic_load_n(&progress->cancel, __ATOMIC_RELAXED) == 0;
}

llama_model * load(const char * path, int fd, const llama_model_params & params) {
    if (path != nullptr) {
        return llama_model_load_from_file(path, params);
    }
    FILE * file = fdopen(dup(fd), "rb");
    if (file == nullptr) {
        return nullptr;
    }
    llama_model * model = llama_model_load_from_file_ptr(file, params);
    fclose(file);
    return model;
}

void scan_vocabulary(mn_model * m) {
    for (int32_t t = 0; t < m->n_vocab; ++t) {
        if (llama_vocab_is_eog(m->vocab, t)) {
            m->eog.push_back(t);
        }
        m->longest_piece = std::max(m->longest_piece, std::abs(llama_token_to_piece(m->vocab, t, nullptr, 0, 0, true)));
    }
    int32_t             n    = 0;
    const llama_token * list = llama_vocab_get_suppress_tokens(m->vocab, &n);
    for (int32_t i = 0; list != nullptr && i < n; ++i) {
        if (list[i] >= 0 && list[i] < m->n_vocab) {
            m->suppressed.push_back(list[i]);
        }
    }
}

// Some pre-tokenisers use std::regex, which recurses once a character: a long text needs a stack that
// grows with it.
struct tokenize_call {
    const llama_vocab * vocab;
    const char *        text;
    int32_t             text_len;
    int32_t *           out;
    int32_t             out_size;
    bool                add_special, parse_special;
    mn_error *          err;
    int32_t             result;
};

void * run_tokenize(void * arg) {
    auto * c  = (tokenize_call *) arg;
    c->result = mn_guard(c->err, "tokenising", (int32_t) INT32_MIN, [&] {
        return llama_tokenize(c->vocab, c->text, c->text_len, c->out, c->out_size, c->add_special, c->parse_special);
    });
    return nullptr;
}

constexpr int32_t small_text   = 8 * 1024;
constexpr size_t  base_stack   = (size_t) 16 << 20;
constexpr size_t  stack_a_byte = 512;  // virtual; touched only as far as the recursion goes

bool on_big_stack(tokenize_call * call) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    const size_t size = base_stack + (size_t) call->text_len * stack_a_byte;
    pthread_t    thread;
    const bool   started =
        pthread_attr_setstacksize(&attr, size) == 0 && pthread_create(&thread, &attr, run_tokenize, call) == 0;
    pthread_attr_destroy(&attr);
    if (started) {
        pthread_join(thread, nullptr);
    }
    return started;
}

}  // namespace

mn_model * mn_model_load(const char * path, int fd, int n_gpu_layers, bool repack, mn_progress * progress,
                         mn_error * err) {
    return mn_guard(err, "loading the model", (mn_model *) nullptr, [&]() -> mn_model * {
        mn_log_forget();
        llama_model_params params          = llama_model_default_params();
        params.n_gpu_layers                = n_gpu_layers;
        params.use_extra_bufts             = repack;
        params.progress_callback           = on_progress;
        params.progress_callback_user_data = progress;
        llama_model * model                = load(path, fd, params);
        if (model == nullptr) {
            const bool cancelled = __atomic_load_n(&progress->cancel, __ATOMIC_RELAXED) != 0;
            mn_fail(err, cancelled ? "loading was cancelled" : "llama.cpp cannot load this model",
                    cancelled ? "" : mn_log_recall());
            return nullptr;
        }
        auto * m   = new mn_model;
        m->model   = model;
        m->vocab   = llama_model_get_vocab(model);
        m->n_vocab = llama_vocab_n_tokens(m->vocab);
        if (llama_vocab_type(m->vocab) != LLAMA_VOCAB_TYPE_NONE) {
            scan_vocabulary(m);
        }
        return m;
    });
}

void mn_model_free(mn_model * m) {
    if (m != nullptr) {
        llama_model_free(m->model);
        delete m;
    }
}

void mn_model_facts_get(const mn_model * m, mn_model_facts * out) {
    *out              = mn_model_facts{};
    out->n_ctx_train  = llama_model_n_ctx_train(m->model);
    out->n_embd       = llama_model_n_embd(m->model);
    out->n_layer      = llama_model_n_layer(m->model);
    out->n_head       = llama_model_n_head(m->model);
    out->n_head_kv    = llama_model_n_head_kv(m->model);
    out->n_swa        = llama_model_n_swa(m->model);
    out->n_vocab      = m->n_vocab;
    out->longest_piece = m->longest_piece;
    out->rope_type    = llama_model_rope_type(m->model);
    out->bos          = llama_vocab_bos(m->vocab);
    out->eos          = llama_vocab_eos(m->vocab);
    out->n_params     = llama_model_n_params(m->model);
    out->size_bytes   = llama_model_size(m->model);
    out->has_decoder  = llama_model_has_decoder(m->model);
    out->has_encoder  = llama_model_has_encoder(m->model);
    out->is_recurrent = llama_model_is_recurrent(m->model);
    out->is_hybrid    = llama_model_is_hybrid(m->model);
    out->is_diffusion = llama_model_is_diffusion(m->model);
    out->has_vocab    = llama_vocab_type(m->vocab) != LLAMA_VOCAB_TYPE_NONE;
    out->add_bos      = llama_vocab_get_add_bos(m->vocab);
    snprintf(out->ftype, sizeof(out->ftype), "%s", llama_ftype_name(llama_model_ftype(m->model)));
    llama_model_desc(m->model, out->description, sizeof(out->description));
}

const char * mn_model_chat_template(const mn_model * m) {
    return llama_model_chat_template(m->model, nullptr);
}

int32_t mn_tokenize(const mn_model * m, const char * text, int32_t text_len, int32_t * out, int32_t out_size,
                    bool add_special, bool parse_special, mn_error * err) {
    tokenize_call call{ m->vocab, text, text_len, out, out_size, add_special, parse_special, err, INT32_MIN };
    if (text_len > small_text) {
        if (!on_big_stack(&call)) {
            mn_fail(err, "tokenising", "no memory for the stack that a text of this length needs");
        }
    } else {
        run_tokenize(&call);
    }
    return call.result;
}

int32_t mn_piece(const mn_model * m, int32_t token, char * out, int32_t out_size, bool special) {
    return llama_token_to_piece(m->vocab, token, out, out_size, 0, special);
}

int32_t mn_detokenize(const mn_model * m, const int32_t * tokens, int32_t n, char * out, int32_t out_size,
                      bool remove_special, bool unparse_special, mn_error * err) {
    return mn_guard(err, "detokenising", (int32_t) INT32_MIN, [&] {
        return llama_detokenize(m->vocab, tokens, n, out, out_size, remove_special, unparse_special);
    });
}

bool mn_is_eog(const mn_model * m, int32_t token) {
    return llama_vocab_is_eog(m->vocab, token);
}

bool mn_is_control(const mn_model * m, int32_t token) {
    return llama_vocab_is_control(m->vocab, token);
}
