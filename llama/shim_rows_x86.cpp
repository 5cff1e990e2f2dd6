// The kernels for x86-64. They differ from ggml's in how much they keep in registers, not in what they compute.
#include "shim_rows.h"

#include <cstring>

int32_t mn_rows_shift(mn_rows_type type) {
    switch (type) {
    case MN_ROWS_Q4_0: return 8;
    case MN_ROWS_Q5_0: return 16;
    default: return 128;
    }
}

#if defined(__x86_64__) && defined(__GNUC__)

// GCC 12 takes its own headers' undefined values for a mistake.
#    pragma GCC diagnostic ignored "-Wuninitialized"
#    pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#    include <immintrin.h>

#    include <algorithm>

#    define MN_AVX2 __attribute__((target("avx2,fma,f16c"), always_inline)) inline
#    define MN_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"), always_inline)) inline
#    define MN_AVX2_ENTRY __attribute__((target("avx2,fma,f16c")))
#    define MN_AVX512_ENTRY __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))

namespace {

MN_AVX2 __m256i load32(const void * p) {
    return _mm256_loadu_si256((const __m256i *) p);
}

MN_AVX2 __m128i load16(const void * p) {
    return _mm_loadu_si128((const __m128i *) p);
}

// The low halves of sixteen bytes, then the high ones.
MN_AVX2 __m256i nibbles(const uint8_t * p) {
    const __m128i bytes = load16(p);
    const __m256i both  = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

MN_AVX512 __m512i two_nibbles(const uint8_t * p, const uint8_t * q) {
    const __m512i both  = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_broadcastsi128_si256(load16(p))),
                                             _mm256_broadcastsi128_si256(load16(q)), 1);
    const __m512i count = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                           0x0004000400040004, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi16(both, count), _mm512_set1_epi8(15));
}

// The blocks as ggml stores them. values are as they are; unsigned_pair has those of two blocks, shifted by mn_rows_shift.
struct block_q8_0 {
    uint16_t scale;
    int8_t   bytes[32];

    MN_AVX2 __m256i values() const { return load32(bytes); }

    static MN_AVX512 __m512i unsigned_pair(const block_q8_0 & a, const block_q8_0 & b) {
        const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load32(a.bytes)), load32(b.bytes), 1);
        return _mm512_xor_si512(both, _mm512_set1_epi8((char) 0x80));
    }
};

struct block_q4_0 {
    uint16_t scale;
    uint8_t  bytes[16];

    MN_AVX2 __m256i values() const { return _mm256_sub_epi8(nibbles(bytes), _mm256_set1_epi8(8)); }

    static MN_AVX512 __m512i unsigned_pair(const block_q4_0 & a, const block_q4_0 & b) { return two_nibbles(a.bytes, b.bytes); }
};

struct block_q5_0 {
    uint16_t scale;
    uint8_t  fifth[4];  // a bit for each value
    uint8_t  bytes[16];

    uint32_t bits() const {
        uint32_t out;
        memcpy(&out, fifth, sizeof(out));
        return out;
    }

    MN_AVX2 __m256i values() const {
        // Each byte gets the byte of bits that has its own, and looks at that bit.
        const __m256i places = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
        const __m256i bit    = _mm256_set1_epi64x((long long) 0x8040201008040201);
        const __m256i own    = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int) bits()), places), bit);
        const __m256i lacks  = _mm256_andnot_si256(_mm256_cmpeq_epi8(own, bit), _mm256_set1_epi8(16));
        return _mm256_sub_epi8(nibbles(bytes), lacks);
    }

    static MN_AVX512 __m512i unsigned_pair(const block_q5_0 & a, const block_q5_0 & b) {
        const __mmask64 set   = (uint64_t) b.bits() << 32 | a.bits();
        const __m512i   lower = two_nibbles(a.bytes, b.bytes);
        return _mm512_mask_add_epi8(lower, set, lower, _mm512_set1_epi8(16));
    }
};

static_assert(sizeof(block_q8_0) == 34 && sizeof(block_q4_0) == 18 && sizeof(block_q5_0) == 22, "the layout of ggml's blocks");

// The columns of one call of a tile.
constexpr int64_t tile_columns = 4;
// As much of a panel as is gone through for one tile after the other: it stays in the second-level cache.
constexpr int64_t panel_bytes = 256 * 1024;
constexpr int64_t panel_block = 32 + 32 + 4;

// The order of ggml's hsum_float_8.
MN_AVX2 float sum_lanes(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    half        = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// The scales of a block of each of eight rows.
template <typename B> MN_AVX2 __m256 scales_of(const B * block, int64_t row) {
    alignas(16) uint16_t halves[8];
    for (int r = 0; r < 8; ++r) {
        halves[r] = block[r * row].scale;
    }
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *) halves));
}

// Asks for the part of the next eight rows that is where block b of these is: eight streams are too many for the processor
// to foresee. A third of the time of a large matrix without it.
template <typename B> inline void prefetch_next(const B * w, int64_t row, int64_t b) {
    const char * next = (const char *) (w + mn_rows_at_once * (row + b));
    for (size_t i = 0; i < mn_rows_at_once * sizeof(B); i += 64) {
        __builtin_prefetch(next + i);
    }
}

// A block of each of eight rows, taken apart for the kernels: a register holds the values of two rows, so that one instruction works
// on both, and their scales in the same halves.
struct eight_blocks {
    __m512i values[4];
    __m512  scales[4];
};

template <typename B> MN_AVX512 void take_apart(const B * w, int64_t row, int64_t b, eight_blocks & out) {
    const __m512i pairs[4] = { _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                               _mm512_set_epi32(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2),
                               _mm512_set_epi32(5, 5, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4, 4),
                               _mm512_set_epi32(7, 7, 7, 7, 7, 7, 7, 7, 6, 6, 6, 6, 6, 6, 6, 6) };
    prefetch_next(w, row, b);
    const __m512 scales = _mm512_castps256_ps512(scales_of(w + b, row));
#    pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        out.values[r] = B::unsigned_pair(w[b + 2 * r * row], w[b + (2 * r + 1) * row]);
        out.scales[r] = _mm512_permutexvar_ps(pairs[r], scales);
    }
}

// The sums of eight rows times N columns.
template <int N> struct eight_sums {
    __m512 lanes[4][N] = {};

    // Adds a block of the rows times that of each column, the first of which is block at of the panel.
    MN_AVX512 void add(const eight_blocks & w, const mn_rows_panel & p, int64_t at) {
#    pragma GCC unroll 4
        for (int c = 0; c < N; ++c) {
            const int64_t i       = at + c * p.blocks;
            const __m512i against = _mm512_broadcast_i64x4(load32(p.values + i * 32));
            const __m512i offset  = _mm512_broadcast_i64x4(load32(p.offsets + i * 8));
            const __m512  factor  = _mm512_set1_ps(p.scales[i]);
#    pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(offset, w.values[r], against));
                lanes[r][c]      = _mm512_fmadd_ps(_mm512_mul_ps(w.scales[r], factor), sum, lanes[r][c]);
            }
        }
    }

    MN_AVX512 void store(float * out, int64_t stride) const {
#    pragma GCC unroll 4
        for (int c = 0; c < N; ++c) {
#    pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                out[c * stride + 2 * r]     = sum_lanes(_mm512_castps512_ps256(lanes[r][c]));
                out[c * stride + 2 * r + 1] = sum_lanes(_mm512_extractf32x8_ps(lanes[r][c], 1));
            }
        }
    }
};

template <typename B, int N>
MN_AVX512_ENTRY void tile_avx512(const void * weights, const mn_rows_panel & p, int64_t column, float * out, int64_t stride) {
    eight_sums<N> sums;
    for (int64_t b = 0; b < p.blocks; ++b) {
        eight_blocks w;
        take_apart((const B *) weights, p.blocks, b, w);
        sums.add(w, p, column * p.blocks + b);
    }
    sums.store(out, stride);
}

// The same with weights that were taken apart before.
template <int N>
MN_AVX512_ENTRY void tile_of_strip(const void * strip, const mn_rows_panel & p, int64_t column, float * out, int64_t stride) {
    eight_sums<N> sums;
    for (int64_t b = 0; b < p.blocks; ++b) {
        sums.add(((const eight_blocks *) strip)[b], p, column * p.blocks + b);
    }
    sums.store(out, stride);
}

template <typename B> MN_AVX512_ENTRY void fill_strip(const void * weights, int64_t row, eight_blocks * strip) {
    for (int64_t b = 0; b < row; ++b) {
        take_apart((const B *) weights, row, b, strip[b]);
    }
}

// Eight rows times N columns, two rows at a time: AVX2 has half as many registers, of half the width.
template <typename B, int N>
MN_AVX2_ENTRY void tile_avx2(const void * weights, const mn_rows_panel & p, int64_t column, float * out, int64_t stride) {
    const B *     w    = (const B *) weights;
    const int64_t row  = p.blocks;
    const int64_t at   = column * p.blocks;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int first = 0; first < mn_rows_at_once; first += 2) {
        __m256 acc[2][N] = {};
        for (int64_t b = 0; b < row; ++b) {
            if (first == 0) {
                prefetch_next(w, row, b);
            }
            __m256i values[2], sizes[2];
            __m256  scale[2];
#    pragma GCC unroll 2
            for (int r = 0; r < 2; ++r) {
                const B & block = w[b + (first + r) * row];
                values[r]       = block.values();
                sizes[r]        = _mm256_sign_epi8(values[r], values[r]);
                scale[r]        = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(block.scale)));
            }
#    pragma GCC unroll 4
            for (int c = 0; c < N; ++c) {
                const int64_t i       = at + c * p.blocks + b;
                const __m256i against = load32(p.values + i * 32);
                const __m256  factor  = _mm256_broadcast_ss(p.scales + i);
#    pragma GCC unroll 2
                for (int r = 0; r < 2; ++r) {
                    const __m256i products = _mm256_maddubs_epi16(sizes[r], _mm256_sign_epi8(against, values[r]));
                    const __m256  sum      = _mm256_cvtepi32_ps(_mm256_madd_epi16(ones, products));
                    acc[r][c]              = _mm256_fmadd_ps(_mm256_mul_ps(scale[r], factor), sum, acc[r][c]);
                }
            }
        }
#    pragma GCC unroll 4
        for (int c = 0; c < N; ++c) {
            out[c * stride + first]     = sum_lanes(acc[0][c]);
            out[c * stride + first + 1] = sum_lanes(acc[1][c]);
        }
    }
}

typedef void tile(const void * weights, const mn_rows_panel & p, int64_t column, float * out, int64_t stride);

// Some rows of weights that stay in the first-level cache while the columns pass by. Each column is written in whole lines:
// columns of a large matrix lie so that their lines take each other's places in the cache.
template <typename B> int64_t rows_in_cache(int64_t blocks) {
    constexpr int64_t bytes = 24 * 1024;
    const int64_t     fit   = bytes / (blocks * (int64_t) sizeof(B)) / mn_rows_at_once * mn_rows_at_once;
    return std::clamp(fit, mn_rows_at_once, 8 * mn_rows_at_once);
}

int64_t columns_in_cache(int64_t blocks) {
    return std::max(tile_columns, panel_bytes / (blocks * panel_block) / tile_columns * tile_columns);
}

// tiles has the tile for one column first, for tile_columns last.
template <typename B>
void multiply(tile * const (&tiles)[tile_columns], const void * weights, int64_t first, int64_t last, const mn_rows_panel & panel,
              int64_t n, float * out, int64_t stride) {
    const int64_t step = columns_in_cache(panel.blocks);
    const int64_t rows = rows_in_cache<B>(panel.blocks);
    for (int64_t from = 0; from < n; from += step) {
        const int64_t to = std::min(n, from + step);
        for (int64_t top = first; top < last; top += rows) {
            for (int64_t column = from; column < to; column += tile_columns) {
                for (int64_t next = top; next < std::min(last, top + rows); next += mn_rows_at_once) {
                    const int64_t row = std::min(next, last - mn_rows_at_once);
                    tiles[std::min(tile_columns, to - column) - 1]((const B *) weights + row * panel.blocks, panel, column,
                                                                   out + column * stride + row, stride);
                }
            }
        }
    }
}

// From so many columns on, eight rows are taken apart once for all of them, if they are short enough to stay in the first-level cache.
constexpr int64_t strip_columns = 32;
constexpr int64_t strip_blocks  = 64;

template <typename B>
void multiply_strips(const void * weights, int64_t first, int64_t last, const mn_rows_panel & panel, int64_t n, float * out, int64_t stride) {
    static tile * const tiles[] = { tile_of_strip<1>, tile_of_strip<2>, tile_of_strip<3>, tile_of_strip<4> };
    eight_blocks        strip[strip_blocks];
    const int64_t       step = columns_in_cache(panel.blocks);
    for (int64_t from = 0; from < n; from += step) {
        const int64_t to = std::min(n, from + step);
        for (int64_t next = first; next < last; next += mn_rows_at_once) {
            const int64_t row = std::min(next, last - mn_rows_at_once);
            fill_strip<B>((const B *) weights + row * panel.blocks, panel.blocks, strip);
            for (int64_t column = from; column < to; column += tile_columns) {
                tiles[std::min(tile_columns, to - column) - 1](strip, panel, column, out + column * stride + row, stride);
            }
        }
    }
}

template <typename B>
void with_avx512(const void * weights, int64_t first, int64_t last, const mn_rows_panel & panel, int64_t n, float * out,
                 int64_t stride) {
    if (n >= strip_columns && panel.blocks <= strip_blocks) {
        multiply_strips<B>(weights, first, last, panel, n, out, stride);
        return;
    }
    static tile * const tiles[] = { tile_avx512<B, 1>, tile_avx512<B, 2>, tile_avx512<B, 3>, tile_avx512<B, 4> };
    multiply<B>(tiles, weights, first, last, panel, n, out, stride);
}

template <typename B>
void with_avx2(const void * weights, int64_t first, int64_t last, const mn_rows_panel & panel, int64_t n, float * out,
               int64_t stride) {
    static tile * const tiles[] = { tile_avx2<B, 1>, tile_avx2<B, 2>, tile_avx2<B, 3>, tile_avx2<B, 4> };
    multiply<B>(tiles, weights, first, last, panel, n, out, stride);
}

bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace

mn_rows_kernel * mn_rows_kernel_of(mn_rows_type type, const char * set) {
    if (strcmp(set, "avx512") == 0 && has_avx512()) {
        mn_rows_kernel * const kernels[] = { with_avx512<block_q4_0>, with_avx512<block_q5_0>, with_avx512<block_q8_0> };
        return kernels[type];
    }
    if (strcmp(set, "avx2") == 0 && has_avx2()) {
        mn_rows_kernel * const kernels[] = { with_avx2<block_q4_0>, with_avx2<block_q5_0>, with_avx2<block_q8_0> };
        return kernels[type];
    }
    return nullptr;
}

#else  // Elsewhere ggml has kernels of its own for these.

mn_rows_kernel * mn_rows_kernel_of(mn_rows_type, const char *) {
    return nullptr;
}

#endif
