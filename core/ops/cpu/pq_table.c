/* A product for every query head and piece: n_codes rows of a few dozen channels. */
#include "cpu.h"

int kvl_cpu_pq_table(const struct kvl_pq_table_args *a)
{
    int32_t dim = a->head_dim / a->n_sub, group = a->n_heads / a->n_kv_heads;
    for (int32_t i = 0; i < a->n_heads * a->n_sub; i++) {
        int32_t h = i / a->n_sub, s = i % a->n_sub;
        size_t piece = (size_t)(s * a->n_codes) * (size_t)dim;
        struct kvl_weight w = { .data = a->centroid + (size_t)(h / group) * a->head_stride + piece,
                                .type = KVL_W_F32,
                                .n_rows = a->n_codes,
                                .n_cols = dim,
                                .row_bytes = (size_t)dim * sizeof(float) };
        float *y = a->table + (size_t)i * (size_t)a->n_codes;
        KVL_TRY(kvl_cpu_gemv(&(struct kvl_gemv_args){
            .y = y, .x = a->q + (size_t)h * (size_t)a->head_dim + s * dim, .w = &w, .n = 1 }));
        for (int32_t c = 0; c < a->n_codes; c++) y[c] *= a->scale;
    }
    return KVL_OK;
}
