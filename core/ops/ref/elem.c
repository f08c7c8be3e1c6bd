#include "ref.h"

static inline float elem(const void *p, enum kvl_kv_type type, size_t i)
{
    if (type == KVL_KV_F32) return ((const float *)p)[i];
    if (type == KVL_KV_Q8_0) {
        const uint8_t *block = (const uint8_t *)p + i / 32 * 34;
        uint16_t scale = (uint16_t)(block[0] | block[1] << 8);
        return kvl_f16_to_f32(scale) * (float)(int8_t)block[2 + i % 32];
    }
    uint16_t h = ((const uint16_t *)p)[i];
    return type == KVL_KV_F16 ? kvl_f16_to_f32(h) : kvl_bf16_to_f32(h);
}

float kvl_ref_elem(const void *p, enum kvl_kv_type type, size_t i)
{
    return elem(p, type, i);
}

void kvl_ref_elems(const void *p, enum kvl_kv_type type, size_t n, double *to)
{
    switch (type) { /* once for the row */
    case KVL_KV_F32:
        for (size_t i = 0; i < n; i++) to[i] = (double)elem(p, KVL_KV_F32, i);
        break;
    case KVL_KV_F16:
        for (size_t i = 0; i < n; i++) to[i] = (double)elem(p, KVL_KV_F16, i);
        break;
    case KVL_KV_BF16:
        for (size_t i = 0; i < n; i++) to[i] = (double)elem(p, KVL_KV_BF16, i);
        break;
    case KVL_KV_Q8_0:
        for (size_t i = 0; i < n; i++) to[i] = (double)elem(p, KVL_KV_Q8_0, i);
        break;
    }
}

void kvl_ref_set_elem(void *p, enum kvl_kv_type type, size_t i, float x)
{
    if (type == KVL_KV_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == KVL_KV_F16 ? kvl_f32_to_f16(x) : kvl_f32_to_bf16(x);
}
