/* infllm_sizes.h - the options of infllm, and its sizes from the budget B.  Included once, by infllm.c.
 *
 * The published sizes, 128 + 4096 + 16 x 128 + 128, are those of B = 6400:
 *     block_size        the largest power of two <= B / 48, within 4 .. 128
 *     n_init            B / 48, within 4 .. 128
 *     topk              floor(B / 3 / block_size), at least 1
 *     n_local           the rest; own prefill leaves exc_block_size - 1 more for blocks cut meanwhile
 *     repr_topk         block_size / 4, within 1 .. 4
 *     max_cached_block  2 topk
 *     exc_block_size    block_size with its own prefill (less where B is tight), else 1 */
#ifndef INFLLM_SIZES_H
#define INFLLM_SIZES_H

#include "kvl/policy.h"

enum { INFLLM_MASS, INFLLM_LOGIT };
enum { INFLLM_LRU, INFLLM_LRU_S };
enum { INFLLM_UNIFIED, INFLLM_ORIGINAL };

struct infllm_opts {
    int32_t n_init, n_local, block_size, topk, repr_topk, repr_score, exc_block_size;
    int32_t max_cached_block, cache, position;
    double score_decay;
    bool offload;
    /* not options: from plan */
    int32_t table;      /* per block and query head: its vector */
    int32_t stream_tok; /* tokens that come as a stream: the context under its own prefill */
};

static const char *const infllm_scores[] = { "mass", "logit", NULL };
static const char *const infllm_caches[] = { "lru", "lru_s", NULL };
static const char *const infllm_positions[] = { "unified", "original", NULL };

static const struct kvl_opt infllm_options[] = {
    KVL_ROW_INT(infllm_opts, n_init, "auto", 0, 1 << 20,
                "first tokens, always read (official: 128); auto = budget / 48, 4 to 128"),
    KVL_ROW_INT(infllm_opts, n_local, "auto", 2, 1 << 20,
                "window, current token included (official: 4096); auto = what the budget leaves"),
    KVL_ROW_INT(
        infllm_opts, block_size, "auto", 1, 4096,
        "tokens per block (official: 128); auto = power of two up to budget / 48, 4 to 128"),
    KVL_ROW_INT(infllm_opts, topk, "auto", 1, 65536,
                "blocks read per step (official: 16); auto = those of a third of the budget"),
    KVL_ROW_INT(infllm_opts, repr_topk, "auto", 1, 4096,
                "representative tokens per block and query head (official: 4); auto = block_size / "
                "4, 1 to 4"),
    KVL_ROW_INT(infllm_opts, exc_block_size, "auto", 1, 65536,
                "steps of its own prefill that share a selection (official: 512); auto = "
                "block_size; 1 with a shared prefill"),
    KVL_ROW_INT(infllm_opts, max_cached_block, "auto", 1, 1 << 20,
                "blocks on the device per layer (official: 32); auto = 2 topk"),
    KVL_ROW_ENUM(
        infllm_opts, repr_score, "mass", infllm_scores,
        "what makes a token representative: attention mass (official), mean logit (paper)"),
    KVL_ROW_ENUM(infllm_opts, cache, "lru", infllm_caches,
                 "which cached block goes: least recent, or least decayed attention"),
    KVL_ROW_FLOAT(infllm_opts, score_decay, "0.1", 0, 1,
                  "of cache=lru_s: what is left of a block's rank after a step"),
    KVL_ROW_ENUM(infllm_opts, position, "unified", infllm_positions,
                 "of far tokens: unified = all at distance n_local - 1 (paper), original"),
    KVL_ROW_BOOL(infllm_opts, offload, "false",
                 "the block cache is executed: blocks live on the host (published: always)"),
    { 0 },
};

/* ---- sizes ---------------------------------------------------------------------------------- */

/* Value of an option that the budget decides when it is not given. */
static int32_t infllm_or(int32_t given, int32_t otherwise)
{
    return given == KVL_AUTO ? otherwise : given;
}

static int32_t infllm_clamp(int32_t x, int32_t low, int32_t high)
{
    return KVL_MAX(low, KVL_MIN(x, high));
}

static int32_t infllm_block_size(int32_t budget)
{
    int32_t size = 4;
    while (size < 128 && 2 * size <= budget / 48) size *= 2;
    return size;
}

/* The longest remainder: a block that is cut behind the step, and what comes until the next selection. */
static int64_t infllm_rest(const struct infllm_opts *o)
{
    return (int64_t)o->block_size + o->exc_block_size - 1;
}

static int64_t infllm_attended(const struct infllm_opts *o)
{
    return o->n_init + o->n_local + (int64_t)o->topk * o->block_size + infllm_rest(o);
}

static int32_t infllm_min_budget(const struct kvl_shape *shape, const void *opts)
{
    struct infllm_opts o = *(const struct infllm_opts *)opts;
    (void)shape;
    if (o.n_local != KVL_AUTO && o.topk != KVL_AUTO) return 1;
    o.block_size = infllm_or(o.block_size, 4);
    o.n_init = infllm_or(o.n_init, 4);
    o.n_local = infllm_or(o.n_local, 2);
    o.topk = infllm_or(o.topk, 1);
    o.exc_block_size = 1;
    return (int32_t)KVL_MIN(infllm_attended(&o), (int64_t)INT32_MAX);
}

/* The other sizes are the least ones, or given. */
static void infllm_resolve_exc(const struct kvl_plan *plan, bool budgeted)
{
    struct infllm_opts *o = plan->opts, least = *o;
    if (plan->own_prefill && o->exc_block_size != KVL_AUTO) return;
    o->exc_block_size = plan->own_prefill ? o->block_size : 1;
    least.topk = infllm_or(o->topk, 1);
    least.exc_block_size = 1;
    int64_t left = plan->budget_tok - infllm_attended(&least);
    if (budgeted && left < o->exc_block_size - 1) o->exc_block_size = (int32_t)KVL_MAX(left, 0) + 1;
}

/* Sizes that are not given, from the budget; the window last, since it takes what is left. */
static int infllm_resolve(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    int32_t budget = plan->budget_tok;
    bool free_local = o->n_local == KVL_AUTO, free_topk = o->topk == KVL_AUTO;
    o->block_size = infllm_or(o->block_size, infllm_block_size(budget));
    o->n_init = infllm_or(o->n_init, infllm_clamp(budget / 48, 4, 128));
    o->n_local = infllm_or(o->n_local, 2);
    infllm_resolve_exc(plan, free_local || free_topk);
    if (free_topk) {
        o->topk = 0;
        int64_t room = budget - infllm_attended(o);
        if (free_local) room = KVL_MIN(room, budget / 3);
        o->topk = infllm_clamp((int32_t)KVL_MAX(room, 0) / o->block_size, 1, 65536);
    }
    int64_t left = budget - infllm_attended(o);
    if ((free_local || free_topk) && left < 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d; n_init=%d, n_local=%d, topk=%d, block_size=%d and a remainder "
                        "of %lld need %lld more: give a larger budget or smaller blocks",
                        budget, o->n_init, o->n_local, o->topk, o->block_size,
                        (long long)infllm_rest(o), (long long)-left);
    if (free_local) o->n_local += (int32_t)KVL_MIN(left, (1 << 20) - 2);
    o->repr_topk = infllm_or(o->repr_topk, infllm_clamp(o->block_size / 4, 1, 4));
    o->max_cached_block = infllm_or(o->max_cached_block, 2 * o->topk);
    o->stream_tok = plan->own_prefill ? plan->context_tok : 0;
    if (o->repr_topk > o->block_size)
        return kvl_fail(plan->err, KVL_EINVAL, "repr_topk=%d; a block has %d tokens, give no more",
                        o->repr_topk, o->block_size);
    if (o->max_cached_block < o->topk)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "max_cached_block=%d; a step reads topk=%d blocks, give as many or more",
                        o->max_cached_block, o->topk);
    return KVL_OK;
}

#endif
