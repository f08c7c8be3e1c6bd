#include "ops/ref/ref.h"

int kvl_ref_gemv(const struct kvl_gemv_args *a)
{
    struct kvl_gemm_args g = { .y = a->y, .x = a->x, .w = a->w, .n = a->n };
    return kvl_ref_gemm(&g);
}
