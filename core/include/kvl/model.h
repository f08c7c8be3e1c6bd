/* kvl/model.h - a model, and sessions that run token sequences through it under a policy.
 *
 * Vocabulary
 *   model    weights and tokenizer of one GGUF file; read-only, shared
 *   engine   a model, a KV store and the workspace of one thread
 *   session  one sequence in an engine: its KV, its observers and, once attached, a policy with its
 *            state.  Forks share everything until one side writes
 *   planned  a policy with resolved options: what `plan` said, checked against the model
 *
 * The way of one prompt: session_create -> prefill(context) -> per policy: fork -> attach -> per
 * question: fork -> extend(question less its last token) -> decode(last token), decode ...
 * A policy with its own prefill: session_create -> attach -> extend(context) -> per question as above
 *
 * Phases differ in rounding, never in meaning: prefill and extend multiply rows in fixed tiles
 * (gemm), decode multiplies weights in their own type (gemv).  Within a phase the result of a row
 * does not depend on the chunk it came in, on the batch or on the threads.
 *
 * Errors: KVL_ENOMEM at a byte limit, KVL_EPOLICY when a policy broke its contract, KVL_ENUMERIC
 * when an activation is not finite (message: the first layer).  A session that failed can only be
 * destroyed.
 * Thread-safe: models yes; an engine and its sessions belong to one thread.
 */
#ifndef KVL_MODEL_H
#define KVL_MODEL_H

#include "kvl/base.h"
#include "kvl/device.h"
#include "kvl/kvstore.h"
#include "kvl/ops.h"
#include "kvl/policy.h"
#include "kvl/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model --------------------------------------------------------------------------------- */

struct kvl_model;

/* Tables beside the file (kvl/model_tables.h) are read, too.  A file of tables that cannot be used is no error. */
int kvl_model_open(const char *path, struct kvl_model **out, struct kvl_err *err);
/* The same, with what may differ from what the file says. */
struct kvl_model_desc {
    const char *path;
    /* Windows that all layers have (Mistral 0.1, Phi-3) are left out, as llama.cpp does.  KVL_EINVAL where some
     * layers alone have one (Gemma, gpt-oss): these are no other model's. */
    bool windows_off;
};
int kvl_model_open_desc(const struct kvl_model_desc *desc, struct kvl_model **out,
                        struct kvl_err *err);
/* To ask for what is known without reading weights: everything but hash and tables.  Not to compute with. */
int kvl_model_look(const char *path, struct kvl_model **out, struct kvl_err *err);
/* Lines for people, "what  text": shape, context, positions, windows.  Appended; KVL_ENOMEM. */
int kvl_model_about(const struct kvl_model *model, struct kvl_buf *out);
/* Why a file of tables that lies beside the model is not used; NULL: it is, or there is none. */
const char *kvl_model_tables_unused(const struct kvl_model *model);
void kvl_model_close(struct kvl_model *model);
const struct kvl_shape *kvl_model_shape(const struct kvl_model *model);
const struct kvl_tokenizer *kvl_model_tokenizer(const struct kvl_model *model);
const char *kvl_model_chat(const struct kvl_model *model); /* text of its chat template, or NULL */
const char *kvl_model_name(const struct kvl_model *model); /* general.name or the file's stem */
const char *kvl_model_path(const struct kvl_model *model);
const char *kvl_model_hash(const struct kvl_model *model); /* XXH3-128 of the file, hex */
/* Longest session of RoPE's factors for short contexts, of a model that has others for long ones; 0: it has one set. */
int32_t kvl_model_short_tok(const struct kvl_model *model);
size_t kvl_model_bytes(const struct kvl_model *model); /* of all tensors */
/* Bytes of the weights that one decoded token reads (all matrices but unused embedding rows). */
size_t kvl_model_token_bytes(const struct kvl_model *model);
/* Weights of the layers' matrices: so many products a token takes beside its attention. */
int64_t kvl_model_layer_weights(const struct kvl_model *model);

/* ---- planned policies ---------------------------------------------------------------------- */

struct kvl_planned;

/* Checks `policy` (ABI, size, hooks against caps), sets its options from "a=1,b=2" and runs plan.
 * budget_tok 0 = none, at most 2^30.  KVL_EINVAL: bad options, or a budget below what the method
 * needs; KVL_EPOLICY: the object itself is wrong.  `policy` must outlive the result. */
int kvl_planned_create(const struct kvl_policy *policy, const struct kvl_shape *shape,
                       const char *options, int32_t budget_tok, int32_t context_tok,
                       struct kvl_planned **out, struct kvl_err *err);
/* The same for a policy that may read the context itself (kvl_prefill_kind) and starts empty.  One with
 * KVL_PREFILL_OWN does so whichever of the two it is created by. */
int kvl_planned_create_own(const struct kvl_policy *policy, const struct kvl_shape *shape,
                           const char *options, int32_t budget_tok, int32_t context_tok,
                           struct kvl_planned **out, struct kvl_err *err);
void kvl_planned_destroy(struct kvl_planned *p);
bool kvl_planned_own_prefill(const struct kvl_planned *p);
const struct kvl_policy *kvl_planned_policy(const struct kvl_planned *p);
int32_t kvl_planned_budget(const struct kvl_planned *p);
/* All options after plan, "a=1,b=2" in table order. */
const char *kvl_planned_options(const struct kvl_planned *p);
bool kvl_planned_raw_keys(const struct kvl_planned *p);
/* Tokens of a chunk of its own prefill; 0: as many as the engine takes. */
int32_t kvl_planned_chunk(const struct kvl_planned *p);
/* Bytes of its tables and state after n_tok tokens, over a store of this type, if every layer asks for its rows and
 * none is shared with another session. */
size_t kvl_planned_table_bytes(const struct kvl_planned *p, int32_t n_kv_heads,
                               enum kvl_kv_type type, int32_t n_tok);
/* KVL_EINVAL: the policy does what a store of this type does not serve. */
int kvl_planned_serves(const struct kvl_planned *p, enum kvl_kv_type type, struct kvl_err *err);

/* What prefills must observe. */
struct kvl_observer_set {
    int32_t window; /* longest KVL_OBS_WINDOW; 0 = none */
    struct {
        enum kvl_observer what; /* everything but KVL_OBS_WINDOW */
        int32_t param;
    } column[KVL_MAX_COLUMNS]; /* by what, then param; different */
    int32_t n_columns;
    /* Of columns of KVL_OBS_INPUTS, borrowed from a plan until an engine was told of the set; else NULL. */
    const struct kvl_input_scorer *scorer[KVL_MAX_COLUMNS];
};
const struct kvl_observer_set *kvl_planned_observers(const struct kvl_planned *p);
/* Adds what `from` asks for.  KVL_EINVAL: more than KVL_MAX_COLUMNS different columns. */
int kvl_observer_set_merge(struct kvl_observer_set *into, const struct kvl_observer_set *from,
                           struct kvl_err *err);

/* ABI, size, name, hooks against caps: what a plug-in must satisfy. */
int kvl_policy_check(const struct kvl_policy *policy, struct kvl_err *err);
/* The smallest budget that makes sense with these options. */
int32_t kvl_policy_min_budget(const struct kvl_policy *policy, const struct kvl_shape *shape,
                              const void *opts);

/* outer(inner) as one policy, named so; options of the inner one are called "inner.option", with its
 * name.  KVL_EINVAL: these two do not go together.  Both must outlive it; kvl_policy_decompose frees. */
int kvl_policy_compose(const struct kvl_policy *outer, const struct kvl_policy *inner,
                       const struct kvl_policy **out, struct kvl_err *err);
void kvl_policy_decompose(const struct kvl_policy *policy);
/* False for a policy that is not composed; outer and inner may be NULL. */
bool kvl_policy_parts(const struct kvl_policy *policy, const struct kvl_policy **outer,
                      const struct kvl_policy **inner);

/* ---- engine -------------------------------------------------------------------------------- */

/* How prefill with its attention and observers, and the projections of extend, multiply: see kvl_gemm_args. */
enum kvl_prefill_type {
    /* In float; projections with weights in blocks as `int16` of kvl_gemm_args says. */
    KVL_PREFILL_F32 = 0,
    KVL_PREFILL_BF16 = 1, /* in bf16, summed in float */
    /* Projections by OpenBLAS, in float; attention as in F32.  On the CPU alone.  Results depend on how many
     * tokens go through a layer together (chunk_tok), and on the version of OpenBLAS. */
    KVL_PREFILL_BLAS = 2,
};

/* What projections of decoded tokens multiply weights in blocks with (int16 and k16 in wtypes.def): see kvl_gemv_args. */
enum kvl_decode_act {
    KVL_DECODE_Q16 = 0, /* activations as integers of 16 bits, on a GPU with some types */
    KVL_DECODE_Q8 = 1,  /* of 8 bits, as llama.cpp does; on the CPU alone */
};

struct kvl_engine_desc {
    const struct kvl_model *model;
    const struct kvl_device *device; /* NULL = cpu */
    const struct kvl_ops *ops;       /* NULL = the device's */
    enum kvl_kv_type kv_type;
    bool raw_keys;                     /* some policy needs keys before RoPE */
    struct kvl_observer_set observers; /* what the policies of this engine need */
    int32_t chunk_tok;                 /* prefill chunk; 0 = 512 */
    int32_t block_tok;                 /* 0 = 16 */
    size_t kv_limit_bytes;             /* 0 = none */
    enum kvl_prefill_type prefill_type;
    enum kvl_decode_act decode_act;
    /* Contexts go through the model layer by layer instead of chunk by chunk, and keys and values of a layer
     * that is done move to host memory: the device holds those of one layer at a time.  The hidden states
     * of all tokens wait in host memory (n_embd floats each).  The same results, bit for bit; on a CPU
     * nothing moves.  Afterwards: what a policy offloads is there already, what it wants on the device
     * (all, where it evicts) comes back when it is attached, what it reads of the rest is read over the bus;
     * new tokens go to the device.  Refused (KVL_EINVAL) for policies that read a context token by token,
     * or whose masks look across layers. */
    bool prefill_kv_host;
    /* Length of the longest session, 0 = the context length of the model's metadata.  It decides which factors
     * of RoPE a model has that knows some for short and some for long contexts (LongRoPE): one set for all
     * sessions, as keys of the other are worth nothing. */
    int32_t max_tok;
    bool allow_overlong; /* positions beyond the context length of the model's metadata */
    /* Hooks of policies with KVL_CAP_ASYNC are waited for like those of others: the same answers, slower. */
    bool wait_hooks;
};

/* What an engine of this description takes for a sequence of n tokens, to the byte as store and engine will take
 * it.  What policies own, observers and forks come on top. */
struct kvl_footprint {
    size_t weight_bytes; /* of all tensors */
    bool weights_cached; /* they lie in the page cache, which counts as free memory */
    size_t kv_bytes;     /* keys and values: whole blocks, positions and padding included */
    size_t work_bytes;   /* activations of a prefill chunk */
    size_t
        block_bytes; /* of block_tok tokens in all heads of the layers that keep every token; 0: none do */
    size_t
        window_bytes; /* of kv_bytes: what layers with a window keep, however long the sequence */
    int32_t block_tok;
};
/* desc->device may be NULL whatever the device will be; the model may be one that was only looked at. */
int kvl_footprint(const struct kvl_engine_desc *desc, int64_t n_tok, struct kvl_footprint *out,
                  struct kvl_err *err);
/* Tokens whose keys and values fit into so many bytes. */
int64_t kvl_footprint_fits(const struct kvl_footprint *f, int64_t free_bytes);

struct kvl_engine;
struct kvl_session;

int kvl_engine_create(const struct kvl_engine_desc *desc, struct kvl_engine **out,
                      struct kvl_err *err);
/* Sessions created from now on observe `set` instead of what the description said.  Scorers of inputs that are new are
 * loaded, and stay. */
int kvl_engine_observe(struct kvl_engine *engine, const struct kvl_observer_set *set,
                       struct kvl_err *err);
/* All its sessions must be destroyed before. */
void kvl_engine_destroy(struct kvl_engine *engine);
/* NULL in the description is the CPU's. */
const struct kvl_device *kvl_engine_device(const struct kvl_engine *engine);
struct kvl_store *kvl_engine_store(struct kvl_engine *engine);
const struct kvl_model *kvl_engine_model(const struct kvl_engine *engine);
/* Polled between layers; when it becomes non-zero, calls return KVL_ESTOP. */
void kvl_engine_set_stop(struct kvl_engine *engine, const volatile int *stop);
/* Called between layers of a prefill, or of a block under a policy, with how far it is: `done` of `all` tokens times
 * layers, 0 before the first.  It only looks: what is computed does not depend on it.  NULL: nobody does. */
typedef void kvl_tick(int64_t done, int64_t all, void *user);
void kvl_engine_set_tick(struct kvl_engine *engine, kvl_tick *run, void *user);
/* Calls `run` with a policy's name before hooks of another one than before, and with NULL where a batch
 * of several goes on without and at the end (`run` NULL): for who says which plug-in crashed. */
void kvl_engine_set_watch(struct kvl_engine *engine, void (*run)(const char *policy));

/* ---- sessions ------------------------------------------------------------------------------ */

enum kvl_exec {
    KVL_EXEC_REAL = 0,   /* evicts, and reads only what is selected */
    KVL_EXEC_MASKED = 1, /* test oracle: full attention under a mask of the same choices */
};

int kvl_session_create(struct kvl_engine *engine, struct kvl_session **out, struct kvl_err *err);
int kvl_session_fork(const struct kvl_session *parent, struct kvl_session **out,
                     struct kvl_err *err);
void kvl_session_destroy(struct kvl_session *s);

/* Dense causal prefill of n tokens, chunk by chunk; observers are filled.  Without a policy:
 *   logits  NULL, or [n][n_vocab] for every token, or with last_only [n_vocab]
 * Of an empty session under a policy planned with its own prefill: the whole context, once, in chunks
 * under its prefill_mask, then replay, prefilled, score and evict as attach does; of a policy without
 * that hook it is kvl_session_extend, and logits must be NULL. */
int kvl_session_prefill(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                        bool last_only, struct kvl_err *err);

/* Pretends a prefill: appends n tokens with pseudo-random keys and values, and lets observers see
 * pseudo-random queries; no weight is read.  For timing at a depth without paying for it: answers mean
 * nothing.  Only without a policy. */
int kvl_session_fill(struct kvl_session *s, int32_t n, uint64_t seed, struct kvl_err *err);

/* Puts the session under a policy: open, replay, prefilled, score and evict.  An empty session: open
 * only, for a policy planned with its own prefill; its context then comes by prefill.
 * `planned` must outlive the session and its forks. */
int kvl_session_attach(struct kvl_session *s, const struct kvl_planned *planned, uint64_t seed,
                       enum kvl_exec exec, struct kvl_err *err);

/* The same for a session that holds what `like` held when it was attached to a plan of the same policy
 * with the same options, at any budget: tables that append built from the context are shared with it,
 * copied when one side writes, instead of being built again; either may be destroyed first.  Answers
 * are those of kvl_session_attach; where the policy does not say that its tables depend on the context
 * alone (KVL_CAP_SHARES_META), or plans differ otherwise, this is kvl_session_attach.  like NULL: the
 * same. */
int kvl_session_attach_like(struct kvl_session *s, const struct kvl_planned *planned, uint64_t seed,
                            enum kvl_exec exec, const struct kvl_session *like,
                            struct kvl_err *err);

/* n tokens as one block under the policy: every token selects for itself; eviction comes at the end
 * of the block, or after every token where the policy was planned with its own prefill. */
int kvl_session_extend(struct kvl_session *s, const int32_t *id, int32_t n, struct kvl_err *err);

/* The same with the logits of every token: [n][n_vocab]. */
int kvl_session_extend_logits(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                              struct kvl_err *err);

/* One decode step for each of n sessions of one engine; weights are read once for all.
 *   logits [n][n_vocab] */
int kvl_session_decode(struct kvl_session *const *s, int32_t n, const int32_t *id, float *logits,
                       struct kvl_err *err);

/* Index of the largest logit, ties to the lower id. */
int32_t kvl_argmax(const float *logits, int32_t n);

/* Positions so far (= position of the next token). */
int32_t kvl_session_len(const struct kvl_session *s);
const struct kvl_seq *kvl_session_seq(const struct kvl_session *s);

/* Counted since attach (or creation), copied by fork.  Times are of this session's share; in a
 * batch of several sessions they are not split up and stay zero, but for the counts.  On a device that
 * works behind the host's back the parts of a step (meta_ns, select_ns, attend_ns, evict_ns) stay zero:
 * total_ns tells, and fetch_ns, what the host took to find and give copies. */
struct kvl_counters {
    int64_t n_tokens;       /* run under the policy: extend and decode */
    int64_t attended_tok;   /* unique tokens per lane, summed over lanes of selecting layers */
    int64_t attended_lanes; /* number of (token, lane) in attended_tok */
    int64_t dense_tok;      /* the same for layers that the policy left dense */
    int64_t dense_lanes;
    int64_t
        window_tok; /* the same for layers of a window, in which no policy chooses: min(n, window) each */
    int64_t window_lanes;
    /* Keys and values that attention read: what the lists name, at the bytes of the store's types.  The same as the operators
     * are given it, rows of lanes as they lie; the two are held against each other (kvl_kv_held).  Under the mask oracle
     * nothing is walked. */
    int64_t kv_read_bytes, kv_walked_bytes;
    int64_t given_keys; /* rows whose key came from the policy: their values alone were read */
    int64_t index_read_bytes; /* metadata and keys read to select or evict, but at attach */
    int64_t n_select;         /* calls of `select` */
    int64_t n_evicted;        /* slots evicted, all lanes */
    uint64_t meta_ns, select_ns, attend_ns, evict_ns, total_ns;
    uint64_t attach_ns; /* replay, prefilled, score and eviction at attach */
    /* What KVL_OBS_REPLAY that this policy uses took, once for all policies that share the context; in no
     * other time. */
    uint64_t replay_ns;
    /* Of a context under prefill_mask, kept by kvl_session_reset_counters: pairs of a query (of one
     * head) and a key that were read, that dense attention would have read, that were scored to say
     * which; keys and values fetched for them; the time until the context was complete (attach_ns has
     * what follows). */
    int64_t prefill_pairs, prefill_dense_pairs, prefill_scored_pairs, prefill_read_bytes;
    uint64_t prefill_ns;
    /* Between the tiers (kvl_plan_offload): keys and values, and on a device that attends_host queries on
     * their way down and results on theirs up.  A call is what one layer of one step, or one hook, brings at
     * once.  What leaves the device when the context is complete is in d2h_bytes. */
    int64_t h2d_bytes, h2d_calls, d2h_bytes, d2h_calls;
    /* Read by attention on the host, where they lie: keys and values, as often as lists name them, and their
     * bytes, which are in kv_read_bytes. */
    int64_t host_attend_tok, host_attend_bytes;
    int64_t cache_hits, cache_misses; /* units that were needed and on the device, or not */
    int64_t prefetch_bytes;           /* of h2d_bytes: fetched before they were named */
    int64_t prefetch_wrong_bytes;     /* of these: not named when the turn of their lane came */
    /* Of all lanes of the session, shared or not, caches included: after the last call; the most since
     * attach or kvl_session_reset_counters. */
    int64_t device_bytes, device_peak_bytes, host_bytes;
    uint64_t fetch_ns; /* finding and copying; in no other time but total_ns and attach_ns */
    /* kvl_host_op: calls, the time in the loops, and the time waited for the device before them; both are in the
     * times of the hooks, too. */
    int64_t host_ops;
    uint64_t host_op_ns, host_wait_ns;
};
const struct kvl_counters *kvl_session_counters(const struct kvl_session *s);
void kvl_session_reset_counters(struct kvl_session *s);
/* Bytes of the policy's tables and state. */
size_t kvl_session_meta_bytes(const struct kvl_session *s);

/* Watches n positions: after each decode, hits say which of them attention read.
 * The probe is not inherited by forks; n = 0 removes it. */
int kvl_session_probe(struct kvl_session *s, const int32_t *pos, int32_t n, struct kvl_err *err);
/* Of the last token: hit [n_layers][n_kv_heads][n], 0 or 1; dense [n_layers]. */
void kvl_session_probe_hits(const struct kvl_session *s, const uint8_t **hit,
                            const uint8_t **dense);

/* ---- taps: what attention did, for reference passes, traces and analyses ---------------------- */

/* One token in one layer, after its attention; everything is valid during the call only. */
struct kvl_tap_read {
    const struct kvl_session *session;
    int32_t layer, index, pos;  /* index: steps under the policy, -1 without one */
    bool dense;                 /* without a policy, or left dense by it */
    const float *q;             /* [n_heads][head_dim] after RoPE */
    const float *out;           /* [n_heads][head_dim] before the output projection */
    const int32_t *const *read; /* [n_heads]: positions read, ascending, the current one included */
    const int32_t *n_read;      /* [n_heads] */
    /* [n_heads] -> [n_read], added to the logits; NULL for a head that has none */
    const float *const *log_weight;
    /* out = alpha [n_heads] times attention + (1 - alpha) mean [n_kv_heads][head_dim]; NULL: attention */
    const float *alpha, *mean;
    /* Keys or entries that are not stored took part: out is not attention over `read`. */
    bool given;
};
/* Scores by which a policy chose: pages or tokens of a selection, tokens of a one-shot eviction, what
 * it handed over itself. */
struct kvl_tap_score {
    const struct kvl_session *session;
    int32_t layer, index, pos; /* index -1: at attach */
    enum kvl_scope scope;
    int32_t n_lists, unit_tok; /* unit_tok 1: scores of positions, else of pages */
    int32_t first_tok;         /* where the first of them begins */
    int32_t n;
    const float *score; /* [n_lists][n] */
};
/* What was kept by an eviction: live positions of a lane after it. */
struct kvl_tap_keep {
    const struct kvl_session *session;
    int32_t layer, kv_head, index, pos;
    const int32_t *kept; /* ascending */
    int32_t n_kept;
};
/* A member may be NULL.  A negative status ends the call that was tapped. */
struct kvl_tap {
    void *user;
    int (*read)(void *user, const struct kvl_tap_read *r, struct kvl_err *err);
    int (*score)(void *user, const struct kvl_tap_score *s, struct kvl_err *err);
    int (*keep)(void *user, const struct kvl_tap_keep *k, struct kvl_err *err);
};
/* Taps extend, decode and attach of a session (copied; NULL removes).  Forks do not inherit it.
 * Tapped steps are slower; their times mean nothing. */
void kvl_session_tap(struct kvl_session *s, const struct kvl_tap *tap);

/* Full attention of any queries over what a session without eviction holds in a layer: positions
 * 0 .. n_pos - 1.  q [n_heads][head_dim] after RoPE; probs [n_heads][n_pos]; out NULL or
 * [n_heads][head_dim].  The reference of selection quality; may be called from a tap of another
 * session of the engine.  Counted nowhere. */
int kvl_session_full_attention(struct kvl_session *s, int32_t layer, const float *q, int32_t n_pos,
                               float *probs, float *out, struct kvl_err *err);

/* ---- snapshots: prefilled sessions on disk ----------------------------------------------------- */

/* Canonical text of everything that a snapshot's bytes depend on: format, model hash, tokens, element
 * type, raw keys, observers, prefill arithmetic (code version and vector unit).  Appended to out. */
int kvl_snapshot_key(const struct kvl_engine *engine, const int32_t *id, int32_t n,
                     struct kvl_buf *out, struct kvl_err *err);
/* Of a file of anybody's: appends its key. */
int kvl_snapshot_key_of(const char *path, struct kvl_buf *key, struct kvl_err *err);
/* The same, and reads every byte.  KVL_EIO: it is damaged. */
int kvl_snapshot_check(const char *path, struct kvl_buf *key, struct kvl_err *err);
/* Writes keys, values, positions and observers of a session without a policy: zstd, checksummed, under
 * a temporary name and then renamed.  KVL_EIO on trouble with the file. */
int kvl_session_save(struct kvl_session *s, const char *path, const char *key, struct kvl_err *err);
/* The session continues bit-identically to the saved one.  *out = NULL: there is no such file.
 * KVL_EIO: unreadable, damaged, or of another key (the message tells which). */
int kvl_session_load(struct kvl_engine *engine, const char *path, const char *key,
                     struct kvl_session **out, struct kvl_err *err);

/* What the policy's report hook says, as it comes: nothing is checked; before it, of a context under
 * prefill_mask, what the engine counted: prefill_share of the pairs of dense attention, prefill_scored_share
 * to find them, prefill_read_mib, prefill_s, and a note.  A member may be NULL. */
struct kvl_report_to {
    void *user;
    void (*num)(void *user, const char *name, double value);
    void (*note)(void *user, const char *text);
};
int kvl_session_report(struct kvl_session *s, const struct kvl_report_to *to, struct kvl_err *err);

#ifdef __cplusplus
}
#endif

#endif
