/* Types of weights: the table kvl/wtypes.def for code that asks once per matrix. */
#include "wtype.h"

/* kernels of wtypes.def: whether gemv, and gemm where it may, round x. */
enum { any = false, int16 = true, k16 = true };

static const struct kvl_wtype_row wtype_rows[] = {
#define KVL_WTYPE_PLAIN(name_, number, bytes, word_, exponent_)                                    \
    { .type = KVL_W_##name_,                                                                       \
      .name = #name_,                                                                              \
      .block = 1,                                                                                  \
      .block_bytes = (bytes),                                                                      \
      .word = { (word_), (word_) },                                                                \
      .exponent = (exponent_) },
#define KVL_WTYPE_BLOCK(name_, number, elements, bytes, first, second, exponent_, eight, kernels)  \
    { .type = KVL_W_##name_,                                                                       \
      .name = #name_,                                                                              \
      .block = (elements),                                                                         \
      .block_bytes = (bytes),                                                                      \
      .word = { (first), (second) },                                                               \
      .exponent = (exponent_),                                                                     \
      .x_int16 = (kernels) },
#include "kvl/wtypes.def"
};

const struct kvl_wtype_row *kvl_wtype_rows(int32_t *n)
{
    *n = (int32_t)(sizeof wtype_rows / sizeof *wtype_rows);
    return wtype_rows;
}

const struct kvl_wtype_row *kvl_wtype_find(uint32_t number)
{
    for (size_t i = 0; i < sizeof wtype_rows / sizeof *wtype_rows; i++)
        if ((uint32_t)wtype_rows[i].type == number) return &wtype_rows[i];
    return NULL;
}

size_t kvl_wtype_row_bytes(enum kvl_wtype type, int64_t n_cols)
{
    const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)type);
    size_t bytes;
    if (!t || n_cols <= 0 || n_cols % t->block) return 0;
    if (kvl_mul_size((size_t)(n_cols / t->block), t->block_bytes, &bytes) != KVL_OK) return 0;
    return bytes;
}

const char *kvl_wtype_name(enum kvl_wtype type)
{
    const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)type);
    return t ? t->name : "unknown";
}
