#include "cpu.h"

#include <assert.h>

/* Pieces of a fixed size, so that the rounding of an element does not depend on the threads. */
enum { GLU_STEP = 8192 };

int kvl_cpu_glu(const struct kvl_glu_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n * 0.5);
    int64_t n_items = (int64_t)((a->n + GLU_STEP - 1) / GLU_STEP);
    assert(a->up || a->act != KVL_ACT_SWISH_CLAMPED);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n_items; i++) {
        size_t at = (size_t)i * GLU_STEP, n = KVL_MIN((size_t)GLU_STEP, a->n - at);
        kern->glu(a->y + at, a->gate + at, a->up ? a->up + at : NULL, n, a->act);
    }
    return KVL_OK;
}
