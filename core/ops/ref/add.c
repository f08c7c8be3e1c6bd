#include "ref.h"

int kvl_ref_add(const struct kvl_add_args *a)
{
    for (; a; a = a->next)
        for (size_t i = 0; i < a->n; i++) {
            float y = a->factor ? a->y[i] * *a->factor : a->y[i];
            a->y[i] = y + a->x[a->n_x ? i % a->n_x : i];
        }
    return KVL_OK;
}
