#include "ref.h"

int kvl_ref_raise(const struct kvl_raise_args *a)
{
    for (size_t i = 0; i < a->n; i++) {
        float x = a->factor * a->x[i];
        if (x > a->y[i]) a->y[i] = x;
    }
    return KVL_OK;
}
