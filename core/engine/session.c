/* Sessions: one sequence, its observers, its policy; forks share until one side writes. */
#include "engine_impl.h"

#include <string.h>

/* Observers are the engine's choice and not the policy's: one prefill serves all policies that come later. */
int kvl_session_create(struct kvl_engine *engine, struct kvl_session **out, struct kvl_err *err)
{
    struct kvl_session *s = kvl_alloc(1, sizeof *s);
    if (!s) return kvl_fail(err, KVL_ENOMEM, "out of memory for a session");
    s->engine = engine;
    int rc = kvl_seq_create(engine->store, &s->seq, err);
    const struct kvl_observer_set *set = &engine->desc.observers;
    bool observes = set->window > 0 || set->n_columns > 0;
    if (rc == KVL_OK && observes && kvl_observers_create(engine, &s->obs) != KVL_OK)
        rc = kvl_fail(err, KVL_ENOMEM,
                      "out of memory for the last %d queries of every layer and %d column sums",
                      set->window, set->n_columns);
    if (rc != KVL_OK) {
        kvl_session_destroy(s);
        return rc;
    }
    *out = s;
    return KVL_OK;
}

/* Ids are noted before the tokens run, so that hooks of these tokens find them (kvl_tokens).  They count only once
 * n_pos moves on: a call that fails after it leaves the session's text as it was. */
int kvl_session_note(struct kvl_session *s, const int32_t *id, int32_t n, struct kvl_err *err)
{
    /* The fork of an empty session comes here without an array. */
    if (n == 0) return KVL_OK;
    if (s->cap_id - s->n_pos < n) {
        /* By half of itself, so that decoding token by token copies every id a few times at
         * most. */
        int32_t need = s->n_pos + n, cap = need + KVL_MIN(need / 2 + 64, INT32_MAX - need);
        int32_t *more = kvl_alloc((size_t)cap, sizeof *more);
        if (!more) return kvl_fail(err, KVL_ENOMEM, "out of memory for the ids of %d tokens", need);
        if (s->id) memcpy(more, s->id, (size_t)s->n_pos * sizeof *more);
        kvl_free(s->id);
        s->id = more;
        s->cap_id = cap;
    }
    memcpy(s->id + s->n_pos, id, (size_t)n * sizeof *id);
    return KVL_OK;
}

/* What a policy left with the engine: its tables, shared selections, host tier and state. */
static void host_release(struct kvl_session *s)
{
    for (int32_t i = 0; i < KVL_MAX_TABLES; i++) kvl_row_table_destroy(s->host.table[i]);
    kvl_shares_free(&s->host);
    kvl_tier_destroy(s->tier);
    kvl_free(s->ctx.state);
    kvl_free(s->dead);
}

void kvl_session_destroy(struct kvl_session *s)
{
    if (!s) return;
    host_release(s);
    kvl_session_probe(s, NULL, 0, NULL);
    kvl_observers_unref(s->obs);
    kvl_seq_destroy(s->seq);
    kvl_free(s->id);
    kvl_free(s);
}

/* ---- fork ---------------------------------------------------------------------------------------- */

static void *copy_bytes(const void *src, size_t n)
{
    void *p = kvl_alloc(n, 1);
    if (p && n > 0) memcpy(p, src, n);
    return p;
}

/* Lanes of the model, not of the layers that the policy sees: the mask oracle and probes keep a row for layers with
 * a window, too. */
static size_t session_lanes(const struct kvl_session *s)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    return (size_t)sh->n_layers * (size_t)sh->n_kv_heads;
}

/* Copied: state, options by reference, what the mask oracle evicted. Shared until written: tables, selections,
 * blocks of the tier. The context points into the fork, not into the parent. */
static int fork_policy(struct kvl_session *s, const struct kvl_session *parent)
{
    s->planned = parent->planned;
    s->exec = parent->exec;
    s->index = parent->index;
    s->ctx = parent->ctx;
    s->ctx.host = &s->host;
    /* Not the parent's for a moment: if this fork fails, its destructor frees what stands here. */
    s->ctx.state = NULL;
    s->host.session = s;
    if (!parent->planned) return KVL_OK;
    KVL_TRY(kvl_engine_sync(s->engine)); /* hooks may run ahead of what they write */
    for (int32_t i = 0; i < parent->planned->p.n_tables; i++)
        KVL_TRY(kvl_row_table_fork(s->engine, parent->host.table[i], &s->host.table[i]));
    KVL_TRY(kvl_shares_fork(&s->host, &parent->host));
    if (parent->tier) KVL_TRY(kvl_tier_fork(parent->tier, &s->tier));
    if (parent->planned->state_bytes > 0) {
        size_t bytes = parent->planned->state_bytes;
        s->ctx.state = kvl_alloc(bytes, 1);
        if (!s->ctx.state) return KVL_ENOMEM;
        memcpy(s->ctx.state, parent->ctx.state, bytes);
    }
    if (parent->dead) {
        s->dead_cap = parent->dead_cap;
        s->dead = copy_bytes(parent->dead, session_lanes(s) * (size_t)s->dead_cap);
        if (!s->dead) return KVL_ENOMEM;
    }
    return KVL_OK;
}

/* Counters go along: what a prefill cost is part of every answer that comes of it. */
static int session_fork(const struct kvl_session *parent, struct kvl_session **out,
                        struct kvl_err *err)
{
    if (parent->failed) return kvl_fail(err, KVL_EINTERNAL, "fork of a session that failed");
    struct kvl_session *s = kvl_alloc(1, sizeof *s);
    if (!s) return kvl_fail(err, KVL_ENOMEM, "out of memory for a session");
    s->engine = parent->engine;
    s->count = parent->count;
    s->obs = kvl_observers_ref(parent->obs);
    int rc = kvl_session_note(s, parent->id, parent->n_pos, err);
    s->n_pos = parent->n_pos;
    s->n_host = parent->n_host;
    if (rc == KVL_OK) rc = kvl_seq_fork(parent->seq, &s->seq, err);
    if (rc == KVL_OK && fork_policy(s, parent) != KVL_OK)
        rc = kvl_fail(err, KVL_ENOMEM, "out of memory for the policy of a fork");
    if (rc != KVL_OK) {
        kvl_session_destroy(s);
        return rc;
    }
    *out = s;
    return KVL_OK;
}

int kvl_session_fork(const struct kvl_session *parent, struct kvl_session **out,
                     struct kvl_err *err)
{
    return kvl_engine_memory(parent->engine, session_fork(parent, out, err), err);
}

/* ---- what harnesses ask --------------------------------------------------------------------------- */

int32_t kvl_session_len(const struct kvl_session *s)
{
    return s->n_pos;
}
const struct kvl_seq *kvl_session_seq(const struct kvl_session *s)
{
    return s->seq;
}
const struct kvl_counters *kvl_session_counters(const struct kvl_session *s)
{
    return &s->count;
}

/* What the prefill cost stays: it was paid once, before the steps that are counted from here on. */
void kvl_session_reset_counters(struct kvl_session *s)
{
    const struct kvl_counters c = s->count;
    s->count = (struct kvl_counters){ .prefill_pairs = c.prefill_pairs,
                                      .prefill_dense_pairs = c.prefill_dense_pairs,
                                      .prefill_scored_pairs = c.prefill_scored_pairs,
                                      .prefill_read_bytes = c.prefill_read_bytes,
                                      .prefill_ns = c.prefill_ns };
    /* Bytes on the device and on the host are no sums over steps but what lies there now: they are
     * taken anew. */
    kvl_offload_account(s);
}

/* State and tables of the policy, shared rows too: what the method needs, not what this session added. */
size_t kvl_session_meta_bytes(const struct kvl_session *s)
{
    if (!s->planned) return 0;
    size_t bytes = s->planned->state_bytes;
    for (int32_t i = 0; i < s->planned->p.n_tables; i++)
        bytes += kvl_row_table_bytes(s->host.table[i]);
    return bytes;
}

/* Positions to watch: a new probe takes the place of the old one, none of it is carried over. */
int kvl_session_probe(struct kvl_session *s, const int32_t *pos, int32_t n, struct kvl_err *err)
{
    kvl_free(s->probe.pos);
    kvl_free(s->probe.hit);
    kvl_free(s->probe.dense);
    s->probe = (struct kvl_probe){ 0 };
    if (n <= 0) return KVL_OK;
    struct kvl_probe p = { .n = n };
    p.pos = kvl_alloc((size_t)n, sizeof *p.pos);
    p.hit = kvl_alloc(session_lanes(s) * (size_t)n, 1);
    p.dense = kvl_alloc((size_t)s->engine->model->shape.n_layers, 1);
    if (!p.pos || !p.hit || !p.dense) {
        kvl_free(p.pos);
        kvl_free(p.hit);
        kvl_free(p.dense);
        return kvl_fail(err, KVL_ENOMEM, "out of memory to watch %d positions", n);
    }
    memcpy(p.pos, pos, (size_t)n * sizeof *pos);
    s->probe = p;
    return KVL_OK;
}

void kvl_session_probe_hits(const struct kvl_session *s, const uint8_t **hit, const uint8_t **dense)
{
    *hit = s->probe.hit;
    *dense = s->probe.dense;
}

/* Only for the mask oracle, which evicts nothing and marks instead: a byte per position and lane. */
int kvl_session_reserve_dead(struct kvl_session *s, int32_t n_pos, struct kvl_err *err)
{
    if (s->dead && n_pos <= s->dead_cap) return KVL_OK;
    const struct kvl_shape *sh = &s->engine->model->shape;
    size_t lanes = (size_t)sh->n_layers * (size_t)sh->n_kv_heads;
    int32_t cap = n_pos + n_pos / 4 + 64;
    /* Zero is alive, so positions that are still to come need no mark of their own. */
    uint8_t *dead = kvl_alloc(lanes, (size_t)cap);
    if (!dead) return kvl_fail(err, KVL_ENOMEM, "out of memory for the mask of %d tokens", n_pos);
    for (size_t lane = 0; s->dead && lane < lanes; lane++)
        memcpy(dead + lane * (size_t)cap, s->dead + lane * (size_t)s->dead_cap,
               (size_t)s->dead_cap);
    kvl_free(s->dead);
    s->dead = dead;
    s->dead_cap = cap;
    return KVL_OK;
}
