#include "ref.h"

/* Element `v` of box i. */
static size_t box_at(const struct kvl_box_put_args *a, int32_t i, int32_t v)
{
    return (size_t)(v / a->box_tok) * a->column_stride + (size_t)i * (size_t)a->box_tok +
           (size_t)(v % a->box_tok);
}

int kvl_ref_box_put(const struct kvl_box_put_args *a)
{
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t c = 0; c < a->head_dim; c++) {
            const float *k = a->k + (size_t)i * (size_t)a->box_tok * (size_t)a->head_dim + c;
            float min = *k, max = *k;
            for (int32_t t = 1; t < a->box_tok; t++) {
                min = KVL_MIN(min, k[(size_t)t * (size_t)a->head_dim]);
                max = KVL_MAX(max, k[(size_t)t * (size_t)a->head_dim]);
            }
            kvl_ref_set_elem(a->boxes, a->type, box_at(a, a->box0 + i, c), min);
            kvl_ref_set_elem(a->boxes, a->type, box_at(a, a->box0 + i, a->head_dim + c), max);
        }
    return KVL_OK;
}
