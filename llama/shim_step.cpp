// The step calls: one llama_decode and the choice of a token for each row that wants one.
#include "shim_internal.h"

#include <algorithm>

namespace {

void add(llama_batch & b, int32_t token, int32_t pos, int32_t slot, bool output) {
    const int32_t i = b.n_tokens++;
    b.token[i]      = token;
    b.pos[i]        = pos;
    b.n_seq_id[i]   = 1;
    b.seq_id[i][0]  = slot;
    b.logits[i]     = output ? 1 : 0;
}

// llama.cpp's answer as ours. An exception leaves the same state behind as a fatal error.
int decode(mn_engine * e) {
    mn_log_aborts_by(&e->interrupted);
    const int rc = mn_guard(nullptr, "decoding", -3, [&] { return (int) llama_decode(e->ctx, e->batch); });
    mn_log_aborts_by(nullptr);
    if (rc == 0 || rc == 1 || rc == 2) {
        return rc;
    }
    return MN_FATAL;
}

// Drops what a step left at pos and beyond. A slot that refuses, or does not end before pos, is emptied: its state is
// not known any more.
bool roll_back(mn_engine * e, int32_t slot, int32_t pos) {
    if (mn_slot_span(e, slot).max >= pos) {
        mn_slot_trim(e, slot, pos);
    }
    if (mn_slot_span(e, slot).max == pos - 1) {
        return true;
    }
    mn_slot_clear(e, slot);
    return pos == 0;
}

void fail_rows(mn_engine * e, const mn_row * rows, int32_t n_rows, mn_result * results) {
    for (int32_t i = 0; i < n_rows; ++i) {
        results[i].status = roll_back(e, rows[i].slot, rows[i].pos) ? MN_ROW_NONE : MN_ROW_LOST;
    }
}

}  // namespace

int mn_decode(mn_engine * e, const mn_row * rows, int32_t n_rows, mn_result * results) {
    std::fill_n(results, n_rows, mn_result{ MN_ROW_NONE, -1, false, 0.0f, 0, false });
    e->batch.n_tokens = 0;
    for (int32_t i = 0; i < n_rows; ++i) {
        // A padding row asks for logits too: rows without them change the shape of the last layer.
        add(e->batch, rows[i].token, rows[i].pos, rows[i].slot, true);
    }
    const int rc = decode(e);
    if (rc != MN_OK) {
        fail_rows(e, rows, n_rows, results);
        return rc;
    }
    for (int32_t i = 0; i < n_rows; ++i) {
        if (rows[i].pad) {
            if (!roll_back(e, rows[i].slot, rows[i].pos)) {
                results[i].status = MN_ROW_LOST;
            }
            continue;
        }
        float * logits = llama_get_logits_ith(e->ctx, i);
        if (logits == nullptr) {
            results[i].status = MN_ROW_NO_CHOICE;
            continue;
        }
        mn_choose(e, rows[i].slot, logits, rows[i].index, rows[i].forced, &results[i]);
    }
    return MN_OK;
}

int mn_prefill(mn_engine * e, int32_t slot, int32_t pos, const int32_t * tokens, int32_t n, bool want, int32_t forced,
               mn_result * result) {
    *result = mn_result{ MN_ROW_NONE, -1, false, 0.0f, 0, false };
    for (int32_t done = 0; done < n;) {
        const int32_t step = std::min(e->n_batch, n - done);
        e->batch.n_tokens  = 0;
        for (int32_t i = 0; i < step; ++i) {
            const int32_t at = done + i;
            add(e->batch, tokens[at], pos + at, slot, want && at == n - 1);
        }
        const int rc = decode(e);
        if (rc != MN_OK) {
            result->status = roll_back(e, slot, pos) ? MN_ROW_NONE : MN_ROW_LOST;
            return rc;
        }
        done += step;
    }
    if (!want) {
        llama_synchronize(e->ctx);
        return MN_OK;
    }
    float * logits = llama_get_logits_ith(e->ctx, -1);
    if (logits == nullptr) {
        result->status = MN_ROW_NO_CHOICE;
        return MN_OK;
    }
    mn_choose(e, slot, logits, 0, forced, result);
    return MN_OK;
}
