// The C face of the binding: everything Go calls. Behind it is C++, where every exception is caught and
// becomes an error text, and where no argument is trusted to llama.cpp unchecked.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Filled by a failing call.
typedef struct mn_error {
    char text[1024];
} mn_error;

// ---- process-wide ------------------------------------------------------------------------------

// Loads the compute backends once: from dir, or from the folder of the llama.cpp library and its ggml/
// subfolders where dir is NULL. False where no CPU device is registered afterwards.
bool mn_backends_load(const char * dir, mn_error * err);

// Lowest llama.cpp log level that reaches Go: 1 debug, 2 info, 3 warn, 4 error, 5 none.
void mn_log_level(int level);

const char * mn_version(void);

// Puts kernels of our own under ggml's CPU backend, for good; see shim_rows.cpp. False where they do not fit this processor or this
// release, or do not sum as ggml does: then nothing has changed. set is an instruction set of shim_rows.h, or null for the best. After
// mn_backends_load, before the first model.
bool mn_rows_install(const char * set);
const char * mn_system_info(void);
// Name and description of device i, or false past the last one.
bool mn_device(size_t i, char * name, size_t name_size, char * description, size_t description_size);

// ---- model -------------------------------------------------------------------------------------

typedef struct mn_model mn_model;

// Shared between the loading thread and a watcher; both sides use atomic access.
typedef struct mn_progress {
    uint32_t permille;
    uint32_t cancel;
} mn_progress;

typedef struct mn_model_facts {
    int32_t  n_ctx_train, n_embd, n_layer, n_head, n_head_kv, n_swa, n_vocab;
    int32_t  rope_type, bos, eos;
    int32_t  longest_piece;  // bytes of the longest token, control tokens included
    uint64_t n_params, size_bytes;
    bool     has_decoder, has_encoder, is_recurrent, is_hybrid, is_diffusion, has_vocab, add_bos;
    char     ftype[64];
    char     description[128];
} mn_model_facts;

// Loads from path, or from the open descriptor fd where path is NULL (fd stays the caller's).
// Without repack the weights keep their layout in the file, and kernels that take rows one by one.
mn_model * mn_model_load(const char * path, int fd, int n_gpu_layers, bool repack, mn_progress * progress, mn_error * err);
void       mn_model_free(mn_model * model);
void       mn_model_facts_get(const mn_model * model, mn_model_facts * out);
const char * mn_model_chat_template(const mn_model * model);

// Number of tokens, or minus the number needed, or INT32_MIN on error.
int32_t mn_tokenize(const mn_model * model, const char * text, int32_t text_len, int32_t * out, int32_t out_size,
                    bool add_special, bool parse_special, mn_error * err);
// Bytes of one token's text, or minus the number needed. The token must be in the vocabulary.
int32_t mn_piece(const mn_model * model, int32_t token, char * out, int32_t out_size, bool special);
// Bytes of the text of a token list, or minus the number needed, or INT32_MIN on error.
int32_t mn_detokenize(const mn_model * model, const int32_t * tokens, int32_t n, char * out, int32_t out_size,
                      bool remove_special, bool unparse_special, mn_error * err);
bool mn_is_eog(const mn_model * model, int32_t token);
bool mn_is_control(const mn_model * model, int32_t token);

// ---- chat --------------------------------------------------------------------------------------

// Whether llama.cpp's common library is linked. Without it there are neither chat templates nor JSON Schemas.
bool mn_has_common(void);

typedef struct mn_chat mn_chat;

// What a template does with conversations.
typedef struct mn_chat_facts {
    bool system_role;       // it shows messages of the role system
    bool only_parts;        // it takes a message's content only as a list of parts
    bool tools, tool_calls;
    bool object_arguments;  // it takes a call's arguments as an object, not as JSON text
} mn_chat_facts;

typedef struct mn_chat_input {
    const char * conversation;  // JSON: {"messages": [...], "tools": [...]}
    size_t       conversation_len, limit_bytes;  // the latter of the rendered text
    const char * bos;
    const char * eos;
    int64_t      now;  // Unix seconds: what a template takes for the present
    int64_t      limit_ms;
} mn_chat_input;

// A rendered conversation. For each byte, input says whether llama.cpp's engine still knows that it came from the conversation.
typedef struct mn_text {
    char * bytes;
    bool * input;
    size_t len;
} mn_text;

// Parses a Jinja template and finds out what it does. Safe with any number of threads, as is rendering.
mn_chat * mn_chat_new(const char * source, mn_error * err);
void      mn_chat_free(mn_chat * chat);
void      mn_chat_facts_get(const mn_chat * chat, mn_chat_facts * out);
bool      mn_chat_render(const mn_chat * chat, const mn_chat_input * in, mn_text * out, mn_error * err);
void      mn_text_free(mn_text * text);

// The spelling of a control token or of the unknown token in a text, or minus its length; 0 for every other token.
int32_t mn_control_text(const mn_model * model, int32_t token, char * out, int32_t out_size);
// Whether the tokenizer may put a space before a text.
bool mn_space_before_text(const mn_model * model);

// A grammar in GBNF, to be freed; null on error. It may crash, or take for ever.
char * mn_schema_to_grammar(const char * schema, mn_error * err);

// ---- engine: one context -----------------------------------------------------------------------

typedef struct mn_engine mn_engine;

typedef struct mn_engine_params {
    int32_t n_seq_max, n_ctx_seq, n_batch, n_threads;
    bool    audit;
    // Layers with an attention window keep every position, as the others do, and not a ring of as many as the window needs.
    bool    full_windows;
} mn_engine_params;

// How flash attention was resolved when the context was made.
enum { MN_FLASH_UNKNOWN = 0, MN_FLASH_ON = 1, MN_FLASH_OFF = 2 };

typedef struct mn_engine_facts {
    int32_t n_seq_max, n_ctx_seq, n_batch, flash;
} mn_engine_facts;

mn_engine * mn_engine_new(mn_model * model, const mn_engine_params * params, mn_error * err);
void        mn_engine_free(mn_engine * engine);
void        mn_engine_facts_get(const mn_engine * engine, mn_engine_facts * out);
// Switches to another number of threads. False where a pool of that size cannot be made; the old one is then still in use.
bool mn_set_threads(mn_engine * engine, int n_threads, mn_error * err);
// Sticky: while set, the running call and every later one return MN_ABORTED. Any thread.
void mn_interrupt(mn_engine * engine, bool on);

// ---- adapters ----------------------------------------------------------------------------------

typedef struct mn_adapter mn_adapter;

// Loads a LoRA adapter, which lives as long as its model. Before any engine of the model is made.
mn_adapter * mn_adapter_load(mn_model * model, const char * path, mn_error * err);
// Makes an adapter that of all later calls; none where it is NULL.
bool mn_use_adapter(mn_engine * engine, mn_adapter * adapter, float scale, mn_error * err);

// ---- steps -------------------------------------------------------------------------------------

enum { MN_OK = 0, MN_NO_KV = 1, MN_ABORTED = 2, MN_FATAL = -1 };

enum {
    MN_ROW_TOKEN = 0,  // token holds the next token
    MN_ROW_NONE,       // nothing was asked of this row
    MN_ROW_NAN,        // the logits are not numbers
    MN_ROW_NO_CHOICE,  // no token can be chosen
    MN_ROW_GRAMMAR,    // the grammar lets no token follow, or not the known one
    MN_ROW_LOST        // the slot could not be trimmed back and is empty now
};

typedef struct mn_row {
    int32_t slot, pos, token;
    int32_t index;   // of the yielded token in its turn
    int32_t forced;  // the yielded token where it is known, else -1
    bool    pad;     // evaluated for the batch's shape only, and removed again
} mn_row;

typedef struct mn_result {
    int32_t  status, token;
    bool     eog;
    float    gap;
    uint64_t hash;
    bool     probs;  // mn_slot_probs has those of token
} mn_result;

// One decode call. Rows are in ascending slot order. On MN_OK results holds one entry a row. Otherwise every slot is
// as it was, but for those whose result says MN_ROW_LOST.
int mn_decode(mn_engine * engine, const mn_row * rows, int32_t n_rows, mn_result * results);

// Evaluates n tokens of one slot from pos on; the last one yields a token where want is set. On failure the
// slot is trimmed back to pos, or empty with MN_ROW_LOST.
int mn_prefill(mn_engine * engine, int32_t slot, int32_t pos, const int32_t * tokens, int32_t n, bool want,
               int32_t forced, mn_result * result);

// ---- sampling ----------------------------------------------------------------------------------

typedef struct mn_sampling {
    float    temperature, top_p, min_p, typical_p, repeat_penalty, presence_penalty, frequency_penalty;
    float    dry_multiplier, dry_base, xtc_probability, xtc_threshold;
    int32_t  top_k, penalty_last_n, dry_allowed_length, dry_penalty_last_n;
    int32_t  min_new;  // end-of-generation tokens are masked at a lower index
    int32_t  first;    // added to the index of each token
    int32_t  n_probs;  // at most MN_MAX_PROBS
    uint64_t seed;
    bool     ignore_eog;
} mn_sampling;

// Attaches a sampler to a slot, in place of an older one; history is accepted by samplers with a memory. biases are those
// of biased, whose tokens are in the vocabulary. breakers are n_breakers bytes of text, a NUL after each.
bool mn_sampler_open(mn_engine * engine, int32_t slot, const mn_sampling * sampling, const int32_t * history, int32_t n_history,
                     const int32_t * biased, const float * biases, int32_t n_biased, const char * breakers, int32_t n_breakers,
                     mn_error * err);
void mn_sampler_close(mn_engine * engine, int32_t slot);
// Lets a grammar (a handle of grammar.go, which is the sampler's from now on) say which tokens may follow in an open slot.
void mn_sampler_constrain(mn_engine * engine, int32_t slot, uintptr_t grammar);

enum { MN_MAX_PROBS = 20 };

// Log-probabilities by the model's own logits, before anything was done to them.
typedef struct mn_probs {
    float   chosen;
    int32_t n;
    int32_t tokens[MN_MAX_PROBS];  // likeliest first
    float   logprobs[MN_MAX_PROBS];
} mn_probs;

// Those of the slot's newest token, where its result has probs set.
void mn_slot_probs(const mn_engine * engine, int32_t slot, mn_probs * out);

// ---- slots -------------------------------------------------------------------------------------

typedef struct mn_span {
    int32_t min, max;  // positions held; -1, -1 when empty
} mn_span;

mn_span mn_slot_span(const mn_engine * engine, int32_t slot);
// Drops [keep, end). False where the model refuses; nothing is changed then.
bool mn_slot_trim(mn_engine * engine, int32_t slot, int32_t keep);
void mn_slot_clear(mn_engine * engine, int32_t slot);
// Empties a slot whose KV may hold values that are not numbers, and overwrites them: some attention kernels multiply
// masked cells by zero, so that a NaN in a freed cell reaches the slot's next session. False where they may be there still.
bool mn_slot_scrub(mn_engine * engine, int32_t slot);
// Size of the slot's state in bytes; 0 on error.
size_t mn_slot_size(mn_engine * engine, int32_t slot);
// Copies the slot's state; the number of bytes written, 0 on error.
size_t mn_slot_save(mn_engine * engine, int32_t slot, void * out, size_t size, mn_error * err);
// True where exactly size bytes were read. The slot must be empty; its content after a failure is undefined.
bool mn_slot_restore(mn_engine * engine, int32_t slot, const void * in, size_t size, mn_error * err);
// Copies KV and hands over the sampler. After a failure from is as it was and to is empty.
bool mn_slot_move(mn_engine * engine, int32_t from, int32_t to, mn_error * err);

#ifdef __cplusplus
}
#endif
