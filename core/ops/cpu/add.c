#include "ops/cpu/cpu.h"

int kvl_cpu_add(const struct kvl_add_args *a)
{
    kvl_kern()->add(a->y, a->x, a->n);
    return KVL_OK;
}
