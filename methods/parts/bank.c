/* Lists of filter layers: scores of the context, the context bank, what loading lists costs, and the load. */
#include "bank.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- what window queries gave ---------------------------------------------------------------------- */

/* Elements of a row: the step of the last list, and a column for each query of the window. */
static size_t bank_row(const struct kvl_bank_scores *s)
{
    return 1 + (size_t)s->window;
}

/* The column of a query: its position modulo the window, behind the step. */
static size_t bank_column(const struct kvl_bank_scores *s, int32_t pos)
{
    return 1 + (size_t)(pos % s->window);
}

/* Weights of the query at `pos`, [n_heads][context_tok], in the table of heads. */
static float *bank_heads(const struct kvl_pctx *ctx, const struct kvl_bank_scores *s, float *heads,
                         int32_t pos)
{
    int32_t slot = pos % s->window;
    return heads + (size_t)(slot * ctx->shape->n_heads) * (size_t)ctx->context_tok;
}

int kvl_plan_bank_scores(struct kvl_plan *plan, struct kvl_bank_scores *s, const uint8_t *layers)
{
    if (s->window < 0 || (s->logits && s->window > 0))
        return kvl_fail(plan->err, KVL_EPOLICY, "scores by %s of a window of %d queries, want %s",
                        s->logits ? "logits" : "weights", s->window, s->logits ? "0" : "0 or more");
    if (s->window > 0) {
        KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, s->window));
        /* In one piece, of as many tokens as there are: the context may be longer than was planned. */
        KVL_TRY(kvl_plan_table(plan, &s->heads, .unit = KVL_META_PAGE, .unit_tok = 1,
                               .row_elems = s->window * plan->shape->n_heads, .layers = layers,
                               .per_layer = true));
    }
    return kvl_plan_table(plan, &s->rows, .unit = KVL_META_PAGE, .unit_tok = 1,
                          .row_elems = 1 + s->window, .layers = layers, .per_layer = true);
}

int kvl_bank_window(const struct kvl_pctx *ctx, const struct kvl_bank_scores *s, int32_t layer)
{
    struct kvl_meta_view heads;
    if (s->window == 0) return KVL_OK;
    KVL_TRY(kvl_meta_from(ctx, s->heads, layer, 0, &heads));
    for (int32_t b = 0; b < KVL_MIN(s->window, ctx->context_tok); b++)
        KVL_TRY(kvl_obs_window_probs(ctx, layer, b,
                                     bank_heads(ctx, s, heads.base, ctx->context_tok - 1 - b),
                                     ctx->context_tok));
    return KVL_OK;
}

int32_t kvl_bank_in_window(const struct kvl_pctx *ctx, const struct kvl_bank_scores *s, int32_t pos)
{
    if (s->window == 0) return 0;
    return KVL_MAX(0, KVL_MIN(ctx->context_tok, ctx->context_tok - (pos + 1 - s->window)));
}

/* ---- scores ---------------------------------------------------------------------------------------- */

/* What makes weights of a head those of a softmax over the first n tokens alone; 0 where these have none. */
static float bank_among(const float *probs, int32_t n)
{
    double sum = 0;
    for (int32_t t = 0; t < n; t++) sum += (double)probs[t];
    return sum > (double)FLT_MIN ? (float)(1 / sum) : 0.0f;
}

/* With lse: exp of the largest logit of any head, but for a factor that all tokens share.  Else the largest
 * weight of any head among the first n_among tokens. */
static int bank_score_query(const struct kvl_pctx *ctx, const float *const *probs, const float *lse,
                            int32_t n_among, float *score)
{
    const float lift = 60.0f; /* keeps more of what would underflow */
    int32_t n_heads = ctx->shape->n_heads;
    float *factor, top = -INFINITY;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads, &factor));
    for (int32_t h = 0; lse && h < n_heads; h++) top = KVL_MAX(top, lse[h]);
    for (int32_t h = 0; h < n_heads; h++)
        factor[h] = lse ? expf(lse[h] - top + lift) : bank_among(probs[h], n_among);
    return ctx->ops->raise(&(struct kvl_raise_args){ .y = score,
                                                     .x = probs,
                                                     .factor = factor,
                                                     .n = (size_t)ctx->context_tok,
                                                     .n_rows = n_heads });
}

/* What the query at `pos` gives, into its column. */
static int bank_put(const struct kvl_pctx *ctx, const struct kvl_bank_list *list, int32_t pos)
{
    size_t column = bank_column(list->scores, pos), row = bank_row(list->scores);
    KVL_TRY(kvl_look(ctx));
    for (size_t t = 0; t < (size_t)ctx->context_tok; t++)
        list->row[t * row + column] = list->score[t];
    return KVL_OK;
}

/* The sum of the columns. */
static void bank_sum(const struct kvl_pctx *ctx, const struct kvl_bank_list *list)
{
    const struct kvl_bank_scores *s = list->scores;
    int32_t pos = list->step->pos, n_queries = KVL_MIN(s->window, pos + 1);
    for (int32_t t = 0; t < ctx->context_tok; t++) {
        const float *row = list->row + (size_t)t * bank_row(s);
        float sum = 0.0f;
        for (int32_t b = n_queries - 1; b >= 0; b--) {
            float given = row[bank_column(s, pos - b)];
            sum += s->halve ? ldexpf(given, -b) : given;
        }
        list->score[t] = sum;
    }
}

/* As long as the candidates change, what all queries of the window give changes with them: from their
 * weights, to which those of the current one are added. */
static int bank_renew(const struct kvl_pctx *ctx, const struct kvl_bank_list *list,
                      const float *const *probs)
{
    const struct kvl_bank_scores *s = list->scores;
    size_t n = (size_t)ctx->context_tok, n_heads = (size_t)ctx->shape->n_heads;
    int32_t pos = list->step->pos, n_queries = KVL_MIN(s->window, pos + 1);
    int32_t n_among = ctx->context_tok - kvl_bank_in_window(ctx, s, pos);
    void *items;
    struct kvl_meta_view heads;
    KVL_TRY(kvl_scratch_items(ctx, n_heads, sizeof(float *), &items));
    const float **of = items;
    KVL_TRY(kvl_meta_read(ctx, s->heads, list->step->layer, 0, &heads));
    KVL_TRY(kvl_meta_count(ctx, s->heads, (int64_t)(n_queries - 1) * (int64_t)(n_heads * n)));
    float *current = bank_heads(ctx, s, heads.base, pos);
    for (size_t h = 0; h < n_heads; h++) memcpy(current + h * n, probs[h], n * sizeof *current);
    for (int32_t b = 0; b < n_queries; b++) {
        const float *weights = bank_heads(ctx, s, heads.base, pos - b);
        for (size_t h = 0; h < n_heads; h++) of[h] = weights + h * n;
        KVL_TRY(bank_score_query(ctx, of, NULL, n_among, list->score));
        KVL_TRY(bank_put(ctx, list, pos - b));
    }
    return KVL_OK;
}

int kvl_bank_open(const struct kvl_pctx *ctx, struct kvl_bank_list *list)
{
    const struct kvl_bank_scores *s = list->scores;
    struct kvl_meta_view rows;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->context_tok, &list->score));
    KVL_TRY(kvl_meta_read(ctx, s->rows, list->step->layer, s->window > 0 ? ctx->context_tok : 0,
                          &rows));
    list->row = rows.base;
    return KVL_OK;
}

int kvl_bank_score(const struct kvl_pctx *ctx, const struct kvl_bank_list *list,
                   const float *const *probs, const float *lse)
{
    const struct kvl_bank_scores *s = list->scores;
    bool renew = list->step->pos < ctx->context_tok + s->window;
    size_t n_heads = (size_t)ctx->shape->n_heads;
    KVL_TRY(s->logits ? kvl_look_at(ctx, lse, n_heads, sizeof *lse) : kvl_look(ctx));
    if (s->window == 0)
        return bank_score_query(ctx, probs, s->logits ? lse : NULL, ctx->context_tok, list->score);
    if (renew) {
        KVL_TRY(bank_renew(ctx, list, probs));
    } else {
        KVL_TRY(bank_score_query(ctx, probs, NULL, ctx->context_tok, list->score));
        KVL_TRY(bank_put(ctx, list, list->step->pos));
    }
    bank_sum(ctx, list);
    return KVL_OK;
}

/* ---- the bank -------------------------------------------------------------------------------------- */

/* The step of the last list that had token t, + 1. */
static float *bank_tag(const struct kvl_bank_list *list, int32_t t)
{
    return list->row + (size_t)t * bank_row(list->scores);
}

/* The list at hand, n_old long and tagged `tag`, cut to its best. */
static int bank_keep_old(const struct kvl_pctx *ctx, struct kvl_bank_list *list, int32_t tag,
                         int32_t n_old)
{
    list->n = KVL_MIN(list->n, n_old);
    KVL_TRY(kvl_look_at(ctx, list->score, (size_t)ctx->context_tok, sizeof *list->score));
    for (int32_t t = 0; t < ctx->context_tok; t++) {
        bool old = (int32_t)*bank_tag(list, t) == tag;
        list->score[t] = old ? KVL_MAX(list->score[t], -FLT_MAX) : -INFINITY;
    }
    KVL_TRY(kvl_topk(ctx, list->score, 1, ctx->context_tok, list->n, list->item));
    return kvl_look_at(ctx, list->item, (size_t)list->n, sizeof *list->item);
}

/* The packed load of a new list.  `both`: its tokens that the one before had. */
static int bank_load(const struct kvl_pctx *ctx, struct kvl_bank *bank,
                     const struct kvl_bank_list *list, int32_t both)
{
    double lanes = (double)(list->role->last - list->role->first + 1) * ctx->shape->n_kv_heads;
    for (int32_t l = list->role->first; list->offload && l <= list->role->last; l++)
        for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
            KVL_TRY(kvl_prefetch(ctx, l, h, list->item, list->n));
    bank->n_loads++;
    bank->n_listed += list->n;
    bank->n_hits += both;
    bank->loaded_bytes += lanes * list->n * kvl_token_bytes(ctx);
    return KVL_OK;
}

int kvl_bank_take(const struct kvl_pctx *ctx, struct kvl_bank *bank, struct kvl_bank_list *list)
{
    int32_t layer = list->step->layer, tag = bank->list[layer].tag, n_old = bank->list[layer].n;
    int32_t both = 0, now = list->step->index + 1;
    KVL_TRY(kvl_look_at(ctx, list->item, (size_t)list->n, sizeof *list->item));
    for (int32_t i = 0; tag > 0 && i < list->n; i++)
        both += (int32_t)*bank_tag(list, list->item[i]) == tag;
    int32_t either = list->n + n_old - both;
    bank->n_filtered++;
    if (tag > 0 && both > list->overlap * either)
        KVL_TRY(bank_keep_old(ctx, list, tag, n_old));
    else
        KVL_TRY(bank_load(ctx, bank, list, both));
    bank->list[layer].tag = now;
    bank->list[layer].n = list->n;
    for (int32_t i = 0; i < list->n; i++) *bank_tag(list, list->item[i]) = (float)now;
    return KVL_OK;
}

int kvl_bank_report(struct kvl_report *r, const struct kvl_bank *bank, int64_t n_steps)
{
    double steps = (double)n_steps, loads = (double)bank->n_loads;
    KVL_TRY(kvl_report_num(r, "bank_calls_per_tok", loads / steps));
    KVL_TRY(kvl_report_num(r, "bank_bytes_per_tok", bank->loaded_bytes / steps));
    KVL_TRY(
        kvl_report_num(r, "bank_skipped_share", 1 - loads / (double)KVL_MAX(1, bank->n_filtered)));
    return kvl_report_num(r, "bank_hit_share",
                          (double)bank->n_hits / (double)KVL_MAX(1, bank->n_listed));
}
