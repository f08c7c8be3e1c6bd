#include "ref.h"

#include <math.h>
#include <string.h>

int kvl_ref_key4_put(const struct kvl_key4_put_args *a)
{
    size_t dim = (size_t)a->head_dim;
    for (int32_t t = 0; t < a->n * a->n_kv_heads; t++) {
        int32_t h = t % a->n_kv_heads;
        const float *k = a->k + (size_t)t * dim;
        uint8_t *row = a->rows + (size_t)h * a->head_stride +
                       (size_t)(t / a->n_kv_heads) * KVL_KEY4_BYTES(a->head_dim);
        float lo = k[0], hi = k[0];
        for (size_t c = 1; c < dim; c++) {
            lo = fminf(lo, k[c]);
            hi = fmaxf(hi, k[c]);
        }
        float step = (hi - lo) / 15.0f;
        memcpy(row, &lo, sizeof lo);
        memcpy(row + sizeof lo, &step, sizeof step);
        memset(row + 8, 0, (dim + 1) / 2);
        for (size_t c = 0; c < dim; c++) {
            float code = step > 0 ? floorf((k[c] - lo) / step + 0.5f) : 0;
            row[8 + c / 2] |= (uint8_t)((unsigned)fminf(code, 15) << (c % 2 ? 4 : 0));
        }
    }
    return KVL_OK;
}
