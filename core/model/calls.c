/* What a session is called with: tokens to prefill, to extend by, to decode.  Checks them, cuts them in
 * chunks and sends these through the layers (forward.c). */
#include "model/forward.h"

int kvl_session_has_room(const struct kvl_session *s, int32_t n, struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    if (s->failed) return kvl_fail(err, KVL_EINTERNAL, "a session that failed is used again");
    if (n < 1) return kvl_fail(err, KVL_EINVAL, "%d tokens, want at least 1", n);
    bool bounded =
        !s->engine->desc.allow_overlong && !s->repeat; /* a repetition may lie beyond it */
    if (bounded && n > sh->n_ctx_train - s->n_pos)
        return kvl_fail(err, KVL_EINVAL,
                        "%lld tokens, the model's context is %d (allow it with --allow-overlong)",
                        (long long)s->n_pos + n, sh->n_ctx_train);
    if (n > INT32_MAX - 65536 - s->n_pos)
        return kvl_fail(err, KVL_EINVAL, "%d tokens after %d: too many", n, s->n_pos);
    return KVL_OK;
}

static int check_tokens(const struct kvl_session *s, const int32_t *id, int32_t n,
                        struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    KVL_TRY(kvl_session_has_room(s, n, err));
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= sh->n_vocab)
            return kvl_fail(err, KVL_EINVAL, "token id %d, want 0 to %d", id[i], sh->n_vocab - 1);
    return KVL_OK;
}

static void set_row(struct kvl_engine *e, int32_t i, struct kvl_session *s, int32_t id,
                    int32_t ahead)
{
    e->id[i] = id;
    e->pos[i] = s->n_pos + ahead;
    e->row[i] = (struct kvl_row){ .s = s, .index = s->index + ahead, .pos = s->n_pos + ahead };
}

/* A context that no chunk has brought cannot be behind a token. */
static int check_context(const struct kvl_session *s, struct kvl_err *err)
{
    const struct kvl_planned *p = s->planned;
    if (!p || !p->own_prefill || !p->policy->prefill_mask || s->n_pos > 0) return KVL_OK;
    return kvl_fail(
        err, KVL_EINVAL,
        "%s starts behind a context that it prefills itself, this session is empty; want "
        "1 token or more",
        p->policy->name);
}

void kvl_rows_set(struct kvl_session *s, const int32_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++) set_row(s->engine, i, s, id[i], i);
}

int kvl_prefill_logits(const struct kvl_prefill *p, const struct kvl_forward *f, int32_t at)
{
    size_t skip = p->last_only ? 0 : (size_t)at * (size_t)f->e->model->shape.n_vocab;
    int32_t n = p->last_only ? at + f->n == p->n : f->n;
    return p->logits && n > 0 ? kvl_forward_logits(f, n, p->logits + skip) : KVL_OK;
}

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

/* Chunks of the policy's size, where it has one. */
static int32_t prefill_step(const struct kvl_session *s, int32_t n)
{
    int32_t own = s->planned ? s->planned->prefill_chunk_tok : 0;
    return KVL_MIN(n, own > 0 ? own : s->engine->desc.chunk_tok);
}

/* A repetition goes with its fork: it stays on the device. */
static bool prefill_layerwise(const struct kvl_session *s)
{
    return s->engine->desc.prefill_kv_host && !s->repeat;
}

static int prefill_open(struct kvl_session *s, const struct kvl_prefill *p, struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    if (prefill_layerwise(s) && s->planned && !s->planned->prefill_layerwise && p->chunk < p->n)
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

static int prefill_close(struct kvl_session *s, uint64_t t0, struct kvl_err *err)
{
    if (prefill_layerwise(s)) kvl_host_count(s);
    if (!s->planned) return KVL_OK;
    s->count.prefill_ns += kvl_now_ns() - t0;
    return kvl_attach_context(s, err);
}

static int extend(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                  struct kvl_err *err);

static int prefill(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                   bool last_only, struct kvl_err *err)
{
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(check_tokens(s, id, n, err));
    if (s->planned && (!s->planned->own_prefill || s->n_pos > 0))
        return kvl_fail(err, KVL_EINTERNAL, "prefill of a session under a policy");
    if (s->planned && !s->planned->policy->prefill_mask)
        return logits ? kvl_fail(err, KVL_EINTERNAL, "logits of a context that comes by steps")
                      : extend(s, id, n, NULL, err);
    const struct kvl_prefill p = { .id = id,
                                   .n = n,
                                   .chunk = prefill_step(s, n),
                                   .logits = logits,
                                   .last_only = last_only,
                                   .observes = s->obs && (!s->planned ||
                                                          s->planned->p.observers.window > 0) };
    KVL_TRY(prefill_open(s, &p, err));
    s->failed = true;
    KVL_TRY(prefill_layerwise(s) ? kvl_prefill_layerwise(s, &p, err) : prefill_chunks(s, &p, err));
    KVL_TRY(prefill_close(s, t0, err));
    s->failed = false;
    return KVL_OK;
}

int kvl_session_prefill(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                        bool last_only, struct kvl_err *err)
{
    return kvl_engine_memory(s->engine, prefill(s, id, n, logits, last_only, err), err);
}

static int extend(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                  struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    size_t n_vocab = (size_t)e->model->shape.n_vocab;
    KVL_TRY(check_tokens(s, id, n, err));
    KVL_TRY(check_context(s, err));
    KVL_TRY(kvl_engine_reserve(e, KVL_MIN(n, e->desc.chunk_tok), err));
    KVL_TRY(kvl_session_note(s, id, n, err));
    uint64_t t0 = kvl_now_ns();
    s->failed = true;
    for (int32_t at = 0; at < n; at += e->desc.chunk_tok) {
        struct kvl_forward f = { .e = e,
                                 .mode = KVL_EXTEND,
                                 .timed = !e->dev->discrete,
                                 .err = err,
                                 .n = KVL_MIN(e->desc.chunk_tok, n - at) };
        f.more = at + f.n < n;
        kvl_rows_set(s, id + at, f.n);
        KVL_TRY(kvl_forward_rows(&f));
        if (logits) KVL_TRY(kvl_forward_logits(&f, f.n, logits + (size_t)at * n_vocab));
        s->n_pos += f.n;
        s->index += f.n;
    }
    s->failed = false;
    s->count.n_tokens += n;
    kvl_offload_account(s);
    s->count.total_ns += kvl_now_ns() - t0;
    return KVL_OK;
}

int kvl_session_extend_logits(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                              struct kvl_err *err)
{
    return kvl_engine_memory(s->engine, extend(s, id, n, logits, err), err);
}

int kvl_session_extend(struct kvl_session *s, const int32_t *id, int32_t n, struct kvl_err *err)
{
    return kvl_session_extend_logits(s, id, n, NULL, err);
}

/* Rows and their logits, as one step of the device. */
static int decode_step(const struct kvl_forward *f, float *logits)
{
    const struct kvl_device *dev = f->e->dev;
    int rc = dev->step_begin ? dev->step_begin() : KVL_OK;
    KVL_TRY(kvl_engine_failed(f->e, "beginning a step", rc, f->err));
    rc = kvl_forward_rows(f);
    if (rc == KVL_OK) rc = kvl_forward_logits(f, f->n, logits);
    int end = dev->step_end ? dev->step_end() : KVL_OK;
    return rc == KVL_OK ? kvl_engine_failed(f->e, "ending a step", end, f->err) : rc;
}

static int decode(struct kvl_session *const *s, int32_t n, const int32_t *id, float *logits,
                  struct kvl_err *err)
{
    struct kvl_engine *e = s[0]->engine;
    for (int32_t i = 0; i < n; i++) {
        KVL_TRY(check_tokens(s[i], &id[i], 1, err));
        KVL_TRY(check_context(s[i], err));
    }
    KVL_TRY(kvl_engine_reserve(e, n, err));
    for (int32_t i = 0; i < n; i++) KVL_TRY(kvl_session_note(s[i], &id[i], 1, err));
    uint64_t t0 = kvl_now_ns();
    struct kvl_forward f = {
        .e = e, .mode = KVL_DECODE, .n = n, .timed = n == 1 && !e->dev->discrete, .err = err
    };
    for (int32_t i = 0; i < n; i++) {
        set_row(e, i, s[i], id[i], 0);
        s[i]->failed = true;
    }
    KVL_TRY(decode_step(&f, logits));
    for (int32_t i = 0; i < n; i++) {
        s[i]->failed = false;
        s[i]->n_pos++;
        s[i]->index++;
        s[i]->count.n_tokens++;
        kvl_offload_account(s[i]);
    }
    if (n == 1) s[0]->count.total_ns += kvl_now_ns() - t0;
    return KVL_OK;
}

int kvl_session_decode(struct kvl_session *const *s, int32_t n, const int32_t *id, float *logits,
                       struct kvl_err *err)
{
    if (n < 1) return kvl_fail(err, KVL_EINVAL, "%d sessions, want at least 1", n);
    return kvl_engine_memory(s[0]->engine, decode(s, n, id, logits, err), err);
}

int32_t kvl_argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
