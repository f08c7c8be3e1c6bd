#include "ref.h"

#include "half.h"

#include <string.h>

static uint16_t weight_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* 32 elements in 34 bytes: scale, then 32 signed bytes. */
static float weight_q8_0(const uint8_t *row, int32_t col)
{
    const uint8_t *block = row + (size_t)(col / 32) * 34;
    int8_t q = (int8_t)block[2 + col % 32];
    return kvl_f16_to_f32(weight_u16(block)) * (float)q;
}

/* 32 elements in 18 bytes: scale, then 16 bytes; low nibbles are the first 16 elements. */
static float weight_q4_0(const uint8_t *row, int32_t col)
{
    const uint8_t *block = row + (size_t)(col / 32) * 18;
    int32_t j = col % 32, byte = block[2 + j % 16];
    int32_t q = (j < 16 ? byte & 15 : byte >> 4) - 8;
    return kvl_f16_to_f32(weight_u16(block)) * (float)q;
}

float kvl_ref_weight(const struct kvl_weight *w, int32_t row, int32_t col)
{
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
    float f = 0;
    switch (w->type) {
    case KVL_W_F32: memcpy(&f, p + 4 * (size_t)col, sizeof f); break;
    case KVL_W_F16: f = kvl_f16_to_f32(weight_u16(p + 2 * (size_t)col)); break;
    case KVL_W_BF16: f = kvl_bf16_to_f32(weight_u16(p + 2 * (size_t)col)); break;
    case KVL_W_Q8_0: f = weight_q8_0(p, col); break;
    case KVL_W_Q4_0: f = weight_q4_0(p, col); break;
    }
    return f;
}
