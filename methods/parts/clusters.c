/* Keys of a layer in clusters: the index, built segment by segment, and its rows. */
#include "clusters.h"

#include <string.h>

int kvl_plan_clusters(struct kvl_plan *plan, struct kvl_clusters *c)
{
    int32_t dim = plan->shape->head_dim, size = c->per_cluster;
    if (c->first < 0 || size < 1 || c->iters < 1)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "clusters of %d tokens from position %d on, %d rounds: want 1, 0 and 1 or "
                        "more",
                        size, c->first, c->iters);
    KVL_TRY(
        kvl_plan_table(plan, &c->keys, .unit = KVL_UNIT_PAGE, .unit_tok = size, .row_elems = dim));
    KVL_TRY(kvl_plan_table(plan, &c->values, .unit = KVL_UNIT_PAGE, .unit_tok = size,
                           .row_elems = dim));
    KVL_TRY(kvl_plan_table(plan, &c->spans, .unit = KVL_UNIT_PAGE, .unit_tok = size, .row_elems = 2,
                           .elem = KVL_ELEM_I32));
    return kvl_plan_table(plan, &c->order, .unit = KVL_UNIT_PAGE, .unit_tok = 1, .row_elems = 1,
                          .elem = KVL_ELEM_I32);
}

int32_t kvl_clusters_of(const struct kvl_clusters *c, int32_t n)
{
    return n == 0 ? 0 : KVL_MAX(1, n / c->per_cluster);
}

/* ---- a segment ----------------------------------------------------------------------------------- */

/* A segment of one lane; rows of its clusters and members. */
struct segment {
    int32_t first, n, n_clusters;
    float *key, *value, *mean, *room; /* of the tokens, the mean of their keys */
    int32_t *assign, *count;          /* cluster of each token; tokens of each cluster */
    float *mean_key, *mean_value;     /* [n_clusters][head_dim] */
    int32_t *span, *order;            /* begin and number in the list of members; that list */
};

static int segment_open(const struct kvl_pctx *ctx, struct segment *g)
{
    size_t dim = (size_t)ctx->shape->head_dim, n = (size_t)g->n, clusters = (size_t)g->n_clusters;
    KVL_TRY(kvl_scratch_get(ctx, n * dim, &g->key));
    KVL_TRY(kvl_scratch_get(ctx, n * dim, &g->value));
    KVL_TRY(kvl_scratch_get(ctx, dim, &g->mean));
    KVL_TRY(kvl_scratch_get(ctx, KVL_KMEANS_TILE * (clusters + dim) + 2 * clusters + n, &g->room));
    KVL_TRY(kvl_scratch_get(ctx, n, &g->assign));
    return kvl_scratch_get(ctx, clusters, &g->count);
}

/* x [n][dim] minus its mean. */
static void segment_centre(float *x, float *mean, int32_t n, int32_t dim)
{
    for (int32_t c = 0; c < dim; c++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += (double)x[i * dim + c];
        mean[c] = (float)(sum / n);
        for (int32_t i = 0; i < n; i++) x[i * dim + c] -= mean[c];
    }
}

/* Means of keys and values, and lists of members, ascending within a cluster; the segment's begin at `begin`. */
static void segment_members(const struct segment *g, int32_t begin, int32_t dim)
{
    for (int32_t j = 0, at = begin; j < g->n_clusters; at += g->count[j++]) {
        g->span[2 * j] = at;
        g->span[2 * j + 1] = 0; /* counts up below */
        for (int32_t c = 0; c < dim; c++) {
            g->mean_key[j * dim + c] += g->mean[c];
            g->mean_value[j * dim + c] = 0;
        }
    }
    for (int32_t i = 0; i < g->n; i++) {
        int32_t j = g->assign[i], *span = g->span + 2 * j;
        g->order[span[0] - begin + span[1]++] = g->first + i;
        for (int32_t c = 0; c < dim; c++)
            g->mean_value[j * dim + c] += g->value[i * dim + c] / (float)g->count[j];
    }
}

/* One lane, whose rows `g` has. */
static int segment_cluster(const struct kvl_pctx *ctx, const struct kvl_clusters *c, int32_t layer,
                           int32_t kv_head, const struct segment *g)
{
    int32_t dim = ctx->shape->head_dim;
    KVL_TRY(kvl_read_key_span(ctx, layer, kv_head, g->first, g->n, false, g->key));
    KVL_TRY(kvl_read_value_span(ctx, layer, kv_head, g->first, g->n, g->value));
    KVL_TRY(kvl_look(ctx)); /* the host reads keys and values */
    segment_centre(g->key, g->mean, g->n, dim);
    KVL_TRY(ctx->ops->kmeans(&(struct kvl_kmeans_args){ .centroid = g->mean_key,
                                                        .assign = g->assign,
                                                        .count = g->count,
                                                        .x = g->key,
                                                        .x_stride = (size_t)dim,
                                                        .n = g->n,
                                                        .dim = dim,
                                                        .n_clusters = g->n_clusters,
                                                        .n_iter = c->iters,
                                                        .cosine = true,
                                                        .work = g->room }));
    KVL_TRY(kvl_look(ctx)); /* the host reads what the operator wrote */
    segment_members(g, g->first - c->first, dim);
    return KVL_OK;
}

int kvl_clusters_add(const struct kvl_pctx *ctx, const struct kvl_clusters *c, int32_t layer,
                     int32_t first, int32_t n, int32_t cluster)
{
    struct segment g = { .first = first, .n = n, .n_clusters = kvl_clusters_of(c, n) };
    struct kvl_rows keys, values, spans, order;
    if (first < c->first || n < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "a segment of %d tokens from position %d on, want 1 or more from %d on", n,
                        first, c->first);
    KVL_TRY(segment_open(ctx, &g));
    KVL_TRY(kvl_table_write(ctx, c->keys, layer, cluster, &keys));
    KVL_TRY(kvl_table_write(ctx, c->values, layer, cluster, &values));
    KVL_TRY(kvl_table_write(ctx, c->spans, layer, cluster, &spans));
    KVL_TRY(kvl_table_write(ctx, c->order, layer, first - c->first, &order));
    if (keys.n_rows < g.n_clusters || order.n_rows < n)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "a segment of %d clusters of %d tokens, room is left for %d of %d",
                        g.n_clusters, n, keys.n_rows, order.n_rows);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        g.mean_key = kvl_table_row_out(&keys, h, 0);
        g.mean_value = kvl_table_row_out(&values, h, 0);
        g.span = kvl_table_row_out(&spans, h, 0);
        g.order = kvl_table_row_out(&order, h, 0);
        KVL_TRY(segment_cluster(ctx, c, layer, h, &g));
    }
    return KVL_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

int kvl_clusters_read(const struct kvl_pctx *ctx, const struct kvl_clusters *c, int32_t layer,
                      int32_t n, int32_t n_tok, struct kvl_cluster_rows *out)
{
    KVL_TRY(kvl_table_read(ctx, c->spans, layer, n, &out->spans));
    KVL_TRY(kvl_table_peek(ctx, c->values, layer, n, &out->values));
    return kvl_table_peek(ctx, c->order, layer, n_tok, &out->order);
}

int32_t kvl_cluster_size(const struct kvl_cluster_rows *rows, int32_t kv_head, int32_t cluster)
{
    return ((const int32_t *)kvl_table_row(&rows->spans, kv_head, cluster))[1];
}

void kvl_cluster_ask(const struct kvl_cluster_rows *rows, int32_t kv_head, int32_t cluster)
{
    const float *value = kvl_table_row(&rows->values, kv_head, cluster);
    for (int32_t c = 0; c < rows->values.row_elems; c += 16) __builtin_prefetch(value + c);
}

/* Rows of one number each, side by side in each of the two pieces of a table. */
void kvl_cluster_tokens(const struct kvl_cluster_rows *rows, int32_t kv_head, int32_t cluster,
                        int32_t *pos)
{
    const int32_t *span = kvl_table_row(&rows->spans, kv_head, cluster);
    int32_t n_first = rows->order.part[0].n_rows, n = span[1];
    for (int32_t i = 0, m; i < n; i += m) {
        int32_t row = span[0] + i;
        m = row < n_first ? KVL_MIN(n - i, n_first - row) : n - i;
        memcpy(pos + i, kvl_table_row(&rows->order, kv_head, row), (size_t)m * sizeof *pos);
    }
}
