#include "ref.h"

#include <assert.h>

enum { MAX_HEAD_DIM = 1024 };

/* Su et al. 2021, Eq. 34. */
static void rope_heads(const struct kvl_rope_args *a)
{
    double head[MAX_HEAD_DIM];
    assert(a->head_dim <= MAX_HEAD_DIM && a->rope->n_rot <= a->head_dim && a->rope->n_rot % 2 == 0);
    for (int32_t i = 0; i < a->n * a->n_heads; i++) {
        size_t off = (size_t)i * (size_t)a->head_dim;
        for (int32_t c = 0; c < a->head_dim; c++) head[c] = (double)a->x[off + (size_t)c];
        kvl_ref_rotate(head, a->pos[i / a->n_heads], a->rope);
        for (int32_t c = 0; c < a->head_dim; c++) a->y[off + (size_t)c] = (float)head[c];
    }
}

int kvl_ref_rope(const struct kvl_rope_args *a)
{
    for (; a; a = a->next) rope_heads(a);
    return KVL_OK;
}
