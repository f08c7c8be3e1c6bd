/* kvl/policy.h - the interface of a method: what the engine asks, and what a method may answer.
 *
 * One file in methods/ defines one constant `struct kvl_policy` and ends with
 * KVL_POLICY_EXPORT(object); the build finds it.  Compiled with -DKVL_PLUGIN into a shared object,
 * the same source loads with --plugin x.so.
 *
 * Vocabulary: lane, slot, position: kvl/kvstore.h.  Policies speak of *original positions* only;
 * slots, blocks and tiers are the engine's.
 *
 * The way of a sample (core/model/attach.c, then forward.c):
 *   plan -> open
 *   prefill: shared, per layer: append (replay of the context, a chunk at a time) -> prefilled
 *     -> score: the engine keeps the best and frees the rest
 *     -> evict, with step->replay set: the whole context is one call
 *   prefill: own (KVL_CAP_PREFILL): nothing of this; every token of the context is a step
 *   then per token and layer: append -> schedule -> select -> [attention] -> observe -> evict
 *     (a block of tokens: evict once, behind its last token; prefill: own, after every token)
 *   at the end: report -> close (always called once open was, also after an error)
 *
 * Every hook is optional; NULL means "nothing to do".  A hook returns KVL_OK or kvl_fail(ctx->err,
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
#include "kvl/ops.h"
#include "kvl/opt.h"
#include "kvl/rng.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVL_POLICY_ABI 3

enum kvl_cap {
    KVL_CAP_EVICTS = 1 << 0,      /* drops tokens for good */
    KVL_CAP_SELECTS = 1 << 1,     /* reads a part, keeps all */
    KVL_CAP_OFFLOADS = 1 << 2,    /* wants tiers; not served yet */
    KVL_CAP_PROBS = 1 << 3,       /* observe wants the weights of what was read */
    KVL_CAP_PREFILL = 1 << 4,     /* may also start empty, every token of the context being a step
                                     (prefill: own); then there is no replay, prefilled or score */
    KVL_CAP_REPOSITIONS = 1 << 5, /* attends at other than the original positions */
    KVL_CAP_SAMPLES = 1 << 6,     /* random: needs a seed, answers vary with it */
    KVL_CAP_BOUND = 1 << 7,       /* not a method: bounds a plot (full, random, oracle) */
    KVL_CAP_SHARES_META =
        1 << 8, /* on replay, append and prefilled write tables alone, and what they
                                     write depends on the context and the options, not on the budget:
                                     sessions at other budgets share the tables instead of asking
                                     again */
};

/* The model as a policy sees it. */
struct kvl_shape {
    int32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_vocab;
    int32_t n_ctx_train; /* context length of the model's metadata */
};

/* ---- plan ---------------------------------------------------------------------------------- */

enum kvl_observer {
    /* The last `param` queries of every layer; read through kvl_obs_window_mass. */
    KVL_OBS_WINDOW = 1,
    /* What every token received: sum of the attention probability over the queries of the prefill
     * from its own on, `param` of them at most (0 = all).  Exact, by a second blocked pass over the
     * stored row log-sum-exp (H2O's accumulated score; InfLLM's with param = n_local). */
    KVL_OBS_COLUMNS = 2,
    /* The same for scaled logits q.k / sqrt(d) of the `param` queries after its own (InfLLM, Eq. of
     * the representative score r_m, before the division by their number). */
    KVL_OBS_LOGITS = 3,
};

/* Different column observers (kind and param) that one engine keeps at most; InfLLM has one of its own
 * for every budget of a sweep. */
#define KVL_MAX_COLUMNS 16

enum kvl_meta_unit {
    KVL_META_PAGE = 1, /* one row per `unit_tok` positions: row = position / unit_tok */
    /* One row per live token of a lane, in the order of positions: the engine adds a row of zeros for
     * every token that comes and takes out those of evicted ones.  unit_tok is 1.  Rows lie by column:
     * element c of row i is at c * column_stride + i. */
    KVL_META_LIVE = 2,
};

#define KVL_MAX_META 4

/* What `append` gets of a context that was prefilled before the policy came. */
enum kvl_replay {
    KVL_REPLAY_ALL = 0,
    KVL_REPLAY_KEYS, /* v is NULL: half the memory is read */
    KVL_REPLAY_NONE, /* nothing: it is not called for the context */
};

/* Given to `plan`: it checks options against the model, resolves KVL_AUTO options from the budget
 * (writing them back, so that the log shows what ran), and says what it needs. */
struct kvl_plan {
    const struct kvl_shape *shape;
    void *opts;          /* the policy's options struct, defaults and user values filled in */
    int32_t budget_tok;  /* attended tokens per lane asked for; 0 = none given */
    int32_t context_tok; /* length of the context that the policy will meet */
    bool own_prefill;    /* KVL_CAP_PREFILL: starts empty; observers are refused */
    struct kvl_err *err;
    /* answers */
    size_t state_bytes; /* zeroed, copied when the sequence forks */
    bool raw_keys;      /* needs keys before RoPE */
    enum kvl_replay replay;
    struct kvl_plan_private *p;
};
/* Asks for an observer of the prefill. */
KVL_API int kvl_plan_observe(struct kvl_plan *plan, enum kvl_observer what, int32_t param);
/* Declares a table of `row_elems` floats per (layer, kv head) and unit, grown by the engine as
 * tokens come; *out is its handle.  Counted as metadata bytes. */
KVL_API int kvl_plan_meta(struct kvl_plan *plan, enum kvl_meta_unit unit, int32_t unit_tok,
                          int32_t row_elems, int32_t *out);
enum kvl_meta_elem {
    KVL_META_F32 = 0,
    KVL_META_KEY, /* the element type of the store: exact for what stored keys hold (minima, copies) */
};
/* The same for other elements, for some layers only, or with one row per layer and unit instead of one
 * per kv head: kvl_meta of another layer is an error, and only what exists is counted. */
struct kvl_meta_desc {
    enum kvl_meta_unit unit;
    int32_t unit_tok, row_elems;
    enum kvl_meta_elem elem;
    const uint8_t *layers; /* [n_layers], non-zero = has rows; NULL = all.  Copied */
    bool per_layer;        /* head_stride is 0: every kv head sees the layer's rows */
};
KVL_API int kvl_plan_meta_desc(struct kvl_plan *plan, const struct kvl_meta_desc *desc,
                               int32_t *out);

/* ---- context and step ---------------------------------------------------------------------- */

struct kvl_host; /* the engine's side */

struct kvl_pctx {
    const struct kvl_shape *shape;
    const struct kvl_ops *ops;
    const void *opts; /* resolved options */
    void *state;      /* plan.state_bytes */
    int32_t budget_tok;
    int32_t context_tok; /* tokens before the policy started; 0 with its own prefill */
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
};

/* A table declared in plan: rows of kv head h start at data + h * head_stride; rows for all positions
 * appended so far are there.  KVL_EPOLICY when the handle is wrong, or the layer has no rows.
 *
 * Relatives (forks, sessions at other budgets) share rows until somebody writes them.  kvl_meta gives
 * all rows in one piece, to write anywhere: what is shared of the layer is copied whole.  A method
 * whose rows stay as they are once their tokens are past writes through kvl_meta_from and reads
 * through kvl_meta_rows, and pays for the rows that it writes.  No pointer outlives the hook, nor the
 * next of these calls for the same table and layer. */
struct kvl_meta_view {
    float *base; /* of a table of floats; NULL for another */
    void *data;  /* of any table: elements of `type` */
    enum kvl_kv_type type;
    size_t head_stride;   /* elements */
    size_t column_stride; /* elements; of a live table */
    int32_t n_rows;       /* of a live table: of its longest lane */
};
/* Every call counts its rows as read in a hook that selects; in one that evicts, those of live
 * tokens. */
KVL_API int kvl_meta(const struct kvl_pctx *ctx, int32_t handle, int32_t layer,
                     struct kvl_meta_view *out);
/* The same, but the first n_rows rows of every kv head are counted as read, in whichever hook. */
KVL_API int kvl_meta_read(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                          struct kvl_meta_view *out);
/* Rows `first` and up, to write: row `first` is at data.  Not counted. */
KVL_API int kvl_meta_from(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t first,
                          struct kvl_meta_view *out);
/* The first n_rows rows, to read only, in two pieces one after the other, either of which may be
 * empty; counted as read, in whichever hook. */
struct kvl_meta_part {
    const void *data; /* elements of `type` */
    enum kvl_kv_type type;
    size_t head_stride; /* elements */
    int32_t n_rows;
};
KVL_API int kvl_meta_rows(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                          struct kvl_meta_part out[2]);
/* Floats of scratch, valid until the hook returns; contents undefined.  The engine's arena grows to
 * its high-water mark, so that a steady state allocates nothing.  NULL: out of memory. */
KVL_API float *kvl_scratch(const struct kvl_pctx *ctx, size_t n);
/* mass [n_heads][*n_tok]: the probability that the last `window` queries put on every position of
 * the context (kvl_attn_window_args).  Shared by all policies of a sweep that ask for it. */
KVL_API int kvl_obs_window_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
                                const float **mass, int32_t *n_tok);
/* The weights of one query of that window, by its distance from the newest (0): probs
 * [n_heads][n_tok], zero behind the query.  Not cached. */
KVL_API int kvl_obs_window_probs(const struct kvl_pctx *ctx, int32_t layer, int32_t back,
                                 float *probs, int32_t n_tok);
/* sums [n_heads][*n_tok] of a column observer that plan asked for, in prefilled and score.  Shared
 * by all policies of a sweep that ask for it. */
KVL_API int kvl_obs_columns(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what,
                            int32_t param, const float **sums, int32_t *n_tok);
/* Keys of n live positions (any order) of a lane as they are stored, after RoPE, or before it where
 * the plan asked for raw keys: out [n][head_dim].  Counted as read. */
KVL_API int kvl_read_keys(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          const int32_t *pos, int32_t n, bool raw, float *out);
/* Exact attention weights of this query over every live slot of the layer, in slot order, which is
 * position order for a policy that never evicts: probs [n_heads][n].  Reads all keys, and is
 * counted as such: for `oracle` and for filter layers. */
KVL_API int kvl_attn_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, float *probs, int32_t n);
/* y = x turned to position `pos`, pair by pair as the model does: x, y [n_heads][head_dim]; y may be
 * x.  For what lies before RoPE: kvl_query.q_raw, keys read raw. */
KVL_API int kvl_rotate(const struct kvl_pctx *ctx, const float *x, int32_t n_heads, int32_t pos,
                       float *y);
/* Bytes of the key and the value of one token in one lane, as stored. */
KVL_API int32_t kvl_token_bytes(const struct kvl_pctx *ctx);
/* Positions of a lane that are live, ascending.  Borrowed until the hook returns. */
KVL_API int kvl_live(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                     const int32_t **pos, int32_t *n);

/* ---- scores: one-shot eviction ------------------------------------------------------------- */

/* Filled by the `score` hook: the engine keeps, in every lane, protected positions and then the
 * best-scored of the rest until keep_tok are kept (ties: the lower position), evicts the others. */
struct kvl_scores {
    float *score;          /* [n_kv_heads][n_tok], to fill; zero on arrival */
    int32_t n_tok;         /* positions 0 .. n_tok - 1 */
    int32_t keep_tok;      /* kept per lane, protected ones included; the budget on arrival */
    int32_t protect_first; /* kept whatever their score; 0 on arrival */
    int32_t protect_last;
};

/* ---- selection ----------------------------------------------------------------------------- */

enum kvl_scope {
    KVL_SCOPE_LAYER = 0, /* one list for the layer */
    KVL_SCOPE_KV_HEAD,   /* one list per kv head */
    KVL_SCOPE_Q_HEAD,    /* one list per query head; reads of a kv head are counted per list */
};

enum kvl_pos_mode {
    KVL_POS_ORIGINAL = 0,
    KVL_POS_IN_CACHE, /* a key's position is its rank among the keys of the list, the query's is the
                         last rank (StreamingLLM); needs raw keys */
    KVL_POS_CONSTANT, /* every key at distance `arg` from the query (InfLLM); needs raw keys */
};

/* Arrives as one segment with everything live.  The first kvl_sel_* call that names items replaces
 * it.  The current token is added by the engine. */
struct kvl_sel;

/* One list of `scope`: n ascending, unique, live positions. */
KVL_API int kvl_sel_tokens(struct kvl_sel *sel, enum kvl_scope scope, int32_t list,
                           const int32_t *pos, int32_t n);
/* One list of pages of page_tok positions each, ascending and unique. */
KVL_API int kvl_sel_pages(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t page_tok,
                          const int32_t *page, int32_t n);
/* All lists of `scope` at once: the k best of n scores [n_lists][n]; ties to the lower index. */
KVL_API int kvl_sel_top_tokens(struct kvl_sel *sel, enum kvl_scope scope, const float *score,
                               int32_t n, int32_t k);
/* The k best of n_pages pages.  `last` forces the newest page in (it counts as one of the k). */
KVL_API int kvl_sel_top_pages(struct kvl_sel *sel, enum kvl_scope scope, const float *score,
                              int32_t n_pages, int32_t k, int32_t page_tok, bool last);
/* Of the segment being built. */
KVL_API int kvl_sel_positions(struct kvl_sel *sel, enum kvl_pos_mode mode, int32_t arg);
/* Additive log-weights of a token list, as long as it is (MagicPIG, vAttention). */
KVL_API int kvl_sel_log_weights(struct kvl_sel *sel, enum kvl_scope scope, int32_t list,
                                const float *log_weight, int32_t n);
/* Starts another segment (empty); segments are merged by log-sum-exp and must not overlap. */
KVL_API int kvl_sel_segment(struct kvl_sel *sel);
/* Declares that this selection also serves the layers up to layer_last, and n_steps steps from this
 * one on; the engine does not ask again. */
KVL_API int kvl_sel_share(struct kvl_sel *sel, int32_t layer_last, int32_t n_steps);
/* In observe: what layers layer_first .. layer_last, behind this one, read in this step: one list of n
 * ascending, unique, live positions and the current token.  `select` is not asked there. */
KVL_API int kvl_select_ahead(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             int32_t layer_first, int32_t layer_last, const int32_t *pos,
                             int32_t n);

/* Scores by which a policy itself chose (kvl_sel_top_*, the score hook tell theirs without it), for
 * whoever traces the run: every list of `scope` has n of them, of units of unit_tok positions, the
 * first of which begins at first_tok.  -INFINITY: could not be chosen.  Changes no answer, and costs
 * nothing where nobody listens. */
struct kvl_scored {
    enum kvl_scope scope;
    int32_t first_tok, unit_tok, n;
    const float *score; /* [lists of scope][n] */
};
KVL_API int kvl_tap_scores(const struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_scored *scored);
/* False: nobody listens, and an array made for kvl_tap_scores alone need not be made. */
KVL_API bool kvl_tap_listens(const struct kvl_pctx *ctx);

/* ---- keep: eviction while decoding ---------------------------------------------------------- */

/* Arrives as "keep everything live"; a lane that is not named keeps all.  kv_head -1 = all heads. */
struct kvl_keep;
/* Keeps the live positions in [first, last). Several calls add up. */
KVL_API int kvl_keep_range(struct kvl_keep *keep, int32_t kv_head, int32_t first, int32_t last);
/* Keeps n ascending, unique, live positions. */
KVL_API int kvl_keep_tokens(struct kvl_keep *keep, int32_t kv_head, const int32_t *pos, int32_t n);

/* ---- the object ---------------------------------------------------------------------------- */

enum kvl_schedule {
    KVL_DENSE = 1,  /* this layer reads everything; reported apart */
    KVL_SELECT = 2, /* ask `select` */
};

enum kvl_relayout {
    KVL_RELAYOUT_TRUNCATED = 1, /* positions >= ctx->context_tok are gone */
    KVL_RELAYOUT_SHIFTED = 2,   /* positions changed */
};

/* What a policy counts and says of itself, into the log and beside the harness's own numbers. */
struct kvl_report;
/* Names are words of a-z, 0-9, _ and . that begin with a letter, at most 40 characters, and come once;
 * values that are not finite are not kept. */
KVL_API int kvl_report_num(struct kvl_report *r, const char *name, double value);
/* One line that a reader of the results must know, the same for all answers that it holds for: {name}
 * in it stands for the number reported under that name, {name%} for it in percent. */
KVL_API int kvl_report_note(struct kvl_report *r, const char *text);

struct kvl_prefill_mask;
struct kvl_tiers;
struct kvl_blob;

struct kvl_policy {
    uint32_t abi, size; /* KVL_POLICY_ABI, sizeof(struct kvl_policy); a missing tail is NULL */
    const char *name;   /* = file name = key in command line, log and plots */
    const char *title, *paper, *help;
    uint32_t version;           /* raised when answers change */
    uint32_t caps;              /* enum kvl_cap */
    const struct kvl_opt *opts; /* parsing, help, sweep axes, log; NULL = none */
    size_t opts_size;
    /* The smallest budget that makes sense with these options; NULL = 1. */
    int32_t (*min_budget)(const struct kvl_shape *shape, const void *opts);
    int (*plan)(struct kvl_plan *plan);
    int (*open)(struct kvl_pctx *ctx);
    void (*close)(struct kvl_pctx *ctx);
    /* Reserved: a dense prefill that leaves things out. */
    int (*prefill_mask)(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_prefill_mask *mask);
    /* Keys and values of step->n_tok new tokens, as stored (rounded):
     * k after RoPE, v: [n_tok][n_kv_heads][head_dim]. */
    int (*append)(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                  const float *v);
    /* The context is complete: observers are ready. */
    int (*prefilled)(struct kvl_pctx *ctx, int32_t layer);
    /* KVL_DENSE, KVL_SELECT or a negative status.  NULL: SELECT iff there is a select hook. */
    int (*schedule)(struct kvl_pctx *ctx, const struct kvl_step *step);
    int (*score)(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores);
    int (*select)(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                  struct kvl_sel *sel);
    /* After attention, KVL_CAP_PROBS: weights of what each query head read, in ascending position
     * order of its list: probs [n_heads] -> [n], and lse [n_heads].  Of several segments: one after
     * the other, with the weights of the merged result (they sum to 1), and its lse. */
    int (*observe)(struct kvl_pctx *ctx, const struct kvl_step *step, const float *const *probs,
                   const int32_t *n, const float *lse);
    int (*evict)(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep);
    /* Reserved: positions that change, residency wishes (KVL_CAP_OFFLOADS), state on disk. */
    int (*relayout)(struct kvl_pctx *ctx, enum kvl_relayout what);
    int (*place)(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_tiers *tiers);
    int (*save)(struct kvl_pctx *ctx, struct kvl_blob *blob);
    int (*load)(struct kvl_pctx *ctx, struct kvl_blob *blob);
    /* Extra numbers; never accuracy, recall or budget: those are measured by the harness. */
    int (*report)(struct kvl_pctx *ctx, struct kvl_report *report);
};

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
