/* Channels one after the other, a tile of boxes at a time: of a channel's column the bound of every box is widened once for
 * the query group.  Tiles are spread over threads whatever their head. */
#include "cpu.h"

#include <assert.h>
#include <math.h>

struct boxes {
    const struct kvl_box_scores_args *a;
    const struct kvl_kern *kern;
    int32_t group, n_tiles;
    size_t *column;   /* [n_kv_heads][n_channels]: where a channel's bounds begin */
    float *q;         /* [n_heads][n_channels]: queries in these channels, times the scale */
    float *sum;       /* [head_dim] */
    int32_t *channel; /* [n_channels] */
    int32_t *key;     /* [head_dim] */
};

/* Channels of one kv head, and whether their minimum or their maximum counts. */
static bool boxes_choose(const struct boxes *b, int32_t kv)
{
    const struct kvl_box_scores_args *a = b->a;
    size_t dim = (size_t)a->head_dim, n = (size_t)a->n_channels, first = (size_t)(kv * b->group);
    const float *q = a->q + first * dim;
    for (size_t c = 0; c < dim; c++) {
        b->sum[c] = 0;
        for (int32_t g = 0; g < b->group; g++) b->sum[c] += fabsf(q[(size_t)g * dim + c]);
    }
    if (!b->kern->topk_row(b->channel, b->sum, a->head_dim, a->n_channels, b->key)) return false;
    for (size_t j = 0; j < n; j++) {
        size_t c = (size_t)b->channel[j], tok = (size_t)a->box_tok;
        float sum = 0;
        for (int32_t g = 0; g < b->group; g++) {
            float x = q[(size_t)g * dim + c];
            sum += x;
            b->q[(first + (size_t)g) * n + j] = x * a->scale;
        }
        size_t v = sum >= 0 ? dim + c : c;
        b->column[(size_t)kv * n + j] =
            (size_t)kv * a->head_stride + v / tok * a->column_stride + v % tok;
    }
    return true;
}

static void boxes_tile(const struct boxes *b, int32_t kv, int32_t box0)
{
    const struct kvl_box_scores_args *a = b->a;
    size_t n = (size_t)a->n_channels, first = (size_t)(kv * b->group);
    size_t at = (size_t)box0 * (size_t)a->box_tok * (size_t)kvl_kv_elem_bytes(a->type);
    b->kern->box_scores(
        &(struct kvl_boxes_item){ .score = a->score + first * a->score_stride + box0,
                                  .ld = a->score_stride,
                                  .q = b->q + first * n,
                                  .column = b->column + (size_t)kv * n,
                                  .boxes = (const uint8_t *)a->boxes + at,
                                  .type = kvl_kv_wtype(a->type),
                                  .box_tok = (size_t)a->box_tok,
                                  .n_q = b->group,
                                  .n_channels = a->n_channels,
                                  .n = KVL_MIN(b->kern->box_tile, a->n - box0) });
}

int kvl_cpu_box_scores(const struct kvl_box_scores_args *a)
{
    struct boxes b = { .a = a, .kern = kvl_kern(), .group = a->n_heads / a->n_kv_heads };
    size_t dim = (size_t)a->head_dim, n = (size_t)a->n_channels;
    size_t picks = (size_t)a->n_kv_heads * n, queries = (size_t)a->n_heads * n;
    int threads = kvl_team((double)a->n * a->n_channels * a->n_heads * 0.1);
    assert(a->n_channels <= a->head_dim);
    b.n_tiles = (a->n + b.kern->box_tile - 1) / b.kern->box_tile;
    b.column = kvl_cpu_scratch(picks * sizeof *b.column + (queries + 2 * dim + n) * sizeof *b.q);
    if (!b.column) return KVL_ENOMEM;
    b.q = (float *)(void *)(b.column + picks);
    b.sum = b.q + queries;
    b.key = (int32_t *)(void *)(b.sum + dim);
    b.channel = b.key + dim;
    for (int32_t kv = 0; kv < a->n_kv_heads; kv++)
        if (!boxes_choose(&b, kv)) return KVL_ENUMERIC;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < b.n_tiles * a->n_kv_heads; i++)
        boxes_tile(&b, i / b.n_tiles, i % b.n_tiles * b.kern->box_tile);
    return KVL_OK;
}
