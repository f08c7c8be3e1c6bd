#include "ref.h"

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

float kvl_ref_weight(const struct kvl_weight *w, int32_t row, int32_t col)
{
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
    float y[8] = { 0 };
    switch (w->type) {
#define KVL_WTYPE_PLAIN(name, number, bytes, ...)                                                  \
    case KVL_W_##name:                                                                             \
        return plain_element(p + (size_t)col * (bytes), KVL_W_##name);
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, ...)          \
    case KVL_W_##name:                                                                             \
        eight(y, p + (size_t)(col / (elements)) * (bytes), col % (elements) / 8 * 8);              \
        break;
#include "kvl/wtypes.def"
    }
    return y[col % 8];
}
