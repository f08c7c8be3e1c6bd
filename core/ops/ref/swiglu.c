#include "ref.h"

#include <math.h>

/* Shazeer 2020: Swish with beta 1, times the other branch. */
int kvl_ref_swiglu(const struct kvl_swiglu_args *a)
{
    for (size_t i = 0; i < a->n; i++) {
        double g = (double)a->gate[i];
        a->y[i] = (float)(g / (1 + exp(-g)) * (double)a->up[i]);
    }
    return KVL_OK;
}
