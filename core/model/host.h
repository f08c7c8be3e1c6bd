/* host.h - the engine's side of sessions and policies; core/model only.
 *
 * Who owns what
 *   engine    workspace of one thread; three arenas: `step` lives for one layer of one call, in memory of
 *             the host, which operators read copies of; `results`, which operators write and both sides
 *             see, as long, or until the device is done; `scratch` for one hook.  Lists and tables stay out
 *             of what both see: its pages would travel at every touch
 *   session   its sequence, a reference to its observers, its policy's tables and state
 *   observers are reference-counted and copied when a fork writes them; tables share their rows and
 *             copy those that are written
 */
#ifndef KVL_HOST_H
#define KVL_HOST_H

#include "kv/lane.h"
#include "kv/tier.h"
#include "kvl/model.h"
#include "model/gguf.h"
#include "model/weights.h"

#define KVL_MAX_SEGMENTS 4 /* of a selection */

/* ---- arena.c: memory that is given back all at once ----------------------------------------- */

struct kvl_arena {
    const struct kvl_device *dev; /* whose SHARED memory it is; NULL: the host's */
    struct kvl_arena_chunk *head;
    size_t total; /* bytes of all chunks: what one chunk will have after the next reset */
    size_t used;  /* since the last one */
};
/* 64-byte aligned, not cleared; NULL when there is no memory.  Pointers stay valid until reset. */
void *kvl_arena_get(struct kvl_arena *a, size_t n, size_t item);
void kvl_arena_reset(struct kvl_arena *a);
void kvl_arena_free(struct kvl_arena *a);

/* ---- model.c --------------------------------------------------------------------------------- */

struct kvl_model {
    struct kvl_gguf *file;
    struct kvl_weights w;
    struct kvl_tokenizer *tokenizer;
    struct kvl_shape shape;
    char name[128], hash[33];
    char *path;
    size_t bytes, token_bytes;
};

/* ---- planned.c ------------------------------------------------------------------------------- */

struct kvl_meta_decl {
    enum kvl_meta_unit unit;
    int32_t unit_tok, row_elems;
    enum kvl_meta_elem elem;
    bool per_layer;
    int32_t n_layers; /* that have rows */
    int32_t *at;      /* [n_layers of the model]: place among them, -1 = none; NULL = all have.
                         Owned by the plan, borrowed by tables */
};

struct kvl_plan_private {
    const struct kvl_policy *policy;
    struct kvl_meta_decl meta[KVL_MAX_META];
    int32_t n_meta;
    struct kvl_observer_set observers;
    bool offloads;
    struct kvl_offload offload;
    uint8_t *offload_layers; /* offload.layers, owned by the plan */
};

struct kvl_planned {
    const struct kvl_policy *policy;
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

const char *kvl_observer_name(enum kvl_observer what);
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
    float *sum, *carry; /* [n_layers][n_heads][n_tok] */
};

/* Of the queries before RoPE of positions `param` and up. */
struct kvl_moment_sums {
    double *sum;     /* [n_layers][n_heads][head_dim] */
    double *product; /* [n_layers][n_heads][head_dim (head_dim + 1) / 2] */
};

/* What a repetition of the context gave, kept until the observers change. */
struct kvl_repeated {
    struct kvl_repeated *next;
    enum kvl_observer what;
    int32_t param, n_tok;
    float *score; /* [n_layers][n_kv_heads][n_tok] */
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
    return what == KVL_OBS_COLUMNS || what == KVL_OBS_LOGITS;
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

/* Adds queries before RoPE [n][n_heads * head_dim] of tokens n_seen .. n_seen + n - 1 of one layer to
 * the moments. */
int kvl_observers_moments(const struct kvl_engine *e, struct kvl_observers *o, int32_t layer,
                          const float *q_raw, int32_t n);

/* What an observer may be asked for now, by policies that planned it. */
int kvl_obs_check_layer(const struct kvl_pctx *ctx, int32_t layer);
int kvl_obs_check_time(const struct kvl_pctx *ctx, int32_t layer);
int kvl_obs_check_window(const struct kvl_pctx *ctx, int32_t layer, int32_t window);

/* ---- repeat.c: the context once more ----------------------------------------------------------- */

struct kvl_repeat;
/* Makes the repetitions that `set` asks for unless they are there; sets the time that they took. */
int kvl_repeat_ready(struct kvl_session *s, const struct kvl_observer_set *set, uint64_t *ns,
                     struct kvl_err *err);
/* n tokens of a repetition have attended in a layer: the engine holds their queries and inputs. */
int kvl_repeat_layer(struct kvl_repeat *r, const struct kvl_session *s, int32_t layer, int32_t n);

/* ---- meta.c: tables of a policy --------------------------------------------------------------- */

struct kvl_meta_table {
    const struct kvl_device *dev;
    struct kvl_meta_decl decl;
    enum kvl_kv_type type;
    int32_t n_kv_heads;
    size_t n_lanes, row_bytes; /* of a layer; of a row of one lane.  Live: columns; of an element */
    int32_t n_rows;
    struct kvl_meta_plane *plane; /* [decl.n_layers] */
};

/* Rows for n_pos positions, zero until somebody writes them. */
int kvl_meta_table_create(const struct kvl_engine *e, const struct kvl_meta_decl *decl,
                          int32_t n_pos, struct kvl_meta_table **out);
void kvl_meta_table_destroy(struct kvl_meta_table *t);
/* An equal table that shares what nobody writes: copies what was written since the last fork or freeze
 * at most, unless that is most of it. */
int kvl_meta_table_fork(const struct kvl_engine *e, struct kvl_meta_table *from,
                        struct kvl_meta_table **out);
/* After attach has built the rows of the context: from now on others may share them. */
int kvl_meta_table_freeze(struct kvl_meta_table *t);
/* Gives `to`, as created, the rows of the context that `from` had when it was frozen, whatever `from`
 * appended since; false, and nothing done, when it has none of that shape and length. */
bool kvl_meta_table_share(const struct kvl_meta_table *from, struct kvl_meta_table *to);
/* A token comes to a layer: rows for all positions below n_pos, or one more for each lane. */
void kvl_meta_table_append(struct kvl_meta_table *t, int32_t layer, int32_t n_pos);
/* n positions `pos` of the n_live ones of a lane stay: so do their rows in live tables. */
int kvl_meta_keep(struct kvl_session *s, int32_t layer, int32_t kv_head, const int32_t *live,
                  int32_t n_live, const int32_t *pos, int32_t n);
/* Of all rows, shared or not. */
size_t kvl_meta_table_bytes(const struct kvl_meta_table *t);

/* ---- session ---------------------------------------------------------------------------------- */

struct kvl_probe {
    int32_t *pos; /* [n], as given */
    int32_t n;
    uint8_t *hit;   /* [n_layers][n_kv_heads][n] */
    uint8_t *dense; /* [n_layers] */
};

/* share.c: a selection that serves layers layer_first..layer_last at steps from..until. */
struct kvl_share {
    struct kvl_shared_sel *sel;
    int32_t layer_first, layer_last, from, until;
};

struct kvl_host {
    struct kvl_session *session;
    struct kvl_meta_table *table[KVL_MAX_META];
    struct kvl_share *share;
    int32_t n_share, cap_share;
    struct kvl_shared_sel *unused; /* shared selections that wait to be filled again */
    int32_t n_visible;             /* positions that exist for the running hook */
    bool clean;                    /* no error was stored when the running hook began */
    bool scoring;                  /* inside prefilled or score: the observers may be read */
    bool selecting;                /* inside a select hook: what it reads is counted */
    bool evicting;                 /* inside an evict hook of a step: the same */
    bool masking;                  /* inside prefill_mask: the chunk's queries may be asked */
    int32_t mask_layer;            /* whose observers it may ask; -1: of any */
    bool ahead;                    /* the last hook did not wait for the device */
    bool fetched;                  /* this hook, or this layer, brought something from the host */
};

struct kvl_session {
    struct kvl_engine *engine;
    struct kvl_seq *seq;
    struct kvl_observers *obs; /* NULL when the engine keeps none */
    struct kvl_repeat *repeat; /* NULL, or this is a fork that repeats its context */
    int32_t n_pos;             /* position of the next token */
    int32_t *id; /* [n_pos] of the tokens; those of a running call are there already */
    int32_t cap_id;
    bool failed; /* by its last call, or by a call that has not returned */
    bool opened; /* close is owed */
    /* under a policy */
    const struct kvl_planned *planned; /* NULL = none */
    enum kvl_exec exec;
    struct kvl_host host;
    struct kvl_pctx ctx;
    int32_t index; /* steps so far */
    uint8_t *dead; /* masked: [n_layers][n_kv_heads][dead_cap], 1 = evicted */
    int32_t dead_cap;
    struct kvl_tier *tier; /* NULL: nothing is offloaded */
    int64_t n_host; /* slots that a prefill left in pinned memory, of layers without a tier */
    struct kvl_counters count;
    struct kvl_probe probe;
    struct kvl_tap tap; /* members are NULL where nobody listens */
    int tap_rc;         /* what a tap inside a hook returned: the hook's call ends with it */
};

struct kvl_engine {
    struct kvl_engine_desc desc; /* defaults filled in */
    const struct kvl_model *model;
    const struct kvl_device *dev;
    /* ops: their results are there after kvl_engine_sync, and `pending` is to be set; now: when they return */
    const struct kvl_ops *ops, *now;
    bool pending; /* something was given to the device that nobody has waited for */
    bool marks;   /* hooks of this call ran ahead of the device, which may have marked a row */
    const struct kvl_row *marked; /* the first row of the call that did */
    const void *mirror[2];        /* what of the model has a copy on the device */
    int32_t n_mirrors;
    struct kvl_store *store;
    float scale; /* 1 / sqrt(head_dim) */
    const volatile int *stop;
    void (*watch)(const char *policy); /* NULL, or told whose hook runs */
    const char *watched;               /* what it was told last */
    struct kvl_arena step, results, scratch;
    struct kvl_hosted *hosted; /* attend_host.c; NULL: the device does not attend on the host */
    uint64_t fetch_ns;         /* of fetches since the last lap of forward.c */
    /* activations of cap_rows rows: x, tmp, gate and up in DEVICE memory, others in SHARED */
    int32_t cap_rows;
    float *x, *xn, *q, *q_raw, *k, *k_raw, *v, *att, *gate, *up, *tmp;
    float *x_prev; /* xn of the attention before */
    int32_t *id, *pos;
    struct kvl_row *row;
    struct kvl_lane *lanes; /* [n_kv_heads] */
    /* attention of the rows of one layer, gathered before it runs */
    struct kvl_attn_job *job;
    struct kvl_job_src *job_src;
    int32_t n_jobs, cap_jobs, cap_src;
    struct kvl_attn_merge_args *merge;
    int32_t n_merges, cap_merges;
    struct kvl_probs_join *joins;   /* in the step arena */
    struct kvl_residual *residuals; /* the same */
};

/* Weights of one query head that read several segments, put one after the other once attention has
 * run. */
struct kvl_probs_join {
    struct kvl_probs_join *next;
    float *out;       /* [sum of n] */
    const float *lse; /* of the merged result */
    int32_t n_parts;
    struct {
        const float *probs, *lse; /* [n], 1 */
        int32_t n;
    } part[KVL_MAX_SEGMENTS];
};

/* out = alpha out + (1 - alpha) value for the query group of one kv head, once its attention is merged. */
struct kvl_residual {
    struct kvl_residual *next;
    float *out;         /* [group][head_dim] */
    const float *alpha; /* [group] */
    const float *value; /* [head_dim] */
};

/* Where a job's lane comes from: views are taken just before attention runs. */
struct kvl_job_src {
    const struct kvl_session *session;
    int32_t layer, kv_head;
};

/* What observe gets: the arrays lie in the step arena, weights and lse in that of results. */
struct kvl_observed {
    const float **probs; /* [n_heads]; NULL where nobody observes */
    int32_t *n;          /* [n_heads]; the same */
    float *lse;          /* [n_heads] */
};

/* Positions that each query head of a row read; everything lies in the step arena. */
struct kvl_reads {
    const int32_t **pos;       /* [n_heads], ascending */
    int32_t *n;                /* [n_heads] */
    const float **log_weight;  /* [n_heads] -> [n], NULL where a head has none */
    const float *alpha, *mean; /* of a residual, or NULL */
    bool given;                /* keys or pseudo-entries of the policy took part */
};

/* One token on its way through the layers. */
struct kvl_row {
    struct kvl_session *s;
    int32_t index; /* step index of the policy */
    int32_t pos;
    /* of the layer at hand, from its selection until its attention has run */
    bool dense;
    struct kvl_observed ob;
    struct kvl_reads reads; /* of a tapped session */
};

/* Room for the activations of n_rows tokens. */
int kvl_engine_reserve(struct kvl_engine *e, int32_t n_rows, struct kvl_err *err);

/* Before the host reads what operators of e->ops or copies wrote, or writes what they read. */
int kvl_engine_sync(struct kvl_engine *e);
/* The same with a message. */
int kvl_engine_wait(struct kvl_engine *e, struct kvl_err *err);
/* Gives the device a copy from one of its memories to another. */
int kvl_engine_copy(struct kvl_engine *e, void *to, const void *from, size_t bytes);
/* Adds to a message about memory of the device what was wanted and what there is; returns rc, or KVL_EDEVICE
 * where memory was short because the device is lost. */
int kvl_engine_memory(struct kvl_engine *e, int rc, struct kvl_err *err);
/* "<what>: <status>", or what the device says of its end. */
int kvl_engine_failed(const struct kvl_engine *e, const char *what, int rc, struct kvl_err *err);
/* Empties the step arena, and that of results unless that meant to wait for what is under way. */
int kvl_step_reset(struct kvl_engine *e, struct kvl_err *err);

static inline int32_t kvl_group(const struct kvl_shape *shape)
{
    return shape->n_heads / shape->n_kv_heads;
}

/* ---- live.c: which positions of a lane are there ----------------------------------------------- */

/* Ascending live positions of a lane, in the step arena; NULL: no memory.  *slot, where asked for,
 * gets their slots (NULL under the mask oracle, where a slot is a position). */
const int32_t *kvl_live_positions(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t *n,
                                  const int32_t **slot);
/* True when the lane holds every position 0 .. n_pos - 1, so that slot == position. */
bool kvl_lane_is_whole(const struct kvl_session *s, int32_t layer, int32_t kv_head);
bool kvl_lane_has(const struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t pos);
/* order[i] = index of the i-th smallest of n values; few ascending runs are merged in O(n). */
int kvl_sort_order(struct kvl_arena *a, const int32_t *v, int32_t n, const int32_t **order);

/* ---- select.c / resolve.c ----------------------------------------------------------------------- */

struct kvl_sel_list {
    const int32_t *item; /* positions or pages, ascending */
    int32_t n;
    struct kvl_run *range; /* in place of items: positions, apart from each other; dead ones too */
    int32_t n_ranges, cap_ranges;
    bool
        open; /* the last range reaches to the newest token, also of steps that it is shared with */
    const float *log_weight;
    float *keys; /* [n + 1][head_dim] in place of the stored ones, the last unset; or NULL */
    bool given;
};

struct kvl_segment {
    bool everything;
    enum kvl_scope scope;
    int32_t page_tok; /* 1: items are positions */
    enum kvl_pos_mode mode;
    int32_t arg;
    int32_t q_pos; /* KVL_POS_GROUPED */
    bool has_q_pos;
    struct kvl_sel_list *list; /* [n_lists] */
    int32_t n_lists;
    /* Until somebody looks (kvl_sel_look): the items of list i are on their way to top[i * n_top] and up, and
     * `forced`, where it is not negative, comes behind them.  NULL: lists have their items. */
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
int kvl_resolve(const struct kvl_resolve *r);
/* After attention and its merges: the weights of selections with several segments, then the residuals of
 * those that have one. */
int kvl_resolve_finish(struct kvl_engine *e);

/* ---- offload.c: lanes in the host tier ------------------------------------------------------------ */

bool kvl_offloads(const struct kvl_session *s, int32_t layer);
/* The same, and what attention reads of them is brought to the device. */
bool kvl_fetches(const struct kvl_session *s, int32_t layer);
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

/* ---- evict.c -------------------------------------------------------------------------------------- */

/* Asks the policy's evict hook for one layer and carries it out. */
int kvl_evict_layer(struct kvl_session *s, const struct kvl_step *step);
/* Asks the policy's score hook for one layer, keeps the best. */
int kvl_score_layer(struct kvl_session *s, int32_t layer);

/* ---- async.c: hooks that the engine does not wait for ---------------------------------------------- */

/* The session's next hook of a step may run ahead of the device. */
bool kvl_session_async(const struct kvl_session *s);
/* Before append, select, observe and evict of a row: kvl_hook_begin, unless they run ahead. */
int kvl_step_hook_begin(const struct kvl_row *row, struct kvl_err *err);
/* Before the host reads what a hook gives, or what its operators wrote.  KVL_EPOLICY: they met a NaN. */
int kvl_session_look(struct kvl_session *s, struct kvl_err *err);
/* Behind the last wait of a call: KVL_EPOLICY where operators of a hook met a NaN. */
int kvl_marks_check(struct kvl_engine *e, struct kvl_err *err);
/* A call that fails takes its marks along. */
void kvl_marks_drop(struct kvl_engine *e);

/* ---- compose.c ------------------------------------------------------------------------------------ */

/* An outer policy changes every selection, those that the inner one shares, too. */
bool kvl_policy_reselects(const struct kvl_policy *policy);

/* ---- tap.c ---------------------------------------------------------------------------------------- */

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

/* ---- session.c: ids of tokens ---------------------------------------------------------------------- */

/* Notes the ids of n tokens that are about to run: positions n_pos and up. */
int kvl_session_note(struct kvl_session *s, const int32_t *id, int32_t n, struct kvl_err *err);

/* ---- attach.c -------------------------------------------------------------------------------------- */

/* Weights of one query [n_heads][head_dim] over the first n slots of e->lanes: probs [n_heads][n]. */
int kvl_lane_probs(const struct kvl_engine *e, const struct kvl_ops *ops, const float *q,
                   float *probs, int32_t n);
/* From here on the hooks of this policy run; NULL: nobody's. */
void kvl_watch_policy(struct kvl_engine *e, const char *policy);
/* The context has come under prefill_mask: replay, prefilled, score, evict, layer by layer. */
int kvl_attach_context(struct kvl_session *s, struct kvl_err *err);
/* Before every hook: errors go to `err`.  Nothing is waited for: for hooks that look at nothing and call no
 * operator. */
void kvl_hook_enter(struct kvl_session *s, struct kvl_err *err);
/* The same, what the device was given is done, and scratch is empty again. */
int kvl_hook_begin(struct kvl_session *s, struct kvl_err *err);
/* Room in the mask oracle's map for positions below n_pos. */
int kvl_session_reserve_dead(struct kvl_session *s, int32_t n_pos, struct kvl_err *err);

/* Adds policy, layer and step to a failed hook's message; a positive or unknown code becomes
 * KVL_EPOLICY. */
int kvl_hook_failed(struct kvl_session *s, const char *hook, int32_t layer, int code);
/* KVL_OK when a hook returned KVL_OK and no call that it made was refused; else kvl_hook_failed. */
int kvl_hook_done(struct kvl_session *s, const char *hook, int32_t layer, int code);

#endif
