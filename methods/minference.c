/* minference - a prefill that computes a few columns and diagonals of attention, per head.
 *
 * Jiang et al.: MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse
 * Attention, NeurIPS 2024 (arXiv 2407.02490), section 3 and Algorithms 1 to 3; and its code.
 *
 * Every query head has one of three kinds of pattern, of two sizes:
 *   vertical_slash v s   P = softmax of the last last_q = 64 queries over all keys, causal.  A column
 *                        scores the sum of P in it, a diagonal (distance of a query to a key) the sum of P
 *                        along it.  The first 30 columns and the nearest 100 diagonals are forced; the v
 *                        best columns and the s best diagonals are read by all queries.  Code: v is at
 *                        least 30, s at least 50
 *                        slash=blocks: the published kernel reads more than that.  For 64 queries from
 *                        position m on a diagonal d becomes the 64 keys from m - d on (the first 64
 *                        where d > m), whole; where these touch or overlap the range before, it grows by 64
 *   a_shape sink local   the first and the latest keys
 *   block_sparse k       blocks of 64: the mean query of a block times the mean key of each; the k best
 *                        blocks of keys
 * pattern= gives all heads one kind; table=FILE each its own: lines "layer head kind size [size]", as
 * `kvlab tables minference` measures them.  That the shipped tables of the authors say vertical_slash
 * 1000 6096 of every head (their search rewrites what else it finds) is the default here.
 *
 * Decode is dense.  Budget B: a query of the prefill reads at most B keys, itself included (slash=blocks: more): the sizes of a
 * kind keep their proportion (1000 : 6096; 100 : 800; 100 blocks) and sum to B.  Without a budget they are
 * the published ones.  B >= context: everything.
 *
 * search=true is the offline search: the prefill is dense, and every head is asked how much of the weight
 * of 16 queries each kind of size B would have captured (paper: distance of attention outputs, at the cost
 * of a kernel; the code: weight).  report has it by layer, head and kind.
 *
 * A block of queries always reads its own block of keys; the mean of a part of a block is that of its tokens.
 * Heads of a group have patterns of their own.  Where s is below 100 the nearest s diagonals are forced. */
#include "kvl/head_file.h"
#include "kvl/policy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MI_VERTICAL_SLASH = 0, MI_A_SHAPE, MI_BLOCK_SPARSE, MI_KINDS };
enum { MI_BLOCK = 64, MI_CHUNK = 32768, MI_COLUMNS = 30, MI_DIAGONALS = 100, MI_SEARCHED = 16 };

struct mi_opts {
    int32_t pattern, slash, vertical_size, slash_size, sink, local, block_topk, last_q, chunk;
    bool search;
    char table[KVL_OPT_STR_SIZE], table_sum[KVL_OPT_STR_SIZE];
};

static const char *const mi_kinds[] = { "vertical_slash", "a_shape", "block_sparse", NULL };
enum { MI_DIAGONALS_ALONE = 0, MI_WHOLE_BLOCKS };
static const char *const mi_slashes[] = { "diagonals", "blocks", NULL };

static const struct kvl_opt mi_options[] = {
    KVL_ROW_ENUM(
        mi_opts, pattern, "vertical_slash", mi_kinds,
        "kind of pattern of every head that no table names (shipped tables: vertical_slash)"),
    KVL_ROW_ENUM(mi_opts, slash, "diagonals", mi_slashes,
                 "what is read of a chosen diagonal: its pairs (paper), or whole blocks of 64 "
                 "queries and 64 keys, beyond the budget (published kernel)"),
    KVL_ROW_INT(
        mi_opts, vertical_size, "auto", MI_COLUMNS, 1 << 30,
        "columns; auto = 1000/7096 of the budget, at least 30, 1000 without (shipped: 1000)"),
    KVL_ROW_INT(mi_opts, slash_size, "auto", 50, 1 << 30,
                "diagonals; auto = budget - vertical_size, 6096 without (shipped: 6096)"),
    KVL_ROW_INT(mi_opts, sink, "auto", 1, 1 << 30,
                "first keys of an a_shape; auto = budget / 9, 100 without (shipped: 100)"),
    KVL_ROW_INT(mi_opts, local, "auto", 1, 1 << 30,
                "latest keys of an a_shape; auto = budget - sink, 800 without (shipped: 800)"),
    KVL_ROW_INT(
        mi_opts, block_topk, "auto", 1, 1 << 30,
        "blocks of 64 keys for one of 64 queries; auto = budget / 64, 100 without (shipped: 100)"),
    KVL_ROW_INT(mi_opts, last_q, "64", 1, 1024,
                "last queries of a chunk that score columns and diagonals (paper: 64)"),
    KVL_ROW_INT(mi_opts, chunk, "auto", 1, 1 << 30,
                "tokens that are prefilled together: a multiple of 64, or the context; auto = all, "
                "at most 32768 (paper: all)"),
    KVL_ROW_STR(mi_opts, table, "",
                "file of lines \"layer head kind size [size]\", a line for every head; with a "
                "budget sizes keep their proportion; see kvlab tables"),
    KVL_ROW_STR(mi_opts, table_sum, "", "checksum of the table, written when it is read"),
    KVL_ROW_BOOL(
        mi_opts, search, "false",
        "prefill densely, and report what weight each kind of the budget's size would capture"),
    { 0 },
};

struct mi_head {
    int32_t kind, a, b; /* sizes; b is 0 for block_sparse */
};

struct mi_state {
    int64_t n_searched;    /* queries that were asked in the search, per head */
    struct mi_head head[]; /* [n_layers][n_heads], then capture [n_layers][n_heads][MI_KINDS] */
};

static size_t mi_n_heads(const struct kvl_shape *sh)
{
    return (size_t)sh->n_layers * (size_t)sh->n_heads;
}

static double *mi_capture(const struct kvl_pctx *ctx, int32_t layer, int32_t head)
{
    struct mi_state *state = ctx->state;
    size_t n = mi_n_heads(ctx->shape), bytes = (n * sizeof(struct mi_head) + 63) / 64 * 64;
    double *all = (double *)(void *)((uint8_t *)state + 64 + bytes);
    return all + ((size_t)layer * (size_t)ctx->shape->n_heads + (size_t)head) * MI_KINDS;
}

/* ---- plan ---------------------------------------------------------------------------------- */

static int32_t mi_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    switch (((const struct mi_opts *)opts)->pattern) {
    case MI_A_SHAPE: return 2;
    case MI_BLOCK_SPARSE: return MI_BLOCK;
    default: return MI_COLUMNS + 50;
    }
}

/* Both sizes of a pair that shares the budget a0 : b0; what was given stays. */
static void mi_share(int32_t budget, int32_t a0, int32_t b0, int32_t least, int32_t *a, int32_t *b)
{
    int32_t total = budget > 0 ? budget : a0 + b0;
    int32_t share = (int32_t)((int64_t)total * a0 / (a0 + b0));
    if (*a == KVL_AUTO) *a = KVL_MAX(least, *b == KVL_AUTO ? share : total - *b);
    if (*b == KVL_AUTO) *b = KVL_MAX(1, total - *a);
}

static int mi_plan_sizes(struct kvl_plan *plan)
{
    struct mi_opts *o = plan->opts;
    int32_t budget = plan->budget_tok;
    mi_share(budget, 1000, 6096, MI_COLUMNS, &o->vertical_size, &o->slash_size);
    o->slash_size = KVL_MAX(50, o->slash_size);
    mi_share(budget, 100, 800, 1, &o->sink, &o->local);
    if (o->block_topk == KVL_AUTO) o->block_topk = budget > 0 ? KVL_MAX(1, budget / MI_BLOCK) : 100;
    if (o->chunk == KVL_AUTO) o->chunk = KVL_MIN(KVL_MAX(1, plan->context_tok), MI_CHUNK);
    if (o->chunk < plan->context_tok && o->chunk % MI_BLOCK)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "chunk=%d; give a multiple of %d, or all %d tokens of the context",
                        o->chunk, MI_BLOCK, plan->context_tok);
    plan->prefill_chunk_tok = o->chunk;
    plan->prefill_layerwise = true;
    return KVL_OK;
}

/* The sizes of a line, as they are or at the budget's sum. */
static void mi_scale(struct mi_head *h, int32_t budget)
{
    int32_t a0 = h->a, b0 = h->b;
    if (budget == 0) return;
    h->a = h->b = KVL_AUTO;
    if (h->kind == MI_BLOCK_SPARSE) {
        h->a = KVL_MAX(1, budget / MI_BLOCK);
        h->b = 0;
    } else {
        bool slash = h->kind == MI_VERTICAL_SLASH;
        mi_share(budget, a0, b0, slash ? MI_COLUMNS : 1, &h->a, &h->b);
        if (slash) h->b = KVL_MAX(50, h->b);
    }
}

/* One line: layer head kind size [size]; sizes of 0 mark heads that were not named. */
static int mi_table_line(struct kvl_head_file *f, const struct kvl_shape *sh, int32_t budget,
                         struct mi_head *head)
{
    int32_t layer = 0, h = 0;
    KVL_TRY(kvl_head_file_integer(f, "layer", 0, sh->n_layers - 1, &layer));
    KVL_TRY(kvl_head_file_integer(f, "query head", 0, sh->n_heads - 1, &h));
    struct mi_head *to = &head[(size_t)layer * (size_t)sh->n_heads + (size_t)h];
    if (to->a > 0)
        return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: layer %d head %d stands twice", f->path,
                        f->number, layer, h);
    KVL_TRY(kvl_head_file_choice(f, "kind", mi_kinds, &to->kind));
    KVL_TRY(kvl_head_file_integer(f, "size", 1, 1 << 30, &to->a));
    if (to->kind != MI_BLOCK_SPARSE)
        KVL_TRY(kvl_head_file_integer(f, "second size", 1, 1 << 30, &to->b));
    if (kvl_head_file_more(f))
        return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: more behind the sizes of a %s", f->path,
                        f->number, mi_kinds[to->kind]);
    mi_scale(to, budget);
    return KVL_OK;
}

static int mi_table_lines(struct kvl_head_file *f, const struct kvl_shape *sh, int32_t budget,
                          struct mi_head *head)
{
    while (kvl_head_file_line(f)) KVL_TRY(mi_table_line(f, sh, budget, head));
    for (size_t i = 0; i < mi_n_heads(sh); i++)
        if (head[i].a == 0)
            return kvl_fail(
                f->err, KVL_EINVAL,
                "%s: layer %zu head %zu is missing; want a line for each of %d layers of %d heads",
                f->path, i / (size_t)sh->n_heads, i % (size_t)sh->n_heads, sh->n_layers,
                sh->n_heads);
    return KVL_OK;
}

/* Patterns of all heads, [n_layers][n_heads] of zeros on arrival. */
static int mi_patterns(const struct mi_opts *o, const struct kvl_shape *sh, int32_t budget,
                       struct kvl_err *err, struct mi_head *head, char *sum)
{
    const int32_t size[MI_KINDS][2] = { { o->vertical_size, o->slash_size },
                                        { o->sink, o->local },
                                        { o->block_topk, 0 } };
    struct kvl_head_file f;
    for (size_t i = 0; !o->table[0] && i < mi_n_heads(sh); i++)
        head[i] = (struct mi_head){ o->pattern, size[o->pattern][0], size[o->pattern][1] };
    if (!o->table[0]) return KVL_OK;
    KVL_TRY(kvl_head_file_open(o->table, sum, err, &f));
    int rc = mi_table_lines(&f, sh, budget, head);
    kvl_head_file_close(&f);
    return rc;
}

static int mi_plan(struct kvl_plan *plan)
{
    struct mi_opts *o = plan->opts;
    size_t n = mi_n_heads(plan->shape);
    if (!plan->own_prefill)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "prefill: shared; minference is a prefill, want own");
    KVL_TRY(mi_plan_sizes(plan));
    if (o->search && plan->budget_tok == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "search=true without a budget; give one");
    plan->state_bytes =
        64 + (n * sizeof(struct mi_head) + 63) / 64 * 64 + n * MI_KINDS * sizeof(double);
    if (!o->table[0]) return KVL_OK;
    struct mi_head *head = kvl_alloc(n, sizeof *head);
    if (!head) return kvl_fail(plan->err, KVL_ENOMEM, "no memory for a table of %zu heads", n);
    int rc = mi_patterns(o, plan->shape, plan->budget_tok, plan->err, head, o->table_sum);
    kvl_free(head);
    return rc;
}

static int mi_open(struct kvl_pctx *ctx)
{
    const struct mi_opts *o = ctx->opts;
    struct mi_state *state = ctx->state;
    char sum[KVL_OPT_STR_SIZE];
    memcpy(sum, o->table_sum, sizeof sum);
    return mi_patterns(o, ctx->shape, ctx->budget_tok, ctx->err, state->head, sum);
}

/* ---- columns and diagonals ------------------------------------------------------------------ */

/* Adds what one query, which stands behind n - 1 keys, put on columns and diagonals: p [n]. */
static void mi_score_row(const float *p, int32_t n, float *vertical, float *slash)
{
    for (int32_t j = 0; j < n; j++) vertical[j] += p[j];
    for (int32_t d = 0; d < n; d++) slash[d] += p[n - 1 - d];
}

/* vertical and slash [n_heads][n] of a chunk that ends with position n - 1. */
static int mi_scores(const struct kvl_pctx *ctx, const struct kvl_step *step,
                     const struct kvl_query *q, float *vertical, float *slash, int32_t n)
{
    const struct mi_opts *o = ctx->opts;
    size_t heads = (size_t)ctx->shape->n_heads, row = (size_t)n;
    float *probs;
    KVL_TRY(kvl_scratch_get(ctx, heads * row, &probs));
    memset(vertical, 0, heads * row * sizeof *vertical);
    memset(slash, 0, heads * row * sizeof *slash);
    for (int32_t i = KVL_MAX(0, step->n_tok - o->last_q); i < step->n_tok; i++) {
        int32_t seen = step->pos + i + 1;
        KVL_TRY(kvl_mask_weights(ctx, step, q, i, probs, seen));
        for (size_t h = 0; h < heads; h++)
            mi_score_row(probs + h * (size_t)seen, seen, vertical + h * row, slash + h * row);
    }
    return KVL_OK;
}

/* The k best of n, the first `forced` among them before any other. */
static int mi_best(const struct kvl_pctx *ctx, float *score, int32_t n, int32_t forced, int32_t k,
                   int32_t *index)
{
    for (int32_t i = 0; i < KVL_MIN(forced, n); i++) score[i] = INFINITY;
    return kvl_topk(ctx, score, 1, n, k, index);
}

/* What is chosen for one head. */
struct mi_lines {
    int32_t *vertical, *slash;
    int32_t n_vertical, n_slash;
};

static int mi_choose(const struct kvl_pctx *ctx, float *vertical, float *slash, int32_t n,
                     const struct mi_head *h, struct mi_lines *out)
{
    out->n_vertical = KVL_MIN(n, KVL_MAX(MI_COLUMNS, h->a));
    out->n_slash = KVL_MIN(n, KVL_MAX(50, h->b));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)out->n_vertical, &out->vertical));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)out->n_slash, &out->slash));
    KVL_TRY(mi_best(ctx, vertical, n, MI_COLUMNS, out->n_vertical, out->vertical));
    return mi_best(ctx, slash, n, MI_DIAGONALS, out->n_slash, out->slash);
}

/* What the kernel makes of diagonals for the MI_BLOCK queries from `start` on, of n keys in all: ranges of
 * keys, [.][2], ascending, apart.  Farthest diagonals first; one that does not go on from the range before
 * begins another.  Returns their number, start / MI_BLOCK + 1 at most. */
static int32_t mi_slash_ranges(const struct mi_lines *l, int32_t start, int32_t n, int32_t *range)
{
    int32_t end = start + MI_BLOCK, n_ranges = 0, last = 0; /* where the latest range ends */
    for (int32_t i = l->n_slash - 1; i >= 0; i--) {
        int32_t to = KVL_MAX(MI_BLOCK, end - l->slash[i]);
        if (l->slash[i] >= end) continue;
        if (n_ranges == 0 || to > last + MI_BLOCK) {
            range[2 * n_ranges++] = to - MI_BLOCK;
            last = to;
        } else if (to > last) {
            last += MI_BLOCK;
        }
        range[2 * n_ranges - 1] = KVL_MIN(last, KVL_MIN(n, end));
    }
    return n_ranges;
}

/* Ranges for all blocks of queries of a chunk, CSR. */
struct mi_ranges {
    int32_t *off, *range, n_blocks;
};

static int mi_ranges_open(const struct kvl_pctx *ctx, const struct kvl_step *step,
                          struct mi_ranges *out)
{
    size_t most = (size_t)((step->pos + step->n_tok) / MI_BLOCK + 1);
    out->n_blocks = (step->n_tok + MI_BLOCK - 1) / MI_BLOCK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)out->n_blocks + 1, &out->off));
    return kvl_scratch_get(ctx, 2 * most * (size_t)out->n_blocks, &out->range);
}

/* Columns and whole blocks of a head. */
static int mi_mask_whole(const struct kvl_step *step, int32_t head, const struct mi_lines *l,
                         struct mi_ranges *r, struct kvl_prefill_mask *mask)
{
    int32_t n = 0, end = step->pos + step->n_tok;
    r->off[0] = 0;
    for (int32_t b = 0; b < r->n_blocks; b++) {
        n += mi_slash_ranges(l, step->pos + b * MI_BLOCK, end, r->range + 2 * (size_t)n);
        r->off[b + 1] = n;
    }
    KVL_TRY(kvl_mask_vertical_slash(mask, head, l->vertical, l->n_vertical, NULL, 0));
    return kvl_mask_ranges(mask, head, MI_BLOCK, r->off, r->range, r->n_blocks);
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* Means of blocks of MI_BLOCK of n rows: row i at x + i * stride, mean [blocks][dim]. */
static void mi_pool(const float *x, size_t stride, int32_t n, size_t dim, float *mean)
{
    for (int32_t b = 0; b * MI_BLOCK < n; b++, mean += dim) {
        int32_t first = b * MI_BLOCK, rows = KVL_MIN(MI_BLOCK, n - first);
        memset(mean, 0, dim * sizeof *mean);
        for (int32_t i = first; i < first + rows; i++)
            for (size_t c = 0; c < dim; c++) mean[c] += x[(size_t)i * stride + c];
        for (size_t c = 0; c < dim; c++) mean[c] /= (float)rows;
    }
}

/* Mean keys of all n positions of a kv head: mean [blocks][head_dim]. */
static int mi_pool_keys(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t n,
                        float *mean)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    float *k;
    KVL_TRY(kvl_scratch_get(ctx, MI_BLOCK * dim, &k));
    for (int32_t at = 0; at < n; at += MI_BLOCK, mean += dim) {
        int32_t rows = KVL_MIN(MI_BLOCK, n - at);
        KVL_TRY(kvl_read_key_span(ctx, layer, kv_head, at, rows, false, k));
        mi_pool(k, dim, rows, dim, mean);
    }
    return KVL_OK;
}

/* Blocks of one head for all blocks of queries of a chunk, CSR. */
struct mi_blocks {
    float *key;                     /* mean keys */
    float *query, *score;           /* mean queries of the chunk; scores of one of them */
    int32_t *off, *block, n_blocks; /* n_blocks of queries */
};

static int mi_blocks_open(const struct kvl_pctx *ctx, const struct kvl_step *step, int32_t k,
                          struct mi_blocks *out)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    size_t keys = (size_t)((step->pos + step->n_tok + MI_BLOCK - 1) / MI_BLOCK);
    size_t queries = (size_t)((step->n_tok + MI_BLOCK - 1) / MI_BLOCK);
    out->n_blocks = (int32_t)queries;
    KVL_TRY(kvl_scratch_get(ctx, keys * dim, &out->key));
    KVL_TRY(kvl_scratch_get(ctx, queries * dim, &out->query));
    KVL_TRY(kvl_scratch_get(ctx, keys, &out->score));
    KVL_TRY(kvl_scratch_get(ctx, queries + 1, &out->off));
    return kvl_scratch_get(ctx, queries * KVL_MIN((size_t)k, keys), &out->block);
}

/* The k best for every block of queries, its own among them; mean keys are there. */
static int mi_block_lists(const struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, int32_t head, int32_t k, struct mi_blocks *b)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    mi_pool(q->q + (size_t)head * dim, (size_t)ctx->shape->n_heads * dim, step->n_tok, dim,
            b->query);
    b->off[0] = 0;
    for (int32_t i = 0; i < b->n_blocks; i++) {
        int32_t own = step->pos / MI_BLOCK + i, n = KVL_MIN(k, own + 1);
        for (int32_t j = 0; j < own; j++) {
            const float *x = b->query + (size_t)i * dim, *y = b->key + (size_t)j * dim;
            b->score[j] = 0;
            for (size_t c = 0; c < dim; c++) b->score[j] += x[c] * y[c];
        }
        b->score[own] = INFINITY;
        KVL_TRY(mi_best(ctx, b->score, own + 1, 0, n, b->block + b->off[i]));
        b->off[i + 1] = b->off[i] + n;
    }
    return KVL_OK;
}

/* ---- the mask ----------------------------------------------------------------------------------- */

static int mi_mask_blocks(const struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, const struct mi_head *pattern,
                          struct kvl_prefill_mask *mask)
{
    const struct kvl_shape *sh = ctx->shape;
    int32_t group = sh->group, most = 0, pooled = -1;
    struct mi_blocks b;
    for (int32_t h = 0; h < sh->n_heads; h++)
        if (pattern[h].kind == MI_BLOCK_SPARSE) most = KVL_MAX(most, pattern[h].a);
    if (most == 0) return KVL_OK;
    KVL_TRY(mi_blocks_open(ctx, step, most, &b));
    for (int32_t h = 0; h < sh->n_heads; h++) {
        if (pattern[h].kind != MI_BLOCK_SPARSE) continue;
        if (pooled != h / group)
            KVL_TRY(mi_pool_keys(ctx, step->layer, h / group, step->pos + step->n_tok, b.key));
        pooled = h / group;
        KVL_TRY(mi_block_lists(ctx, step, q, h, pattern[h].a, &b));
        KVL_TRY(kvl_mask_blocks(mask, h, MI_BLOCK, b.off, b.block, b.n_blocks));
    }
    return KVL_OK;
}

static int mi_mask_lines(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, const struct mi_head *pattern,
                         struct kvl_prefill_mask *mask)
{
    int32_t n = step->pos + step->n_tok, n_heads = ctx->shape->n_heads;
    bool any = false, whole = ((const struct mi_opts *)ctx->opts)->slash == MI_WHOLE_BLOCKS;
    struct mi_ranges r = { 0 };
    for (int32_t h = 0; h < n_heads; h++) any = any || pattern[h].kind == MI_VERTICAL_SLASH;
    if (!any) return KVL_OK;
    float *vertical, *slash;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n, &vertical));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n, &slash));
    KVL_TRY(mi_scores(ctx, step, q, vertical, slash, n));
    if (whole) KVL_TRY(mi_ranges_open(ctx, step, &r));
    for (int32_t h = 0; h < n_heads; h++) {
        struct mi_lines l;
        size_t at = (size_t)h * (size_t)n;
        if (pattern[h].kind != MI_VERTICAL_SLASH) continue;
        KVL_TRY(mi_choose(ctx, vertical + at, slash + at, n, &pattern[h], &l));
        if (whole)
            KVL_TRY(mi_mask_whole(step, h, &l, &r, mask));
        else
            KVL_TRY(kvl_mask_vertical_slash(mask, h, l.vertical, l.n_vertical, l.slash, l.n_slash));
    }
    return KVL_OK;
}

#include "minference_search.h"

static int mi_prefill_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    const struct mi_opts *o = ctx->opts;
    const struct mi_state *state = ctx->state;
    const struct mi_head *pattern = state->head + (size_t)step->layer * (size_t)ctx->shape->n_heads;
    if (o->search) return mi_search(ctx, step, q);
    if (ctx->budget_tok >= ctx->context_tok) return KVL_OK;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        if (pattern[h].kind == MI_A_SHAPE)
            KVL_TRY(kvl_mask_window(mask, h, pattern[h].a, pattern[h].b));
    KVL_TRY(mi_mask_lines(ctx, step, q, pattern, mask));
    return mi_mask_blocks(ctx, step, q, pattern, mask);
}

static int mi_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct mi_opts *o = ctx->opts;
    const struct mi_state *state = ctx->state;
    bool lines = false;
    if (o->search) return mi_report_search(ctx, r);
    if (ctx->budget_tok >= ctx->context_tok) return KVL_OK; /* everything was read */
    for (size_t i = 0; i < mi_n_heads(ctx->shape); i++)
        lines = lines || state->head[i].kind == MI_VERTICAL_SLASH;
    if (!lines) return KVL_OK;
    if (o->slash == MI_DIAGONALS_ALONE)
        return kvl_report_note(r, "vertical_slash reads the diagonals themselves, where the "
                                  "published kernel reads blocks of 64 x 64 (slash=blocks)");
    return kvl_report_note(r, "vertical_slash reads whole blocks of 64 x 64 of the diagonals, as "
                              "the published kernel does: more than the budget");
}

static const struct kvl_policy minference = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "minference",
    .title = "MInference",
    .paper = "Jiang et al., NeurIPS 2024, arXiv 2407.02490",
    .help = "prefills a few columns and diagonals of attention per head, decodes densely",
    .follows =
        "The code of the authors: vertical-slash by the last 64 queries with 30 forced columns and "
        "100 forced diagonals, A-shape, and block-sparse by mean-pooled queries and keys; all "
        "heads vertical-slash 1000/6096, as in the shipped tables. Options: one kind for all heads "
        "(pattern), the kind of each head from a table (table=FILE, made by kvlab tables "
        "minference), the kernel's blocks of 64 x 64 for each diagonal (slash=blocks). Decoding is "
        "dense.",
    .deviations =
        "The question comes after the prefill, densely, so that the context's last queries choose "
        "(official: the prompt's, the question's among them). Of a diagonal its own pairs are "
        "read, where the published kernel reads blocks of 64 x 64 (slash=blocks); a note of the "
        "report says which. Contexts beyond 32768 tokens come in chunks, of which the last queries "
        "choose for the chunk; a block of queries always reads its own block; sizes come from the "
        "budget where one is given; the search compares captured weight at an equal number of "
        "keys, not outputs, or weight, at an equal cost of a kernel. Left out: tri-shape, dilated "
        "forms, FlexPrefill, XAttention, other kinds of cache while decoding.",
    .cost =
        "Per chunk and layer of the prefill 64 dense queries and two top-k of n per vertical-slash "
        "head; block-sparse: (n / 64)^2 products of means; then B keys per query instead of n / 2. "
        "Per step nothing: decoding reads everything, 2 n d values per kv head. No memory.",
    .version = 1,
    .prefill = KVL_PREFILL_OWN,
    .opts = mi_options,
    .opts_size = sizeof(struct mi_opts),
    .min_budget = mi_min_budget,
    .plan = mi_plan,
    .open = mi_open,
    .prefill_mask = mi_prefill_mask,
    .report = mi_report,
};

KVL_POLICY_EXPORT(minference)
