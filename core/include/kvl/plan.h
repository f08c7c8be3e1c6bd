/* kvl/plan.h - what a policy says before it runs: sizes, layers, what lives in the host tier.
 *
 * Part of kvl/policy.h; tables are declared in kvl/table.h, observers in kvl/observe.h. */
#ifndef KVL_POLICY_PLAN_H
#define KVL_POLICY_PLAN_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_pctx;
struct kvl_report;
struct kvl_shape;

/* What `append` gets of a context that was prefilled before the policy came; nothing is read where there is
 * no append. */
enum kvl_replay {
    KVL_REPLAY_ALL = 0,
    KVL_REPLAY_KEYS, /* v is NULL: half the memory is read */
    KVL_REPLAY_NONE, /* nothing: it is not called for the context */
};

/* What an outer policy will ask its inner one about (kvl_inner_score_tokens): nothing, tokens of the context, or also
 * those that come later. */
enum kvl_asking { KVL_ASKS_NOTHING = 0, KVL_ASKS_CONTEXT, KVL_ASKS_LATER };

/* Given to `plan`: it checks options against the model, resolves KVL_AUTO options from the budget
 * (writing them back, so that the log shows what ran), and says what it needs. */
struct kvl_plan {
    const struct kvl_shape *shape;
    void *opts;            /* the policy's options struct, defaults and user values filled in */
    int32_t budget_tok;    /* attended tokens per lane asked for; 0 = none given */
    int32_t context_tok;   /* length of the context that the policy will meet */
    bool own_prefill;      /* prefill: own: starts empty; observers are refused */
    enum kvl_asking asked; /* by the policy around this one */
    struct kvl_err *err;
    /* answers */
    size_t state_bytes; /* zeroed, copied when the sequence forks */
    bool raw_keys;      /* needs keys before RoPE */
    /* What prefill_mask says of a layer depends on nothing that another layer gave, nor on its observers: all
     * chunks of a context may go through a layer before the next layer begins (prefill_kv: host). */
    bool prefill_layerwise;
    enum kvl_replay replay;
    /* prefill_mask: tokens of a chunk, of which answers may depend; 0 = whatever the engine takes. */
    int32_t prefill_chunk_tok;
    /* Of a policy that wraps, which plans first: the budget of the inner one; as budget_tok on
     * arrival. */
    int32_t inner_budget_tok;
    struct kvl_plan_private *p;
};
/* Which of what is fetched from the host tier stays on the device when room is short: the least recently
 * used goes first, the least often used, or the one of least score (kvl_offload_scores). */
enum kvl_replace { KVL_REPLACE_LRU = 0, KVL_REPLACE_LFU, KVL_REPLACE_SCORE };

/* Keys and values that live in the host tier once the context is complete.  Attention reads them where a
 * selection names them: what is not in the cache of its lane is fetched, copied unit by unit and counted
 * (kvl_counters).  Answers do not depend on it. */
struct kvl_offload {
    const uint8_t *layers; /* [n_layers], non-zero = offloaded; NULL = all.  Copied */
    int32_t keep_first;    /* positions of the beginning that stay on the device */
    int32_t keep_last;     /* the newest that do, 1 at least; what is older goes, in whole units */
    int32_t unit_tok;      /* tokens fetched together: units begin at multiples of it */
    int32_t origin;        /* behind this position, below which nothing goes */
    int32_t cache_tok; /* tokens of a lane kept on the device after they were fetched; 0 = none */
    enum kvl_replace replace;
    /* What comes behind the context stays on the device too; keep_last is then of the context, 0 or more.
     * With its own prefill by steps there is none, and nothing goes. */
    bool context_only;
};
KVL_API int kvl_plan_offload(struct kvl_plan *plan, const struct kvl_offload *offload);

/* ---- layers -------------------------------------------------------------------------------------- */

/* [n_layers], 1 for layers first, first + step, ..., else 0: for kvl_offload.layers and kvl_table_desc.layers.
 * It may be changed, and lives until plan returns.  KVL_EINVAL where `option`, which gave `first`, leaves no
 * layer. */
KVL_API int kvl_plan_layers(struct kvl_plan *plan, const char *option, int32_t first, int32_t step,
                            uint8_t **out);
/* Both sizes of a pair that sum to `total` in the proportion part_a : part_b, where they are KVL_AUTO; *a is `least` at
 * least, *b 1.  Of one that was given the other is the rest. */
KVL_API void kvl_plan_pair(int32_t total, int32_t part_a, int32_t part_b, int32_t least, int32_t *a,
                           int32_t *b);
/* *out: the number from 0 to 1 that the text of `option` is; -1 where it is `word`.  KVL_EINVAL: it is neither. */
KVL_API int kvl_plan_share(struct kvl_plan *plan, const char *option, const char *text,
                           const char *word, double *out);
/* KVL_EINVAL where no budget was given.  One that is less than min_budget was refused before plan. */
KVL_API int kvl_plan_needs_budget(struct kvl_plan *plan);

/* ---- the host tier, in hooks ----------------------------------------------------------------------- */

/* Call when the offloaded layers are known only after plan, in open or in prefilled of a shared prefill.  Of the
 * layers that plan offloaded, those where layers [n_layers] is zero stay on the device. */
KVL_API int kvl_offload_layers(const struct kvl_pctx *ctx, const uint8_t *layers);
/* A hint, from any hook of a step: what lane (layer, kv_head) will read when its turn comes in this step or
 * the next.  Fetched when the hook returns, all lanes at once; wrong guesses cost bytes only.  While a lane
 * has one that waits, those of later tokens (of a block) are ignored. */
KVL_API int kvl_prefetch(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                         const int32_t *pos, int32_t n);
/* KVL_REPLACE_SCORE: what units 0 .. n - 1 of a lane are worth; copied.  Others keep their score, 0 at
 * first. */
KVL_API int kvl_offload_scores(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                               const float *score, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
