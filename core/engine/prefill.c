/* A context through the layers, chunk by chunk (here) or layer by layer (layerwise.c). */
#include "forward.h"

/* n_pos moves on only once a chunk has gone through all layers: hooks and observers count from it. */
static int prefill_chunks(struct kvl_session *s, const struct kvl_prefill *p, struct kvl_err *err)
{
    struct kvl_forward f = { .e = s->engine, .mode = KVL_PREFILL, .err = err };
    for (int32_t at = 0; at < p->n; at += f.n) {
        f.n = KVL_MIN(p->chunk, p->n - at);
        kvl_rows_set(s, p->id + at, f.n);
        KVL_TRY(kvl_forward_rows(&f));
        s->n_pos += f.n;
        KVL_TRY(kvl_prefill_logits(p, &f, at));
    }
    return KVL_OK;
}

/* A repetition goes with its fork: it stays on the device. */
static bool prefill_by_layer(const struct kvl_session *s)
{
    return s->engine->desc.prefill_kv_host && !s->repeat;
}

/* Chunks of the policy's size, where it has one. */
static int32_t prefill_step(const struct kvl_session *s, int32_t n)
{
    int32_t own = s->planned ? s->planned->prefill_chunk_tok : 0;
    return KVL_MIN(n, own > 0 ? own : s->engine->desc.chunk_tok);
}

/* Memory for all that the call will need, so that nothing runs short after the first chunk. */
static int prefill_open(struct kvl_session *s, const struct kvl_prefill *p, struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    if (prefill_by_layer(s) && s->planned && !s->planned->prefill_layerwise && p->chunk < p->n)
        return kvl_fail(err, KVL_EINVAL,
                        "%s wants its context chunk by chunk through all layers; want prefill_kv "
                        "device, or a context of one chunk (%d tokens)",
                        s->planned->policy->name, p->chunk);
    KVL_TRY(kvl_engine_reserve(e, p->chunk, err));
    KVL_TRY(kvl_session_note(s, p->id, p->n, err));
    if (p->observes && kvl_observers_own(e, &s->obs, s->n_pos + p->n) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for observers");
    if (!s->planned) return KVL_OK;
    s->ctx.context_tok = p->n;
    return s->exec == KVL_EXEC_MASKED ? kvl_session_reserve_dead(s, p->n, err) : KVL_OK;
}

int kvl_prefill_run(struct kvl_session *s, const struct kvl_prefill *asked, struct kvl_err *err)
{
    struct kvl_prefill p = *asked;
    KVL_TRY(kvl_session_check_tokens(s, p.id, p.n, err));
    p.chunk = prefill_step(s, p.n);
    /* Under a policy the last queries alone are observed, and only where its plan asked for
     * them. */
    p.observes = s->obs && (!s->planned || s->planned->p.observers.window > 0);
    KVL_TRY(prefill_open(s, &p, err));
    s->failed = true;
    kvl_forward_begin(s->engine, p.n);
    KVL_TRY(prefill_by_layer(s) ? kvl_prefill_layerwise(s, &p, err) : prefill_chunks(s, &p, err));
    if (prefill_by_layer(s)) kvl_host_count(s);
    s->failed = false;
    return KVL_OK;
}
