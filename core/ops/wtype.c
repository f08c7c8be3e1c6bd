/* Element types of weights: names and sizes. */
#include "kvl/ops.h"

enum { QUANT_BLOCK = 32 };

static size_t quant_row_bytes(int64_t n_cols, size_t block_bytes)
{
    size_t bytes;
    if (n_cols % QUANT_BLOCK) return 0;
    return kvl_mul_size((size_t)(n_cols / QUANT_BLOCK), block_bytes, &bytes) == KVL_OK ? bytes : 0;
}

size_t kvl_wtype_row_bytes(enum kvl_wtype type, int64_t n_cols)
{
    size_t bytes = 0;
    if (n_cols <= 0) return 0;
    switch (type) {
    case KVL_W_F32: return kvl_mul_size((size_t)n_cols, 4, &bytes) == KVL_OK ? bytes : 0;
    case KVL_W_F16:
    case KVL_W_BF16: return kvl_mul_size((size_t)n_cols, 2, &bytes) == KVL_OK ? bytes : 0;
    case KVL_W_Q8_0: return quant_row_bytes(n_cols, 34);
    case KVL_W_Q4_0: return quant_row_bytes(n_cols, 18);
    }
    return 0;
}

const char *kvl_wtype_name(enum kvl_wtype type)
{
    switch (type) {
    case KVL_W_F32: return "F32";
    case KVL_W_F16: return "F16";
    case KVL_W_Q4_0: return "Q4_0";
    case KVL_W_Q8_0: return "Q8_0";
    case KVL_W_BF16: return "BF16";
    }
    return "unknown";
}
