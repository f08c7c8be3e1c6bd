/* What a session is called with: tokens to prefill (prefill.c), to extend by, to decode.  Checks them, cuts
 * them in chunks and sends these through the layers (forward.c). */
#include "forward.h"

/* A policy that masks its own prefill decides on the context when the prefill ends: a step before it would find a
 * policy that was opened and nothing more. */
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

static int extend(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                  struct kvl_err *err);

/* A policy without prefill_mask that does its own prefill has its context as a block of steps. Time and
 * failures of the prefill are kept apart from those of attaching the policy to what it left. */
static int prefill(struct kvl_session *s, const struct kvl_prefill *p, struct kvl_err *err)
{
    uint64_t t0 = kvl_now_ns();
    if (s->planned && (!s->planned->own_prefill || s->n_pos > 0))
        return kvl_fail(err, KVL_EINTERNAL, "prefill of a session under a policy");
    if (s->planned && !s->planned->policy->prefill_mask)
        return p->logits ? kvl_fail(err, KVL_EINTERNAL, "logits of a context that comes by steps")
                         : extend(s, p->id, p->n, NULL, err);
    KVL_TRY(kvl_prefill_run(s, p, err));
    if (!s->planned) return KVL_OK;
    s->failed = true;
    s->count.prefill_ns += kvl_now_ns() - t0;
    KVL_TRY(kvl_attach_context(s, err));
    s->failed = false;
    return KVL_OK;
}

int kvl_session_prefill(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                        bool last_only, struct kvl_err *err)
{
    const struct kvl_prefill p = { .id = id, .n = n, .logits = logits, .last_only = last_only };
    return kvl_engine_memory(s->engine, prefill(s, &p, err), err);
}

/* A block of tokens under the policy, in chunks. The session counts as failed until all of it ran: half a block
 * is no state to go on from. */
static int extend(struct kvl_session *s, const int32_t *id, int32_t n, float *logits,
                  struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    size_t n_vocab = (size_t)e->model->shape.n_vocab;
    KVL_TRY(kvl_session_check_tokens(s, id, n, err));
    KVL_TRY(check_context(s, err));
    KVL_TRY(kvl_engine_reserve(e, KVL_MIN(n, e->desc.chunk_tok), err));
    KVL_TRY(kvl_session_note(s, id, n, err));
    uint64_t t0 = kvl_now_ns();
    s->failed = true;
    kvl_forward_begin(e, n);
    for (int32_t at = 0; at < n; at += e->desc.chunk_tok) {
        struct kvl_forward f = { .e = e,
                                 .mode = KVL_EXTEND,
                                 /* On a GPU a lap would measure how long it takes to give work to
                                  * the device, not how long the work takes. */
                                 .timed = !e->dev->discrete,
                                 .err = err,
                                 .n = KVL_MIN(e->desc.chunk_tok, n - at) };
        f.more = at + f.n < n;
        kvl_rows_set(s, id + at, f.n);
        KVL_TRY(kvl_forward_rows(&f));
        /* Before the next chunk, whose rows take the place of these in e->x. */
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
    /* After a failure, too: what the device has gathered of this step must not run as part of the
     * next one. */
    int end = dev->step_end ? dev->step_end() : KVL_OK;
    return rc == KVL_OK ? kvl_engine_failed(f->e, "ending a step", end, f->err) : rc;
}

/* One token for each of n sessions, which may have different policies. Everything is checked before any of them
 * is touched, so that one bad token spoils no other session. */
static int decode(struct kvl_session *const *s, int32_t n, const int32_t *id, float *logits,
                  struct kvl_err *err)
{
    struct kvl_engine *e = s[0]->engine;
    for (int32_t i = 0; i < n; i++) {
        KVL_TRY(kvl_session_check_tokens(s[i], &id[i], 1, err));
        KVL_TRY(check_context(s[i], err));
    }
    KVL_TRY(kvl_engine_reserve(e, n, err));
    for (int32_t i = 0; i < n; i++) KVL_TRY(kvl_session_note(s[i], &id[i], 1, err));
    uint64_t t0 = kvl_now_ns();
    /* Times are kept by session: those of rows that run together cannot be told apart. */
    struct kvl_forward f = {
        .e = e, .mode = KVL_DECODE, .n = n, .timed = n == 1 && !e->dev->discrete, .err = err
    };
    for (int32_t i = 0; i < n; i++) {
        kvl_row_set(e, i, s[i], id[i], 0);
        s[i]->failed = true;
    }
    KVL_TRY(decode_step(&f, logits));
    /* Only now: the wait for the logits has brought what operators chose to the host. */
    KVL_TRY(kvl_evict_late(e, err));
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

/* Ties go to the lower id, as everywhere: answers must not depend on the order of a sum. */
int32_t kvl_argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
