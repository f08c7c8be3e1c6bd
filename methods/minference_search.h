/* minference_search.h - which pattern suits a head: what part of its attention each kind captures.
 *
 * Included once, by minference.c.  MI_SEARCHED queries, spread evenly over the part of the chunk behind the
 * budget's length, are asked for their exact weights; a kind captures what of these falls on the keys that
 * it would have read, all kinds at the size of the budget.  Summed over chunks and contexts by whoever
 * asks: report names capture.<layer>.<head>.<kind>. */
#ifndef MINFERENCE_SEARCH_H
#define MINFERENCE_SEARCH_H

/* Weight of a query at position n - 1 on what a head of each kind reads.  range: room for what
 * slash=blocks reads, else NULL. */
static float mi_captured_lines(const float *p, int32_t n, const struct mi_lines *l, uint8_t *seen,
                               int32_t *range)
{
    float sum = 0;
    int32_t n_ranges = range ? mi_slash_ranges(l, (n - 1) / MI_BLOCK * MI_BLOCK, n, range) : 0;
    memset(seen, 0, (size_t)n);
    for (int32_t i = 0; i < l->n_vertical && l->vertical[i] < n; i++) seen[l->vertical[i]] = 1;
    for (int32_t i = 0; !range && i < l->n_slash && l->slash[i] < n; i++)
        seen[n - 1 - l->slash[i]] = 1;
    for (int32_t i = 0; i < n_ranges; i++)
        memset(seen + range[2 * i], 1, (size_t)(range[2 * i + 1] - range[2 * i]));
    for (int32_t j = 0; j < n; j++) sum += seen[j] ? p[j] : 0;
    return sum;
}

static float mi_captured_window(const float *p, int32_t n, int32_t sink, int32_t local)
{
    float sum = 0;
    for (int32_t j = 0; j < n; j++) sum += j < sink || j >= n - local ? p[j] : 0;
    return sum;
}

static float mi_captured_blocks(const float *p, int32_t n, const int32_t *block, int32_t n_blocks)
{
    float sum = 0;
    for (int32_t b = 0; b < n_blocks; b++)
        for (int32_t j = block[b] * MI_BLOCK; j < KVL_MIN(n, (block[b] + 1) * MI_BLOCK); j++)
            sum += p[j];
    return sum;
}

/* All that is chosen for the heads of a layer, for every kind. */
struct mi_candidates {
    struct mi_lines *lines;   /* [n_heads] */
    struct mi_blocks *blocks; /* [n_heads] */
    float *probs;             /* [n_heads][n] of a query */
    uint8_t *seen;            /* [n] */
    int32_t *range;           /* [n / MI_BLOCK + 1][2] with slash=blocks, else NULL */
};

static int mi_candidates_open(const struct kvl_pctx *ctx, const struct kvl_step *step,
                              const struct kvl_query *q, struct mi_candidates *c)
{
    const struct mi_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    const struct mi_head both = { .a = o->vertical_size, .b = o->slash_size };
    int32_t n = step->pos + step->n_tok;
    size_t heads = (size_t)sh->n_heads, floats = heads * (size_t)n;
    float *vertical, *slash;
    void *lines, *blocks;
    KVL_TRY(kvl_scratch_get(ctx, floats, &vertical));
    KVL_TRY(kvl_scratch_get(ctx, floats, &slash));
    KVL_TRY(kvl_scratch_get(ctx, floats, &c->probs));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &c->seen));
    c->range = NULL;
    if (o->slash == MI_WHOLE_BLOCKS)
        KVL_TRY(kvl_scratch_get(ctx, 2 * (size_t)(n / MI_BLOCK + 1), &c->range));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *c->lines, &lines));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *c->blocks, &blocks));
    c->lines = lines;
    c->blocks = blocks;
    KVL_TRY(mi_scores(ctx, step, q, vertical, slash, n));
    for (int32_t h = 0; h < sh->n_heads; h++) {
        size_t at = (size_t)h * (size_t)n;
        KVL_TRY(mi_choose(ctx, vertical + at, slash + at, n, &both, &c->lines[h]));
        KVL_TRY(mi_blocks_open(ctx, step, o->block_topk, &c->blocks[h]));
        KVL_TRY(mi_pool_keys(ctx, step->layer, h / sh->group, n, c->blocks[h].key));
        KVL_TRY(mi_block_lists(ctx, step, q, h, o->block_topk, &c->blocks[h]));
    }
    return KVL_OK;
}

/* Query i of the chunk, all heads. */
static int mi_search_query(const struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, const struct mi_candidates *c, int32_t i)
{
    const struct mi_opts *o = ctx->opts;
    int32_t n = step->pos + i + 1;
    KVL_TRY(kvl_mask_weights(ctx, step, q, i, c->probs, n));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        const float *p = c->probs + (size_t)h * (size_t)n;
        const struct mi_blocks *b = &c->blocks[h];
        const int32_t *off = b->off + i / MI_BLOCK;
        double *capture = mi_capture(ctx, step->layer, h);
        capture[MI_VERTICAL_SLASH] +=
            (double)mi_captured_lines(p, n, &c->lines[h], c->seen, c->range);
        capture[MI_A_SHAPE] += (double)mi_captured_window(p, n, o->sink, o->local);
        capture[MI_BLOCK_SPARSE] +=
            (double)mi_captured_blocks(p, n, b->block + off[0], off[1] - off[0]);
    }
    return KVL_OK;
}

static int mi_search(const struct kvl_pctx *ctx, const struct kvl_step *step,
                     const struct kvl_query *q)
{
    struct mi_state *state = ctx->state;
    struct mi_candidates c;
    int32_t first = KVL_MAX(0, ctx->budget_tok - step->pos), room = step->n_tok - first;
    int32_t count = KVL_MIN(MI_SEARCHED, KVL_MAX(0, room));
    if (count == 0) return KVL_OK; /* every kind would read everything */
    KVL_TRY(mi_candidates_open(ctx, step, q, &c));
    for (int32_t k = 0; k < count; k++)
        KVL_TRY(mi_search_query(ctx, step, q, &c, first + (int32_t)((int64_t)k * room / count)));
    state->n_searched += step->layer == 0 ? count : 0;
    return KVL_OK;
}

static int mi_report_search(const struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct mi_state *state = ctx->state;
    for (int32_t l = 0; state->n_searched > 0 && l < ctx->shape->n_layers; l++)
        for (int32_t h = 0; h < ctx->shape->n_heads; h++)
            for (int32_t k = 0; k < MI_KINDS; k++) {
                char name[64];
                snprintf(name, sizeof name, "capture.%d.%d.%s", l, h, mi_kinds[k]);
                KVL_TRY(
                    kvl_report_num(r, name, mi_capture(ctx, l, h)[k] / (double)state->n_searched));
            }
    return KVL_OK;
}

#endif
