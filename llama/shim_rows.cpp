// Puts the kernels of shim_rows.h in the place of ggml's own, for the products of the CPU backend that they can do.
//
// ggml has no public door for that. Its CPU backend asks a list of "extra buffer types" about every operation before it
// computes it itself; that list is found by the name of the function that returns it, and gets an entry more. What is copied here of
// ggml's internal declarations is checked by its version: with any other the kernels stay unused.
#include "shim_internal.h"
#include "shim_rows.h"

#include <dlfcn.h>
#include <ggml-cpu.h>

#include <cstring>
#include <mutex>

namespace {

// The release whose declarations these are: ggml/src/ggml-backend-impl.h, ggml-cpu/ggml-cpu-impl.h and ggml-cpu/traits.h.
constexpr const char * known_version = "0.25.1";

struct buffer_type {
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);
    bool (*is_host)(ggml_backend_buffer_type_t);
    ggml_backend_dev_t device;
    void *             context;
};

struct compute_params {
    int               ith, nth;
    size_t            wsize;
    void *            wdata;
    ggml_threadpool * threadpool;
    bool              use_ref;
};

class tensor_traits {
  public:
    virtual ~tensor_traits() = default;
    virtual bool work_size(int n_threads, const ggml_tensor * op, size_t & size)  = 0;
    virtual bool compute_forward(compute_params * params, ggml_tensor * op) = 0;
};

class extra_buffer_type {
  public:
    virtual ~extra_buffer_type() = default;
    virtual bool            supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) = 0;
    virtual tensor_traits * get_tensor_traits(const ggml_tensor * op)                   = 0;
};

// Functions of the CPU backend's library.
struct cpu_library {
    decltype(ggml_get_type_traits_cpu) * traits;
    void (*barrier)(ggml_threadpool *);
    void (*chunk_set)(ggml_threadpool *, int);
    int (*chunk_add)(ggml_threadpool *, int);
    std::vector<ggml_backend_buffer_type_t> & (*extra_types)();

    bool whole() const {
        return traits != nullptr && barrier != nullptr && chunk_set != nullptr && chunk_add != nullptr && extra_types != nullptr;
    }
};

constexpr int64_t block_values = 32;

// A block of activations as ggml quantises it.
struct activations {
    ggml_fp16_t scale;
    int8_t      values[block_values];
};

// Where the parts of a panel lie in the work buffer.
struct layout {
    size_t offsets, scales, size;

    layout(int64_t blocks, int64_t columns) {
        const size_t n = (size_t) (blocks * columns);
        offsets        = n * block_values;
        scales         = offsets + n * 8 * sizeof(int32_t);
        size           = scales + n * sizeof(float);
    }
};

// Fills in one column of a panel. Quantised block by block: the values are those of whole rows.
void pack(const cpu_library & lib, int32_t shift, const float * column, int64_t blocks, int8_t * values, int32_t * offsets,
          float * scales) {
    const ggml_from_float_t quantise = lib.traits(GGML_TYPE_Q8_0)->from_float;
    for (int64_t b = 0; b < blocks; ++b) {
        activations block;
        quantise(column + b * block_values, &block, block_values);
        memcpy(values + b * block_values, block.values, block_values);
        scales[b] = ggml_fp16_to_fp32(block.scale);
        for (int g = 0; g < 8; ++g) {
            int32_t sum = 0;
            for (int i = 0; i < 4; ++i) {
                sum += block.values[4 * g + i];
            }
            offsets[b * 8 + g] = -shift * sum;
        }
    }
}

class row_products : public extra_buffer_type, public tensor_traits {
  public:
    cpu_library      lib{};
    mn_rows_kernel * kernels[3] = {};  // by mn_rows_type

    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }  // nothing is stored by this type

    tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return op->op == GGML_OP_MUL_MAT && fits(op) ? this : nullptr;
    }

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = layout(op->src[0]->ne[0] / block_values, op->src[1]->ne[1]).size + alignment;
        return true;
    }

    bool compute_forward(compute_params * params, ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        const ggml_tensor * input   = op->src[1];
        const int64_t       blocks  = weights->ne[0] / block_values;
        const int64_t       n       = input->ne[1];
        const mn_rows_type  type    = type_of(weights->type);
        const layout        parts(blocks, n);
        const size_t        skip = (alignment - (uintptr_t) params->wdata % alignment) % alignment;
        if (params->wsize < parts.size + skip) {
            return false;
        }
        auto * values  = (int8_t *) params->wdata + skip;
        auto * offsets = (int32_t *) (values + parts.offsets);
        auto * scales  = (float *) (values + parts.scales);
        for (int64_t c = params->ith; c < n; c += params->nth) {
            pack(lib, mn_rows_shift(type), (const float *) ((const char *) input->data + c * input->nb[1]), blocks,
                 values + c * blocks * block_values, offsets + c * blocks * 8, scales + c * blocks);
        }
        if (params->ith == 0) {
            lib.chunk_set(params->threadpool, params->nth);
        }
        lib.barrier(params->threadpool);
        const mn_rows_panel panel{ blocks, values, offsets, scales };
        const int64_t       rows = weights->ne[1];
        const int64_t       part = part_of(rows, params->nth);
        for (int64_t i = params->ith; i * part < rows; i = lib.chunk_add(params->threadpool, 1)) {
            // The rows that are too few for a part of their own go with the last one.
            const int64_t last = (i + 1) * part + mn_rows_at_once > rows ? rows : (i + 1) * part;
            if (rows - i * part >= mn_rows_at_once) {
                kernels[type](weights->data, i * part, last, panel, n, (float *) op->data, (int64_t) (op->nb[1] / sizeof(float)));
            }
        }
        return true;
    }

    // Whether every sum of the kernels has the bits of ggml's.
    bool agree() const;

  private:
    static constexpr size_t alignment = 64;

    // Parts small enough that a thread which was interrupted does not keep the others waiting.
    static int64_t part_of(int64_t rows, int threads) {
        const int64_t share = rows / (threads == 1 ? 1 : 8 * threads) / mn_rows_at_once * mn_rows_at_once;
        return share < 2 * mn_rows_at_once ? 2 * mn_rows_at_once : share;
    }

    static mn_rows_type type_of(ggml_type type) {
        switch (type) {
        case GGML_TYPE_Q4_0: return MN_ROWS_Q4_0;
        case GGML_TYPE_Q5_0: return MN_ROWS_Q5_0;
        default: return MN_ROWS_Q8_0;
        }
    }

    bool fits(const ggml_tensor * op) const {
        const ggml_tensor * w = op->src[0];
        const ggml_tensor * x = op->src[1];
        if (w->type != GGML_TYPE_Q4_0 && w->type != GGML_TYPE_Q5_0 && w->type != GGML_TYPE_Q8_0) {
            return false;
        }
        // One matrix, its rows one after the other as in the file, in memory that the processor reads.
        const bool weights = kernels[type_of(w->type)] != nullptr && w->ne[1] >= mn_rows_at_once && ggml_is_contiguous(w) &&
                             w->ne[2] == 1 && w->ne[3] == 1 && w->buffer != nullptr && ggml_backend_buffer_is_host(w->buffer);
        return weights && x->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32 && x->ne[2] == 1 && x->ne[3] == 1 &&
               x->nb[0] == sizeof(float) && op->nb[0] == sizeof(float);
    }
};

bool row_products::agree() const {
    constexpr int64_t rows = 21, blocks = 3, columns = 37, length = blocks * block_values;  // no multiple of anything, and many
    constexpr ggml_type types[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q5_0, GGML_TYPE_Q8_0 };  // by mn_rows_type
    float    numbers[columns * length];
    uint32_t state = 1;
    for (float & x : numbers) {
        state = state * 1664525u + 1013904223u;
        x     = (float) (int32_t) state * 0x1p-31f;
    }
    activations quantised[columns * blocks];
    lib.traits(GGML_TYPE_Q8_0)->from_float(numbers, quantised, columns * length);
    for (int type = 0; type < 3; ++type) {
        const size_t         row = ggml_row_size(types[type], length);
        std::vector<uint8_t> weights(rows * row + 4096);  // the kernels look ahead
        ggml_quantize_chunk(types[type], numbers, weights.data(), 0, rows, length, nullptr);
        std::vector<int8_t>  values(columns * length);
        std::vector<int32_t> offsets(columns * blocks * 8);
        std::vector<float>   scales(columns * blocks), out(columns * rows);
        for (int64_t c = 0; c < columns; ++c) {
            pack(lib, mn_rows_shift((mn_rows_type) type), numbers + c * length, blocks, &values[c * length],
                 &offsets[c * blocks * 8], &scales[c * blocks]);
        }
        kernels[type](weights.data(), 0, rows, { blocks, values.data(), offsets.data(), scales.data() }, columns, out.data(), rows);
        for (int64_t i = 0; i < rows * columns; ++i) {
            float want;
            lib.traits(types[type])->vec_dot(length, &want, 0, weights.data() + i % rows * row, 0, quantised + i / rows * blocks, 0, 1);
            if (memcmp(&want, &out[i], sizeof(want)) != 0) {
                return false;
            }
        }
    }
    return true;
}

// Looks a function of the library up that holds the CPU backend; it was loaded for itself, so only its own handle finds them.
cpu_library find_library(ggml_backend_reg_t reg) {
    cpu_library out{};
    Dl_info     info;
    void *      known = ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new");
    if (known == nullptr || dladdr(known, &info) == 0 || info.dli_fname == nullptr) {
        return out;
    }
    void * handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);  // kept open, as the backend is
    if (handle == nullptr) {
        return out;
    }
    out.traits      = (decltype(out.traits)) dlsym(handle, "ggml_get_type_traits_cpu");
    out.barrier     = (decltype(out.barrier)) dlsym(handle, "ggml_barrier");
    out.chunk_set   = (decltype(out.chunk_set)) dlsym(handle, "ggml_threadpool_chunk_set");
    out.chunk_add   = (decltype(out.chunk_add)) dlsym(handle, "ggml_threadpool_chunk_add");
    out.extra_types = (decltype(out.extra_types)) dlsym(handle, "_Z39ggml_backend_cpu_get_extra_buffer_typesv");
    return out;
}

row_products products;
bool         installed = false;

bool install(const char * set) {
    if (strcmp(ggml_version(), known_version) != 0) {
        return false;
    }
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    products.lib           = find_library(reg);
    if (!products.lib.whole()) {
        return false;
    }
    for (int type = 0; type < 3; ++type) {
        products.kernels[type] = mn_rows_kernel_of((mn_rows_type) type, set);
        if (products.kernels[type] == nullptr) {
            return false;
        }
    }
    if (!products.agree()) {
        return false;
    }
    // The backend copies the list for whoever looks for places of weights; ours is none, so the copy is made before it.
    auto * places = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    if (places != nullptr) {
        places(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    }
    static buffer_type entry{};
    entry.get_name      = [](ggml_backend_buffer_type_t) { return "meshnet-rows"; };
    entry.alloc_buffer  = [](ggml_backend_buffer_type_t, size_t) -> ggml_backend_buffer_t { return nullptr; };
    entry.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 64; };
    entry.context       = static_cast<extra_buffer_type *>(&products);
    products.lib.extra_types().push_back((ggml_backend_buffer_type_t) &entry);
    return true;
}

}  // namespace

bool mn_rows_install(const char * set) {
    static std::once_flag once;
    std::call_once(once, [set] {
        installed = set != nullptr ? install(set) : install("avx512") || install("avx2");
    });
    return installed;
}
