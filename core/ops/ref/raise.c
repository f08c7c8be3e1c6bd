#include "ref.h"

int kvl_ref_raise(const struct kvl_raise_args *a)
{
    for (size_t i = 0; i < a->n; i++) {
        a->y[i] = 0;
        for (int32_t r = 0; r < a->n_rows; r++) {
            float x = a->factor[r] * a->x[r][i];
            if (x > a->y[i]) a->y[i] = x;
        }
    }
    return KVL_OK;
}
