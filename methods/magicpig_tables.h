/* magicpig_tables.h - the hash tables of magicpig.c: hyperplanes, codes and buckets of a layer's keys, and
 * the keys that collide with a query.
 *
 * Tables are rows per lane, written once when the context is complete, and read in pieces: who reads says
 * how much (kvl_meta_count). */
#ifndef KVL_MAGICPIG_TABLES_H
#define KVL_MAGICPIG_TABLES_H

#include "kvl/policy.h"

#include <math.h>
#include <string.h>

enum { MAGICPIG_CHUNK = 256 /* keys hashed at a time */, MAGICPIG_HITS = 2 };

struct magicpig_tables {
    int32_t n_bits, n_tables; /* of a code; built */
    int32_t first, n; /* tokens first .. first + n - 1 are hashed, fewer in a short context */
    int32_t behind;   /* tokens of the context behind them that are not */
    uint64_t seed;    /* 0 = the sample's */
    bool centre;
    int32_t start, id, norm, mean, plane; /* handles */
};

static int magicpig_no_memory(const struct kvl_pctx *ctx)
{
    return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for hash tables of %d tokens",
                    ctx->context_tok);
}

static int magicpig_plan_table(struct kvl_plan *plan, const struct kvl_meta_desc *desc, int64_t n,
                               int32_t *out)
{
    struct kvl_meta_desc d = *desc;
    if (n > INT32_MAX)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "a hash table of %lld entries for %d tokens; give a smaller L",
                        (long long)n, plan->context_tok);
    d.unit = KVL_META_LANE;
    d.unit_tok = 1;
    d.row_elems = (int32_t)KVL_MAX(n, 1);
    return kvl_plan_meta_desc(plan, &d, out);
}

static int magicpig_plan_tables(struct kvl_plan *plan, const uint8_t *layers,
                                struct magicpig_tables *t)
{
    const struct kvl_meta_desc ints = { .elem = KVL_META_I32, .layers = layers };
    const struct kvl_meta_desc floats = { .elem = KVL_META_F32, .layers = layers };
    const struct kvl_meta_desc shared = { .layers = layers, .per_layer = true };
    int64_t n = t->n, n_tables = t->n_tables, d = plan->shape->head_dim;
    KVL_TRY(magicpig_plan_table(plan, &ints, n_tables * ((1 << t->n_bits) + 1), &t->start));
    KVL_TRY(magicpig_plan_table(plan, &ints, n_tables * n, &t->id));
    KVL_TRY(magicpig_plan_table(plan, &floats, n, &t->norm));
    KVL_TRY(magicpig_plan_table(plan, &floats, d, &t->mean));
    return magicpig_plan_table(plan, &shared, n_tables * t->n_bits * d, &t->plane);
}

/* What a context has beyond the planned length is not hashed. */
static int32_t magicpig_hashed(const struct kvl_pctx *ctx, const struct magicpig_tables *t)
{
    return KVL_MAX(0, KVL_MIN(t->n, ctx->context_tok - t->first - t->behind));
}

/* ---- building ---------------------------------------------------------------------------------- */

/* Standard normal numbers (Box and Muller), the same on every machine but for the last bit of libm. */
static void magicpig_normal(struct kvl_rng *rng, float *x, size_t n)
{
    const double turn = 2 * acos(-1.0);
    for (size_t i = 0; i < n; i++) {
        double radius = sqrt(-2 * log(1 - kvl_rng_f64(rng)));
        x[i] = (float)(radius * cos(turn * kvl_rng_f64(rng)));
    }
}

/* side [n][n_tables * n_bits]: products of vectors x [n][head_dim] with the planes of n_tables. */
static int magicpig_sides(const struct kvl_pctx *ctx, const struct magicpig_tables *t,
                          const float *plane, int32_t n_tables, const float *x, int32_t n,
                          float *side)
{
    struct kvl_weight w = { .data = plane,
                            .type = KVL_W_F32,
                            .n_rows = n_tables * t->n_bits,
                            .n_cols = ctx->shape->head_dim,
                            .row_bytes = (size_t)ctx->shape->head_dim * sizeof(float) };
    return ctx->ops->gemm(&(struct kvl_gemm_args){ .y = side, .x = x, .w = &w, .n = n });
}

/* What a lane is hashed with. */
struct magicpig_build {
    const struct kvl_pctx *ctx;
    const struct magicpig_tables *t;
    int32_t layer, kv_head, n;
    const float *plane;
    float *key;     /* [CHUNK][head_dim] */
    float *side;    /* [CHUNK][n_tables * n_bits] */
    double *sum;    /* [head_dim] */
    uint16_t *code; /* [n][n_tables] */
    float *mean, *norm;
};

static int magicpig_read(const struct magicpig_build *b, int32_t at, int32_t n)
{
    int32_t pos[MAGICPIG_CHUNK];
    for (int32_t i = 0; i < n; i++) pos[i] = b->t->first + at + i;
    return kvl_read_keys(b->ctx, b->layer, b->kv_head, pos, n, false, b->key);
}

static int magicpig_mean(const struct magicpig_build *b)
{
    int32_t d = b->ctx->shape->head_dim;
    for (int32_t c = 0; c < d; c++) b->sum[c] = 0;
    for (int32_t at = 0; b->t->centre && at < b->n; at += MAGICPIG_CHUNK) {
        int32_t n = KVL_MIN(MAGICPIG_CHUNK, b->n - at);
        KVL_TRY(magicpig_read(b, at, n));
        for (int32_t i = 0; i < n * d; i++) b->sum[i % d] += (double)b->key[i];
    }
    for (int32_t c = 0; c < d; c++) b->mean[c] = (float)(b->sum[c] / b->n);
    return KVL_OK;
}

static float magicpig_centre(float *k, const float *mean, int32_t d)
{
    double square = 0;
    for (int32_t c = 0; c < d; c++) {
        k[c] -= mean[c];
        square += (double)k[c] * (double)k[c];
    }
    return (float)sqrt(square);
}

/* Codes and norms of the centred keys. */
static int magicpig_hash(const struct magicpig_build *b)
{
    const struct magicpig_tables *t = b->t;
    int32_t d = b->ctx->shape->head_dim;
    for (int32_t at = 0; at < b->n; at += MAGICPIG_CHUNK) {
        int32_t n = KVL_MIN(MAGICPIG_CHUNK, b->n - at);
        KVL_TRY(magicpig_read(b, at, n));
        for (int32_t i = 0; i < n; i++)
            b->norm[at + i] = magicpig_centre(b->key + (size_t)i * (size_t)d, b->mean, d);
        KVL_TRY(magicpig_sides(b->ctx, t, b->plane, t->n_tables, b->key, n, b->side));
        KVL_TRY(b->ctx->ops->lsh_codes(
            &(struct kvl_lsh_codes_args){ .code = b->code + (size_t)at * (size_t)t->n_tables,
                                          .side = b->side,
                                          .n = n,
                                          .n_tables = t->n_tables,
                                          .n_bits = t->n_bits }));
    }
    return KVL_OK;
}

static int magicpig_planes(const struct kvl_pctx *ctx, const struct magicpig_tables *t,
                           int32_t layer, const float **out)
{
    struct kvl_meta_view plane;
    struct kvl_rng rng;
    KVL_TRY(kvl_meta_from(ctx, t->plane, layer, 0, &plane));
    kvl_rng_seed(&rng, kvl_seed_mix(t->seed ? t->seed : ctx->seed, (uint64_t)layer));
    magicpig_normal(&rng, plane.base,
                    (size_t)(t->n_tables * t->n_bits) * (size_t)ctx->shape->head_dim);
    *out = plane.base;
    return KVL_OK;
}

static int magicpig_build_memory(struct magicpig_build *b)
{
    size_t d = (size_t)b->ctx->shape->head_dim, n_tables = (size_t)b->t->n_tables;
    b->key = kvl_scratch(b->ctx, MAGICPIG_CHUNK * d);
    b->side = kvl_scratch(b->ctx, MAGICPIG_CHUNK * n_tables * (size_t)b->t->n_bits);
    b->sum = (void *)kvl_scratch(b->ctx, 2 * d);
    b->code = (void *)kvl_scratch(b->ctx, (size_t)b->n * n_tables / 2 + 1);
    return b->key && b->side && b->sum && b->code ? KVL_OK : magicpig_no_memory(b->ctx);
}

static int magicpig_build_layer(const struct kvl_pctx *ctx, const struct magicpig_tables *t,
                                int32_t layer)
{
    struct magicpig_build b = { .ctx = ctx, .t = t, .layer = layer, .n = magicpig_hashed(ctx, t) };
    struct kvl_meta_view start, id, norm, mean;
    KVL_TRY(magicpig_planes(ctx, t, layer, &b.plane));
    KVL_TRY(kvl_meta_from(ctx, t->start, layer, 0, &start));
    KVL_TRY(kvl_meta_from(ctx, t->id, layer, 0, &id));
    KVL_TRY(kvl_meta_from(ctx, t->norm, layer, 0, &norm));
    KVL_TRY(kvl_meta_from(ctx, t->mean, layer, 0, &mean));
    KVL_TRY(magicpig_build_memory(&b));
    for (; b.kv_head < ctx->shape->n_kv_heads; b.kv_head++) {
        size_t h = (size_t)b.kv_head;
        b.mean = mean.base + h * mean.head_stride;
        b.norm = norm.base + h * norm.head_stride;
        KVL_TRY(magicpig_mean(&b));
        KVL_TRY(magicpig_hash(&b));
        struct kvl_lsh_build_args args = { .start = (int32_t *)start.data + h * start.head_stride,
                                           .id = (int32_t *)id.data + h * id.head_stride,
                                           .code = b.code,
                                           .n = b.n,
                                           .n_tables = t->n_tables,
                                           .n_bits = t->n_bits };
        KVL_TRY(ctx->ops->lsh_build(&args));
    }
    return KVL_OK;
}

/* ---- collisions -------------------------------------------------------------------------------- */

/* What one query finds in a layer. */
struct magicpig_find {
    const struct kvl_pctx *ctx;
    const struct magicpig_tables *t;
    int32_t layer, n, n_tables;  /* of the tables built, the first n_tables are used */
    const int32_t **start, **id; /* [n_heads] */
    const float *plane;
    uint16_t *code;     /* [n_heads][n_tables] */
    int32_t *found;     /* [n_heads][n], ascending, counted from the first hashed token */
    int32_t *n_found;   /* [n_heads] */
    int64_t *n_visited; /* [n_heads] */
    uint8_t *mark;      /* [n] */
    float *side;
};

/* A row per lane is in one piece: the base where the context's are shared, else the tail. */
static int magicpig_row(const struct kvl_pctx *ctx, int32_t handle, int32_t layer,
                        struct kvl_meta_part *out)
{
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_meta_peek(ctx, handle, layer, 1, part));
    *out = part[part[0].n_rows == 0];
    return KVL_OK;
}

static int magicpig_find_memory(struct magicpig_find *f)
{
    const struct kvl_pctx *ctx = f->ctx;
    size_t heads = (size_t)ctx->shape->n_heads, n = (size_t)f->n, n_tables = (size_t)f->t->n_tables;
    size_t wide = sizeof(int64_t) / sizeof(float);
    f->start = (void *)kvl_scratch(ctx, heads * wide);
    f->id = (void *)kvl_scratch(ctx, heads * wide);
    f->n_visited = (void *)kvl_scratch(ctx, heads * wide);
    f->n_found = (void *)kvl_scratch(ctx, heads);
    f->code = (void *)kvl_scratch(ctx, heads * n_tables / 2 + 1);
    f->found = (void *)kvl_scratch(ctx, heads * n);
    f->mark = (void *)kvl_scratch(ctx, n / sizeof(float) + 1);
    f->side = kvl_scratch(ctx, heads * n_tables * (size_t)f->t->n_bits);
    return f->start && f->id && f->n_visited && f->n_found && f->code && f->found && f->mark &&
                   f->side
               ? KVL_OK
               : magicpig_no_memory(ctx);
}

static int magicpig_find_get(const struct kvl_pctx *ctx, const struct magicpig_tables *t,
                             int32_t layer, struct magicpig_find *f)
{
    int32_t n_heads = ctx->shape->n_heads, group = n_heads / ctx->shape->n_kv_heads;
    struct kvl_meta_part start, id, plane;
    KVL_TRY(magicpig_row(ctx, t->start, layer, &start));
    KVL_TRY(magicpig_row(ctx, t->id, layer, &id));
    KVL_TRY(magicpig_row(ctx, t->plane, layer, &plane));
    *f = (struct magicpig_find){
        .ctx = ctx, .t = t, .layer = layer, .n = magicpig_hashed(ctx, t), .plane = plane.data
    };
    KVL_TRY(magicpig_find_memory(f));
    for (int32_t h = 0; h < n_heads; h++) {
        f->start[h] = (const int32_t *)start.data + (size_t)(h / group) * start.head_stride;
        f->id[h] = (const int32_t *)id.data + (size_t)(h / group) * id.head_stride;
    }
    return KVL_OK;
}

/* found and n_found of the queries q [n_heads][head_dim], by the first n_tables tables. */
static int magicpig_collide(struct magicpig_find *f, const float *q, int32_t n_tables)
{
    int32_t n_heads = f->ctx->shape->n_heads, n_bits = f->t->n_bits;
    f->n_tables = n_tables;
    KVL_TRY(magicpig_sides(f->ctx, f->t, f->plane, n_tables, q, n_heads, f->side));
    KVL_TRY(f->ctx->ops->lsh_codes(&(struct kvl_lsh_codes_args){
        .code = f->code, .side = f->side, .n = n_heads, .n_tables = n_tables, .n_bits = n_bits }));
    return f->ctx->ops->lsh_find(&(struct kvl_lsh_find_args){ .found = f->found,
                                                              .n_found = f->n_found,
                                                              .n_visited = f->n_visited,
                                                              .code = f->code,
                                                              .start = f->start,
                                                              .id = f->id,
                                                              .n_q = n_heads,
                                                              .n = f->n,
                                                              .n_tables = n_tables,
                                                              .n_bits = n_bits,
                                                              .min_hits = MAGICPIG_HITS });
}

/* Counts what the last query read of the tables. */
static int magicpig_count(const struct magicpig_find *f)
{
    int64_t entries = 0, n_heads = f->ctx->shape->n_heads, planes = f->n_tables * f->t->n_bits;
    for (int64_t h = 0; h < n_heads; h++) entries += f->n_visited[h];
    KVL_TRY(kvl_meta_count(f->ctx, f->t->id, entries));
    KVL_TRY(kvl_meta_count(f->ctx, f->t->start, 2 * f->n_tables * n_heads));
    return kvl_meta_count(f->ctx, f->t->plane, planes * f->ctx->shape->head_dim);
}

#endif
