/* retroinfer_index.h - the clusters of retroinfer: where they are, and how a segment becomes some.
 *
 * Included once, by retroinfer.c, whose first comment says what every size is.
 */
#ifndef KVL_RETROINFER_INDEX_H
#define KVL_RETROINFER_INDEX_H

#include "kvl/policy.h"

#include <string.h>

struct retro_opts {
    int32_t sink, local, segment, update, per_cluster, iters;
    double retrieve, estimate, cache;
    bool offload;
    int32_t keys, values, spans, order; /* tables */
};

/* Tokens before which all are in clusters, but for the sink, and the number of clusters, once positions
 * below n_pos are there. */
struct retro_extent {
    int32_t end, n_clusters;
};

static int32_t retro_clusters_of(const struct retro_opts *o, int32_t n_tok)
{
    return n_tok == 0 ? 0 : KVL_MAX(1, n_tok / o->per_cluster);
}

static struct retro_extent retro_extent(const struct kvl_pctx *ctx, int32_t n_pos)
{
    const struct retro_opts *o = ctx->opts;
    struct retro_extent x = { .end = KVL_MAX(o->sink, ctx->context_tok - o->local) };
    int32_t n = x.end - o->sink, whole = n / o->segment;
    x.n_clusters =
        whole * (o->segment / o->per_cluster) + retro_clusters_of(o, n - whole * o->segment);
    int32_t more = KVL_MAX(0, n_pos - o->local - x.end) / o->update;
    x.end += more * o->update;
    x.n_clusters += more * (o->update / o->per_cluster);
    return x;
}

struct retro_work {
    float *key, *value, *mean, *room;
    int32_t *pos, *assign, *count;
};

static int retro_work(const struct kvl_pctx *ctx, int32_t n, struct retro_work *w)
{
    size_t dim = (size_t)ctx->shape->head_dim, size = (size_t)n;
    size_t clusters = (size_t)retro_clusters_of(ctx->opts, n);
    w->key = kvl_scratch(ctx, size * dim);
    w->value = kvl_scratch(ctx, size * dim);
    w->mean = kvl_scratch(ctx, dim);
    w->room = kvl_scratch(ctx, KVL_KMEANS_TILE * (clusters + dim) + 2 * clusters + size);
    w->pos = (void *)kvl_scratch(ctx, size);
    w->assign = (void *)kvl_scratch(ctx, size);
    w->count = (void *)kvl_scratch(ctx, clusters);
    if (w->key && w->value && w->mean && w->room && w->pos && w->assign && w->count) return KVL_OK;
    return kvl_fail(ctx->err, KVL_ENOMEM, "no memory to cluster %d tokens", n);
}

/* x [n][dim] minus its mean. */
static void retro_centre(float *x, float *mean, int32_t n, int32_t dim)
{
    for (int32_t c = 0; c < dim; c++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += (double)x[i * dim + c];
        mean[c] = (float)(sum / n);
        for (int32_t i = 0; i < n; i++) x[i * dim + c] -= mean[c];
    }
}

/* Rows of one lane, first cluster of the segment at row 0. */
struct retro_rows {
    float *key, *value;
    int32_t *span;  /* begin and number in the list of members */
    int32_t *order; /* members, from the first token of the segment on */
};

/* Means of the values, and lists of members, ascending within a cluster. */
static void retro_members(const struct kvl_pctx *ctx, const struct retro_work *w, int32_t first,
                          int32_t n, int32_t n_clusters, const struct retro_rows *out)
{
    const struct retro_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, at = 0;
    for (int32_t j = 0; j < n_clusters; j++) {
        out->span[2 * j] = first - o->sink + at;
        out->span[2 * j + 1] = 0; /* counts up below */
        at += w->count[j];
        for (int32_t c = 0; c < dim; c++) {
            out->key[j * dim + c] += w->mean[c];
            out->value[j * dim + c] = 0;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t j = w->assign[i], *span = out->span + 2 * j;
        out->order[span[0] - (first - o->sink) + span[1]++] = first + i;
        for (int32_t c = 0; c < dim; c++)
            out->value[j * dim + c] += w->value[i * dim + c] / (float)w->count[j];
    }
}

/* Clusters positions first .. first + n - 1 of all lanes of a layer; the first cluster is `cluster`. */
static int retro_segment(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                         int32_t cluster)
{
    const struct retro_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, n_clusters = retro_clusters_of(o, n);
    struct kvl_meta_view key, value, span, order;
    struct retro_work w;
    KVL_TRY(retro_work(ctx, n, &w));
    KVL_TRY(kvl_meta_from(ctx, o->keys, layer, cluster, &key));
    KVL_TRY(kvl_meta_from(ctx, o->values, layer, cluster, &value));
    KVL_TRY(kvl_meta_from(ctx, o->spans, layer, cluster, &span));
    KVL_TRY(kvl_meta_from(ctx, o->order, layer, first - o->sink, &order));
    for (int32_t i = 0; i < n; i++) w.pos[i] = first + i;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        size_t lane = (size_t)h;
        struct retro_rows out = { .key = key.base + lane * key.head_stride,
                                  .value = value.base + lane * value.head_stride,
                                  .span = (int32_t *)span.data + lane * span.head_stride,
                                  .order = (int32_t *)order.data + lane * order.head_stride };
        KVL_TRY(kvl_read_keys(ctx, layer, h, w.pos, n, false, w.key));
        KVL_TRY(kvl_read_values(ctx, layer, h, w.pos, n, w.value));
        retro_centre(w.key, w.mean, n, dim);
        KVL_TRY(ctx->ops->kmeans(&(struct kvl_kmeans_args){ .centroid = out.key,
                                                            .assign = w.assign,
                                                            .count = w.count,
                                                            .x = w.key,
                                                            .x_stride = (size_t)dim,
                                                            .n = n,
                                                            .dim = dim,
                                                            .n_clusters = n_clusters,
                                                            .n_iter = o->iters,
                                                            .cosine = true,
                                                            .work = w.room }));
        retro_members(ctx, &w, first, n, n_clusters, &out);
    }
    return KVL_OK;
}

#endif
