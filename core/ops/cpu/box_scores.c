/* Channels one after the other: a channel's column is widened once for the query group, a tile of boxes at
 * a time.  Tiles are spread over threads whatever their head. */
#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { BOX_TILE = 256, BOX_MAX_TOK = 16 };

struct boxes {
    const struct kvl_box_scores_args *a;
    const struct kvl_kern *kern;
    int32_t group, n_tiles;
    float *sum;       /* [head_dim] */
    int32_t *channel; /* [n_kv_heads][n_channels] */
    int32_t *value;   /* the same: element of a box that the channel reads */
    int32_t *key;     /* [head_dim] */
};

/* Channels of one kv head, and whether their minimum or their maximum counts. */
static bool boxes_choose(const struct boxes *b, int32_t kv)
{
    const struct kvl_box_scores_args *a = b->a;
    const float *q = a->q + (size_t)(kv * b->group) * (size_t)a->head_dim;
    int32_t *channel = b->channel + (size_t)kv * (size_t)a->n_channels;
    for (int32_t c = 0; c < a->head_dim; c++) {
        b->sum[c] = 0;
        for (int32_t g = 0; g < b->group; g++) b->sum[c] += fabsf(q[g * a->head_dim + c]);
    }
    if (!b->kern->topk_row(channel, b->sum, a->head_dim, a->n_channels, b->key)) return false;
    for (int32_t j = 0; j < a->n_channels; j++) {
        int32_t c = channel[j];
        float sum = 0;
        for (int32_t g = 0; g < b->group; g++) sum += q[g * a->head_dim + c];
        b->value[(size_t)kv * (size_t)a->n_channels + (size_t)j] = sum >= 0 ? a->head_dim + c : c;
    }
    return true;
}

static void boxes_tile(const struct boxes *b, int32_t kv, int32_t box0)
{
    const struct kvl_box_scores_args *a = b->a;
    int32_t n = KVL_MIN(BOX_TILE, a->n - box0), tok = a->box_tok;
    size_t elem = (size_t)kvl_kv_elem_bytes(a->type), at = (size_t)kv * (size_t)a->n_channels;
    float column[BOX_TILE * BOX_MAX_TOK], x[BOX_TILE]; /* rows of all tokens, of one in each box */
    float *score = a->score + (size_t)(kv * b->group) * a->score_stride + box0;
    for (int32_t g = 0; g < b->group; g++)
        memset(score + (size_t)g * a->score_stride, 0, (size_t)n * sizeof *score);
    for (int32_t j = 0; j < a->n_channels; j++) {
        int32_t c = b->channel[at + (size_t)j], v = b->value[at + (size_t)j];
        size_t from = (size_t)kv * a->head_stride + (size_t)(v / tok) * a->column_stride +
                      (size_t)box0 * (size_t)tok + (size_t)(v % tok);
        b->kern->widen(column, (const uint8_t *)a->boxes + from * elem, kvl_kv_wtype(a->type),
                       (n - 1) * tok + 1);
        for (int32_t i = 0; i < n; i++) x[i] = column[i * tok];
        for (int32_t g = 0; g < b->group; g++) {
            float q =
                a->q[(size_t)(kv * b->group + g) * (size_t)a->head_dim + (size_t)c] * a->scale;
            float *y = score + (size_t)g * a->score_stride;
            for (int32_t i = 0; i < n; i++) y[i] += q * x[i];
        }
    }
}

int kvl_cpu_box_scores(const struct kvl_box_scores_args *a)
{
    struct boxes b = { .a = a, .kern = kvl_kern(), .group = a->n_heads / a->n_kv_heads };
    size_t dim = (size_t)a->head_dim, picks = (size_t)a->n_kv_heads * (size_t)a->n_channels;
    int threads = kvl_team((double)a->n * a->n_channels * (a->n_heads + a->box_tok) * 0.3);
    assert(a->box_tok <= BOX_MAX_TOK && a->n_channels <= a->head_dim);
    b.n_tiles = (a->n + BOX_TILE - 1) / BOX_TILE;
    b.sum = kvl_cpu_scratch((2 * dim + 2 * picks) * sizeof *b.sum);
    if (!b.sum) return KVL_ENOMEM;
    b.key = (int32_t *)(void *)(b.sum + dim);
    b.channel = b.key + dim;
    b.value = b.channel + picks;
    for (int32_t kv = 0; kv < a->n_kv_heads; kv++)
        if (!boxes_choose(&b, kv)) return KVL_ENUMERIC;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < b.n_tiles * a->n_kv_heads; i++)
        boxes_tile(&b, i / b.n_tiles, i % b.n_tiles * BOX_TILE);
    return KVL_OK;
}
