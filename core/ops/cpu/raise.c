#include "cpu.h"

#include <string.h>

enum { RAISE_STEP = 4096 }; /* elements that stay in L1 while the rows pass */

static void raise_row(float *restrict y, const float *restrict x, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        float v = factor * x[i];
        y[i] = v > y[i] ? v : y[i];
    }
}

int kvl_cpu_raise(const struct kvl_raise_args *a)
{
    for (size_t i = 0; i < a->n; i += RAISE_STEP) {
        size_t n = KVL_MIN(a->n - i, (size_t)RAISE_STEP);
        memset(a->y + i, 0, n * sizeof *a->y);
        for (int32_t r = 0; r < a->n_rows; r++) raise_row(a->y + i, a->x[r] + i, n, a->factor[r]);
    }
    return KVL_OK;
}
