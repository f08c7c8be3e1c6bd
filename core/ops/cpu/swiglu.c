#include "cpu.h"

/* Pieces of a fixed size, so that the rounding of an element does not depend on the threads. */
enum { SWIGLU_STEP = 8192 };

int kvl_cpu_swiglu(const struct kvl_swiglu_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n * 0.5);
    int64_t n_items = (int64_t)((a->n + SWIGLU_STEP - 1) / SWIGLU_STEP);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n_items; i++) {
        size_t at = (size_t)i * SWIGLU_STEP, n = KVL_MIN((size_t)SWIGLU_STEP, a->n - at);
        kern->swiglu(a->y + at, a->gate + at, a->up + at, n);
    }
    return KVL_OK;
}
