/* Hooks that the engine does not wait for (KVL_CAP_ASYNC).
 *
 * They run ahead of the device: what they are given may not be there yet, operators are given to the device in
 * order, and a list that an operator chose stays there (kvl_sel_top_*).  A hook that looks waits first.
 *
 * Operators of such a hook do not tell the engine that they are under way: while one runs, something
 * always is. */
#include "policy_impl.h"

#include <string.h>

/* Asked for each hook and not once: a probe or a tap may come and go between steps. The mask oracle, tiers and
 * listeners look at lists on the host. */
bool kvl_session_async(const struct kvl_session *s)
{
    const struct kvl_engine *e = s->engine;
    const struct kvl_tap *t = &s->tap;
    if (!e->dev->marked || e->ops == e->now || e->desc.wait_hooks) return false;
    if (!s->planned || !(s->planned->policy->caps & KVL_CAP_ASYNC)) return false;
    /* What follows looks at every list. */
    return !s->dead && s->probe.n == 0 && !t->read && !t->score && !t->keep;
}

/* The first row of the call that met a NaN. */
static int marks_take(struct kvl_engine *e)
{
    int32_t row = -1;
    if (!e->marks) return KVL_OK;
    KVL_TRY(e->dev->marked(&row));
    if (row >= 0 && (!e->marked || row < e->marked - e->row)) e->marked = &e->row[row];
    return KVL_OK;
}

/* ---- what is handed to a hook -------------------------------------------------------------------- */

/* n = 0 asks the device for nothing. */
static int handed_get(const struct kvl_engine *e, const struct kvl_pieces *list, int32_t n,
                      struct kvl_err *err)
{
    return kvl_engine_failed(e, "what a hook is given", n > 0 ? e->dev->host(list, n) : KVL_OK,
                             err);
}

/* Kept, since the hook may look more than once. */
int kvl_hand(struct kvl_session *s, const struct kvl_pieces *list, int32_t n, struct kvl_err *err)
{
    struct kvl_host *host = &s->host;
    if (!s->engine->dev->host) return KVL_OK;
    if (host->ahead && n > KVL_MAX_HANDED - host->n_handed)
        return kvl_fail(err, KVL_EPOLICY, "a hook asks for rows of tables more than %d times",
                        KVL_MAX_HANDED);
    if (host->ahead) {
        memcpy(host->handed + host->n_handed, list, (size_t)n * sizeof *list);
        host->n_handed += n;
    }
    return host->ahead && !host->looked ? KVL_OK : handed_get(s->engine, list, n, err);
}

int kvl_hand_args(struct kvl_session *s, const struct kvl_pieces *list, int32_t n,
                  struct kvl_err *err)
{
    KVL_TRY(kvl_hand(s, list, n, err));
    s->host.n_args = s->host.n_handed;
    return KVL_OK;
}

/* ---- looking ----------------------------------------------------------------------------------------- */

/* The device has run: what operators met. */
static int look_marks(struct kvl_session *s, struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    e->pending = true;
    KVL_TRY(kvl_engine_failed(e, "what operators met", marks_take(e), err));
    if (!e->marked || e->marked->s != s) return KVL_OK;
    return kvl_fail(err, KVL_EPOLICY, "a score is not a number (NaN)");
}

/* The same for a hook that goes on: what it was handed from the first-th on is there too. */
static int look_met(struct kvl_session *s, int32_t first, struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    s->host.looked = true;
    KVL_TRY(handed_get(e, s->host.handed + first, s->host.n_handed - first, err));
    return look_marks(s, err);
}

/* A hook that the engine waited for has everything already. */
int kvl_session_look(struct kvl_session *s, struct kvl_err *err)
{
    if (!s->host.ahead) return KVL_OK;
    KVL_TRY(kvl_engine_wait(s->engine, err));
    return look_met(s, 0, err);
}

int kvl_look(const struct kvl_pctx *ctx)
{
    return kvl_session_look(ctx->host->session, ctx->err);
}

/* Arguments of a hook are read alone. */
static bool look_writes(const struct kvl_host *host, const uint8_t *p)
{
    for (int32_t i = 0; i < host->n_args; i++) {
        const struct kvl_pieces *arg = &host->handed[i];
        if (arg->n > 0 && p >= arg->data && p < arg->data + arg->bytes) return false;
    }
    return true;
}

/* The piece, and, where the hook had not looked, the tables that it asked for: in one wait. */
static int look_get(struct kvl_session *s, const struct kvl_pieces *piece, struct kvl_err *err)
{
    struct kvl_host *host = &s->host;
    struct kvl_pieces all[KVL_MAX_HANDED + 1];
    int32_t n = host->looked ? 0 : host->n_handed - host->n_args;
    memcpy(all, host->handed + host->n_args, (size_t)n * sizeof *all);
    all[n] = *piece;
    return handed_get(s->engine, all, n + 1, err);
}

/* One array crosses, not all that the hook was handed: filter layers look at a list of tokens and not at their
 * scores, nor at the query. */
static int look_at(struct kvl_session *s, const void *p, size_t bytes, struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    uint8_t *data = (uint8_t *)(uintptr_t)p; /* the hook's own, or a result */
    const struct kvl_pieces piece = {
        .data = data, .bytes = bytes, .n = 1, .writes = look_writes(&s->host, data)
    };
    if (!s->host.ahead) return KVL_OK;
    /* Waits where it is on its way, and for marks; what is under way beside that, as fetches ahead, goes on. */
    if (e->dev->host) KVL_TRY(look_get(s, &piece, err));
    if (!e->dev->host)
        KVL_TRY(kvl_engine_failed(e, "waiting for the device", kvl_engine_rest(e), err));
    return look_met(s, s->host.n_args, err);
}

int kvl_session_look_back(struct kvl_session *s, const struct kvl_pieces *list, int32_t n,
                          struct kvl_err *err)
{
    if (s->engine->dev->host) KVL_TRY(handed_get(s->engine, list, n, err));
    return s->host.ahead ? look_marks(s, err) : KVL_OK;
}

int kvl_session_look_at(struct kvl_session *s, const void *p, int32_t n, size_t item,
                        struct kvl_err *err)
{
    return look_at(s, p, (size_t)KVL_MAX(n, 0) * item, err);
}

int kvl_look_at(const struct kvl_pctx *ctx, const void *p, size_t n, size_t item)
{
    size_t bytes;
    KVL_TRY(kvl_mul_size(n, item, &bytes));
    return look_at(ctx->host->session, p, bytes, ctx->err);
}

/* Once per call, after the logits: a NaN in a score is told then, with the row that met it. */
int kvl_marks_check(struct kvl_engine *e, struct kvl_err *err)
{
    KVL_TRY(kvl_engine_failed(e, "what operators met", marks_take(e), err));
    const struct kvl_row *row = e->marked;
    e->marks = false;
    e->marked = NULL;
    if (!row) return KVL_OK;
    return kvl_fail(err, KVL_EPOLICY, "%s: a score is not a number (NaN), position %d",
                    row->s->planned->policy->name, row->pos);
}

void kvl_marks_drop(struct kvl_engine *e)
{
    (void)marks_take(e);
    e->marks = false;
    e->marked = NULL;
}
