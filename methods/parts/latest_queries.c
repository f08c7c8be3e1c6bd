/* A ring of the latest queries of every layer. */
#include "latest_queries.h"

#include <string.h>

/* In front of a layer's ring. */
struct latest_head {
    int32_t n_seen, n_raw; /* queries that came; of those before RoPE */
};

static size_t latest_row(const struct kvl_shape *shape)
{
    return (size_t)shape->n_heads * (size_t)shape->head_dim;
}

int kvl_plan_latest(struct kvl_plan *plan, int32_t n, bool raw, struct kvl_latest *out)
{
    size_t rows = (size_t)n * (raw ? 2 : 1);
    *out = (struct kvl_latest){ .n = n, .raw = raw };
    kvl_plan_state(plan,
                   sizeof(struct latest_head) + (size_t)n * sizeof(int32_t) +
                       rows * latest_row(plan->shape) * sizeof(float),
                   &out->part);
    return plan->own_prefill ? KVL_OK : kvl_plan_observe(plan, KVL_OBS_WINDOW, n);
}

/* A layer's ring: positions, queries, those before RoPE. */
struct latest_ring {
    struct latest_head *head;
    int32_t *pos;
    float *q, *raw;
};

static struct latest_ring latest_ring(const struct kvl_pctx *ctx, const struct kvl_latest *l,
                                      int32_t layer)
{
    struct latest_ring r = { .head = kvl_state_of(ctx, &l->part, layer) };
    r.pos = (int32_t *)(void *)(r.head + 1);
    r.q = (float *)(void *)(r.pos + l->n);
    r.raw = r.q + (size_t)l->n * latest_row(ctx->shape);
    return r;
}

int kvl_latest_begin(const struct kvl_pctx *ctx, const struct kvl_latest *l, int32_t layer)
{
    struct latest_ring r = latest_ring(ctx, l, layer);
    int32_t n = KVL_MIN(l->n, ctx->context_tok);
    for (int32_t i = 0; i < n; i++) {
        KVL_TRY(
            kvl_obs_window_query(ctx, layer, n - 1 - i, r.q + (size_t)i * latest_row(ctx->shape)));
        r.pos[i] = ctx->context_tok - n + i;
    }
    r.head->n_seen = n;
    return KVL_OK;
}

int kvl_latest_add(const struct kvl_pctx *ctx, const struct kvl_latest *l,
                   const struct kvl_step *step, const struct kvl_query *q)
{
    struct latest_ring r = latest_ring(ctx, l, step->layer);
    size_t row = latest_row(ctx->shape), at = (size_t)(r.head->n_seen % l->n);
    KVL_TRY(kvl_look(ctx));
    memcpy(r.q + at * row, q->q, row * sizeof *r.q);
    if (l->raw) memcpy(r.raw + at * row, q->q_raw, row * sizeof *r.raw);
    r.pos[at] = step->pos;
    r.head->n_seen++;
    if (r.head->n_seen >= 2 * l->n) r.head->n_seen -= l->n; /* the ring is full, and stays so */
    r.head->n_raw = KVL_MIN(l->n, r.head->n_raw + 1);
    return KVL_OK;
}

int kvl_latest_read(const struct kvl_pctx *ctx, const struct kvl_latest *l, int32_t layer,
                    struct kvl_asked *asked)
{
    struct latest_ring r = latest_ring(ctx, l, layer);
    size_t row = latest_row(ctx->shape);
    int32_t n = KVL_MIN(l->n, r.head->n_seen), first = r.head->n_seen - n, *pos;
    float *q, *raw;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * row, &q));
    KVL_TRY(kvl_scratch_get(ctx, l->raw ? (size_t)n * row : 0, &raw));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &pos));
    for (int32_t i = 0; i < n; i++) {
        size_t at = (size_t)((first + i) % l->n), to = (size_t)i * row;
        memcpy(q + to, r.q + at * row, row * sizeof *q);
        if (l->raw) memcpy(raw + to, r.raw + at * row, row * sizeof *raw);
        pos[i] = r.pos[at];
    }
    asked->q = q;
    asked->q_raw = raw;
    asked->q_pos = pos;
    asked->n_queries = n;
    asked->n_raw = l->raw ? r.head->n_raw : 0;
    return KVL_OK;
}
