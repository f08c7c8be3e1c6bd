/* Scores of live tokens: columns of a table that go when their tokens go, and the cut by them. */
#include "live_scores.h"

#include <string.h>

enum { LIVE_SUMS = 64 }; /* in one call of an operator */

/* Scores of live tokens in a table of n_columns floats or more. */
static int live_check_table(const struct kvl_pctx *ctx, int32_t table, const struct kvl_rows *rows,
                            int32_t n_columns)
{
    if (rows->unit == KVL_UNIT_LIVE && rows->elem == KVL_ELEM_F32 && n_columns <= rows->row_elems)
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "table %d, want rows of %d or more floats of live tokens", table, n_columns);
}

int kvl_live_begin(const struct kvl_pctx *ctx, int32_t table, int32_t layer)
{
    struct kvl_rows rows;
    const float *sums;
    int32_t group = ctx->shape->group, n;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n));
    KVL_TRY(kvl_table_write(ctx, table, layer, 0, &rows)); /* the host writes them */
    KVL_TRY(live_check_table(ctx, table, &rows, group));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        memcpy(kvl_table_column(&rows, h / group, h % group), sums + (size_t)h * (size_t)n,
               (size_t)n * sizeof *sums);
    return KVL_OK;
}

int kvl_live_add(const struct kvl_pctx *ctx, int32_t table, int32_t layer, bool per_head,
                 const float *const *probs, const int32_t *n, const float *factor)
{
    struct kvl_rows rows;
    int32_t group = ctx->shape->group;
    KVL_TRY(kvl_table_operand_out(ctx, table, layer, 0, &rows));
    KVL_TRY(live_check_table(ctx, table, &rows, per_head ? group : 1));
    struct kvl_add_args add[LIVE_SUMS];
    for (int32_t h = 0, i = 0; h < ctx->shape->n_heads; h++) {
        int32_t column = per_head ? h % group : 0;
        bool first = per_head || h % group == 0;
        add[i] = (struct kvl_add_args){ .y = kvl_table_column(&rows, h / group, column),
                                        .x = probs[h],
                                        .n = (size_t)n[h],
                                        .factor = first ? factor : NULL };
        if (i > 0) add[i - 1].next = &add[i];
        if (++i < LIVE_SUMS && h + 1 < ctx->shape->n_heads) continue;
        KVL_TRY(ctx->ops->add(add));
        i = 0;
    }
    return KVL_OK;
}

int kvl_live_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_columns,
                    int32_t n, enum kvl_reduce reduce, float **score)
{
    struct kvl_rows rows;
    KVL_TRY(kvl_table_operand_out(ctx, table, layer, 0, &rows));
    KVL_TRY(live_check_table(ctx, table, &rows, n_columns));
    KVL_TRY(kvl_table_count(ctx, table, (int64_t)n * rows.row_elems * ctx->shape->n_kv_heads));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, score));
    /* Lanes whose columns are all asked for lie one after the other: one call. */
    bool all = (size_t)n_columns * rows.column_bytes == rows.part[0].head_bytes;
    int32_t lanes = all ? ctx->shape->n_kv_heads : 1;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h += lanes)
        KVL_TRY(ctx->ops->group_reduce(
            &(struct kvl_group_reduce_args){ .y = *score + (size_t)h * (size_t)n,
                                             .x = kvl_table_column(&rows, h, 0),
                                             .x_stride = rows.column_bytes / rows.elem_bytes,
                                             .n = n,
                                             .n_heads = lanes * n_columns,
                                             .n_kv_heads = lanes,
                                             .reduce = reduce }));
    return KVL_OK;
}

/* Tells the scores of all live tokens, the newest too. */
static int live_show(const struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                     const float *score, int32_t n_live)
{
    float *shown;
    const int32_t *live;
    int32_t n, n_lists = scope == KVL_SCOPE_LAYER ? 1 : ctx->shape->n_kv_heads;
    KVL_TRY(kvl_tap_room(ctx, step, scope, &shown));
    for (int32_t l = 0; shown && l < n_lists; l++, score += n_live) {
        float *row = shown + (size_t)l * ((size_t)step->pos + 1);
        KVL_TRY(kvl_live(ctx, step->layer, l, &live, &n));
        for (int32_t i = 0; i < n_live; i++) row[live[i]] = score[i];
    }
    return kvl_tap_positions(ctx, step, scope, shown);
}

static int live_check(const struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                      int32_t n, int32_t k, int32_t recent)
{
    const int32_t *live;
    int32_t n_live;
    if (scope > KVL_SCOPE_KV_HEAD || k < 0 || recent < 0 || k > n - recent)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "the newest %d and the %d best others of %d tokens, by lists of scope %d",
                        recent, k, n, (int)scope);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_live(ctx, step->layer, h, &live, &n_live));
        if (n_live != n)
            return kvl_fail(ctx->err, KVL_EPOLICY, "the best of %d tokens, lane (%d, %d) holds %d",
                            n, step->layer, h, n_live);
    }
    return KVL_OK;
}

int kvl_keep_best(const struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep,
                  enum kvl_scope scope, const float *score, int32_t n, int32_t k, int32_t recent)
{
    const int32_t *live;
    int32_t n_live;
    KVL_TRY(live_check(ctx, step, scope, n, k, recent));
    KVL_TRY(live_show(ctx, step, scope, score, n));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        const float *of_head = score + (scope == KVL_SCOPE_LAYER ? 0 : (size_t)h * (size_t)n);
        KVL_TRY(kvl_live(ctx, step->layer, h, &live, &n_live));
        KVL_TRY(kvl_keep_top(keep, h, of_head, n - recent, k));
        if (recent > 0) KVL_TRY(kvl_keep_range(keep, h, live[n - recent], live[n - 1] + 1));
    }
    return KVL_OK;
}
