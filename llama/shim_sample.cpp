// Choosing tokens: greedy by one vectorised pass, else llama.cpp's samplers with our own final draw.
#include "shim_internal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

typedef float   v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));

v16f load16(const float * p) {
    v16f v;
    memcpy(&v, p, sizeof(v));
    return v;
}

struct best {
    int32_t token;  // the first of the largest
    float   logit;
    bool    nan;
};

// The same source compiled for several instruction sets; the best one is chosen when the program starts.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#    define MN_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#    define MN_VECTORISED
#endif

// Sixteen lanes keep the largest value, the block it was seen in, and whether a NaN was seen.
MN_VECTORISED best find_best(const float * logits, int32_t n) {
    v16f          top  = v16f{} - INFINITY;
    v16i          at   = {};
    v16i          nans = {};
    const int32_t full = n / 16;
    for (int32_t b = 0; b < full; ++b) {
        const v16f x    = load16(logits + b * 16);
        const v16i more = x > top;
        nans |= x != x;
        top = more ? x : top;
        at  = more ? v16i{} + b : at;
    }
    best out{ -1, -INFINITY, false };
    for (int lane = 0; lane < 16; ++lane) {
        out.nan             = out.nan || nans[lane] != 0;
        const int32_t token = at[lane] * 16 + lane;
        if (top[lane] > out.logit || (top[lane] == out.logit && out.token >= 0 && token < out.token)) {
            out.logit = top[lane];
            out.token = token;
        }
    }
    for (int32_t i = full * 16; i < n; ++i) {
        out.nan = out.nan || std::isnan(logits[i]);
        if (logits[i] > out.logit) {
            out.logit = logits[i];
            out.token = i;
        }
    }
    return out;
}

uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// A hash over the bits of a whole row, in four independent lanes so that it keeps up with memory.
uint64_t hash_row(const float * logits, int32_t n) {
    uint64_t      lane[4] = { 1, 2, 3, 4 };
    const int32_t full    = n / 8;
    for (int32_t b = 0; b < full; ++b) {
        uint64_t w[4];
        memcpy(w, logits + b * 8, sizeof(w));
        for (int l = 0; l < 4; ++l) {
            lane[l] = (lane[l] ^ w[l]) * 0x9e3779b97f4a7c15ull;
            lane[l] ^= lane[l] >> 32;
        }
    }
    uint64_t h = (uint64_t) n;
    for (int l = 0; l < 4; ++l) {
        h = mix(h ^ lane[l]);
    }
    for (int32_t i = full * 8; i < n; ++i) {
        uint32_t w;
        memcpy(&w, logits + i, sizeof(w));
        h = mix(h ^ w);
    }
    return h;
}

float gap_below(const float * logits, int32_t n, const best & top) {
    if (top.token < 0) {
        return 0.0f;
    }
    float second = -INFINITY;
    for (int32_t i = 0; i < n; ++i) {
        if (i != top.token) {
            second = std::max(second, logits[i]);
        }
    }
    return top.logit - second;
}

// What a random number is for: each purpose has a stream of its own.
enum purpose : uint64_t { purpose_draw = 1 };

// A number in [0, 1) that depends on nothing but its arguments, so that a turn which goes on elsewhere goes on with the same draws.
double uniform(uint64_t seed, uint64_t index, uint64_t why) {
    const uint64_t x = mix(mix(seed + 0x9e3779b97f4a7c15ull * (index + 1)) ^ (why * 0xd6e8feb86659fd93ull));
    return (double) (x >> 11) * 0x1.0p-53;
}

// The last sampler of a chain: draws from the softmax of what the others left.
struct draw_state {
    uint64_t seed;
    int32_t  index;
};

const char * draw_name(const llama_sampler *) {
    return "meshnet-draw";
}

void draw_apply(llama_sampler * smpl, llama_token_data_array * cur) {
    auto * state = (draw_state *) smpl->ctx;
    float  top   = -INFINITY;
    for (size_t i = 0; i < cur->size; ++i) {
        top = std::max(top, cur->data[i].logit);
    }
    double total = 0.0;
    for (size_t i = 0; i < cur->size; ++i) {
        cur->data[i].p = expf(cur->data[i].logit - top);
        total += cur->data[i].p;
    }
    const double target = uniform(state->seed, (uint64_t) state->index, purpose_draw) * total;
    double       sum    = 0.0;
    for (size_t i = 0; i < cur->size; ++i) {
        if (cur->data[i].p > 0.0f) {
            sum += cur->data[i].p;
            cur->selected = (int64_t) i;  // rounding at the end falls to the last possible one
            if (sum > target) {
                return;
            }
        }
    }
}

void draw_free(llama_sampler * smpl) {
    delete (draw_state *) smpl->ctx;
}

llama_sampler_i draw_interface() {
    llama_sampler_i i{};
    i.name  = draw_name;
    i.apply = draw_apply;
    i.free  = draw_free;
    return i;
}

llama_sampler_i draw_iface = draw_interface();

bool has_penalties(const mn_sampling * s) {
    return s->penalty_last_n > 0 &&
           (s->repeat_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f);
}

// Logits are divided by the temperature and by the repeat penalty. Below this they would become infinite, and no token
// could be drawn; at this the likeliest token is as certain as it is below.
constexpr float least_divisor = 1e-15f;

// The order of llama.cpp's own default chain.
llama_sampler * build_chain(const mn_engine * e, const mn_sampling * s) {
    llama_sampler * chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (has_penalties(s)) {
        llama_sampler_chain_add(chain, llama_sampler_init_penalties(e->model->n_vocab, s->penalty_last_n,
                                                                    std::max(s->repeat_penalty, least_divisor),
                                                                    s->frequency_penalty, s->presence_penalty));
    }
    if (s->temperature == 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    if (s->top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(s->top_k));
    }
    if (s->top_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(s->top_p, 1));
    }
    if (s->min_p > 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(s->min_p, 1));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_temp(std::max(s->temperature, least_divisor)));
    llama_sampler_chain_add(chain, llama_sampler_init(&draw_iface, new draw_state{ s->seed, 0 }));
    return chain;
}

void set_index(llama_sampler * chain, int32_t index) {
    llama_sampler * last = llama_sampler_chain_get(chain, llama_sampler_chain_n(chain) - 1);
    if (last->iface == &draw_iface) {
        ((draw_state *) last->ctx)->index = index;
    }
}

int32_t run_chain(mn_engine * e, mn_sampler & s, const float * logits, int32_t index) {
    const int32_t n = e->model->n_vocab;
    for (int32_t t = 0; t < n; ++t) {
        e->candidates[t] = { t, logits[t], 0.0f };
    }
    llama_token_data_array cur{ e->candidates.data(), (size_t) n, -1, false };
    set_index(s.chain, index);
    llama_sampler_apply(s.chain, &cur);
    return cur.selected < 0 || cur.selected >= (int64_t) cur.size ? -1 : cur.data[cur.selected].id;
}

// A second draw for one token has another random number: the first one says which tokens were refused. No turn has an index so high.
constexpr int32_t second_draw = 1 << 30;

// Chooses among the tokens that the grammar allows. Where nothing but an end is left, that is chosen, whatever masks it.
int32_t choose_allowed(mn_engine * e, mn_sampler & s, float * logits, int32_t index) {
    if (!meshnetGrammarMask(s.grammar, logits, e->model->n_vocab)) {
        return -1;
    }
    const best top = find_best(logits, e->model->n_vocab);
    if (top.token >= 0) {
        return s.chain == nullptr ? top.token : run_chain(e, s, logits, index + second_draw);
    }
    for (llama_token t : e->model->eog) {
        if (meshnetGrammarAllows(s.grammar, t)) {
            return t;
        }
    }
    return -1;
}

void choose(mn_engine * e, mn_sampler & s, float * logits, int32_t index, int32_t forced, mn_result * out) {
    const int32_t n = e->model->n_vocab;
    if (e->audit) {  // before anything is masked
        out->hash = hash_row(logits, n);
        out->gap  = gap_below(logits, n, find_best(logits, n));
    }
    if (forced < 0) {
        for (llama_token t : s.masked) {
            logits[t] = -INFINITY;
        }
    }
    const best top = find_best(logits, n);
    if (top.nan || top.logit == INFINITY) {
        out->status = MN_ROW_NAN;
        return;
    }
    int32_t token = forced;
    if (forced < 0) {
        // A chain must not see a row without a choice: llama.cpp's greedy sampler takes the first token then.
        token = s.chain == nullptr || top.token < 0 ? top.token : run_chain(e, s, logits, index);
        if (s.grammar != 0 && (token < 0 || !meshnetGrammarAllows(s.grammar, token))) {
            token = choose_allowed(e, s, logits, index);
        }
    }
    if (token < 0 || token >= n) {
        out->status = s.grammar != 0 ? MN_ROW_GRAMMAR : MN_ROW_NO_CHOICE;
        return;
    }
    if (s.grammar != 0 && !meshnetGrammarAccept(s.grammar, token)) {
        out->status = MN_ROW_GRAMMAR;
        return;
    }
    if (s.chain != nullptr) {
        llama_sampler_accept(s.chain, token);
    }
    out->status = MN_ROW_TOKEN;
    out->token  = token;
    out->eog    = llama_vocab_is_eog(e->model->vocab, token);
}

}  // namespace

void mn_sampler::reset() {
    if (chain != nullptr) {
        llama_sampler_free(chain);
    }
    if (grammar != 0) {
        meshnetGrammarFree(grammar);
    }
    *this = mn_sampler{};
}

void mn_choose(mn_engine * e, int32_t slot, float * logits, int32_t index, int32_t forced, mn_result * out) {
    out->status = MN_ROW_NO_CHOICE;
    mn_guard(nullptr, "sampling", false, [&] {
        if (e->samplers[slot].open) {
            choose(e, e->samplers[slot], logits, index, forced, out);
        }
        return true;
    });
}

bool mn_sampler_open(mn_engine * e, int32_t slot, const mn_sampling * sampling, const int32_t * history,
                     int32_t n_history, mn_error * err) {
    return mn_guard(err, "making the sampler", false, [&] {
        mn_sampler & s = e->samplers[slot];
        s.reset();
        s.open   = true;
        s.masked = e->model->suppressed;
        if (sampling->ignore_eog) {
            s.masked.insert(s.masked.end(), e->model->eog.begin(), e->model->eog.end());
        }
        if (sampling->temperature > 0.0f || has_penalties(sampling)) {
            s.chain = build_chain(e, sampling);
            // Only the newest tokens can matter to a penalty.
            for (int32_t i = std::max(0, n_history - sampling->penalty_last_n); i < n_history; ++i) {
                llama_sampler_accept(s.chain, history[i]);
            }
        }
        return true;
    });
}

void mn_sampler_constrain(mn_engine * e, int32_t slot, uintptr_t grammar) {
    if (e->samplers[slot].grammar != 0) {
        meshnetGrammarFree(e->samplers[slot].grammar);
    }
    e->samplers[slot].grammar = grammar;
}

void mn_sampler_close(mn_engine * e, int32_t slot) {
    e->samplers[slot].reset();
}
