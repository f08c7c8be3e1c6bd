#include "ref.h"

#include <string.h>

int kvl_ref_key4_logits(const struct kvl_key4_logits_args *a)
{
    size_t dim = (size_t)a->head_dim, bytes = KVL_KEY4_BYTES(a->head_dim);
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t i = 0; i < a->n; i++) {
            const uint8_t *row = a->rows + (size_t)(a->row ? a->row[i] - a->row0 : i) * bytes;
            float lo, step;
            double dot = 0;
            memcpy(&lo, row, sizeof lo);
            memcpy(&step, row + sizeof lo, sizeof step);
            for (size_t c = 0; c < dim; c++) {
                int code = row[8 + c / 2] >> (c % 2 ? 4 : 0) & 15;
                dot += (double)a->q[(size_t)h * dim + c] * ((double)lo + (double)step * code);
            }
            a->logit[(size_t)h * a->stride + (size_t)i] = (float)(dot * (double)a->scale);
        }
    return KVL_OK;
}
