/* minference - a prefill that computes a few columns and diagonals of attention, per head.
 *
 * Jiang et al.: MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic Sparse
 * Attention, NeurIPS 2024 (arXiv 2407.02490), section 3 and Algorithms 1 to 3; and its code.
 *
 * Every query head has one of three kinds of pattern, of two sizes:
 *   vertical_slash v s   Algorithm 2: P = softmax of the last last_q queries over all keys, causal.  A column
 *                        scores the sum of P in it, a diagonal (distance of a query to a key) the sum of P
 *                        along it.  The first 30 columns and the nearest 100 diagonals (s, where that is
 *                        less) are forced; the v best columns and the s best diagonals are read by all
 *                        queries.  Code: v is at least 30, s at least 50
 *   a_shape sink local   the first and the latest keys
 *   block_sparse k       Algorithm 3: blocks of 64: the mean query of a block times the mean key of each; the
 *                        k best blocks of keys, its own among them
 *
 * Budget B: a query of the prefill reads at most B keys, itself included (slash=blocks: more): the sizes of a
 * kind keep their proportion and sum to B.  Without a budget they are the published ones.
 *
 * search=true is Algorithm 1, offline: the prefill is dense, and every head is asked how much of the weight
 * of 16 queries each kind of size B would have captured. */
#include "kvl/policy.h"
#include "parts/head_file.h"
#include "parts/mask_search.h"

#include <math.h>

enum { MI_VERTICAL_SLASH = 0, MI_A_SHAPE, MI_BLOCK_SPARSE, MI_KINDS };
enum { MI_BLOCK = 64, MI_CHUNK = 32768, MI_COLUMNS = 30, MI_DIAGONALS = 100, MI_SEARCHED = 16 };

struct mi_opts {
    int32_t pattern, slash, vertical_size, slash_size, sink, local, block_topk, last_q, chunk;
    bool search;
    char table[KVL_OPT_STR_SIZE], table_sum[KVL_OPT_STR_SIZE];
};

static const char *const mi_kinds[] = { "vertical_slash", "a_shape", "block_sparse", NULL };
static const int32_t mi_n_sizes[] = { 2, 2, 1 };
enum { MI_DIAGONALS_ALONE = 0, MI_WHOLE_BLOCKS };
static const char *const mi_slashes[] = { "diagonals", "blocks", NULL };

static const struct kvl_opt mi_options[] = {
    KVL_ROW_ENUM(mi_opts, pattern, "vertical_slash", mi_kinds,
                 "kind of every head without a table (shipped tables: vertical_slash)"),
    KVL_ROW_ENUM(mi_opts, slash, "diagonals", mi_slashes,
                 "of a diagonal: its pairs (paper), or blocks of 64 x 64 (kernel, beyond budget)"),
    KVL_ROW_INT(mi_opts, vertical_size, "auto", MI_COLUMNS, 1 << 30,
                "columns; auto = 1000/7096 of the budget, 1000 without (shipped: 1000)"),
    KVL_ROW_INT(mi_opts, slash_size, "auto", 50, 1 << 30,
                "diagonals; auto = budget - vertical_size, 6096 without (shipped: 6096)"),
    KVL_ROW_INT(mi_opts, sink, "auto", 1, 1 << 30,
                "first keys of an a_shape; auto = budget / 9, 100 without (shipped: 100)"),
    KVL_ROW_INT(mi_opts, local, "auto", 1, 1 << 30,
                "latest keys of an a_shape; auto = budget - sink, 800 without (shipped: 800)"),
    KVL_ROW_INT(mi_opts, block_topk, "auto", 1, 1 << 30,
                "blocks of 64 keys for 64 queries; auto = budget / 64, 100 without (shipped: 100)"),
    KVL_ROW_INT(mi_opts, last_q, "64", 1, 1024,
                "last queries of a chunk that score columns and diagonals (paper: 64)"),
    KVL_ROW_INT(mi_opts, chunk, "auto", 1, 1 << 30,
                "tokens prefilled together, a multiple of 64 or all; auto = all, 32768 at most"),
    KVL_ROW_STR(mi_opts, table, "",
                "file of lines \"layer head kind size [size]\", one for every head: kvlab tables"),
    KVL_ROW_STR(mi_opts, table_sum, "", "checksum of the table, written when it is read"),
    KVL_ROW_BOOL(mi_opts, search, "false",
                 "prefill densely, and report what weight each kind would capture"),
    { 0 },
};

/* The state: what the search found, then the patterns of all heads, [n_layers][n_heads]. */
static struct kvl_head_pattern *mi_layer(const struct kvl_pctx *ctx, int32_t layer)
{
    char *patterns = (char *)ctx->state + kvl_mask_captured_bytes(ctx->shape, MI_KINDS);
    return (struct kvl_head_pattern *)(void *)patterns + layer * ctx->shape->n_heads;
}

static int32_t mi_min_budget(const struct kvl_shape *shape, const void *opts)
{
    static const int32_t least[MI_KINDS] = { MI_COLUMNS + 50, 2, MI_BLOCK };
    (void)shape;
    return least[((const struct mi_opts *)opts)->pattern];
}

/* What of two sizes of a kind is KVL_AUTO: in the proportion a : b, which are the sizes without a budget. */
static void mi_sizes(int32_t budget, int32_t kind, int32_t a, int32_t b, int32_t *x, int32_t *y)
{
    bool slash = kind == MI_VERTICAL_SLASH, blocks = kind == MI_BLOCK_SPARSE;
    if (blocks && *x == KVL_AUTO) *x = budget > 0 ? KVL_MAX(1, budget / MI_BLOCK) : a;
    if (blocks) return;
    kvl_plan_pair(budget > 0 ? budget : a + b, a, b, slash ? MI_COLUMNS : 1, x, y);
    if (slash) *y = KVL_MAX(50, *y);
}

static struct kvl_head_pattern mi_of_kind(const struct mi_opts *o, int32_t kind)
{
    switch (kind) {
    case MI_A_SHAPE: return (struct kvl_head_pattern){ kind, { o->sink, o->local } };
    case MI_BLOCK_SPARSE: return (struct kvl_head_pattern){ kind, { o->block_topk, 0 } };
    default: return (struct kvl_head_pattern){ kind, { o->vertical_size, o->slash_size } };
    }
}

/* Patterns of all heads, [n_layers][n_heads]; those of a table at the budget's sum. */
static int mi_open(struct kvl_pctx *ctx)
{
    struct mi_opts o = *(const struct mi_opts *)ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    struct kvl_head_pattern *p = mi_layer(ctx, 0), *end = mi_layer(ctx, sh->n_layers);
    for (struct kvl_head_pattern *i = p; i < end; i++) *i = mi_of_kind(&o, o.pattern);
    if (!o.table[0]) return KVL_OK;
    KVL_TRY(kvl_head_patterns(o.table, sh, mi_kinds, mi_n_sizes, o.table_sum, ctx->err, p));
    for (; ctx->budget_tok > 0 && p < end; p++) {
        int32_t a = p->size[0], b = p->size[1];
        p->size[0] = KVL_AUTO;
        p->size[1] = b > 0 ? KVL_AUTO : 0;
        mi_sizes(ctx->budget_tok, p->kind, a, b, &p->size[0], &p->size[1]);
    }
    return KVL_OK;
}

static int mi_plan(struct kvl_plan *plan)
{
    struct mi_opts *o = plan->opts;
    const struct kvl_shape *sh = plan->shape;
    if (o->search) KVL_TRY(kvl_plan_needs_budget(plan));
    mi_sizes(plan->budget_tok, MI_VERTICAL_SLASH, 1000, 6096, &o->vertical_size, &o->slash_size);
    mi_sizes(plan->budget_tok, MI_A_SHAPE, 100, 800, &o->sink, &o->local);
    mi_sizes(plan->budget_tok, MI_BLOCK_SPARSE, 100, 0, &o->block_topk, NULL);
    if (o->chunk == KVL_AUTO) o->chunk = KVL_MIN(KVL_MAX(1, plan->context_tok), MI_CHUNK);
    if (o->chunk < plan->context_tok && o->chunk % MI_BLOCK)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "chunk=%d; give a multiple of %d, or all %d tokens of the context",
                        o->chunk, MI_BLOCK, plan->context_tok);
    plan->prefill_chunk_tok = o->chunk;
    plan->prefill_layerwise = true;
    plan->state_bytes = kvl_mask_captured_bytes(sh, MI_KINDS) +
                        (size_t)(sh->n_layers * sh->n_heads) * sizeof(struct kvl_head_pattern);
    if (!o->table[0]) return KVL_OK;
    return kvl_head_patterns(o->table, sh, mi_kinds, mi_n_sizes, o->table_sum, plan->err, NULL);
}

/* ---- Algorithm 2: columns and diagonals -------------------------------------------------------- */

/* *index [k], ascending: the k best of n, the first `forced` among them before any other. */
static int mi_best(const struct kvl_pctx *ctx, float *score, int32_t n, int32_t forced, int32_t k,
                   int32_t **index)
{
    for (int32_t i = 0; i < KVL_MIN(forced, n); i++) score[i] = INFINITY;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k, index));
    return kvl_topk(ctx, score, 1, n, k, *index);
}

static int mi_mask_lines(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, const struct kvl_head_pattern *p,
                         struct kvl_prefill_mask *mask)
{
    const struct mi_opts *o = ctx->opts;
    int32_t n = step->pos + step->n_tok, n_heads = ctx->shape->n_heads, *column, *diagonal;
    float *vertical = NULL, *slash = NULL;
    for (int32_t h = 0; h < n_heads; h++) {
        int32_t v = KVL_MIN(n, KVL_MAX(MI_COLUMNS, p[h].size[0]));
        int32_t s = KVL_MIN(n, KVL_MAX(50, p[h].size[1]));
        size_t at = (size_t)h * (size_t)n;
        if (p[h].kind != MI_VERTICAL_SLASH) continue;
        if (!vertical) KVL_TRY(kvl_mask_sums(ctx, step, q, o->last_q, &vertical, &slash));
        KVL_TRY(mi_best(ctx, vertical + at, n, MI_COLUMNS, v, &column));
        KVL_TRY(mi_best(ctx, slash + at, n, MI_DIAGONALS, s, &diagonal));
        bool whole = o->slash == MI_WHOLE_BLOCKS;
        KVL_TRY(kvl_mask_vertical_slash(mask, h, column, v, diagonal, whole ? 0 : s));
        if (whole) KVL_TRY(kvl_mask_slash_blocks(mask, h, MI_BLOCK, diagonal, s));
    }
    return KVL_OK;
}

/* ---- Algorithm 3: blocks ------------------------------------------------------------------------ */

/* The k best blocks for every block of queries of a head, its own among them; key: mean keys. */
static int mi_mask_head_blocks(const struct kvl_pctx *ctx, const struct kvl_step *step,
                               const struct kvl_query *q, int32_t head, int32_t k, const float *key,
                               struct kvl_prefill_mask *mask)
{
    size_t dim = (size_t)ctx->shape->head_dim;
    int32_t n_blocks = (step->n_tok + MI_BLOCK - 1) / MI_BLOCK, first = step->pos / MI_BLOCK;
    int32_t *off, *block;
    float *query, *score;
    KVL_TRY(kvl_query_means(ctx, step, q, head, MI_BLOCK, &query));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(first + n_blocks), &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_blocks + 1, &off));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_blocks * (size_t)KVL_MIN(k, first + n_blocks), &block));
    for (int32_t i = off[0] = 0; i < n_blocks; i++, query += dim) {
        int32_t own = first + i, n = KVL_MIN(k, own + 1);
        for (int32_t j = 0; j < own; j++) {
            score[j] = 0;
            for (size_t c = 0; c < dim; c++) score[j] += query[c] * key[(size_t)j * dim + c];
        }
        score[own] = INFINITY;
        KVL_TRY(kvl_topk(ctx, score, 1, own + 1, n, block + off[i]));
        off[i + 1] = off[i] + n;
    }
    return kvl_mask_blocks(mask, head, MI_BLOCK, off, block, n_blocks);
}

static int mi_mask_blocks(const struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, const struct kvl_head_pattern *p,
                          struct kvl_prefill_mask *mask)
{
    int32_t n = step->pos + step->n_tok, pooled = -1;
    float *key = NULL;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        int32_t kv_head = h / ctx->shape->group;
        if (p[h].kind != MI_BLOCK_SPARSE) continue;
        if (pooled != kv_head) KVL_TRY(kvl_key_means(ctx, step->layer, kv_head, n, MI_BLOCK, &key));
        pooled = kv_head;
        KVL_TRY(mi_mask_head_blocks(ctx, step, q, h, p[h].size[0], key, mask));
    }
    return KVL_OK;
}

static int mi_mask(const struct kvl_pctx *ctx, const struct kvl_step *step,
                   const struct kvl_query *q, const struct kvl_head_pattern *p,
                   struct kvl_prefill_mask *mask)
{
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        if (p[h].kind == MI_A_SHAPE) KVL_TRY(kvl_mask_window(mask, h, p[h].size[0], p[h].size[1]));
    KVL_TRY(mi_mask_lines(ctx, step, q, p, mask));
    return mi_mask_blocks(ctx, step, q, p, mask);
}

/* Algorithm 1: all heads of one kind. */
static int mi_say(const struct kvl_pctx *ctx, const struct kvl_step *step,
                  const struct kvl_query *q, int32_t kind, struct kvl_prefill_mask *mask)
{
    struct kvl_head_pattern *p = mi_layer(ctx, step->layer);
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) p[h] = mi_of_kind(ctx->opts, kind);
    return mi_mask(ctx, step, q, p, mask);
}

static const struct kvl_mask_search mi_search = { mi_kinds, MI_KINDS, MI_SEARCHED, mi_say };

static int mi_prefill_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    if (((const struct mi_opts *)ctx->opts)->search)
        return kvl_mask_search(ctx, step, q, mask, &mi_search, ctx->state);
    if (ctx->budget_tok >= ctx->context_tok) return KVL_OK;
    return mi_mask(ctx, step, q, mi_layer(ctx, step->layer), mask);
}

static int mi_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct mi_opts *o = ctx->opts;
    bool lines = false;
    if (o->search) return kvl_mask_search_report(ctx, r, &mi_search, ctx->state);
    if (ctx->budget_tok >= ctx->context_tok) return KVL_OK; /* everything was read */
    for (int32_t i = 0; i < ctx->shape->n_layers * ctx->shape->n_heads; i++)
        lines = lines || mi_layer(ctx, 0)[i].kind == MI_VERTICAL_SLASH;
    if (!lines) return KVL_OK;
    return kvl_report_note(r,
                           o->slash == MI_DIAGONALS_ALONE
                               ? "vertical_slash reads the diagonals themselves, where the "
                                 "published kernel reads blocks of 64 x 64 (slash=blocks)"
                               : "vertical_slash reads whole blocks of 64 x 64 of the diagonals, "
                                 "as the published kernel does: more than the budget");
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
        "heads vertical-slash 1000/6096, as in the shipped tables. pattern gives all heads another "
        "kind, table=FILE each its own. Decoding is dense.",
    .deviations =
        "The question comes after the prefill, densely, so that the context's last queries choose "
        "(official: the prompt's, the question's among them). Of a diagonal its own pairs are "
        "read, where the published kernel reads blocks of 64 x 64 (slash=blocks). Contexts beyond "
        "32768 tokens come in chunks, of which the last queries "
        "choose for the chunk; a block of queries always reads its own block; the search compares "
        "captured weight at an equal number of "
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
