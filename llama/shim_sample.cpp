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
enum purpose : uint64_t { purpose_draw = 1, purpose_xtc = 2 };

// A number in [0, 1) that depends on nothing but its arguments, so that a turn which goes on elsewhere goes on with the same draws.
double uniform(uint64_t seed, uint64_t index, uint64_t why) {
    const uint64_t x = mix(mix(seed + 0x9e3779b97f4a7c15ull * (index + 1)) ^ (why * 0xd6e8feb86659fd93ull));
    return (double) (x >> 11) * 0x1.0p-53;
}

// A sampler of our own that has one function.
llama_sampler_i interface_of(const char * (*name)(const llama_sampler *),
                             void (*apply)(llama_sampler *, llama_token_data_array *), void (*free)(llama_sampler *)) {
    llama_sampler_i i{};
    i.name  = name;
    i.apply = apply;
    i.free  = free;
    return i;
}

// Fills in how likely each candidate is beside the likeliest, and returns their sum.
double weigh(llama_token_data_array * cur) {
    float top = -INFINITY;
    for (size_t i = 0; i < cur->size; ++i) {
        top = std::max(top, cur->data[i].logit);
    }
    double total = 0.0;
    for (size_t i = 0; i < cur->size; ++i) {
        cur->data[i].p = expf(cur->data[i].logit - top);
        total += cur->data[i].p;
    }
    return total;
}

// What needs random numbers: the engine knows the index of the token that is being chosen.
struct draw_state {
    const mn_engine * engine;
    uint64_t          seed;
};

void draw_free(llama_sampler * smpl) {
    delete (draw_state *) smpl->ctx;
}

// The last sampler of a chain: draws from the softmax of what the others left.
void draw_apply(llama_sampler * smpl, llama_token_data_array * cur) {
    auto *       state  = (draw_state *) smpl->ctx;
    const double total  = weigh(cur);
    const double target = uniform(state->seed, (uint64_t) state->engine->index, purpose_draw) * total;
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

llama_sampler_i draw_iface = interface_of([](const llama_sampler *) { return "meshnet-draw"; }, draw_apply, draw_free);

// llama.cpp's XTC, whose own random numbers would depend on how many were drawn before.
struct xtc_state {
    draw_state draw;
    float      probability, threshold;
};

void xtc_free(llama_sampler * smpl) {
    delete (xtc_state *) smpl->ctx;
}

void xtc_apply(llama_sampler * smpl, llama_token_data_array * cur) {
    auto * state = (xtc_state *) smpl->ctx;
    if (uniform(state->draw.seed, (uint64_t) state->draw.engine->index, purpose_xtc) >= state->probability) {
        return;
    }
    const double total = weigh(cur);
    std::sort(cur->data, cur->data + cur->size, [](const llama_token_data & a, const llama_token_data & b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
    cur->sorted = true;
    size_t likely = 0;
    // What is impossible is not the least likely: a threshold of 0 would leave nothing else.
    while (likely < cur->size && cur->data[likely].p > 0.0f && cur->data[likely].p / total >= state->threshold) {
        ++likely;
    }
    if (likely >= 2) {
        cur->data += likely - 1;
        cur->size -= likely - 1;
    }
}

llama_sampler_i xtc_iface = interface_of([](const llama_sampler *) { return "meshnet-xtc"; }, xtc_apply, xtc_free);

// Drops candidates whose probability is zero: llama.cpp's typical sampler takes the logarithm of each.
void possible_apply(llama_sampler *, llama_token_data_array * cur) {
    const double total = weigh(cur);
    auto * end = std::remove_if(cur->data, cur->data + cur->size, [&](const llama_token_data & c) {
        return !((float) (c.p / total) > 0.0f);
    });
    cur->size = (size_t) (end - cur->data);
}

llama_sampler_i possible_iface =
    interface_of([](const llama_sampler *) { return "meshnet-possible"; }, possible_apply, nullptr);

bool has_penalties(const mn_sampling * s) {
    return s->penalty_last_n > 0 &&
           (s->repeat_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f);
}

bool has_dry(const mn_sampling * s) {
    return s->dry_penalty_last_n > 0 && s->dry_multiplier > 0.0f;
}

// How many DRY samplers are kept to be copied.
constexpr size_t most_dry = 16;

llama_sampler * new_dry(mn_engine * e, const mn_sampling * s, const char * breakers, int32_t n_breakers) {
    std::string key((const char *) &s->dry_multiplier, sizeof(float));
    key.append((const char *) &s->dry_base, sizeof(float));
    key.append((const char *) &s->dry_allowed_length, sizeof(int32_t));
    key.append((const char *) &s->dry_penalty_last_n, sizeof(int32_t));
    key.append(breakers, n_breakers);
    for (const mn_dry & known : e->dry) {
        if (known.key == key) {
            return llama_sampler_clone(known.sampler.get());
        }
    }
    std::vector<const char *> list;
    for (int32_t at = 0; at < n_breakers; at += (int32_t) strlen(breakers + at) + 1) {
        list.push_back(breakers + at);
    }
    std::unique_ptr<llama_sampler, mn_sampler_free> made(
        llama_sampler_init_dry(e->model->vocab, s->dry_multiplier, s->dry_base, s->dry_allowed_length, s->dry_penalty_last_n,
                               list.data(), list.size()));
    if (e->dry.size() == most_dry) {
        e->dry.erase(e->dry.begin());
    }
    e->dry.push_back({ std::move(key), std::move(made) });
    return llama_sampler_clone(e->dry.back().sampler.get());
}

// Logits are divided by the temperature and by the repeat penalty. Below this they would become infinite, and no token
// could be drawn; at this the likeliest token is as certain as it is below.
constexpr float least_divisor = 1e-15f;

// The order of llama.cpp's own default chain.
void build_chain(mn_engine * e, llama_sampler * chain, const mn_sampling * s, const char * breakers, int32_t n_breakers) {
    const auto add = [&](llama_sampler * next) { llama_sampler_chain_add(chain, next); };
    if (has_penalties(s)) {
        add(llama_sampler_init_penalties(e->model->n_vocab, s->penalty_last_n, std::max(s->repeat_penalty, least_divisor),
                                         s->frequency_penalty, s->presence_penalty));
    }
    if (has_dry(s)) {
        add(new_dry(e, s, breakers, n_breakers));
    }
    if (s->temperature == 0.0f) {
        add(llama_sampler_init_greedy());
        return;
    }
    if (s->top_k > 0) {
        add(llama_sampler_init_top_k(s->top_k));
    }
    if (s->typical_p < 1.0f) {
        add(llama_sampler_init(&possible_iface, nullptr));
        add(llama_sampler_init_typical(s->typical_p, 1));
    }
    if (s->top_p < 1.0f) {
        add(llama_sampler_init_top_p(s->top_p, 1));
    }
    if (s->min_p > 0.0f) {
        add(llama_sampler_init_min_p(s->min_p, 1));
    }
    if (s->xtc_probability > 0.0f && s->xtc_threshold <= 0.5f) {
        add(llama_sampler_init(&xtc_iface, new xtc_state{ { e, s->seed }, s->xtc_probability, s->xtc_threshold }));
    }
    add(llama_sampler_init_temp(std::max(s->temperature, least_divisor)));
    add(llama_sampler_init(&draw_iface, new draw_state{ e, s->seed }));
}

// The chain's choice; likeliest where its penalties left nothing that is possible.
int32_t run_chain(mn_engine * e, mn_sampler & s, const float * logits, int32_t index, int32_t likeliest) {
    const int32_t n = e->model->n_vocab;
    for (int32_t t = 0; t < n; ++t) {
        e->candidates[t] = { t, logits[t], 0.0f };
    }
    llama_token_data_array cur{ e->candidates.data(), (size_t) n, -1, false };
    e->index = index;
    llama_sampler_apply(s.chain, &cur);
    if (cur.selected < 0 || cur.selected >= (int64_t) cur.size || cur.data[cur.selected].logit == -INFINITY) {
        return likeliest;
    }
    return cur.data[cur.selected].id;
}

// Log-probabilities by the row as the model gave it.
void set_probs(mn_engine * e, mn_sampler & s, int32_t token) {
    const std::vector<float> & row = e->untouched;
    const int32_t              n   = (int32_t) row.size();
    for (int32_t t = 0; t < n; ++t) {
        e->candidates[t] = { t, row[t], 0.0f };
    }
    s.probs.n = std::min(s.n_probs, n);
    std::partial_sort(e->candidates.begin(), e->candidates.begin() + s.probs.n, e->candidates.begin() + n,
                      [](const llama_token_data & a, const llama_token_data & b) {
                          return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                      });
    const float top = e->candidates[0].logit;
    double      sum = 0.0;
    for (const float logit : row) {
        sum += exp((double) logit - top);
    }
    const double whole = top + log(sum);
    s.probs.chosen     = (float) (row[token] - whole);
    for (int32_t i = 0; i < s.probs.n; ++i) {
        s.probs.tokens[i]   = e->candidates[i].id;
        s.probs.logprobs[i] = (float) (e->candidates[i].logit - whole);
    }
}

// Forbids and favours tokens, whatever chooses among them.
void shape_row(const mn_engine * e, const mn_sampler & s, float * logits, int32_t index) {
    for (const llama_logit_bias & b : s.bias) {
        logits[b.token] += b.bias;
    }
    for (llama_token t : s.masked) {
        logits[t] = -INFINITY;
    }
    if (index < s.min_new) {
        for (llama_token t : e->model->eog) {
            logits[t] = -INFINITY;
        }
    }
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
        return s.chain == nullptr ? top.token : run_chain(e, s, logits, index + second_draw, top.token);
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
    const bool probs = forced < 0 && s.n_probs > 0;
    if (probs) {
        e->untouched.assign(logits, logits + n);
    }
    if (forced < 0) {
        shape_row(e, s, logits, index);
    }
    const best top = find_best(logits, n);
    if (top.nan || top.logit == INFINITY) {
        out->status = MN_ROW_NAN;
        return;
    }
    int32_t token = forced;
    if (forced < 0) {
        // A chain must not see a row without a choice: llama.cpp's greedy sampler takes the first token then.
        token = s.chain == nullptr || top.token < 0 ? top.token : run_chain(e, s, logits, index, top.token);
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
    if (probs) {
        set_probs(e, s, token);
        out->probs = true;
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
            choose(e, e->samplers[slot], logits, e->samplers[slot].first + index, forced, out);
        }
        return true;
    });
}

bool mn_sampler_open(mn_engine * e, int32_t slot, const mn_sampling * sampling, const int32_t * history, int32_t n_history,
                     const int32_t * biased, const float * biases, int32_t n_biased, const char * breakers, int32_t n_breakers,
                     mn_error * err) {
    return mn_guard(err, "making the sampler", false, [&] {
        mn_sampler & s = e->samplers[slot];
        s.reset();
        s.open    = true;
        s.masked  = e->model->suppressed;
        s.first   = sampling->first;
        s.min_new = sampling->min_new;
        s.n_probs = std::min<int32_t>(sampling->n_probs, MN_MAX_PROBS);
        for (int32_t i = 0; i < n_biased; ++i) {
            s.bias.push_back({ biased[i], biases[i] });
        }
        if (sampling->ignore_eog) {
            s.masked.insert(s.masked.end(), e->model->eog.begin(), e->model->eog.end());
        }
        if (sampling->temperature > 0.0f || has_penalties(sampling) || has_dry(sampling)) {
            s.chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
            build_chain(e, s.chain, sampling, breakers, n_breakers);
            // Only the newest tokens can matter to a penalty.
            const int32_t memory = std::max(has_penalties(sampling) ? sampling->penalty_last_n : 0,
                                            has_dry(sampling) ? sampling->dry_penalty_last_n : 0);
            for (int32_t i = std::max(0, n_history - memory); i < n_history; ++i) {
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

void mn_slot_probs(const mn_engine * e, int32_t slot, mn_probs * out) {
    *out = e->samplers[slot].probs;
}

void mn_sampler_close(mn_engine * e, int32_t slot) {
    e->samplers[slot].reset();
}
