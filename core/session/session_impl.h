/* session_impl.h - what the engine and its side of a policy both work on: memory that is given back all at once, the
 * state of sessions and engines, waiting for the device.
 *
 * Who owns what
 *   engine    workspace of one thread; three arenas: `step` lives for one layer of one call, in memory of
 *             the host, which operators read copies of; `results`, which operators write and both sides
 *             see, as long, or until the device is done; `scratch` for one hook.  Lists stay out of what both
 *             see: each would travel by itself.  `late` and `late_lists` live for a call
 *   session   its sequence, a reference to its observers, its policy's tables and state
 *   observers are reference-counted and copied when a fork writes them; tables share their rows and
 *             copy those that are written
 *
 * Thread-safe: an engine and its sessions belong to one thread.
 */
#ifndef KVL_SESSION_IMPL_H
#define KVL_SESSION_IMPL_H

#include "lane.h"
#include "model_impl.h"
#include "tier.h"

#define KVL_MAX_SEGMENTS 4 /* of a selection */

/* ---- arena.c: memory that is given back all at once ----------------------------------------- */

struct kvl_arena {
    const struct kvl_device *dev; /* whose memory it is, where that is discrete; NULL: the host's */
    enum kvl_place place;         /* with dev: SHARED or PINNED */
    bool ahead;   /* of SHARED: what is got is written by the host or by operators, not by both */
    size_t first; /* bytes of the first chunk; 0: as many as suit an engine */
    struct kvl_arena_chunk *head;
    size_t total; /* bytes of all chunks: what one chunk will have after the next reset */
    size_t used;  /* since the last one */
};
/* 64-byte aligned, not cleared; NULL when there is no memory.  Pointers stay valid until reset. */
void *kvl_arena_get(struct kvl_arena *a, size_t n, size_t item);
void kvl_arena_reset(struct kvl_arena *a);
void kvl_arena_free(struct kvl_arena *a);

/* ---- the state of a session and of an engine ------------------------------------------------- */

struct kvl_probe {
    int32_t *pos; /* [n], as given */
    int32_t n;
    uint8_t *hit;   /* [n_layers][n_kv_heads][n] */
    uint8_t *dense; /* [n_layers] */
};

/* shared_selections.c: a selection that serves layers layer_first..layer_last at steps from..until. */
struct kvl_share {
    struct kvl_shared_sel *sel;
    int32_t layer_first, layer_last, from, until;
};

enum { KVL_MAX_HANDED = 64 }; /* to a hook that runs ahead of the device */

/* Which hook of the policy runs, where that decides what it may ask for or what counts as read. */
enum hook_phase {
    HOOK_OTHER = 0, /* none, or one of which nothing depends */
    HOOK_MASK,      /* prefill_mask: the chunk's queries may be asked */
    HOOK_CONTEXT,   /* prefilled or score: the observers may be read */
    HOOK_SELECT,    /* select: rows of tables that it takes are counted */
    HOOK_EVICT,     /* evict of a step, not of a replay: those of live tokens are */
};

/* The engine's side of a policy: its tables and shared selections, and what is so while one of its hooks runs. */
struct kvl_host {
    struct kvl_session *session;
    struct kvl_row_table *table[KVL_MAX_TABLES];
    struct kvl_share *share;
    int32_t n_share, cap_share;
    struct kvl_shared_sel *unused; /* shared selections that wait to be filled again */
    /* of the running hook */
    enum hook_phase phase;
    int32_t n_visible;  /* positions that exist for it */
    int32_t mask_layer; /* HOOK_MASK: whose observers it may ask; -1: of any */
    bool clean;         /* no error was stored when it began: one that is there later is its own */
    bool ahead;         /* it did not wait for the device */
    bool looked;        /* but waited then */
    bool fetched;       /* it, or this layer, brought something from the host */
    const struct kvl_asked *asked; /* it scores these, not the context; NULL: the context */
    const float *input;  /* append of a step: what entered the layer [n_embd]; else NULL */
    int32_t input_layer; /* by the model's number */
    /* what it was handed and the host does not have before it looks */
    struct kvl_pieces handed[KVL_MAX_HANDED];
    int32_t n_handed, n_args; /* the first of them are its arguments */
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
    bool opened; /* by its policy */
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
    struct kvl_tap tap; /* members are NULL where there is no listener */
    int tap_rc;         /* what a tap inside a hook returned: the hook's call ends with it */
};

/* A scorer of inputs, and what it loaded. */
struct kvl_loaded_scorer {
    struct kvl_loaded_scorer *next;
    struct kvl_input_scorer scorer;
    void *memory; /* TABLE */
};

struct kvl_engine {
    struct kvl_engine_desc desc; /* defaults filled in; observers.scorer are NULL */
    const struct kvl_model *model;
    const struct kvl_device *dev;
    /* ops: their results are there after kvl_engine_sync, and `pending` is to be set; now: when they return */
    const struct kvl_ops *ops, *now;
    bool pending; /* something was given to the device that was not waited for */
    bool unread; /* was waited for, but what both sides see may still be where operators wrote it */
    bool marks;  /* hooks of this call ran ahead of the device, which may have marked a row */
    const struct kvl_row *marked;      /* the first row of the call that did */
    struct kvl_loaded_scorer *scorers; /* all that sessions observe, or observed */
    const void **mirror;               /* [n_mirrors] what of the model has a copy on the device */
    int32_t n_mirrors;
    struct kvl_store *store;
    float scale, cap; /* of q.k; of logits, 0 = none */
    /* TABLE: [n_layers][n_heads], -inf in a layer without, and zeros [n_heads][head_dim]; NULL: no sinks at all */
    float *sinks, *nothing;
    bool rope_long; /* sessions may be longer than what the short factors of LongRoPE are for */
    const volatile int *stop;
    struct {
        kvl_tick *run; /* NULL, or told how far a prefill is */
        void *user;
        int64_t done, all; /* tokens times layers */
    } tick;
    void (*watch)(const char *policy); /* NULL, or told whose hook runs */
    const char *watched;               /* what it was told last */
    struct kvl_arena step, results, scratch;
    /* evictions of a decode step that wait for its end: of the host; late: what operators choose for them */
    struct kvl_arena late_lists, late;
    struct kvl_keep *late_first;
    struct kvl_rows_move *rows_moves; /* rows of live tables, for one launch */
    int32_t n_rows_moves, n_rows_runs;
    struct kvl_hosted *hosted; /* attend_host.c; NULL: the device does not attend on the host */
    uint64_t fetch_ns;         /* of fetches since the last lap of forward.c */
    /* activations of cap_rows rows: in TABLE memory what hooks are given, the others in DEVICE memory */
    int32_t cap_rows;
    float *x, *xn, *q, *q_raw, *k, *k_raw, *v, *att, *gate, *up, *tmp;
    float *routed; /* [experts of a token][n_embd]: what goes into experts and comes out */
    float *x_prev; /* xn of the attention before that was not over a window */
    int32_t *id, *pos, *both; /* of the rows, the host's; both: one array, ids first */
    int32_t *given;           /* what operators read: on a discrete device its copy of `both` */
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

/* Bytes of a stored key, of a stored value, of both. */
static inline int64_t kvl_key_bytes(const struct kvl_engine *e)
{
    const struct kvl_store_desc *d = kvl_store_desc(e->store);
    return (int64_t)kvl_kv_row_bytes(kvl_kv_keys(d->type), d->head_dim);
}
static inline int64_t kvl_value_bytes(const struct kvl_engine *e)
{
    const struct kvl_store_desc *d = kvl_store_desc(e->store);
    return (int64_t)kvl_kv_row_bytes(kvl_kv_values(d->type), d->head_dim);
}
static inline int64_t kvl_slot_bytes(const struct kvl_engine *e)
{
    return kvl_key_bytes(e) + kvl_value_bytes(e);
}

/* Rows of a lane that close ranks; in late_lists. */
struct kvl_rows_move {
    struct kvl_rows_move *next;
    struct kvl_rows_lane lane;
    const struct kvl_rows_run *run; /* [lane.n_runs] */
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
    struct kvl_session *session;
    int32_t layer, kv_head;
};

/* What observe gets: the arrays lie in the step arena, weights and lse in that of results. */
struct kvl_observed {
    const float **probs; /* [n_heads]; NULL where `observe` is not asked */
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

/* ---- a call in progress --------------------------------------------------------------------------- */

/* Prefill: many tokens of a context, causal.  Extend: a block of tokens under the policy.  Decode: one token
 * for each of several sessions (engine/forward.h). */
enum kvl_forward_mode { KVL_PREFILL, KVL_EXTEND, KVL_DECODE };

struct kvl_forward {
    struct kvl_engine *e;
    enum kvl_forward_mode mode;
    int32_t n;  /* rows: e->row, e->id, e->pos, e->x */
    bool timed; /* one session, on the host: its parts are timed */
    struct kvl_err *err;
    bool more; /* the block goes on in another chunk: eviction waits for its end */
};

/* ---- wait.c: what the device was given --------------------------------------------------------- */

/* Before the host reads what operators of e->ops or copies wrote, or writes what they read. */
int kvl_engine_sync(struct kvl_engine *e);
/* The same with a message. */
int kvl_engine_wait(struct kvl_engine *e, struct kvl_err *err);
/* Waits, but SHARED memory is not there for the host before kvl_engine_sync. */
int kvl_engine_rest(struct kvl_engine *e);
/* The host has [p, p + bytes) of SHARED or TABLE memory, and may write it until the hook or the call at hand ends if
 * `writes`. */
int kvl_engine_host(const struct kvl_engine *e, void *p, size_t bytes, bool writes);
/* Gives the device a copy from one of its memories to another. */
int kvl_engine_copy(struct kvl_engine *e, void *to, const void *from, size_t bytes);
/* "<what>: <status>", or what the device says of its end. */
int kvl_engine_failed(const struct kvl_engine *e, const char *what, int rc, struct kvl_err *err);
/* Empties the step arena, and that of results unless that meant to wait for what is under way. */
int kvl_step_reset(struct kvl_engine *e, struct kvl_err *err);

/* Weights of one query [n_heads][head_dim] over the first n slots of e->lanes, which are those of a layer: probs
 * [n_heads][n].  With sinks they sum to less than 1. */
int kvl_lane_probs(const struct kvl_engine *e, const struct kvl_ops *ops, int32_t layer,
                   const float *q, float *probs, int32_t n);
/* What sinks take of weights [n_heads][n] that sum to 1, lse [n_heads] is theirs. */
void kvl_sinks_take(const struct kvl_engine *e, int32_t layer, const float *lse, float *probs,
                    int32_t n);

/* [n_heads] a logit more of every softmax of a layer; NULL: the model has none. */
static inline const float *kvl_layer_sinks(const struct kvl_engine *e, int32_t layer)
{
    return e->sinks ? e->sinks + (size_t)layer * (size_t)e->model->shape.n_heads : NULL;
}

/* Tokens that a layer reads at most; 0: all. */
static inline int32_t kvl_window_of(const struct kvl_engine *e, int32_t layer)
{
    return e->model->w.layer[layer].window;
}
static inline bool kvl_prefills_bf16(const struct kvl_engine *e)
{
    return e->desc.prefill_type == KVL_PREFILL_BF16;
}
static inline bool kvl_decodes_q8(const struct kvl_engine *e)
{
    return e->desc.decode_act == KVL_DECODE_Q8;
}
/* How the heads of a layer turn in this engine's sessions. */
static inline const struct kvl_rope *kvl_layer_rope(const struct kvl_engine *e, int32_t layer)
{
    const struct kvl_layer_weights *w = &e->model->w.layer[layer];
    return e->rope_long && w->rope_long ? w->rope_long : w->rope;
}
static inline int32_t kvl_group(const struct kvl_shape *shape)
{
    return shape->n_heads / shape->n_kv_heads;
}

/* ---- live.c: which positions of a lane are there ----------------------------------------------- */

/* Ascending live positions of a lane, in the step arena; NULL: no memory.  *slot, where asked for,
 * gets their slots (NULL under the mask oracle, where a slot is a position). */
const int32_t *kvl_live_positions(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t *n,
                                  const int32_t **slot);
/* The same, without a copy where the lane has them: until it is written. */
const int32_t *kvl_live_view(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t *n);
/* True when the lane holds every position 0 .. n_pos - 1, so that slot == position. */
bool kvl_lane_is_whole(const struct kvl_session *s, int32_t layer, int32_t kv_head);
bool kvl_lane_has(const struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t pos);
/* The runs of ranks that move where n_gone of n_live go (`gone`: ascending ranks), at most as many as go; and the move of
 * rows of a table on the host, which leaves zeros. */
int32_t kvl_lane_runs(const int32_t *gone, int32_t n_gone, int32_t n_live,
                      struct kvl_rows_run *run);
void kvl_lane_rows_keep(const struct kvl_rows_lane *l, const struct kvl_rows_run *run);
/* order[i] = index of the i-th smallest of n values; few ascending runs are merged in O(n). */
int kvl_sort_order(struct kvl_arena *a, const int32_t *v, int32_t n, const int32_t **order);

#endif
