#include "ref.h"

#include "gemv_x.h"
#include "half.h"
#include "wtype.h"

#include <string.h>

static float plain_element(const uint8_t *p, enum kvl_wtype type)
{
    float f;
    uint16_t half = (uint16_t)kvl_block_u16(p);
    if (type == KVL_W_F16) return kvl_f16_to_f32(half);
    if (type == KVL_W_BF16) return kvl_bf16_to_f32(half);
    memcpy(&f, p, sizeof f);
    return f;
}

/* y: columns first .. last - 1; first a multiple of 8 in blocks. */
static void row_part(const struct kvl_weight *w, int32_t row, int32_t first, int32_t last, float *y)
{
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
    switch (w->type) {
#define KVL_WTYPE_PLAIN(name, number, bytes, ...)                                                  \
    case KVL_W_##name:                                                                             \
        for (int32_t c = first; c < last; c++)                                                     \
            y[c - first] = plain_element(p + (size_t)c * (bytes), KVL_W_##name);                   \
        break;
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, ...)          \
    case KVL_W_##name:                                                                             \
        for (int32_t c = first; c < last; c += 8)                                                  \
            eight(y + (c - first), p + (size_t)(c / (elements)) * (bytes), c % (elements));        \
        break;
#include "kvl/wtypes.def"
    }
}

void kvl_ref_row(const struct kvl_weight *w, int32_t row, float *y)
{
    row_part(w, row, 0, w->n_cols, y);
}

float kvl_ref_weight(const struct kvl_weight *w, int32_t row, int32_t col)
{
    bool block = kvl_wtype_find((uint32_t)w->type)->block > 1;
    int32_t first = block ? col / 8 * 8 : col;
    float y[8];
    row_part(w, row, first, col + 1, y);
    return y[col - first];
}

void kvl_ref_rounded(double *to, const float *x, int32_t n_cols, int32_t block, int32_t most)
{
    for (int32_t b = 0; b < n_cols; b += block) {
        float top = 0, times;
        for (int32_t i = b; i < b + block; i++) top = fmaxf(top, fabsf(x[i]));
        float scale = kvl_gemv_scale(top, most, &times);
        for (int32_t i = b; i < b + block; i++)
            to[i] = (double)kvl_gemv_round(x[i], times) * (double)scale;
    }
}
