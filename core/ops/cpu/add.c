#include "cpu.h"

static void add_one(const struct kvl_add_args *a)
{
    for (size_t i = 0; a->factor && i < a->n; i++) a->y[i] *= *a->factor;
    size_t n_x = a->n_x ? a->n_x : a->n;
    for (size_t i = 0; i < a->n; i += n_x) kvl_kern()->add(a->y + i, a->x, KVL_MIN(n_x, a->n - i));
}

int kvl_cpu_add(const struct kvl_add_args *a)
{
    for (; a; a = a->next) add_one(a);
    return KVL_OK;
}
