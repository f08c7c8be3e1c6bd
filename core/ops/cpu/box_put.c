#include "cpu.h"
#include "half.h"

static void put(const struct kvl_box_put_args *a, int32_t box, int32_t v, float x)
{
    size_t at = (size_t)(v / a->box_tok) * a->column_stride + (size_t)box * (size_t)a->box_tok +
                (size_t)(v % a->box_tok);
    uint16_t *half = a->boxes;
    float *full = a->boxes;
    if (a->type == KVL_KV_F32)
        full[at] = x;
    else
        half[at] = a->type == KVL_KV_F16 ? kvl_f32_to_f16(x) : kvl_f32_to_bf16(x);
}

/* Every element of a box goes to a line of its own: a box every few tokens. */
static void put_box(const struct kvl_box_put_args *a, int32_t i)
{
    const float *k = a->k + (size_t)i * (size_t)a->box_tok * (size_t)a->head_dim;
    for (int32_t c = 0; c < a->head_dim; c++) {
        float min = k[c], max = k[c];
        for (int32_t t = 1; t < a->box_tok; t++) {
            float x = k[(size_t)t * (size_t)a->head_dim + (size_t)c];
            min = KVL_MIN(min, x);
            max = KVL_MAX(max, x);
        }
        put(a, a->box0 + i, c, min);
        put(a, a->box0 + i, a->head_dim + c, max);
    }
}

int kvl_cpu_box_put(const struct kvl_box_put_args *a)
{
    for (int32_t i = 0; i < a->n; i++) put_box(a, i);
    return KVL_OK;
}
