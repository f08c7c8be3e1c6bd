/* kvl/observe.h - what a policy may look at: observers of the prefill, stored keys and values, weights,
 * tokens; and what it tells a trace of the run.
 *
 * Part of kvl/policy.h. */
#ifndef KVL_POLICY_OBSERVE_H
#define KVL_POLICY_OBSERVE_H

#include "kvl/plan.h"
#include "kvl/select.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_pctx;
struct kvl_plan;
struct kvl_query;
struct kvl_step;

/* ---- observers of the prefill ------------------------------------------------------------------ */

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
    /* What every token received of the queries of its own block, without a causal mask and without the scale of
     * the logits (Compactor): the softmax of q.k over the block.  A block that is not full is filled up with zero
     * queries and keys.  `param`: KVL_BLOCKS. */
    KVL_OBS_BLOCKS = 7,
    /* The context is read once more, behind itself, all of it and without a request: the largest probability that a
     * token of the second reading put on every position, query head by query head (KVCompose): kvl_obs_replay.
     * `param` is 0. */
    KVL_OBS_REREAD = 8,
    /* Scores that a method makes of what enters a layer, token by token as the context goes by (KVzap): kvl_plan_inputs
     * asks for them, kvl_obs_columns reads them, [n_kv_heads][n_tok].  `param` is the scorer's key. */
    KVL_OBS_INPUTS = 9,
};
/* Blocks of `size` (1 to 65535) tokens of the context but its first `first` and last `last` (0 to 127). */
#define KVL_BLOCKS(first, last, size) ((size) | (first) << 16 | (last) << 24)

/* Different observers beside the window (kind and param) that one engine keeps at most; InfLLM has one of its own
 * for every budget of a sweep. */
#define KVL_MAX_COLUMNS 16

/* What KVL_OBS_INPUTS computes.  An engine keeps a copy, and what `load` wrote: it looks at neither the plan nor its
 * options after that. */
struct kvl_input_scorer {
    int32_t key;  /* 0 or more, of all that its scores depend on: the same key, the same scores */
    bool looks;   /* score reads x itself, and does not only hand it to operators */
    size_t bytes; /* of memory of an engine */
    const void *from; /* for load: the plan's options, for instance */
    /* Once per engine: writes memory.  `shape` is the model's, with its layers of a window. */
    int (*load)(const struct kvl_input_scorer *scorer, const struct kvl_shape *shape, void *memory,
                struct kvl_err *err);
    /* score [n_kv_heads][n] of x [n][n_embd], what enters a layer (by the model's number) after its norm; a row may not
     * depend on those beside it.  ctx has shape, operators, scratch and err, and no policy. */
    int (*score)(const struct kvl_pctx *ctx, const void *memory, int32_t layer, const float *x,
                 int32_t n, float *score);
};

/* Asks for an observer of the prefill. */
KVL_API int kvl_plan_observe(struct kvl_plan *plan, enum kvl_observer what, int32_t param);
/* The same for KVL_OBS_INPUTS; copied. */
KVL_API int kvl_plan_inputs(struct kvl_plan *plan, const struct kvl_input_scorer *scorer);

/* mass [n_heads][*n_tok]: the probability that the last `window` queries put on every position of
 * the context (kvl_attn_window_args).  Shared by all policies of a sweep that ask for it. */
KVL_API int kvl_obs_window_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t window,
                                const float **mass, int32_t *n_tok);
/* The weights of one query of that window, by its distance from the newest (0): probs
 * [n_heads][n_tok], zero behind the query.  Not cached. */
KVL_API int kvl_obs_window_probs(const struct kvl_pctx *ctx, int32_t layer, int32_t back,
                                 float *probs, int32_t n_tok);
/* sums [n_heads][*n_tok] of a column observer or of KVL_OBS_BLOCKS that plan asked for, or scores [n_kv_heads][*n_tok] of
 * KVL_OBS_INPUTS, in prefilled and score.  Shared by all policies of a sweep that ask for it. */
KVL_API int kvl_obs_columns(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what,
                            int32_t param, const float **sums, int32_t *n_tok);
/* The observed query that lies `back` tokens before the newest (0): q [n_heads][head_dim] after RoPE. */
KVL_API int kvl_obs_window_query(const struct kvl_pctx *ctx, int32_t layer, int32_t back, float *q);
/* Of KVL_OBS_MOMENTS: mean [n_heads][head_dim], cov [n_heads][head_dim][head_dim] (divided by the number
 * of queries, *n). */
KVL_API int kvl_obs_moments(const struct kvl_pctx *ctx, int32_t layer, int32_t param,
                            const float **mean, const float **cov, int32_t *n);
/* Of KVL_OBS_REPLAY and _PLUS: score [n_kv_heads][*n_tok], the largest over the group and the tokens
 * that repeat; of KVL_OBS_REREAD [n_heads][*n_tok].  Any layer may be read while another is decided on. */
KVL_API int kvl_obs_replay(const struct kvl_pctx *ctx, int32_t layer, enum kvl_observer what,
                           int32_t param, const float **score, int32_t *n_tok);
/* In append of a step: score [n_kv_heads] of the token at hand by the scorer of that key, which plan asked for. */
KVL_API int kvl_step_inputs(const struct kvl_pctx *ctx, int32_t layer, int32_t key, float *score);
/* |W_o v|, the norm (1 or 2) of what the output projection makes of values [n][head_dim] of a kv head, for every query
 * head of its group: out [group][n]. */
KVL_API int kvl_output_norms(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                             const float *values, int32_t n, int32_t norm, float *out);
/* KVL_CAP_TOKENS: ids of the positions so far, and what kind of token an id is. */
enum kvl_token_class { KVL_TOKEN_SPECIAL = 1, KVL_TOKEN_PUNCT = 2 }; /* bits */
KVL_API int kvl_tokens(const struct kvl_pctx *ctx, const int32_t **id, int32_t *n);
KVL_API uint32_t kvl_token_class(const struct kvl_pctx *ctx, int32_t id);
/* The query that a layer's W_q makes of x [n_embd], turned to position `pos`: q [n_heads][head_dim].  For
 * who guesses at a layer to come from the input of this one (InfiniGen).  W_q is counted as read. */
KVL_API int kvl_project_query(const struct kvl_pctx *ctx, int32_t layer, const float *x,
                              int32_t pos, float *q);
/* Keys of n live positions (any order) of a lane as they are stored, after RoPE, or before it where
 * the plan asked for raw keys: out [n][head_dim].  Counted as read. */
KVL_API int kvl_read_keys(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          const int32_t *pos, int32_t n, bool raw, float *out);
/* Values, likewise. */
KVL_API int kvl_read_values(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                            const int32_t *pos, int32_t n, float *out);
/* The same for positions first .. first + n - 1, all of which are live. */
KVL_API int kvl_read_key_span(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                              int32_t first, int32_t n, bool raw, float *out);
KVL_API int kvl_read_value_span(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                                int32_t first, int32_t n, float *out);
/* Exact attention weights of this query over every live slot of the layer, in slot order, which is
 * position order for a policy that never evicts: probs [n_heads][n].  Reads all keys, and is
 * counted as such: for `oracle` and for filter layers. */
KVL_API int kvl_attn_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, float *probs, int32_t n);
/* y = x turned to position `pos`, pair by pair as the model does in this layer: x, y [n_heads][head_dim]; y may
 * be x.  For what lies before RoPE: kvl_query.q_raw, keys read raw. */
KVL_API int kvl_rotate(const struct kvl_pctx *ctx, int32_t layer, const float *x, int32_t n_heads,
                       int32_t pos, float *y);
/* The same for n vectors, each to a position of its own: x [n][head_dim], pos [n]. */
KVL_API int kvl_rotate_each(const struct kvl_pctx *ctx, int32_t layer, float *x, int32_t n,
                            const int32_t *pos);
/* Bytes of the key and the value of one token in one lane, as stored. */
KVL_API int32_t kvl_token_bytes(const struct kvl_pctx *ctx);
/* Positions of a lane that are live, ascending.  Borrowed until the hook returns. */
KVL_API int kvl_live(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                     const int32_t **pos, int32_t *n);
/* ---- traces ------------------------------------------------------------------------------------ */

/* Scores by which a policy itself chose (kvl_sel_top_*, the score hook tell theirs without it), for
 * a trace of the run: every list of `scope` has n of them, of units of unit_tok positions, the
 * first of which begins at first_tok.  -INFINITY: could not be chosen.  Changes no answer, and costs
 * nothing without a trace. */
struct kvl_scored {
    enum kvl_scope scope;
    int32_t first_tok, unit_tok, n;
    const float *score; /* [lists of scope][n] */
};
KVL_API int kvl_tap_scores(const struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_scored *scored);
/* For scores of single positions: *out [lists of scope][step->pos + 1] in scratch, all -INFINITY, to write
 * scores into; NULL where there is no trace. */
KVL_API int kvl_tap_room(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         enum kvl_scope scope, float **out);
/* Tells what was written there; NULL: nothing. */
KVL_API int kvl_tap_positions(const struct kvl_pctx *ctx, const struct kvl_step *step,
                              enum kvl_scope scope, const float *score);
/* False: there is no trace, and an array made for kvl_tap_scores alone need not be made. */
KVL_API bool kvl_tap_listens(const struct kvl_pctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
