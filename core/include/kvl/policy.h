/* kvl/policy.h - the interface of a method: what the engine asks, and what a method may answer.
 *
 * One file in methods/ defines one constant `struct kvl_policy` and ends with
 * KVL_POLICY_EXPORT(object); the build finds it.  Compiled with -DKVL_PLUGIN into a shared object,
 * the same source loads with --plugin x.so.
 *
 * Here are the object and its hooks; what hooks call is in kvl/plan.h, kvl/table.h, kvl/select.h and
 * kvl/observe.h.
 *
 * Vocabulary: lane, slot, position: kvl/kvstore.h.  Policies speak of *original positions* only;
 * slots, blocks and tiers are the engine's.
 *
 * The way of a sample (core/engine/attach.c, then forward.c):
 *   plan -> open
 *   prefill: shared, per layer: append (replay of the context, a chunk at a time) -> prefilled
 *     -> score: the engine keeps the best and frees the rest
 *     -> evict, with step->replay set: the whole context is one call
 *   prefill: own (kvl_prefill_kind), with prefill_mask: the context comes in chunks, per chunk and layer
 *     prefill_mask (keys of the chunk are stored, index is -1), attention of what it says; when all of it
 *     is there, per layer what prefill: shared does: append (replay) -> prefilled -> score -> evict.
 *     context_tok is the length of the context from the first chunk on; observers: KVL_OBS_WINDOW alone.
 *     Chunks go through all layers one after the other; with plan->prefill_layerwise the engine may
 *     take all of them through a layer before the next (kvl_engine_desc.prefill_kv_host)
 *   prefill: own, without prefill_mask: nothing of this; every token of the context is a step
 *   then per token and layer: append -> schedule -> select -> [attention] -> observe -> evict
 *     (a block of tokens: evict once, behind its last token; prefill: own, after every token)
 *   at the end: report
 *
 * Every hook is optional.  A hook returns KVL_OK or kvl_fail(ctx->err,
 * KVL_E*, ...).  Hooks allocate nothing, hold no globals and work through ctx->ops, so that one file
 * serves every device: memory that the engine hands out (metadata, scores) is passed to operators,
 * not read.  The current token is always attended.  What a builder (selection, keep, scores) is
 * given is validated: range, order, duplicates, dead positions, NaN; a broken policy is a recorded
 * error, not a wrong number.
 *
 * Thread-safe: one context belongs to one thread; policy objects are constant.
 */
#ifndef KVL_POLICY_H
#define KVL_POLICY_H

#include "kvl/base.h"
#include "kvl/model_tables.h"
#include "kvl/observe.h"
#include "kvl/ops.h"
#include "kvl/opt.h"
#include "kvl/plan.h"
#include "kvl/rng.h"
#include "kvl/select.h"
#include "kvl/table.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVL_POLICY_ABI 14

enum kvl_cap {
    KVL_CAP_EVICTS = 1 << 0,      /* drops tokens for good */
    KVL_CAP_SELECTS = 1 << 1,     /* reads a part, keeps all */
    KVL_CAP_OFFLOADS = 1 << 2,    /* keeps a part in the host tier: kvl_plan_offload */
    KVL_CAP_REPOSITIONS = 1 << 3, /* attends at other than the original positions */
    KVL_CAP_SAMPLES = 1 << 4,     /* random: needs a seed, answers vary with it */
    KVL_CAP_BOUND = 1 << 5,       /* not a method: bounds a plot (full, random, oracle) */
    /* On replay, append and prefilled write tables alone, and what they write depends on the context
     * and the options (but those with not_in_tables), not on the budget: sessions at other budgets
     * share the tables instead of asking again. */
    KVL_CAP_SHARES_META = 1 << 6,
    KVL_CAP_TOKENS = 1 << 7, /* sees the ids of tokens: kvl_tokens */
    KVL_CAP_RAGGED = 1 << 8, /* lanes keep or read different numbers: the budget is their mean */
    /* Its selections are more than lists: weights, keys of its own, entries, a residual.  They cannot be
     * pruned (kvl_inner_select). */
    KVL_CAP_ESTIMATES = 1 << 9,
    /* append, select, observe and evict of a step hand what the engine gives them, scratch, tables and
     * what operators wrote to operators and builders alone: they neither read nor write it, unless they
     * called kvl_look since the last operator, or kvl_look_at of what they look at.  On a GPU the engine
     * then does not wait before them: operators get ahead of it, and a NaN in scores is told after the
     * step. */
    KVL_CAP_ASYNC = 1 << 10,
    /* Wraps scores and asks for those of tokens of its own choice (kvl_inner_score_tokens): an inner policy that
     * looks at more than keys, values and queries is refused in plan. */
    KVL_CAP_ASKS = 1 << 11,
    KVL_CAPS = (1 << 12) - 1, /* all of them */
};

/* Who may read the context: the engine once for all policies (prefill: shared), or the policy itself
 * (prefill: own). */
enum kvl_prefill_kind {
    KVL_PREFILL_SHARED = 0, /* the engine alone; prefill: own is refused */
    /* Either.  Its own is under prefill_mask; without that hook it starts empty, every token of the
     * context is a step, and there is no replay, prefilled or score. */
    KVL_PREFILL_EITHER,
    KVL_PREFILL_OWN, /* always itself, by prefill_mask; prefill: shared is refused */
};

/* The model as a policy sees it.  Layers of a window (Gemma, gpt-oss) read the newest tokens and nothing else:
 * there is nothing to choose, and no policy sees them.  Its layers are the global ones, numbered from 0; budgets,
 * tables, observers and the host tier are of these, and in between the engine does what the model says. */
struct kvl_shape {
    int32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_vocab;
    int32_t n_ctx_train;             /* context length of the model's metadata */
    int32_t group;                   /* query heads of a kv head: n_heads / n_kv_heads */
    const struct kvl_tables *tables; /* beside the model's file; NULL = none: kvl/model_tables.h */
    float scale;                     /* of q.k before softmax, usually 1 / sqrt(head_dim) */
    float
        cap; /* logits are cap * tanh(scale q.k / cap), 0 = none: kvl_cap for what a policy estimates */
    /* Of a model, [n_layers]: tokens that a layer reads at most, 0 = all; NULL: all layers read all, as those
     * that a policy sees do. */
    const int32_t *window;
    bool
        no_rope; /* no layer's keys turn with their position: what kvl_rotate gives is what it got */
};

/* ---- context and step ---------------------------------------------------------------------- */

struct kvl_host; /* the engine's side */

struct kvl_pctx {
    const struct kvl_shape *shape;
    const struct kvl_ops *ops;
    const void *opts; /* resolved options */
    void *state;      /* plan.state_bytes */
    int32_t budget_tok;
    int32_t context_tok; /* tokens before the policy started; 0 with its own prefill by steps */
    uint64_t seed;       /* of this sample; CAP_SAMPLES */
    struct kvl_err *err;
    struct kvl_host *host;
};

struct kvl_step {
    int32_t layer;
    int32_t index; /* steps since the policy started: 0 = the first token it decides for */
    int32_t pos;   /* position of the first token of this call */
    int32_t n_tok; /* tokens of this call: a chunk on replay, else 1 */
    bool replay;   /* the context comes again, to build metadata */
};

struct kvl_query {
    const float *q;     /* [n_heads][head_dim] after RoPE */
    const float *q_raw; /* [n_heads][head_dim] before RoPE */
    const float *x;     /* [n_embd] the layer's input after its norm */
    const float *
        x_prev; /* [n_embd] that of the layer before, as a policy numbers layers; NULL in layer 0 */
};

/* In a hook of a policy with KVL_CAP_ASYNC: waits for what operators and the engine were given, so that the hook
 * may look.  A builder that is given an array of items, weights or keys waits by itself, for that array alone;
 * kvl_sel_top_*, kvl_sel_range, kvl_sel_positions and kvl_keep_range do not.  KVL_EPOLICY: a score was a NaN. */
KVL_API int kvl_look(const struct kvl_pctx *ctx);
/* The same, but of what operators wrote the hook may look at the n items of `item` bytes at p alone, results or scratch,
 * and write them, or an argument of the hook, which is read only.  Rows of tables that the hook asked for are there as
 * well; nothing else crosses.  KVL_ENOMEM: more bytes than there are. */
KVL_API int kvl_look_at(const struct kvl_pctx *ctx, const void *p, size_t n, size_t item);
/* From any hook but plan: a portable loop of the method's own (methods/<name>.op.c) on the host.  Waits for what
 * operators and the engine were given, as kvl_look does, and calls loop(args), which may read and write what hooks
 * were handed: q, k and v, scratch, rows of tables, scores.  Returns what the loop returned: KVL_OK, or a negative
 * status, for which a message is added.  Calls and their time are counted (kvl_counters.host_ops), reported with
 * the method's numbers as host_op_calls, host_op_s and host_op_wait_s, and told in a note of every table. */
KVL_API int kvl_host_op(const struct kvl_pctx *ctx, int (*loop)(const void *args),
                        const void *args);
/* Scratch, valid until the hook returns; contents undefined.  The engine's arena grows to its high-water mark,
 * so that a steady state allocates nothing.  KVL_TRY(kvl_scratch_get(ctx, n, &p)): n elements of the type that
 * p points to; KVL_ENOMEM with a message. */
#define kvl_scratch_get(ctx, n, out)                                                               \
    _Generic((out),                                                                                \
        float **: kvl_scratch_f32,                                                                 \
        double **: kvl_scratch_f64,                                                                \
        int32_t **: kvl_scratch_i32,                                                               \
        uint8_t **: kvl_scratch_u8)(ctx, n, out)
KVL_API int kvl_scratch_f32(const struct kvl_pctx *ctx, size_t n, float **out);
KVL_API int kvl_scratch_f64(const struct kvl_pctx *ctx, size_t n, double **out);
KVL_API int kvl_scratch_i32(const struct kvl_pctx *ctx, size_t n, int32_t **out);
KVL_API int kvl_scratch_u8(const struct kvl_pctx *ctx, size_t n, uint8_t **out);
/* The same for n items of any size. */
KVL_API int kvl_scratch_items(const struct kvl_pctx *ctx, size_t n, size_t item, void **out);

/* ---- scores ------------------------------------------------------------------------------------ */

/* index [n_rows][k]: the k largest of each row of x [n_rows][n], ascending; ties to the lower index.
 * KVL_ENUMERIC: one of them is a NaN. */
KVL_API int kvl_topk(const struct kvl_pctx *ctx, const float *x, int32_t n_rows, int32_t n,
                     int32_t k, int32_t *index);
/* What the model's soft cap makes of estimates x [n] of scaled logits (shape->scale times q.k); without a cap they
 * stay.  Ranks of single logits do not change, weights and sums do. */
KVL_API int kvl_cap(const struct kvl_pctx *ctx, float *x, size_t n);
/* Softmax of each row of x [n_rows][n], in place. */
KVL_API int kvl_softmax(const struct kvl_pctx *ctx, float *x, int32_t n_rows, int32_t n);
/* y [n][n_rows]: products of n vectors x [n][n_cols] with the rows of w [n_rows][n_cols], by ops->gemm. */
KVL_API int kvl_product(const struct kvl_pctx *ctx, const float *x, int32_t n, const float *w,
                        int32_t n_rows, int32_t n_cols, float *y);
/* score [n_kv_heads][n] of x [n_heads][n]: SUM, MAX, MEAN or FIRST of each group of query heads. */
KVL_API int kvl_group_scores(const struct kvl_pctx *ctx, const float *x, int32_t n,
                             enum kvl_reduce reduce, float *score);
/* score [n] of x [n_lists][n]. */
KVL_API int kvl_layer_scores(const struct kvl_pctx *ctx, const float *x, int32_t n_lists, int32_t n,
                             enum kvl_reduce reduce, float *score);

/* ---- the object ---------------------------------------------------------------------------- */

enum kvl_schedule {
    KVL_DENSE = 1,  /* this layer reads everything; reported apart */
    KVL_SELECT = 2, /* ask `select` */
    /* Added to either: `observe` has nothing to see here, and weights need not be made for it.  It may be asked
     * all the same. */
    KVL_UNOBSERVED = 4,
};

/* What a policy counts and says of itself, into the log and beside the harness's own numbers. */
struct kvl_report;
/* Names are words of a-z, 0-9, _ and . that begin with a letter, at most 40 characters, and come once;
 * values that are not finite are not kept. */
KVL_API int kvl_report_num(struct kvl_report *r, const char *name, double value);
/* One line that a reader of the results must know, the same for all answers that it holds for: {name}
 * in it stands for the number reported under that name, {name%} for it in percent. */
KVL_API int kvl_report_note(struct kvl_report *r, const char *text);

struct kvl_composed;
struct kvl_policy {
    uint32_t abi, size; /* KVL_POLICY_ABI, sizeof(struct kvl_policy): others are refused */
    const char *name;   /* = file name = key in command line, log and plots */
    const char *title, *paper, *help;
    /* The card that `kvlab describe` prints, plain sentences: which published behaviour it follows, in
     * what it differs, what it costs per step and once. */
    const char *follows, *deviations, *cost;
    /* The policy that it wraps unless another is named, and options of it that differ from its own
     * defaults: "snapkv:window=8"; NULL = wraps none.  What a wrapper is: see composition. */
    const char *inner;
    uint32_t version; /* raised when answers change */
    uint32_t caps;    /* enum kvl_cap */
    enum kvl_prefill_kind prefill;
    const struct kvl_opt *opts; /* parsing, help, sweep axes, log; NULL = none */
    size_t opts_size;
    /* The smallest budget that makes sense with these options: the engine refuses less before plan is asked,
     * and a budget that was not given if plan calls kvl_plan_needs_budget.  NULL means 1. */
    int32_t (*min_budget)(const struct kvl_shape *shape, const void *opts);
    /* Checks options, says what is needed (kvl/plan.h).  NULL means nothing is. */
    int (*plan)(struct kvl_plan *plan);
    /* The session begins: fills ctx->state.  NULL means it stays zero. */
    int (*open)(struct kvl_pctx *ctx);
    /* prefill: own: the context is prefilled chunk by chunk, and this says, layer by layer, what of it
     * the chunk's queries read: q->q [step->n_tok][n_heads][head_dim], and so the others.  Keys of the
     * chunk are stored already.  NULL means that its own prefill, where it has one, is made of steps. */
    int (*prefill_mask)(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_prefill_mask *mask);
    /* Keys and values of step->n_tok new tokens, as stored (rounded):
     * k after RoPE, v: [n_tok][n_kv_heads][head_dim].  NULL means that it looks at none. */
    int (*append)(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                  const float *v);
    /* The context is complete: observers are ready.  NULL means nothing to build. */
    int (*prefilled)(struct kvl_pctx *ctx, int32_t layer);
    /* KVL_DENSE or KVL_SELECT, and KVL_UNOBSERVED, or a negative status.  Calls no operator and reads nothing
     * but the step, options and what hooks themselves wrote into state.  NULL means KVL_SELECT where there is a
     * select hook, else KVL_DENSE. */
    int (*schedule)(struct kvl_pctx *ctx, const struct kvl_step *step);
    /* What every token of the context is worth: the engine keeps the best.  NULL means that all stay. */
    int (*score)(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores);
    /* What this query reads (kvl/select.h).  NULL means everything that is live. */
    int (*select)(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                  struct kvl_sel *sel);
    /* After attention: weights of what each query head read, in ascending position
     * order of its list: probs [n_heads] -> [n], and lse [n_heads].  Of several segments: one after
     * the other, with the weights of the merged result (they sum to 1), and its lse.
     * NULL means that weights are not made. */
    int (*observe)(struct kvl_pctx *ctx, const struct kvl_step *step, const float *const *probs,
                   const int32_t *n, const float *lse);
    /* What is kept from here on.  NULL means everything. */
    int (*evict)(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep);
    /* Extra numbers; never accuracy, recall or budget: those are measured by the harness.  NULL means none. */
    int (*report)(struct kvl_pctx *ctx, struct kvl_report *report);
    const struct kvl_composed *composed; /* the engine's, of outer(inner); NULL */
};

/* ---- composition: outer(inner) ----------------------------------------------------------------- */

/* A policy with `inner` wraps another one, that one or another named in its spec.  Each has options, state,
 * budget and tables of its own.  Hooks that build or watch (open, append, prefilled, observe,
 * report) run for both, the inner's first.  Of those that decide (score, select, evict, prefill_mask) the
 * outer's runs, and calls the inner's where it wants to; what the outer leaves NULL is the inner's.  A
 * layer is dense where either says so.  One level: neither wraps a policy that wraps. */
/* Scores of an inner one that keeps as many in every lane, since the outer one says how many; *evicts: something is to
 * be left out.  KVL_EINVAL: its lanes keep different numbers, or it keeps everything although its budget is less. */
KVL_API int kvl_inner_even_score(const struct kvl_pctx *ctx, int32_t layer,
                                 struct kvl_scores *scores, bool *evicts);
/* Tokens of every lane of a layer that an inner policy is asked about. */
struct kvl_asked {
    const int32_t *pos; /* [n_kv_heads][n] live positions, ascending */
    int32_t n, keep;    /* so many of each lane are to stay */
    /* The latest queries, oldest first, that stand for those of the context: q, q_raw (before RoPE)
     * [n_queries][n_heads][head_dim], at q_pos [n_queries]; 0: an inner policy that looks at queries is refused. */
    const float *q, *q_raw;
    const int32_t *q_pos;
    int32_t n_queries, n_raw; /* the newest n_raw of which q_raw is known */
};
/* From score and evict: the scores that the inner policy gives them, in scratch.  In its hook token i of a lane is the
 * i-th of these: kvl_live, spans of keys and values, the window and moments of queries speak of them, its budget is
 * keep + 1, and context_tok is the number of tokens so far. */
KVL_API int kvl_inner_score_tokens(const struct kvl_pctx *ctx, int32_t layer,
                                   const struct kvl_asked *asked, struct kvl_scores *scores);
/* A selection that the inner one shared with this layer or step is there without asking it. */
KVL_API int kvl_inner_select(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel);

#ifdef KVL_PLUGIN
#define KVL_POLICY_EXPORT(object)                                                                  \
    KVL_API extern const struct kvl_policy *const kvl_plugin_policy;                               \
    const struct kvl_policy *const kvl_plugin_policy = &(object);
#else
#define KVL_POLICY_EXPORT(object)                                                                  \
    extern const struct kvl_policy *const kvl_policy_##object;                                     \
    const struct kvl_policy *const kvl_policy_##object = &(object);
#endif

#ifdef __cplusplus
}
#endif

#endif
