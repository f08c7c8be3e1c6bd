#include "cpu.h"

#include <string.h>

static void key4_row(uint8_t *row, const float *k, int32_t dim)
{
    float lo = k[0], hi = k[0];
    for (int32_t c = 1; c < dim; c++) {
        lo = k[c] < lo ? k[c] : lo;
        hi = k[c] > hi ? k[c] : hi;
    }
    float step = (hi - lo) / 15.0f;
    memcpy(row, &lo, sizeof lo);
    memcpy(row + sizeof lo, &step, sizeof step);
    row += 2 * sizeof lo;
    memset(row, 0, ((size_t)dim + 1) / 2);
    for (int32_t c = 0; c < dim && step > 0; c++) {
        int32_t code = (int32_t)((k[c] - lo) / step + 0.5f);
        row[c / 2] |= (uint8_t)((unsigned)KVL_MIN(code, 15) << (c % 2 ? 4 : 0));
    }
}

int kvl_cpu_key4_put(const struct kvl_key4_put_args *a)
{
    size_t dim = (size_t)a->head_dim, bytes = KVL_KEY4_BYTES(a->head_dim);
    int threads = kvl_team(2.0 * a->n * a->n_kv_heads * a->head_dim);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t t = 0; t < a->n; t++)
        for (int32_t h = 0; h < a->n_kv_heads; h++)
            key4_row(a->rows + (size_t)h * a->head_stride + (size_t)t * bytes,
                     a->k + ((size_t)t * (size_t)a->n_kv_heads + (size_t)h) * dim, a->head_dim);
    return KVL_OK;
}
