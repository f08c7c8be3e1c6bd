#include "cpu.h"

#include <assert.h>

enum { MAX_HEAD_DIM = 1024 };

static void rope_token(const struct kvl_rope_args *a, const struct kvl_rope_table *table, int32_t i)
{
    const struct kvl_kern *kern = kvl_kern();
    float tmp[MAX_HEAD_DIM];
    const float *cs = kvl_rope_row(table, a->pos[i], tmp);
    for (int32_t h = 0; h < a->n_heads; h++) {
        size_t off = ((size_t)i * (size_t)a->n_heads + (size_t)h) * (size_t)a->head_dim;
        kern->rotate(a->y + off, a->x + off, cs, a->head_dim, a->rope);
    }
}

int kvl_cpu_rope(const struct kvl_rope_args *a)
{
    assert(a->rope->n_rot % 2 == 0 && a->rope->n_rot <= a->head_dim && a->head_dim <= MAX_HEAD_DIM);
    const struct kvl_rope_table *table = kvl_rope_prepare(a->rope, a->pos, a->n);
    if (!table) return KVL_ENOMEM;
    for (; a; a = a->next) {
        int threads = kvl_team((double)a->n * a->n_heads * a->head_dim * 0.3);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (int32_t i = 0; i < a->n; i++) rope_token(a, table, i);
    }
    return KVL_OK;
}
