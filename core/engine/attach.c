/* Putting a session under a policy: open, replay of the context, scores, eviction. */
#include "local.h"

#include <string.h>

enum { REPLAY_CHUNK = 128 }; /* keys and values stay in L2 on their way to the hook */

/* ---- attach ---------------------------------------------------------------------------------------- */

/* Rows for all positions of the context are there from the start; they are zero until a hook writes them. */
static int attach_tables(struct kvl_session *s, struct kvl_err *err)
{
    const struct kvl_planned *p = s->planned;
    for (int32_t i = 0; i < p->p.n_tables; i++) {
        /* Also called a second time, where sharing stopped half way: what was taken goes back. */
        kvl_row_table_destroy(s->host.table[i]);
        s->host.table[i] = NULL;
        if (kvl_row_table_create(s->engine, &p->p.table[i], s->n_pos, &s->host.table[i]) != KVL_OK)
            return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for its tables", p->policy->name);
    }
    return KVL_OK;
}

/* What tables hold of a context is the same: the budget may differ, and options beside the tables.  That the context
 * is the same is the caller's word (kvl_session_attach_like): only its length is compared. */
static bool attach_alike(const struct kvl_session *s, const struct kvl_session *like)
{
    const struct kvl_planned *a = s->planned, *b = like ? like->planned : NULL;
    return b && like->opened && like->engine == s->engine && a->policy == b->policy &&
           (a->policy->caps & KVL_CAP_SHARES_META) && !a->own_prefill && !b->own_prefill &&
           like->ctx.context_tok == s->n_pos && a->p.n_tables == b->p.n_tables &&
           strcmp(a->tabled.data, b->tabled.data) == 0;
}

/* A plan may give rows to other layers at another budget. */
static bool attach_same_layers(const struct kvl_session *s, const struct kvl_row_decl *a,
                               const struct kvl_row_decl *b)
{
    size_t n = (size_t)s->engine->model->shape.n_layers;
    if (!a->at || !b->at) return a->at == b->at;
    return memcmp(a->at, b->at, n * sizeof *a->at) == 0;
}

/* Takes the tables of `like`; false: they are to be built. */
static bool attach_shares(struct kvl_session *s, const struct kvl_session *like)
{
    if (!attach_alike(s, like)) return false;
    for (int32_t i = 0; i < s->planned->p.n_tables; i++)
        if (!attach_same_layers(s, &like->planned->p.table[i], &s->planned->p.table[i]) ||
            !kvl_row_table_share(like->host.table[i], s->host.table[i]))
            return false;
    return true;
}

/* From here on sessions at other budgets may share the rows, and forks of this one copy none of them. */
static int attach_freeze(struct kvl_session *s, struct kvl_err *err)
{
    for (int32_t i = 0; i < s->planned->p.n_tables; i++)
        if (kvl_row_table_freeze(s->host.table[i]) != KVL_OK)
            return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for its tables",
                            s->planned->policy->name);
    return KVL_OK;
}

/* State, host tier and the marks of the mask oracle: whatever else a session has under a policy. */
static int attach_memory(struct kvl_session *s, struct kvl_err *err)
{
    const struct kvl_planned *p = s->planned;
    if (p->state_bytes > 0) s->ctx.state = kvl_alloc(p->state_bytes, 1);
    if (p->state_bytes > 0 && !s->ctx.state)
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for its state", p->policy->name);
    int rc = kvl_offload_attach(s, err);
    if (rc != KVL_OK) return kvl_fail_at(err, rc, "%s", p->policy->name);
    return s->exec == KVL_EXEC_MASKED ? kvl_session_reserve_dead(s, s->n_pos, err) : KVL_OK;
}

/* Stored keys or values of n slots of all heads of a layer: out [n][n_kv_heads][head_dim], the layout of a prefill, so
 * that append need not know where its keys come from. */
static int replay_read(struct kvl_session *s, int32_t layer, enum kvl_kv_part part, int32_t slot,
                       int32_t n, float *out, struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    size_t hd = (size_t)sh->head_dim;
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        struct kvl_lane lane = kvl_seq_lane(s->seq, layer, h);
        int rc = s->engine->ops->lane_read(
            &(struct kvl_lane_read_args){ .out = out + (size_t)h * hd,
                                          .stride = (size_t)sh->n_kv_heads * hd,
                                          .lane = &lane,
                                          .part = part,
                                          .slot0 = slot,
                                          .n = n });
        s->engine->pending = true;
        KVL_TRY(kvl_engine_failed(s->engine, "keys and values of the context", rc, err));
    }
    return KVL_OK;
}

/* Chunk by chunk through one layer, since memory for a whole context would be as large as the cache itself. */
static int replay_layer(struct kvl_session *s, int32_t layer, struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    size_t all = (size_t)REPLAY_CHUNK * (size_t)sh->head_dim * (size_t)sh->n_kv_heads;
    bool values = s->planned->replay == KVL_REPLAY_ALL;
    KVL_TRY(kvl_step_reset(s->engine, err));
    float *k = kvl_arena_get(&s->engine->results, 2 * all, sizeof *k);
    if (!k) return kvl_fail(err, KVL_ENOMEM, "out of memory to replay the context");
    float *v = k + all;
    for (int32_t at = 0; at < s->n_pos; at += REPLAY_CHUNK) {
        struct kvl_step step = { .layer = layer,
                                 .index = -1,
                                 .pos = at,
                                 .replay = true,
                                 .n_tok = KVL_MIN(REPLAY_CHUNK, s->n_pos - at) };
        /* A slot is a position here: nothing leaves a layer before it was replayed. */
        KVL_TRY(replay_read(s, layer, KVL_PART_K, at, step.n_tok, k, err));
        if (values) KVL_TRY(replay_read(s, layer, KVL_PART_V, at, step.n_tok, v, err));
        KVL_TRY(kvl_call_replay(s, &step, k, values ? v : NULL, err));
    }
    return KVL_OK;
}

/* One layer: metadata from the stored keys unless it is there, then what the complete context decides.  In this order,
 * since score and evict look at what append and prefilled made, and what they drop can no longer be replayed. */
static int attach_layer(struct kvl_session *s, int32_t layer, bool shared, struct kvl_err *err)
{
    const struct kvl_policy *p = s->planned->policy;
    struct kvl_step step = {
        .layer = layer, .index = -1, .pos = 0, .n_tok = s->n_pos, .replay = true
    };
    /* A prefill forgets in tiles of its attention, which the steps to come no longer need. */
    kvl_local_forget(s, layer, s->n_pos, false);
    if (kvl_window_of(s->engine, layer) > 0) return KVL_OK;
    bool replays = p->append && !shared && s->planned->replay != KVL_REPLAY_NONE;
    if (replays) KVL_TRY(replay_layer(s, layer, err));
    KVL_TRY(kvl_step_reset(s->engine, err));
    if (!shared) KVL_TRY(kvl_call_prefilled(s, layer, err));
    if (p->score) {
        KVL_TRY(kvl_hook_begin(s, err));
        KVL_TRY(kvl_hook_done(s, "score", layer, kvl_score_layer(s, layer)));
    }
    if (!p->evict) return KVL_OK;
    KVL_TRY(kvl_hook_begin(s, err));
    return kvl_hook_done(s, "evict", layer, kvl_evict_layer(s, &step, false));
}

static int attach_check_observers(const struct kvl_session *s, const struct kvl_planned *planned,
                                  struct kvl_err *err)
{
    static const struct kvl_observer_set none = { 0 };
    const struct kvl_observer_set *want = &planned->p.observers,
                                  *have = s->obs ? &s->obs->set : &none;
    if (want->window > have->window)
        return kvl_fail(err, KVL_EINVAL, "%s observes %d queries, the engine keeps %d",
                        planned->policy->name, want->window, have->window);
    for (int32_t i = 0; i < want->n_columns; i++) {
        enum kvl_observer what = want->column[i].what;
        int32_t param = want->column[i].param;
        if (kvl_observer_set_has(have, what, param)) continue;
        if (!kvl_observes_sums(what))
            return kvl_fail(err, KVL_EINVAL, "%s observes \"%s\" of %d, the engine does not",
                            planned->policy->name, kvl_observer_name(what), param);
        return kvl_fail(err, KVL_EINVAL,
                        "%s observes column sums of %s of %d queries (0 = all), the engine "
                        "does not",
                        planned->policy->name, what == KVL_OBS_LOGITS ? "logits" : "probabilities",
                        param);
    }
    return KVL_OK;
}

/* What a policy asks for that this engine or session cannot give is refused here, by name, before anything is
 * changed. */
static int attach_check(const struct kvl_session *s, const struct kvl_planned *planned,
                        struct kvl_err *err)
{
    const char *name = planned->policy->name;
    if (s->failed || s->planned)
        return kvl_fail(err, KVL_EINTERNAL, "%s: the session failed or has a policy already", name);
    if (planned->own_prefill && s->n_pos > 0)
        return kvl_fail(err, KVL_EINVAL,
                        "%s does its own prefill, but the session holds %d tokens; attach it to an "
                        "empty one",
                        name, s->n_pos);
    if (planned->own_prefill && !planned->policy->prefill_mask && s->engine->desc.prefill_kv_host)
        return kvl_fail(err, KVL_EINVAL,
                        "%s reads its context token by token, through all layers; want prefill_kv "
                        "device, or prefill: shared",
                        name);
    if (!planned->own_prefill && s->n_pos == 0)
        return kvl_fail(
            err, KVL_EINVAL, "%s starts after a context, this one is empty; want 1 token or more%s",
            name, planned->policy->prefill != KVL_PREFILL_SHARED ? ", or prefill: own" : "");
    KVL_TRY(kvl_planned_serves(planned, kvl_store_desc(s->engine->store)->type, err));
    if (s->engine->sinks && planned->own_prefill && planned->policy->prefill_mask)
        return kvl_fail(err, KVL_EINVAL,
                        "%s masks its prefill, which is not served for models with attention sinks",
                        name);
    if (planned->raw_keys && !s->engine->desc.raw_keys)
        return kvl_fail(err, KVL_EINVAL, "%s needs keys before RoPE, the engine has none", name);
    return attach_check_observers(s, planned, err);
}

/* The context that a policy prefilled itself is complete. Reads of tables on the way are no part of what a
 * token costs. */
int kvl_attach_context(struct kvl_session *s, struct kvl_err *err)
{
    int32_t n_layers = s->engine->model->shape.n_layers;
    int64_t index_read_bytes = s->count.index_read_bytes;
    uint64_t t0 = kvl_now_ns();
    for (int32_t l = 0; l < n_layers; l++) KVL_TRY(attach_layer(s, l, false, err));
    KVL_TRY(kvl_offload_begin(s, err));
    KVL_TRY(attach_freeze(s, err));
    s->count.index_read_bytes = index_read_bytes;
    s->count.attach_ns += kvl_now_ns() - t0;
    return KVL_OK;
}

static int attach(struct kvl_session *s, const struct kvl_planned *planned, uint64_t seed,
                  enum kvl_exec exec, const struct kvl_session *like, struct kvl_err *err)
{
    uint64_t replay_ns = 0;
    KVL_TRY(attach_check(s, planned, err));
    /* Before the session has a policy: a repetition is the prefill of a fork, which would be
     * refused under one. */
    KVL_TRY(kvl_repeat_ready(s, &planned->p.observers, &replay_ns, err));
    uint64_t t0 = kvl_now_ns();
    s->planned = planned;
    s->exec = exec;
    s->count = (struct kvl_counters){ 0 };
    s->ctx = (struct kvl_pctx){ .shape = &planned->shape,
                                .ops = s->engine->now,
                                .opts = planned->opts,
                                .budget_tok = planned->budget_tok,
                                .context_tok = s->n_pos,
                                .seed = seed,
                                .err = err,
                                .host = &s->host };
    s->failed = true; /* until all of it worked */
    KVL_TRY(attach_tables(s, err));
    bool shared = attach_shares(s, like);
    if (like && !shared) KVL_TRY(attach_tables(s, err)); /* some may have been taken */
    /* Before open, which may write tables and state. */
    KVL_TRY(attach_memory(s, err));
    KVL_TRY(kvl_call_open(s, err));
    /* With its own prefill there is nothing to replay or to decide on yet. */
    int32_t n_layers = planned->own_prefill ? 0 : s->engine->model->shape.n_layers;
    for (int32_t l = 0; l < n_layers; l++) KVL_TRY(attach_layer(s, l, shared, err));
    /* After the last layer: until then a policy may still say which layers go
     * (kvl_offload_layers). */
    KVL_TRY(kvl_offload_begin(s, err));
    KVL_TRY(attach_freeze(s, err));
    s->failed = false;
    s->count.index_read_bytes = 0; /* reads of the context, once: no part of what a token costs */
    s->count.attach_ns = kvl_now_ns() - t0;
    s->count.replay_ns = replay_ns;
    return KVL_OK;
}

int kvl_session_attach_like(struct kvl_session *s, const struct kvl_planned *planned, uint64_t seed,
                            enum kvl_exec exec, const struct kvl_session *like, struct kvl_err *err)
{
    return kvl_engine_memory(s->engine, attach(s, planned, seed, exec, like, err), err);
}

int kvl_session_attach(struct kvl_session *s, const struct kvl_planned *planned, uint64_t seed,
                       enum kvl_exec exec, struct kvl_err *err)
{
    return kvl_session_attach_like(s, planned, seed, exec, NULL, err);
}
