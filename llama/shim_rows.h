// Products of quantised weights with a few rows of activations, as every decode step has them: see docs/rows.md.
#pragma once

#include <cstddef>
#include <cstdint>

// The types of weights with a kernel. All have blocks of 32 values that share a scale in half precision.
enum mn_rows_type { MN_ROWS_Q4_0, MN_ROWS_Q5_0, MN_ROWS_Q8_0 };

// Columns of activations, quantised as ggml does it (Q8_0) and taken apart, so that what the kernels load lies in order.
// Column c begins at block c * blocks of each array.
struct mn_rows_panel {
    int64_t         blocks;   // a column
    const int8_t *  values;   // 32 a block
    const int32_t * offsets;  // 8 a block: the sum of each four values, times what makes the weights unsigned, negative
    const float *   scales;   // 1 a block
};

// Rows first to last (not included) of a matrix of weights with panel.blocks blocks a row, times n columns. out has a float for
// each row of the matrix, its columns out_stride floats apart. Each value is summed in the order of ggml's own ggml_vec_dot of that
// type, and has the same bits. last - first is at least mn_rows_at_once; where it is no multiple of it, the rows before it
// are written again, with the same bits.
typedef void mn_rows_kernel(const void * weights, int64_t first, int64_t last, const mn_rows_panel & panel, int64_t n,
                            float * out, int64_t out_stride);

constexpr int64_t mn_rows_at_once = 8;

// The kernel for a type on an instruction set ("avx512", "avx2"); null where this processor lacks it.
mn_rows_kernel * mn_rows_kernel_of(mn_rows_type type, const char * set);

// What is added to the weights of a type where a kernel wants them unsigned.
int32_t mn_rows_shift(mn_rows_type type);
