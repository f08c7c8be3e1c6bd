/* The loops of host_loop: plain C on memory that the host reads. */
#include "host_loop.op.h"

#include <math.h>

int host_loop_add(const void *args)
{
    const struct host_loop_add_args *a = args;
    for (int32_t t = 0; t < a->n_tok; t++)
        for (int32_t h = 0; h < a->n_kv_heads; h++) {
            int32_t page = (a->first + t) / a->page_tok - a->first / a->page_tok;
            const float *k =
                a->k + ((size_t)t * (size_t)a->n_kv_heads + (size_t)h) * (size_t)a->dim;
            float *row = kvl_table_row_out(a->rows, h, page);
            for (int32_t c = 0; c < a->dim; c++) row[c] += k[c];
        }
    return KVL_OK;
}

static float overlap(const float *x, const float *y, int32_t n)
{
    float sum = 0.0f;
    for (int32_t c = 0; c < n; c++) sum += fminf(fabsf(x[c]), fabsf(y[c]));
    return sum;
}

int host_loop_score(const void *args)
{
    const struct host_loop_score_args *a = args;
    for (int32_t h = 0; h < a->n_kv_heads; h++)
        for (int32_t p = 0; p < a->n_pages; p++) {
            size_t at = (size_t)h * (size_t)a->n_pages + (size_t)p;
            a->score[at] = 0.0f;
            for (int32_t g = 0; g < a->group; g++)
                a->score[at] +=
                    overlap(a->q + ((size_t)h * (size_t)a->group + (size_t)g) * (size_t)a->dim,
                            kvl_table_row(a->rows, h, p), a->dim);
        }
    return KVL_OK;
}
