/* h2o_sim - H2O as its accuracy code simulates it: everything is kept, a mask says what is read.
 *
 * Zhang et al.: H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
 * Models, NeurIPS 2023 (arXiv 2306.14048).  Two of the five behaviours of the official code, the
 * others are variants of h2o.  Score of a token: the attention that it has received so far.
 *   variant=sim      generation by masks (utils_hh).  After a step that makes T tokens, T > heavy +
 *                    recent, the next step reads the `recent` latest tokens, itself among them, and
 *                    the `heavy` best-scored of 0 .. T - recent - 1.  Faithful in its quirks:
 *                      - token T - recent is in neither set: every token is masked for one step when
 *                        it leaves the window, and can be chosen in the next, which real dropping
 *                        cannot do
 *                      - scores below T - recent that are not chosen become zero, so that a masked
 *                        token is as good as gone unless fewer than `heavy` scores are left
 *                      - a step reads heavy + recent tokens with itself, h2o one more; only the
 *                        step after T = heavy + recent, still without a mask, reads one more too
 *                    recent=0 (there: nothing is ever zeroed, its issue 33) is refused
 *   variant=lm_eval  the accuracy figures (utils_lm_eval): one static set, the `heavy` columns of
 *                    largest sum, and a band of `recent` + 1 tokens that ends with the query.
 *                    The original sums over the *whole* text, queries of the future included; here
 *                    the sums are those of the context, since no later query exists yet.  Nor is the
 *                    context itself masked.  Its causal form is commented out there, and left out
 * Budget B, in tokens: sim heavy + recent = B, lm_eval heavy + recent + 1 = B, halved.
 */
#include "kvl/policy.h"

#include <string.h>

enum { H2O_SIM_MASK = 0, H2O_SIM_LM_EVAL = 1 };
enum { H2O_SIM_MAX_TOKENS = 1 << 28 }; /* sums of a few are in range */

struct h2o_sim_opts {
    int32_t heavy, recent, variant, reduce;
    int32_t table; /* not an option: rows of a score per query head and the mark of the chosen */
};

static const char *const h2o_sim_variants[] = { "sim", "lm_eval", NULL };
static const char *const h2o_sim_reduce_names[] = { "mean", "max", "first", NULL };
static const enum kvl_reduce h2o_sim_reduces[] = { KVL_REDUCE_MEAN, KVL_REDUCE_MAX,
                                                   KVL_REDUCE_FIRST };

static const struct kvl_opt h2o_sim_options[] = {
    KVL_ROW_INT(h2o_sim_opts, heavy, "auto", 0, H2O_SIM_MAX_TOKENS,
                "tokens read by score; auto = half of the budget (paper: half)"),
    KVL_ROW_INT(h2o_sim_opts, recent, "auto", 0, H2O_SIM_MAX_TOKENS,
                "latest tokens that are read; auto = what heavy leaves of the budget"),
    KVL_ROW_ENUM(h2o_sim_opts, variant, "sim", h2o_sim_variants,
                 "sim: masks of the generation code; lm_eval: the static set of the accuracy code"),
    KVL_ROW_ENUM(h2o_sim_opts, reduce, "mean", h2o_sim_reduce_names,
                 "scores of the query heads of a kv head (official: one query head per kv head)"),
    { 0 },
};

/* The query itself, where it comes on top of heavy and recent tokens. */
static int32_t h2o_sim_self(const struct h2o_sim_opts *o)
{
    return o->variant == H2O_SIM_LM_EVAL;
}

static int32_t h2o_sim_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct h2o_sim_opts *o = opts;
    (void)shape;
    if (o->heavy != KVL_AUTO && o->recent != KVL_AUTO) return 1;
    return h2o_sim_self(o) + 1 + KVL_MAX(1, KVL_MAX(o->heavy, o->recent));
}

static int h2o_sim_plan(struct kvl_plan *plan)
{
    struct h2o_sim_opts *o = plan->opts;
    int32_t room = plan->budget_tok - h2o_sim_self(o);
    if (o->heavy == KVL_AUTO || o->recent == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->heavy == KVL_AUTO) o->heavy = o->recent == KVL_AUTO ? room / 2 : room - o->recent;
    if (o->recent == KVL_AUTO) o->recent = room - o->heavy;
    if (o->variant == H2O_SIM_MASK && o->recent == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "variant=sim with recent=0; give 1 or more");
    KVL_TRY(kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = 1,
                           .row_elems = plan->shape->group + 1));
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0);
}

/* Rows of one kv head: [n][group scores, mark].  They are read in place, since no operator takes or
 * adds by index. */
static float *h2o_sim_rows(const struct kvl_rows *rows, int32_t kv_head)
{
    return kvl_table_row_out(rows, kv_head, 0);
}

/* Scores of n tokens of every kv head, reduced over its query heads: the first ones, or those of item [n_kv_heads][n].  And
 * the k best by them, *best [n_kv_heads][k] behind *score [n_kv_heads][n] in one piece: of all heads at once, so that the
 * host waits once. */
static int h2o_sim_best(const struct kvl_pctx *ctx, const struct kvl_rows *table,
                        const int32_t *item, int32_t n, int32_t k, float **score, int32_t **best)
{
    const struct h2o_sim_opts *o = ctx->opts;
    size_t group = (size_t)ctx->shape->group, n_kv = (size_t)ctx->shape->n_kv_heads;
    size_t count = (size_t)n, words = n_kv * (count + (size_t)k);
    float *each;
    KVL_TRY(kvl_scratch_get(ctx, n_kv * group * count, &each));
    KVL_TRY(kvl_scratch_get(ctx, words, score));
    *best = (int32_t *)(void *)(*score + n_kv * count);
    for (size_t h = 0; h < n_kv; h++) {
        const float *rows = h2o_sim_rows(table, (int32_t)h);
        for (size_t i = 0; i < count; i++) {
            size_t at = item ? (size_t)item[h * count + i] : i;
            for (size_t g = 0; g < group; g++)
                each[(h * group + g) * count + i] = rows[at * (group + 1) + g];
        }
    }
    KVL_TRY(kvl_group_scores(ctx, each, n, h2o_sim_reduces[o->reduce], *score));
    KVL_TRY(kvl_topk(ctx, *score, ctx->shape->n_kv_heads, n, k, *best));
    return kvl_look_at(ctx, *score, words, sizeof **score);
}

/* Marks the k best of the first n tokens and no other of the first n_tok; scores of the unmarked among
 * the first n become zero where the variant says so. */
static void h2o_sim_choose(const struct kvl_pctx *ctx, const int32_t *best, float *rows, int32_t n,
                           int32_t k, int32_t n_tok)
{
    const struct h2o_sim_opts *o = ctx->opts;
    size_t group = (size_t)ctx->shape->group;
    for (int32_t i = 0, j = 0; i < n_tok; i++) {
        float *row = rows + (size_t)i * (group + 1);
        bool chosen = j < k && best[j] == i, forgotten = o->variant == H2O_SIM_MASK && i < n;
        row[group] = chosen ? 1.0f : 0.0f;
        j += chosen;
        if (!chosen && forgotten) memset(row, 0, group * sizeof *row);
    }
}

/* LlamaAttention_heavy_hitter.forward(): the masks of the step after this one, or after the context. */
static int h2o_sim_masks(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_rows *table)
{
    const struct h2o_sim_opts *o = ctx->opts;
    bool band = o->variant == H2O_SIM_MASK;
    int32_t n_tok = step->pos + 1, n = band ? n_tok - o->recent : n_tok;
    int32_t k = KVL_MIN(o->heavy, n), *best;
    float *score;
    if (band && n_tok <= o->heavy + o->recent) return KVL_OK;
    KVL_TRY(h2o_sim_best(ctx, table, NULL, n, k, &score, &best));
    struct kvl_scored scored = {
        .scope = KVL_SCOPE_KV_HEAD, .unit_tok = 1, .n = n, .score = score
    };
    if (kvl_tap_listens(ctx)) KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, best += k)
        h2o_sim_choose(ctx, best, h2o_sim_rows(table, h), n, k, n_tok);
    return KVL_OK;
}

static int h2o_sim_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct h2o_sim_opts *o = ctx->opts;
    struct kvl_rows table;
    const float *sums;
    int32_t n_tok, group = ctx->shape->group;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &sums, &n_tok));
    KVL_TRY(kvl_table_all(ctx, o->table, layer, &table));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++, sums += n_tok)
        for (int32_t i = 0; i < n_tok; i++)
            h2o_sim_rows(&table, h / group)[(size_t)i * (size_t)(group + 1) + (size_t)(h % group)] =
                sums[i];
    struct kvl_step last = { .layer = layer, .index = -1, .pos = n_tok - 1, .replay = true };
    return h2o_sim_masks(ctx, &last, &table);
}

/* The same where the step before took the scores of all that it did not choose: only what it chose has one, and the
 * token that leaves the window, which are the n items of a head, item [n_kv_heads][n], and all but one of them are chosen
 * now.  Not *done where scores of 0 are: there the first tokens count, whichever they are. */
static int h2o_sim_again(const struct kvl_pctx *ctx, const struct kvl_rows *table,
                         const int32_t *item, int32_t n, bool *done)
{
    int32_t n_kv = ctx->shape->n_kv_heads, *best, *left;
    size_t group = (size_t)ctx->shape->group;
    float *score;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv, &left));
    KVL_TRY(h2o_sim_best(ctx, table, item, n, n - 1, &score, &best));
    *done = true;
    for (int32_t h = 0; h < n_kv; h++, best += n - 1, score += n) {
        for (left[h] = 0; left[h] < n - 1 && best[left[h]] == left[h];) left[h]++;
        for (int32_t i = 0; i < n; i++) *done = *done && (i == left[h] || score[i] > 0);
    }
    for (int32_t h = 0; *done && h < n_kv; h++, item += n) {
        float *rows = h2o_sim_rows(table, h);
        for (int32_t i = 0; i < n; i++)
            rows[(size_t)item[i] * (group + 1) + group] = i == left[h] ? 0.0f : 1.0f;
        memset(rows + (size_t)item[left[h]] * (group + 1), 0, group * sizeof *rows);
    }
    return KVL_OK;
}

/* What the token at `pos` reads, ascending, into scratch. */
static int h2o_sim_list(const struct kvl_pctx *ctx, const float *rows, int32_t pos, int32_t **list,
                        int32_t *n)
{
    const struct h2o_sim_opts *o = ctx->opts;
    size_t group = (size_t)ctx->shape->group;
    bool masked = o->variant == H2O_SIM_LM_EVAL || pos > o->heavy + o->recent;
    int32_t first = pos + 1 - o->recent - h2o_sim_self(o);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)pos + 1, list));
    int32_t m = 0, i = 0;
    for (; masked && i < KVL_MIN(first, pos); i++) {
        (*list)[m] = i;
        m += rows[(size_t)i * (group + 1) + group] > 0;
    }
    for (i = masked ? KVL_MAX(first, 0) : 0; i <= pos; i++) (*list)[m++] = i;
    *n = m;
    return KVL_OK;
}

static int h2o_sim_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct h2o_sim_opts *o = ctx->opts;
    struct kvl_rows table;
    int32_t *list, n;
    (void)q;
    KVL_TRY(kvl_table_all(ctx, o->table, step->layer,
                          &table)); /* once: every call is counted as read */
    /* At the table, which the host alone writes: there is nothing to wait for. */
    KVL_TRY(kvl_look_at(ctx, table.part[0].data, 0, 1));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(h2o_sim_list(ctx, h2o_sim_rows(&table, h), step->pos, &list, &n));
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, list, n));
    }
    return KVL_OK;
}

static int h2o_sim_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const float *const *probs, const int32_t *n, const float *lse)
{
    const struct h2o_sim_opts *o = ctx->opts;
    size_t group = (size_t)ctx->shape->group;
    bool done = step->pos > o->heavy + o->recent && !kvl_tap_listens(ctx);
    int32_t leaves = step->pos - o->recent;
    int32_t *list, *item, n_read, n_items = o->heavy + 1;
    struct kvl_rows table;
    (void)n;
    (void)lse;
    if (o->variant == H2O_SIM_LM_EVAL) return KVL_OK;
    KVL_TRY(kvl_table_all(ctx, o->table, step->layer, &table));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(ctx->shape->n_kv_heads * n_items), &item));
    KVL_TRY(kvl_look(ctx)); /* at the weights */
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *rows = h2o_sim_rows(&table, h);
        KVL_TRY(h2o_sim_list(ctx, rows, step->pos, &list, &n_read));
        for (size_t g = 0; g < group; g++)
            for (int32_t i = 0; i < n_read; i++)
                rows[(size_t)list[i] * (group + 1) + g] += probs[(size_t)h * group + g][i];
        done = done && n_read == o->heavy + o->recent &&
               (o->heavy == 0 || list[o->heavy - 1] < leaves);
        if (!done) continue;
        list[o->heavy] = leaves; /* its place is that of the window */
        memcpy(item + h * n_items, list, (size_t)n_items * sizeof *list);
    }
    if (done) KVL_TRY(h2o_sim_again(ctx, &table, item, n_items, &done));
    return done ? KVL_OK : h2o_sim_masks(ctx, step, &table);
}

static const struct kvl_policy h2o_sim = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "h2o_sim",
    .title = "H2O (mask simulation)",
    .paper = "Zhang et al., NeurIPS 2023, arXiv 2306.14048",
    .help = "keeps all, reads what H2O's own accuracy code leaves unmasked",
    .follows =
        "The generation code by masks with its quirks: a token is masked for one step when it "
        "leaves the window, and may come back. variant=lm_eval is the static set of the "
        "accuracy figures; its causal form, commented out in that code, is left out.",
    .deviations =
        "Budgets are tokens, not shares of the prompt. lm_eval takes the sums of the context, "
        "since the future queries that the original sums over do not exist while decoding, and "
        "leaves the context itself unmasked. A group of query heads shares a set. 32-bit floats.",
    .cost =
        "Per step and layer n floats for each of H heads are read, and a top-k of n per kv head is "
        "taken; it saves no memory and is not meant to. Once the second pass of column sums, "
        "shared. Memory: a float per position and query head, and one per position and kv head.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ASYNC,
    .opts = h2o_sim_options,
    .opts_size = sizeof(struct h2o_sim_opts),
    .min_budget = h2o_sim_min_budget,
    .plan = h2o_sim_plan,
    .prefilled = h2o_sim_prefilled,
    .select = h2o_sim_select,
    .observe = h2o_sim_observe,
};

KVL_POLICY_EXPORT(h2o_sim)
