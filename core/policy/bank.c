/* The context bank: lists of filter layers, what loading them costs, and the load. */
#include "kvl/bank.h"

#include <float.h>
#include <math.h>

static float *bank_tag(const struct kvl_bank_list *list, int32_t t)
{
    return list->tag + (size_t)t * list->stride;
}

/* The list at hand, n_old long and tagged `tag`, cut to its best. */
static int bank_keep_old(const struct kvl_pctx *ctx, struct kvl_bank_list *list, int32_t tag,
                         int32_t n_old)
{
    list->n = KVL_MIN(list->n, n_old);
    for (int32_t t = 0; t < ctx->context_tok; t++) {
        bool old = (int32_t)*bank_tag(list, t) == tag;
        list->score[t] = old ? KVL_MAX(list->score[t], -FLT_MAX) : -INFINITY;
    }
    KVL_TRY(kvl_topk(ctx, list->score, 1, ctx->context_tok, list->n, list->item));
    return kvl_look(ctx);
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
    KVL_TRY(kvl_look(ctx)); /* the host reads the list and its tags */
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
