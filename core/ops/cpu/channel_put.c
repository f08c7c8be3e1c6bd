#include "cpu.h"
#include "half.h"

/* A token is a column of its page: every element of a key goes to a line of its own, which the tokens
 * behind it fill. */
static void put_key(const struct kvl_channel_put_args *a, const float *k, size_t at)
{
    uint16_t *half = a->keys;
    float *full = a->keys;
    for (int32_t c = 0; c < a->head_dim; c++, at += (size_t)a->page_tok) {
        if (a->type == KVL_KV_F32)
            full[at] = k[c];
        else
            half[at] = a->type == KVL_KV_F16 ? kvl_f32_to_f16(k[c]) : kvl_f32_to_bf16(k[c]);
    }
}

static void put_head(const struct kvl_channel_put_args *a, int32_t h)
{
    size_t dim = (size_t)a->head_dim, page_tok = (size_t)a->page_tok;
    const float *k = a->k + (size_t)h * dim;
    for (int32_t i = 0; i < a->n; i++, k += (size_t)a->n_kv_heads * dim) {
        size_t pos = (size_t)(a->pos0 + i);
        put_key(a, k,
                (size_t)h * a->head_stride + pos / page_tok * dim * page_tok + pos % page_tok);
    }
}

int kvl_cpu_channel_put(const struct kvl_channel_put_args *a)
{
    int threads = kvl_team((double)a->n * a->n_kv_heads * a->head_dim * 1.0);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t h = 0; h < a->n_kv_heads; h++) put_head(a, h);
    return KVL_OK;
}
