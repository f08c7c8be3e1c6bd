#include "ref.h"

#include <math.h>

int kvl_ref_softmax(const struct kvl_softmax_args *a)
{
    for (int32_t r = 0; r < a->n_rows; r++) {
        float *x = a->x + (size_t)r * a->stride;
        double top = -HUGE_VAL, sum = 0;
        for (int32_t i = 0; i < a->n; i++) top = fmax(top, (double)x[i]);
        for (int32_t i = 0; i < a->n; i++) sum += exp((double)x[i] - top);
        for (int32_t i = 0; i < a->n; i++) x[i] = (float)(exp((double)x[i] - top) / sum);
    }
    return KVL_OK;
}
