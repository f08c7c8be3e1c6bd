#include "ref.h"

#include <math.h>

int kvl_ref_scale(const struct kvl_scale_args *a)
{
    for (size_t i = 0; i < a->n; i++) {
        double x = (double)a->y[i] * (double)a->factor, cap = (double)a->cap;
        a->y[i] = (float)(cap > 0 ? cap * tanh(x / cap) : x);
    }
    return KVL_OK;
}
