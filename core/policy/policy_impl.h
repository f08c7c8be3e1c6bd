/* policy_impl.h - the engine's side of kvl/policy.h: plans, tables, observers, selections, evictions, hooks.
 *
 * Every call of kvl/policy.h is defined in this folder; its state is in session_impl.h. */
#ifndef KVL_POLICY_IMPL_H
#define KVL_POLICY_IMPL_H

#include "session_impl.h"

/* ---- plan/planned.c -------------------------------------------------------------------------- */

struct kvl_row_decl {
    enum kvl_table_unit unit;
    int32_t unit_tok, row_elems;
    enum kvl_table_elem elem;
    bool per_layer;
    int32_t n_layers; /* that have rows */
    int32_t *at;      /* [n_layers of the model]: place among them, -1 = none; NULL = all have.
                         Owned by the plan, borrowed by tables */
};

struct kvl_plan_private {
    const struct kvl_policy *policy;
    int32_t n_layers; /* of the model, those of a window too */
    struct kvl_row_decl table[KVL_MAX_TABLES];
    int32_t n_tables;
    struct kvl_observer_set observers;
    bool offloads;
    struct kvl_offload offload;
    uint8_t *offload_layers; /* offload.layers, owned by the plan */
    struct kvl_arena masks;  /* of kvl_plan_layers */
};

struct kvl_planned {
    const struct kvl_policy *policy;
    struct kvl_shape shape; /* what the policy sees: the layers without a window */
    /* [shape.n_layers] -> of the model, and back, [n_layers] of the model, -1 for a layer of a window; NULL: the
     * same. */
    int32_t *layer_of, *seen_as;
    void *opts;
    struct kvl_buf options; /* canonical text of opts */
    struct kvl_buf tabled;  /* the same of those that tables depend on */
    int32_t budget_tok;
    size_t state_bytes;
    bool raw_keys, own_prefill, prefill_layerwise;
    enum kvl_replay replay;
    int32_t prefill_chunk_tok;
    struct kvl_plan_private p;
};

/* A layer of the model as the policy numbers it. */
static inline int32_t kvl_seen_as(const struct kvl_planned *p, int32_t layer)
{
    return p->seen_as ? p->seen_as[layer] : layer;
}
/* The model's number of a layer that a policy names; one that it does not have stays out of range. */
static inline int32_t kvl_layer_of(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct kvl_planned *p = ctx->host->session->planned;
    if (!p || !p->layer_of || layer < 0) return layer;
    return layer < p->shape.n_layers ? p->layer_of[layer] : INT32_MAX;
}

const char *kvl_observer_name(enum kvl_observer what);
/* What a policy's plan answered. */
int kvl_plan_check(const struct kvl_plan *plan);
bool kvl_observer_set_has(const struct kvl_observer_set *set, enum kvl_observer what,
                          int32_t param);

/* ---- observe.c: what the prefill keeps for policies ------------------------------------------ */

struct kvl_mass { /* a computed window mass, kept until the observers change */
    struct kvl_mass *next;
    int32_t layer, window, n_tok;
    float *mass; /* [n_heads][n_tok] */
};

/* What every token received; the total is sum - carry, sum is it rounded to float. */
struct kvl_column_sums {
    float *sum, *carry; /* [n_layers][n_heads][n_tok]; of blocks and inputs no carry */
};

/* Sums over the queries before RoPE of positions `param` and up. */
struct kvl_moment_sums {
    double *sum;     /* [n_layers][n_heads][head_dim] */
    double *product; /* [n_layers][n_heads][head_dim (head_dim + 1) / 2] */
};

/* What a repetition of the context gave, kept until the observers change. */
struct kvl_repeated {
    struct kvl_repeated *next;
    enum kvl_observer what;
    int32_t param, n_tok;
    float *score; /* [n_layers][n_kv_heads][n_tok]; of KVL_OBS_REREAD [n_layers][n_heads][n_tok] */
    uint64_t ns;
};

struct kvl_observers {
    int32_t n_refs;
    const struct kvl_device *dev;
    struct kvl_observer_set set; /* the engine's when the session was created */
    int64_t n_seen;              /* tokens seen; query of token t is in ring row t % window */
    float *ring;                 /* [n_layers][set.window][n_heads * head_dim] */
    float *ring_lse;             /* [n_layers][set.window][n_heads], NaN: not known */
    struct kvl_mass *masses;
    int32_t n_tok;                                   /* tokens that the columns have room for */
    struct kvl_column_sums columns[KVL_MAX_COLUMNS]; /* as set.column, where it asks for sums */
    struct kvl_moment_sums moments[KVL_MAX_COLUMNS]; /* where it asks for moments */
    struct kvl_repeated *repeats;
};

static inline bool kvl_observes_columns(enum kvl_observer what)
{
    return what == KVL_OBS_COLUMNS || what == KVL_OBS_LOGITS || what == KVL_OBS_BLOCKS ||
           what == KVL_OBS_INPUTS;
}
/* A sum that grows with the prefill; others are written once. */
static inline bool kvl_observes_sums(enum kvl_observer what)
{
    return what == KVL_OBS_COLUMNS || what == KVL_OBS_LOGITS;
}

/* Made of a second pass over the context. */
static inline bool kvl_observes_replay(enum kvl_observer what)
{
    return what == KVL_OBS_REPLAY || what == KVL_OBS_REPLAY_PLUS || what == KVL_OBS_REREAD;
}

/* Rows of a layer of such scores. */
static inline int32_t kvl_replay_rows(const struct kvl_shape *shape, enum kvl_observer what)
{
    return what == KVL_OBS_REREAD ? shape->n_heads : shape->n_kv_heads;
}

int kvl_observers_create(const struct kvl_engine *e, struct kvl_observers **out);
struct kvl_observers *kvl_observers_ref(struct kvl_observers *o);
void kvl_observers_unref(struct kvl_observers *o);
/* Makes *o writable for n_tok tokens in all: a private copy when it is shared; forgets computed
 * masses. */
int kvl_observers_own(struct kvl_engine *e, struct kvl_observers **o, int32_t n_tok);
/* Adds a chunk of one layer, whose keys end e->lanes, to the column sums. */
int kvl_observers_sum(const struct kvl_engine *e, struct kvl_observers *o, int32_t layer,
                      const float *q, const float *lse, int32_t n);
/* Queries [n][n_heads * head_dim] of tokens n_seen .. n_seen + n - 1 of one layer, and their
 * log-sum-exp [n][n_heads], NULL where no attention was computed. */
int kvl_observers_add(struct kvl_engine *e, struct kvl_observers *o, int32_t layer, const float *q,
                      const float *lse, int32_t n);

/* n tokens of a layer of a window, of which nothing is kept. */
void kvl_observers_pass(struct kvl_session *s, int32_t layer, int32_t n);

/* The repetition of the whole session as it is now; NULL: none was made. */
const struct kvl_repeated *kvl_observers_repeated(const struct kvl_session *s,
                                                  enum kvl_observer what, int32_t param);

/* KVL_OBS_BLOCKS: sums the blocks that a chunk [n][n_heads * head_dim] of one layer completes,
 * whose keys end e->lanes. */
int kvl_observers_blocks(const struct kvl_engine *e, const struct kvl_observers *o, int32_t i,
                         int32_t layer, const float *q, int32_t n);
/* The same of the complete context, its last block too: sums [n_heads][n_tok]. */
int kvl_observed_blocks(struct kvl_session *s, int32_t i, int32_t layer, float *sums);

/* KVL_OBS_INPUTS (observe_inputs.c): scores of what entered one layer with a chunk, rows first .. first + n - 1 of
 * e->xn. */
int kvl_observers_inputs(struct kvl_session *s, int32_t layer, int32_t first, int32_t n,
                         struct kvl_err *err);
/* Loads the scorers of a set that the engine does not have, and forgets where they came from. */
int kvl_scorers_load(struct kvl_engine *e, struct kvl_observer_set *set, struct kvl_err *err);
void kvl_scorers_free(struct kvl_engine *e);

/* Adds queries before RoPE [n][n_heads * head_dim] of tokens n_seen .. n_seen + n - 1 of one layer to
 * the moments. */
int kvl_observers_moments(const struct kvl_engine *e, struct kvl_observers *o, int32_t layer,
                          const float *q_raw, int32_t n);

/* The same of tokens that a wrapper asks about, by the queries that it gave (observe_asked.c); `layer` is the policy's
 * number. */
int kvl_asked_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t window, const float **mass,
                   int32_t *n_tok);
int kvl_asked_probs(const struct kvl_pctx *ctx, int32_t layer, int32_t back, float *probs,
                    int32_t n_tok);
int kvl_asked_query(const struct kvl_pctx *ctx, int32_t back, float *q);
int kvl_asked_moments(const struct kvl_pctx *ctx, const float **mean, const float **cov,
                      int32_t *n);

/* What an observer may be asked for now, by policies that planned it.  The first makes the policy's number of a layer the
 * model's, which the others take. */
int kvl_obs_check_layer(const struct kvl_pctx *ctx, int32_t *layer);
int kvl_obs_check_time(const struct kvl_pctx *ctx, int32_t layer);
int kvl_obs_check_window(const struct kvl_pctx *ctx, int32_t layer, int32_t window);

/* ---- table/table_rows.c: tables of a policy ------------------------------------------------------ */

/* The first n_rows rows for operators alone, in two pieces, counted as read. */
int kvl_table_read_operand(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out);

struct kvl_row_table {
    const struct kvl_device *dev;
    struct kvl_row_decl decl;
    enum kvl_kv_type type;
    int32_t n_kv_heads;
    size_t n_lanes, row_bytes; /* of a layer; of a row of one lane.  Live: columns; of an element */
    int32_t n_rows;
    struct kvl_row_plane *plane; /* [decl.n_layers] */
};

/* Rows of a table that has n_pos positions. */
int32_t kvl_row_decl_rows(const struct kvl_row_decl *d, int32_t n_pos);
size_t kvl_row_elem_bytes(const struct kvl_row_table *t);
/* A table without memory: how many rows of how many bytes it has over a store of such a type. */
struct kvl_row_table kvl_row_table_shape(const struct kvl_row_decl *decl, int32_t n_kv_heads,
                                         enum kvl_kv_type store, int32_t n_pos);
/* Rows for n_pos positions, zero until they are written. */
int kvl_row_table_create(const struct kvl_engine *e, const struct kvl_row_decl *decl, int32_t n_pos,
                         struct kvl_row_table **out);
void kvl_row_table_destroy(struct kvl_row_table *t);
/* An equal table that shares what is not written: copies what was written since the last fork or freeze
 * at most, unless that is most of it. */
int kvl_row_table_fork(const struct kvl_engine *e, struct kvl_row_table *from,
                       struct kvl_row_table **out);
/* After attach has built the rows of the context: from now on others may share them. */
int kvl_row_table_freeze(struct kvl_row_table *t);
/* Gives `to`, as created, the rows of the context that `from` had when it was frozen, whatever `from`
 * appended since; false, and nothing done, when it has none of that shape and length. */
bool kvl_row_table_share(const struct kvl_row_table *from, struct kvl_row_table *to);
/* A token comes to a layer: rows for all positions below n_pos, or one more for each lane. */
void kvl_row_table_append(struct kvl_row_table *t, int32_t layer, int32_t n_pos);
/* Of the n_live positions of a lane n_gone go (`gone`: ascending ranks): so do their rows in live tables. */
int kvl_row_table_drop(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t n_live,
                       const int32_t *gone, int32_t n_gone);
/* Carries out what kvl_row_table_drop left for one launch of the device. */
int kvl_row_table_settle(struct kvl_engine *e, struct kvl_err *err);
/* Bytes of all rows, shared or not. */
size_t kvl_row_table_bytes(const struct kvl_row_table *t);

/* ---- select.c, shared_selections.c ----------------------------------------------------------------- */

struct kvl_sel_list {
    const int32_t *item; /* positions or pages, ascending */
    int32_t n;
    /* Positions, dead ones too.  Once the selection is complete: ascending, apart from each other, and, where
     * there are any, with the items in them. */
    struct kvl_run *range;
    int32_t n_ranges, cap_ranges;
    bool
        open; /* the last range reaches to the newest token, also of steps that it is shared with */
    bool loose; /* ranges are not as they will be once complete */
    bool items; /* positions or pages were named */
    const float *log_weight;
    float *keys; /* [n + 1][head_dim] in place of the stored ones, the last unset; or NULL */
    bool given;
};

struct kvl_segment {
    bool everything;
    enum kvl_scope scope;
    int32_t page_tok; /* 1: items are positions */
    bool has_unit;    /* items were named: page_tok is theirs */
    enum kvl_pos_mode mode;
    int32_t arg;
    int32_t q_pos; /* KVL_POS_GROUPED */
    bool has_q_pos;
    struct kvl_sel_list *list; /* [n_lists] */
    int32_t n_lists;
    /* Until kvl_sel_look: the items of list i are on their way to top[i * n_top] and up, and
     * `forced`, where it is not negative, comes after them.  NULL: lists have their items. */
    const int32_t *top;
    int32_t n_top, n_scored, forced; /* n_scored: so many competed */
};

struct kvl_pseudo {             /* entries of one kv head */
    const float *logit, *value; /* [group][n], [n][head_dim]; NULL: none were given */
    int32_t n;
};

struct kvl_sel {
    struct kvl_session *s;
    struct kvl_err *err;
    int32_t layer, n_pos; /* positions below n_pos exist; n_pos - 1 is the current token */
    struct kvl_segment seg[KVL_MAX_SEGMENTS];
    int32_t n_seg;
    int32_t share_layer, share_steps; /* 0 = not shared */
    struct kvl_pseudo *pseudo;        /* [n_kv_heads] or NULL */
    /* [n_heads], [n_kv_heads][head_dim]; NULL = no residual */
    const float *residual_alpha, *residual_value;
    bool dense, unobserved;
};

void kvl_sel_init(struct kvl_sel *sel, struct kvl_session *s, int32_t layer, int32_t n_pos,
                  struct kvl_err *err);
/* What a query head would read of what `sel` holds now: ascending positions, the current token not among them unless it
 * was named. */
int kvl_sel_view(struct kvl_sel *sel, int32_t q_head, const int32_t **pos, int32_t *n);
/* Lists that a scope has. */
int32_t kvl_scope_lists(const struct kvl_shape *shape, enum kvl_scope scope);
/* Every list of every segment was given. */
int kvl_sel_complete(struct kvl_sel *sel);
/* Waits for items that are on their way. */
int kvl_sel_look(struct kvl_sel *sel);
int kvl_sel_save(struct kvl_sel *sel, const struct kvl_row *row);
/* Fills `sel` from a selection that an earlier layer or step shared; false when there is none. */
bool kvl_sel_load(struct kvl_sel *sel, const struct kvl_row *row);
int kvl_shares_fork(struct kvl_host *to, const struct kvl_host *from);
void kvl_shares_free(struct kvl_host *host);

/* Turns a selection into attention jobs (real) or runs it (masked): out [n_heads][head_dim],
 * probabilities on request into probs/n_probs [n_heads].  Counts what is attended and read. */
struct kvl_resolve {
    struct kvl_sel *sel;
    const struct kvl_row *row;
    const float *q, *q_raw;
    float *out;
    float *lse;              /* [n_heads] */
    const float **probs;     /* NULL or [n_heads] */
    int32_t *n_probs;        /* [n_heads] */
    struct kvl_reads *reads; /* NULL, or filled for a tap */
};

/* ---- offload.c: lanes in the host tier ------------------------------------------------------------ */

struct kvl_head;
struct kvl_head_list;

bool kvl_offloads(const struct kvl_session *s, int32_t layer);
/* The same, and what attention reads of them is brought to the device. */
bool kvl_fetches(const struct kvl_session *s, int32_t layer);
/* The same, and the device has a memory of its own: attention reads copies.  On the CPU it reads what is there, and
 * requests are decided and counted all the same. */
bool kvl_reads_copies(const struct kvl_session *s, int32_t layer);
int kvl_offload_attach(struct kvl_session *s, struct kvl_err *err);
/* The context is complete: it goes to the host. */
int kvl_offload_begin(struct kvl_session *s, struct kvl_err *err);
/* What a hook fetched ahead is under way when it returns. */
int kvl_offload_send(struct kvl_session *s);
/* A layer has positions below n_pos: what is too old goes to the host. */
int kvl_offload_age(struct kvl_session *s, int32_t layer, int32_t n_pos, struct kvl_err *err);
/* After a prefill that moved layers to pinned memory: counts what lies there outside of a tier. */
void kvl_host_count(struct kvl_session *s);
/* Counts bytes on the device and on the host. */
void kvl_offload_account(struct kvl_session *s);
/* For a head in a layer of the host tier (head_lists.h).  What the head reads comes to the device; then, for
 * each list, runs of the lane's view there, in the order of the list; after the last head, attention waits
 * for what came. */
int kvl_offload_request(const struct kvl_head *h);
int kvl_offload_await(const struct kvl_head *h);
int kvl_offload_runs(const struct kvl_head *h, const struct kvl_head_list *it,
                     const struct kvl_run **runs, int32_t *n_runs);

/* ---- evict.c -------------------------------------------------------------------------------------- */

/* Asks the policy's evict hook for one layer and carries it out; late: where that would wait for the device, by
 * kvl_evict_late. */
int kvl_evict_layer(struct kvl_session *s, const struct kvl_step *step, bool late);
/* The step's results are there. */
int kvl_evict_late(struct kvl_engine *e, struct kvl_err *err);
/* What an earlier call left, which failed. */
void kvl_evict_forget(struct kvl_engine *e);
/* Asks the policy's score hook for one layer, keeps the best. */
int kvl_score_layer(struct kvl_session *s, int32_t layer);

/* ---- async.c: hooks that the engine does not wait for ---------------------------------------------- */

/* The session's next hook of a step may run ahead of the device. */
bool kvl_session_async(const struct kvl_session *s);
/* The hook that runs may look at this: the host has it, at once or, where the hook runs ahead of the device, once it
 * looks. */
int kvl_hand(struct kvl_session *s, const struct kvl_pieces *list, int32_t n, struct kvl_err *err);
/* The same for its arguments, before all else: kvl_look_at of another array leaves them where they are. */
int kvl_hand_args(struct kvl_session *s, const struct kvl_pieces *list, int32_t n,
                  struct kvl_err *err);
/* Before the host reads what a hook gives, or what its operators wrote.  KVL_EPOLICY: they met a NaN. */
int kvl_session_look(struct kvl_session *s, struct kvl_err *err);
/* The same for an array of n items alone (a negative n is none): of what else operators wrote nothing crosses. */
int kvl_session_look_at(struct kvl_session *s, const void *p, int32_t n, size_t item,
                        struct kvl_err *err);
/* The same for what the engine looks at itself, after the hook: what that was handed stays where it
 * is. */
int kvl_session_look_back(struct kvl_session *s, const struct kvl_pieces *list, int32_t n,
                          struct kvl_err *err);
/* After the last wait of a call: KVL_EPOLICY where operators of a hook met a NaN. */
int kvl_marks_check(struct kvl_engine *e, struct kvl_err *err);
/* A call that fails takes its marks along. */
void kvl_marks_drop(struct kvl_engine *e);

/* ---- hooks/compose.c -------------------------------------------------------------------------------- */

/* The context of the inner part. */
int kvl_inner_ctx(const struct kvl_pctx *ctx, struct kvl_pctx *out,
                  const struct kvl_policy **inner);
/* An outer policy changes every selection, those that the inner one shares, too. */
bool kvl_policy_reselects(const struct kvl_policy *policy);

/* ---- attention_tap.c ------------------------------------------------------------------------------- */

int kvl_reads_get(struct kvl_engine *e, struct kvl_reads *out);
/* Adds n ascending positions, none of which the head has read so far, and their log-weights or NULL. */
int kvl_reads_add(struct kvl_engine *e, struct kvl_reads *reads, int32_t q_head, const int32_t *pos,
                  const float *log_weight, int32_t n);
/* One row after its attention, out and q of this row. */
int kvl_tap_read(struct kvl_session *s, int32_t layer, int32_t pos, bool dense, const float *q,
                 const float *out, const struct kvl_reads *reads, struct kvl_err *err);
/* From inside a hook. */
int kvl_tap_score(struct kvl_session *s, const struct kvl_tap_score *score);
int kvl_tap_keep(struct kvl_session *s, int32_t layer, int32_t kv_head, const int32_t *kept,
                 int32_t n_kept);

/* ---- hooks.c ---------------------------------------------------------------------------------------- */

/* From here on the hooks of this policy run; NULL: of no policy. */
void kvl_watch_policy(struct kvl_engine *e, const char *policy);
/* Before every hook: errors go to `err`.  Nothing is waited for: for hooks that look at nothing and call no
 * operator. */
void kvl_hook_enter(struct kvl_session *s, struct kvl_err *err);
/* The same, what the device was given is done, and scratch is empty again. */
int kvl_hook_begin(struct kvl_session *s, struct kvl_err *err);
/* kvl_hook_begin for a hook of a step; kvl_hook_enter where it may run ahead of the device (async.c). */
int kvl_step_hook_begin(const struct kvl_row *row, struct kvl_err *err);
/* Adds policy, layer and step to a failed hook's message; a positive or unknown code becomes
 * KVL_EPOLICY. */
int kvl_hook_failed(struct kvl_session *s, const char *hook, int32_t layer, int code);
/* KVL_OK when a hook returned KVL_OK and no call that it made was refused; else kvl_hook_failed. */
int kvl_hook_done(struct kvl_session *s, const char *hook, int32_t layer, int code);

/* The hooks.  Those that return what kvl_hook_done says are complete; score, schedule and evict return what the
 * hook said, since what the engine makes of the answer belongs to it, too. */
int kvl_call_plan(const struct kvl_policy *policy, struct kvl_plan *plan);
int kvl_call_open(struct kvl_session *s, struct kvl_err *err);
int kvl_call_report(struct kvl_session *s, struct kvl_report *report, struct kvl_err *err);
int kvl_call_prefill_mask(struct kvl_session *s, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_prefill_mask *mask,
                          struct kvl_err *err);
/* append, of a context that is there already. */
int kvl_call_replay(struct kvl_session *s, const struct kvl_step *step, const float *k,
                    const float *v, struct kvl_err *err);
int kvl_call_prefilled(struct kvl_session *s, int32_t layer, struct kvl_err *err);
int kvl_call_score(struct kvl_session *s, int32_t layer, struct kvl_scores *scores);
int kvl_call_asked(struct kvl_pctx *ctx, const struct kvl_policy *inner, int32_t layer,
                   const struct kvl_asked *asked, struct kvl_scores *scores);
int kvl_call_append(const struct kvl_row *row, const struct kvl_step *step, const float *k,
                    const float *v, struct kvl_err *err);
int kvl_call_schedule(struct kvl_session *s, const struct kvl_step *step, struct kvl_err *err);
/* The selection is complete and, where it is shared, kept. */
int kvl_call_select(const struct kvl_row *row, const struct kvl_step *step,
                    const struct kvl_query *q, struct kvl_sel *sel, struct kvl_err *err);
int kvl_call_observe(const struct kvl_row *row, const struct kvl_step *step, struct kvl_err *err);
int kvl_call_evict(struct kvl_session *s, const struct kvl_step *step, struct kvl_keep *keep);

#endif
