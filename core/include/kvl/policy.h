/* kvl/policy.h - the interface of a method: what the engine asks, and what a method may answer.
 *
 * One file in methods/ defines one constant `struct kvl_policy` and ends with
 * KVL_POLICY_EXPORT(object); the build finds it.  Compiled with -DKVL_PLUGIN into a shared object,
 * the same source loads with --plugin x.so.
 *
 * Vocabulary: lane, slot, position: kvl/kvstore.h.  Policies speak of *original positions* only;
 * slots, blocks and tiers are the engine's.
 *
 * The way of a sample (core/engine/attach.c, then forward.c):
 *   plan -> open
 *   prefill: shared, per layer: append (replay of the context, a chunk at a time) -> prefilled
 *     -> score: the engine keeps the best and frees the rest
 *     -> evict, with step->replay set: the whole context is one call
 *   prefill: own (KVL_CAP_PREFILL), with prefill_mask: the context comes in chunks, per chunk and layer
 *     prefill_mask (keys of the chunk are stored, index is -1), attention of what it says; when all of it
 *     is there, per layer what prefill: shared does: append (replay) -> prefilled -> score -> evict.
 *     context_tok is the length of the context from the first chunk on; observers: KVL_OBS_WINDOW alone.
 *     Chunks go through all layers one after the other; with plan->prefill_layerwise the engine may
 *     take all of them through a layer before the next (kvl_engine_desc.prefill_kv_host)
 *   prefill: own, without prefill_mask: nothing of this; every token of the context is a step
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

#define KVL_POLICY_ABI 5

enum kvl_cap {
    KVL_CAP_EVICTS = 1 << 0,      /* drops tokens for good */
    KVL_CAP_SELECTS = 1 << 1,     /* reads a part, keeps all */
    KVL_CAP_OFFLOADS = 1 << 2,    /* keeps a part in the host tier: kvl_plan_offload */
    KVL_CAP_PROBS = 1 << 3,       /* observe wants the weights of what was read */
    KVL_CAP_PREFILL = 1 << 4,     /* may also start empty, every token of the context being a step
                                     (prefill: own); then there is no replay, prefilled or score */
    KVL_CAP_REPOSITIONS = 1 << 5, /* attends at other than the original positions */
    KVL_CAP_SAMPLES = 1 << 6,     /* random: needs a seed, answers vary with it */
    KVL_CAP_BOUND = 1 << 7,       /* not a method: bounds a plot (full, random, oracle) */
    KVL_CAP_SHARES_META =
        1 << 8,               /* on replay, append and prefilled write tables alone, and what they
                                     write depends on the context and the options (but those with
                                     not_in_tables), not on the budget:
                                     sessions at other budgets share the tables instead of asking
                                     again */
    KVL_CAP_WRAPS = 1 << 9,   /* changes what another policy answers: outer(inner) */
    KVL_CAP_TOKENS = 1 << 10, /* sees the ids of tokens: kvl_tokens */
    KVL_CAP_RAGGED = 1 << 11, /* lanes keep or read different numbers: the budget is their mean */
    /* With KVL_CAP_PREFILL and prefill_mask: makes sense only so.  prefill: own goes without saying,
     * prefill: shared is refused. */
    KVL_CAP_OWN_PREFILL = 1 << 12,
    /* Its selections are more than lists: weights, keys of its own, entries, a residual.  Nobody can prune
     * them (kvl_sel_view). */
    KVL_CAP_ESTIMATES = 1 << 13,
    /* append, select, observe and evict of a step hand what the engine gives them, scratch, tables and
     * what operators wrote to operators and builders alone: they neither read nor write it, unless they
     * called kvl_look since the last operator.  On a GPU the engine then does not wait before them:
     * operators get ahead of it, and a NaN in scores is told after the step. */
    KVL_CAP_ASYNC = 1 << 14,
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
    /* Mean and covariance of the queries before RoPE, of positions `param` and up
     * (ExpectedAttention): kvl_obs_moments. */
    KVL_OBS_MOMENTS = 4,
    /* The context is run once more, behind itself, in chunks of `param` tokens that it is asked to
     * repeat: the largest probability that a token of the repetition put on every position of its chunk
     * (KVzip): kvl_obs_replay.  REPLAY_PLUS: divided by the norm of the layer's input and multiplied by
     * that of the projected value (KVzip+). */
    KVL_OBS_REPLAY = 5,
    KVL_OBS_REPLAY_PLUS = 6,
};

/* Different observers beside the window (kind and param) that one engine keeps at most; InfLLM has one of its own
 * for every budget of a sweep. */
#define KVL_MAX_COLUMNS 16

enum kvl_meta_unit {
    KVL_META_PAGE = 1, /* one row per `unit_tok` positions: row = position / unit_tok */
    /* One row per live token of a lane, in the order of positions: the engine adds a row of zeros for
     * every token that comes and takes out those of evicted ones.  unit_tok is 1.  Rows lie by column:
     * element c of row i is at c * column_stride + i. */
    KVL_META_LIVE = 2,
    /* One row per lane, of any length (codebooks, sorted tables, low-rank factors); unit_tok is 1. */
    KVL_META_LANE = 3,
};

#define KVL_MAX_META 8

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
    /* What prefill_mask says of a layer depends on nothing that another layer gave, nor on its observers: all
     * chunks of a context may go through a layer before the next layer begins (prefill_kv: host). */
    bool prefill_layerwise;
    enum kvl_replay replay;
    /* prefill_mask: tokens of a chunk, of which answers may depend; 0 = whatever the engine takes. */
    int32_t prefill_chunk_tok;
    /* Of a policy with KVL_CAP_WRAPS, which plans first: the budget of the inner one; as budget_tok on
     * arrival. */
    int32_t inner_budget_tok;
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
    KVL_META_I32,
    KVL_META_U16,
    KVL_META_U8,
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
    const float *q;      /* [n_heads][head_dim] after RoPE */
    const float *q_raw;  /* [n_heads][head_dim] before RoPE */
    const float *x;      /* [n_embd] the layer's input after its norm */
    const float *x_prev; /* [n_embd] that of the layer before; NULL in layer 0 */
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
    void *data;  /* of any table: elements of `elem` */
    enum kvl_meta_elem elem;
    enum kvl_kv_type type; /* of KVL_META_F32 and KVL_META_KEY */
    size_t head_stride;    /* elements */
    size_t column_stride;  /* elements; of a live table */
    int32_t n_rows;        /* of a live table: of its longest lane */
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
    const void *data; /* elements of `elem` */
    enum kvl_meta_elem elem;
    enum kvl_kv_type type; /* of KVL_META_F32 and KVL_META_KEY */
    size_t head_stride;    /* elements */
    int32_t n_rows;
};
KVL_API int kvl_meta_rows(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                          struct kvl_meta_part out[2]);
/* The same for who reads single elements of rows (some channels, some buckets): nothing is counted,
 * and kvl_meta_count says how many were read, of all kv heads together. */
KVL_API int kvl_meta_peek(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                          struct kvl_meta_part out[2]);
KVL_API int kvl_meta_count(const struct kvl_pctx *ctx, int32_t handle, int64_t n_elems);
/* In a hook of a policy with KVL_CAP_ASYNC: waits for what operators and the engine were given, so that the hook
 * may look.  A builder that is given an array of items, weights or keys waits by itself; kvl_sel_top_*,
 * kvl_sel_range, kvl_sel_positions and kvl_keep_range do not.  KVL_EPOLICY: a score was a NaN. */
KVL_API int kvl_look(const struct kvl_pctx *ctx);
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
/* The observed query that lies `back` tokens before the newest (0): q [n_heads][head_dim] after RoPE. */
KVL_API int kvl_obs_window_query(const struct kvl_pctx *ctx, int32_t layer, int32_t back, float *q);
/* Of KVL_OBS_MOMENTS: mean [n_heads][head_dim], cov [n_heads][head_dim][head_dim] (divided by the number
 * of queries, *n). */
KVL_API int kvl_obs_moments(const struct kvl_pctx *ctx, int32_t layer, int32_t param,
                            const float **mean, const float **cov, int32_t *n);
/* Of KVL_OBS_REPLAY and _PLUS: score [n_kv_heads][*n_tok], the largest over the group and the tokens
 * that repeat.  Any layer may be read while another is decided on. */
KVL_API int kvl_obs_replay(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what,
                           int32_t param, const float **score, int32_t *n_tok);
/* KVL_CAP_TOKENS: ids of the positions so far, and what kind of token an id is. */
enum kvl_token_class { KVL_TOKEN_SPECIAL = 1, KVL_TOKEN_PUNCT = 2 }; /* bits */
KVL_API int kvl_tokens(const struct kvl_pctx *ctx, const int32_t **id, int32_t *n);
KVL_API uint32_t kvl_token_class(const struct kvl_pctx *ctx, int32_t id);
/* The query that a layer's W_q makes of x [n_embd], turned to position `pos`: q [n_heads][head_dim].  For
 * who guesses at a layer to come from the input of this one (InfiniGen).  W_q is counted as read. */
KVL_API int kvl_project_query(const struct kvl_pctx *ctx, int32_t layer, const float *x,
                              int32_t pos, float *q);
/* out [n_heads]: norms of W_o v for values of kv head h, |W_o^(head) v|: values [n][head_dim], out
 * [group][n], of the 1-norm or the 2-norm. */
KVL_API int kvl_output_norms(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                             const float *values, int32_t n, int32_t norm, float *out);
/* Keys of n live positions (any order) of a lane as they are stored, after RoPE, or before it where
 * the plan asked for raw keys: out [n][head_dim].  Counted as read. */
KVL_API int kvl_read_keys(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          const int32_t *pos, int32_t n, bool raw, float *out);
/* Values, likewise. */
KVL_API int kvl_read_values(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                            const int32_t *pos, int32_t n, float *out);
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
    /* [n_kv_heads], to fill where lanes keep different numbers: protected ones included; -1 on arrival:
     * keep_tok */
    int32_t *keep_lane;
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
    /* A key's position is its own / arg, rounded down; the query's is what kvl_sel_query_position says
     * (SelfExtend); needs raw keys. */
    KVL_POS_GROUPED,
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
/* Positions first .. last - 1 that are live, added to one list of `scope`: several calls for a list, in
 * ascending order, add up; not together with kvl_sel_tokens in one list.  Costs O(1) where all of them
 * are live.  A range that includes the current token, in a selection that is shared, also has the
 * tokens that come later. */
KVL_API int kvl_sel_range(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t first,
                          int32_t last);
/* KVL_POS_GROUPED: where the query stands in the segment being built. */
KVL_API int kvl_sel_query_position(struct kvl_sel *sel, int32_t pos);
/* Keys that attention reads in place of the stored ones, for a token list given before: keys
 * [n][head_dim] after RoPE, as float (ShadowKV: rebuilt from low rank); the current token, should the
 * engine add it to the list, has its own.  Not for a list of the whole layer.  Values are the stored ones
 * and alone are counted as read: what the keys were made of is the policy's to count. */
KVL_API int kvl_sel_keys(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, const float *keys,
                         int32_t n);
/* Entries that stand for several tokens, for one kv head: with logit [group][n] and value
 * [n][head_dim], entry i weighs exp(logit) like a token (RetroInfer: logit = q.centroid / sqrt(d) +
 * ln(size), value = mean of the values).  A segment of its own in the merge, of which `observe` sees
 * nothing.  The values are counted here as index bytes, what the logits were made of is not. */
KVL_API int kvl_sel_pseudo(struct kvl_sel *sel, int32_t kv_head, const float *logit,
                           const float *value, int32_t n);
/* out = alpha out + (1 - alpha) value, for every query head, behind everything else (SparQ):
 * alpha [n_heads], value [n_kv_heads][head_dim]. */
KVL_API int kvl_sel_residual(struct kvl_sel *sel, const float *alpha, const float *value);
/* What a query head would read of what `sel` holds now: ascending positions, valid until the hook
 * returns; the current token is not among them unless it was named.  For policies that prune what another
 * chose.  kvl_sel_clear empties the selection. */
KVL_API int kvl_sel_view(struct kvl_sel *sel, int32_t q_head, const int32_t **pos, int32_t *n);
KVL_API int kvl_sel_clear(struct kvl_sel *sel);
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

/* In open, or in prefilled of a shared prefill, for who knows only then: of the layers that plan offloaded,
 * those that are not named, layers [n_layers] zero, stay on the device. */
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

/* ---- composition: outer(inner) ----------------------------------------------------------------- */

struct kvl_composed;
/* A policy with KVL_CAP_WRAPS has an inner one, named in its spec or by `inner`.  Each has options, state,
 * budget and tables of its own.  Hooks that build or watch (open, append, prefilled, observe, report,
 * close) run for both, the inner's first.  Of those that decide (score, select, evict, prefill_mask) the
 * outer's runs, and calls the inner's where it wants to; what the outer leaves NULL is the inner's.  A
 * layer is dense where either says so.  One level: neither wraps a policy that wraps. */
/* KVL_EINVAL when the inner one keeps everything although its budget is less. */
KVL_API int kvl_inner_score(const struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores);
/* A selection that the inner one shared with this layer or step is there without asking it. */
KVL_API int kvl_inner_select(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel);

/* ---- sparse prefill ----------------------------------------------------------------------------- */

/* What the queries of a chunk of the context may read, per query head (-1: all heads): arrives as
 * dense; always within the causal triangle, and always the token itself.  Several calls for a head add
 * up.  Lists are ascending and unique, and are copied. */
struct kvl_prefill_mask;
KVL_API int kvl_mask_window(struct kvl_prefill_mask *mask, int32_t q_head, int32_t sink,
                            int32_t window);
/* Columns (positions) and diagonals (distance of a query to a key). */
KVL_API int kvl_mask_vertical_slash(struct kvl_prefill_mask *mask, int32_t q_head,
                                    const int32_t *vertical, int32_t n_vertical,
                                    const int32_t *slash, int32_t n_slash);
/* Blocks of block_tok keys for every block of block_tok queries of the chunk: CSR, off [n_blocks + 1]. */
KVL_API int kvl_mask_blocks(struct kvl_prefill_mask *mask, int32_t q_head, int32_t block_tok,
                            const int32_t *off, const int32_t *block, int32_t n_blocks);
/* Ranges of positions in place of blocks: range [off[n_blocks]][2], first and last + 1, ascending, with a gap
 * between two; a head has blocks or ranges, once. */
KVL_API int kvl_mask_ranges(struct kvl_prefill_mask *mask, int32_t q_head, int32_t block_tok,
                            const int32_t *off, const int32_t *range, int32_t n_blocks);
/* Positions before the chunk, and all of the chunk itself. */
KVL_API int kvl_mask_tokens(struct kvl_prefill_mask *mask, int32_t q_head, const int32_t *pos,
                            int32_t n);
/* In prefill_mask: exact weights of query i of the chunk over positions 0 .. n - 1, n = step->pos + i + 1:
 * probs [n_heads][n].  Counted as pairs that were scored. */
KVL_API int kvl_mask_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, int32_t i, float *probs, int32_t n);

/* ---- the object ---------------------------------------------------------------------------- */

enum kvl_schedule {
    KVL_DENSE = 1,  /* this layer reads everything; reported apart */
    KVL_SELECT = 2, /* ask `select` */
    /* Added to either: `observe` has nothing to see here, and weights need not be made for it.  It may be asked
     * all the same. */
    KVL_UNOBSERVED = 4,
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

struct kvl_tiers;
struct kvl_blob;

struct kvl_policy {
    uint32_t abi, size; /* KVL_POLICY_ABI, sizeof(struct kvl_policy): others are refused */
    const char *name;   /* = file name = key in command line, log and plots */
    const char *title, *paper, *help;
    /* The card that `kvlab describe` prints, plain sentences: which published behaviour it follows, in
     * what it differs, what it costs per step and once. */
    const char *follows, *deviations, *cost;
    const char
        *inner; /* KVL_CAP_WRAPS: the policy that it wraps unless another is named, and options
                          of it that differ from its own defaults: "snapkv:window=8" */
    uint32_t version;           /* raised when answers change */
    uint32_t caps;              /* enum kvl_cap */
    const struct kvl_opt *opts; /* parsing, help, sweep axes, log; NULL = none */
    size_t opts_size;
    /* The smallest budget that makes sense with these options; NULL = 1. */
    int32_t (*min_budget)(const struct kvl_shape *shape, const void *opts);
    int (*plan)(struct kvl_plan *plan);
    int (*open)(struct kvl_pctx *ctx);
    void (*close)(struct kvl_pctx *ctx);
    /* KVL_CAP_PREFILL: the context is prefilled chunk by chunk, and this says, layer by layer, what of it
     * the chunk's queries read: q->q [step->n_tok][n_heads][head_dim], and so the others.  Keys of the
     * chunk are stored already. */
    int (*prefill_mask)(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_prefill_mask *mask);
    /* Keys and values of step->n_tok new tokens, as stored (rounded):
     * k after RoPE, v: [n_tok][n_kv_heads][head_dim]. */
    int (*append)(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                  const float *v);
    /* The context is complete: observers are ready. */
    int (*prefilled)(struct kvl_pctx *ctx, int32_t layer);
    /* KVL_DENSE or KVL_SELECT, and KVL_UNOBSERVED, or a negative status.  NULL: SELECT iff there is a select hook.  Calls no
     * operator and reads nothing but the step, options and what hooks themselves wrote into state. */
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
    /* Reserved: positions that change, residency wishes beyond kvl_plan_offload, state on disk. */
    int (*relayout)(struct kvl_pctx *ctx, enum kvl_relayout what);
    int (*place)(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_tiers *tiers);
    int (*save)(struct kvl_pctx *ctx, struct kvl_blob *blob);
    int (*load)(struct kvl_pctx *ctx, struct kvl_blob *blob);
    /* Extra numbers; never accuracy, recall or budget: those are measured by the harness. */
    int (*report)(struct kvl_pctx *ctx, struct kvl_report *report);
    const struct kvl_composed *composed; /* the engine's, of outer(inner); NULL */
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
