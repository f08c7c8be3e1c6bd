#include "cpu.h"

int kvl_cpu_add(const struct kvl_add_args *a)
{
    for (size_t i = 0; a->factor && i < a->n; i++) a->y[i] *= *a->factor;
    kvl_kern()->add(a->y, a->x, a->n);
    return KVL_OK;
}
