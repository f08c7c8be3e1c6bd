/* Tokens are cut in pages, spread over threads whatever their head; largest scores and sums of
 * exponentials are kept page by page and merged in order. */
#include "cpu.h"

#include <assert.h>
#include <math.h>

struct channels {
    const struct kvl_channel_scores_args *a;
    const struct kvl_kern *kern;
    int32_t group, n_pages;
    float *q;         /* [n_heads][n_channels]: chosen channels of the queries, times factor */
    float *max, *sum; /* [n_heads][n_pages] */
};

static void channels_gather(const struct channels *s)
{
    const struct kvl_channel_scores_args *a = s->a;
    size_t n = (size_t)a->n_channels;
    for (int32_t h = 0; h < a->n_heads; h++)
        for (size_t i = 0; i < n; i++) {
            int32_t c = a->channel[(size_t)(h / s->group) * n + i];
            assert(c >= 0 && c < a->head_dim);
            s->q[(size_t)h * n + i] =
                a->q[(size_t)h * (size_t)a->head_dim + (size_t)c] * a->factor[h];
        }
}

static void channels_page(const struct channels *s, int32_t kv, int32_t page)
{
    const struct kvl_channel_scores_args *a = s->a;
    int32_t h = kv * s->group, first = page * a->page_tok,
            n = KVL_MIN(a->page_tok, a->n_tok - first);
    size_t elems = (size_t)a->head_dim * (size_t)a->page_tok;
    size_t elem = (size_t)kvl_kv_elem_bytes(a->type);
    const uint8_t *keys = a->keys;
    keys += ((size_t)kv * a->head_stride + (size_t)page * elems) * elem;
    float *score = a->score + (size_t)h * a->score_stride + first;
    s->kern->channel_scores(
        &(struct kvl_channels_item){ .score = score,
                                     .ld = a->score_stride,
                                     .q = s->q + (size_t)h * (size_t)a->n_channels,
                                     .channel = a->channel + (size_t)kv * (size_t)a->n_channels,
                                     .keys = keys,
                                     .next = keys + (page + 1 < s->n_pages ? elems * elem : 0),
                                     .type = kvl_kv_wtype(a->type),
                                     .page_tok = (size_t)a->page_tok,
                                     .n_q = s->group,
                                     .n_channels = a->n_channels,
                                     .n = n });
    for (int32_t g = 0; g < s->group; g++) {
        size_t at = (size_t)(h + g) * (size_t)s->n_pages + (size_t)page;
        s->sum[at] = s->kern->sum_exp(score + (size_t)g * a->score_stride, n, &s->max[at]);
    }
}

static void channels_merge(const struct channels *s, int32_t h)
{
    const float *max = s->max + (size_t)h * (size_t)s->n_pages;
    const float *sum = s->sum + (size_t)h * (size_t)s->n_pages;
    float most = -INFINITY, total = 0;
    for (int32_t p = 0; p < s->n_pages; p++) most = KVL_MAX(most, max[p]);
    for (int32_t p = 0; p < s->n_pages; p++) total += sum[p] * expf(max[p] - most);
    s->a->max[h] = most;
    s->a->sum[h] = total;
}

int kvl_cpu_channel_scores(const struct kvl_channel_scores_args *a)
{
    struct channels s = { .a = a, .kern = kvl_kern(), .group = a->n_heads / a->n_kv_heads };
    s.n_pages = a->n_tok / a->page_tok + (a->n_tok % a->page_tok != 0);
    size_t heads = (size_t)a->n_heads, pages = heads * (size_t)s.n_pages;
    int threads = kvl_team((double)a->n_tok * a->n_channels * a->n_heads * 0.03);
    s.q = kvl_cpu_scratch((heads * (size_t)a->n_channels + 2 * pages) * sizeof *s.q);
    if (!s.q) return KVL_ENOMEM;
    s.max = s.q + heads * (size_t)a->n_channels;
    s.sum = s.max + pages;
    channels_gather(&s);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < s.n_pages * a->n_kv_heads; i++)
        channels_page(&s, i / s.n_pages, i % s.n_pages);
    for (int32_t h = 0; h < a->n_heads; h++) channels_merge(&s, h);
    return KVL_OK;
}
