// Shared by the shim's C++ files; Go never sees it.
#pragma once

#include "shim.h"

#include <llama.h>

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct mn_model {
    llama_model *       model = nullptr;
    const llama_vocab * vocab = nullptr;
    int32_t             n_vocab = 0;
    int32_t             longest_piece = 0;  // bytes
    std::vector<llama_token> eog;         // every end-of-generation token
    std::vector<llama_token> suppressed;  // tokens the model says must never be chosen
};

// How the next token of one slot is chosen. A greedy slot without penalties has no chain.
struct mn_sampler {
    bool                          open = false;
    llama_sampler *               chain = nullptr;
    std::vector<llama_token>      masked;       // never chosen
    int32_t                       first = 0;    // added to the index of each token
    int32_t                       min_new = 0;  // end-of-generation tokens are masked at a lower index
    std::vector<llama_logit_bias> bias;
    int32_t                       n_probs = 0;
    mn_probs                      probs{};  // of the newest token
    uintptr_t                     grammar = 0;  // 0 is none

    void reset();
};

struct mn_sampler_free {
    void operator()(llama_sampler * s) const { llama_sampler_free(s); }
};

// A DRY sampler that has seen nothing. Making one takes a pass over the vocabulary for each breaker, copying it does not.
struct mn_dry {
    std::string                                     key;  // its parameters
    std::unique_ptr<llama_sampler, mn_sampler_free> sampler;
};

struct mn_engine {
    mn_model *                    model = nullptr;
    llama_context *               ctx = nullptr;
    llama_memory_t                memory = nullptr;
    std::vector<std::pair<int, ggml_threadpool *>> pools;  // by thread count
    int                           flash = MN_FLASH_UNKNOWN;
    bool                          audit = false;
    int32_t                       n_batch = 0;
    llama_batch                   batch{};
    std::vector<mn_sampler>       samplers;    // one a slot
    std::vector<llama_token_data> candidates;  // reused by every draw
    int32_t                       index = 0;   // of the token that is being chosen
    std::vector<float>            untouched;   // reused: a row as the model gave it
    std::vector<mn_dry>           dry;         // the newest ones
    std::vector<uint8_t>          transfer;    // reused by every move
    std::atomic<bool>             interrupted{false};
};

void mn_fail(mn_error * err, const char * what, const std::string & why);

// The newest error or warning lines of llama.cpp, for the text of a failing load.
void        mn_log_forget();
std::string mn_log_recall();
// Whether a line with this text was logged since mn_log_forget, at any level.
bool mn_log_saw(const char * text);

// Tells the log which flag may abort what this thread computes; null when it is done.
void mn_log_aborts_by(const std::atomic<bool> * flag);

// Chooses the token of one row from its logits (which it may overwrite) and accepts it.
void mn_choose(mn_engine * engine, int32_t slot, float * logits, int32_t index, int32_t forced, mn_result * out);

// In grammar.go. Each is true where all is well: the token may follow; it may, and the grammar is behind it now; every other token's
// logit is masked.
extern "C" bool meshnetGrammarAllows(uintptr_t grammar, int32_t token);
extern "C" bool meshnetGrammarAccept(uintptr_t grammar, int32_t token);
extern "C" bool meshnetGrammarMask(uintptr_t grammar, float * logits, int32_t n);
extern "C" void meshnetGrammarFree(uintptr_t grammar);

// Runs body, turning any exception into an error and the value on_error.
template <typename T, typename F> T mn_guard(mn_error * err, const char * what, T on_error, F && body) {
    try {
        return body();
    } catch (const std::exception & e) {
        mn_fail(err, what, e.what());
    } catch (...) {
        mn_fail(err, what, "unknown exception");
    }
    return on_error;
}
