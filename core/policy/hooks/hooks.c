/* The calls of a policy's hooks, each with what comes before and after it: errors and time go to the policy, the
 * device is waited for where the hook looks at results (or runs ahead of it, async.c), and flags say what the
 * hook may ask for.  Hooks of outer(inner) are compose.c's. */
#include "policy_impl.h"

#include "kvl/fpenv.h"

/* Sessions of a batch lie together by policy: few hooks change the name. */
void kvl_watch_policy(struct kvl_engine *e, const char *policy)
{
    if (!e->watch || e->watched == policy) return;
    e->watched = policy;
    e->watch(policy);
}

/* What every hook begins with. An error that is stored already is not this hook's. */
void kvl_hook_enter(struct kvl_session *s, struct kvl_err *err)
{
    s->ctx.err = err;
    s->ctx.ops = s->engine->now;
    s->host.session = s;
    s->host.n_visible = s->n_pos;
    s->host.clean = !err || err->code == KVL_OK;
    s->host.fetched = false;
    s->host.ahead = false;
    s->host.looked = false;
    s->host.n_handed = s->host.n_args = 0;
    kvl_watch_policy(s->engine, s->planned->policy->name);
}

/* The hook may look at all that operators wrote, so the device is waited for. kvl_step_hook_begin is the way
 * around. */
int kvl_hook_begin(struct kvl_session *s, struct kvl_err *err)
{
    kvl_hook_enter(s, err);
    KVL_TRY(kvl_engine_wait(s->engine, err));
    kvl_arena_reset(&s->engine->scratch);
    s->engine->scratch.ahead = false;
    return KVL_OK;
}

/* Codes of the engine and refusals by the method stay, all others are a broken contract; a device that was lost
 * explains whatever the hook made of it. The session is not used again. */
int kvl_hook_failed(struct kvl_session *s, const char *hook, int32_t layer, int code)
{
    struct kvl_err *err = s->ctx.err;
    const char *name = s->planned->policy->name, *end = s->engine->dev->error();
    s->failed = true;
    if (*end) { /* whatever the method made of it */
        kvl_err_clear(err);
        code = kvl_fail(err, KVL_EDEVICE, "%s", end);
    }
    /* The engine's own trouble or the method's refusal keep their code; nothing else is a hook's to
     * return. */
    if (code != KVL_ENOMEM && code != KVL_EINVAL && code != KVL_ENUMERIC && code != KVL_EDEVICE)
        code = KVL_EPOLICY;
    if (err && err->code == KVL_OK)
        kvl_fail(err, code, "%s",
                 code == KVL_EINVAL ? "the hook or an operator that it called refused an argument"
                                    : "the hook failed without a message");
    if (layer < 0) return kvl_fail_at(err, code, "%s: %s", name, hook);
    return kvl_fail_at(err, code, "%s: %s, layer %d, position %d", name, hook, layer,
                       s->host.n_visible - 1);
}

/* A tap that ended the call comes first, then what the hook returned, then what it ignored. */
int kvl_hook_done(struct kvl_session *s, const char *hook, int32_t layer, int code)
{
    struct kvl_err *err = s->ctx.err;
    if (s->engine->dev->settle) s->engine->dev->settle();
    if (s->tap_rc != KVL_OK) {
        s->failed = true;
        return kvl_fail(err, s->tap_rc, "a tap ended the call");
    }
    code = kvl_fp_kept(code, KVL_EPOLICY, err);
    /* A hook that ignores a refusal would go on with something else than it asked for. */
    if (code == KVL_OK && err && s->host.clean) code = err->code;
    if (code == KVL_OK) code = kvl_offload_send(s);
    return code == KVL_OK ? KVL_OK : kvl_hook_failed(s, hook, layer, code);
}

/* A step as the policy numbers layers. */
static struct kvl_step seen_step(const struct kvl_session *s, const struct kvl_step *step)
{
    struct kvl_step seen = *step;
    seen.layer = kvl_seen_as(s->planned, step->layer);
    return seen;
}

/* x [n][dim], to read; NULL: nothing. */
static struct kvl_pieces floats_given(const float *x, int32_t n, int32_t dim)
{
    return (struct kvl_pieces){ .data = (uint8_t *)(uintptr_t)x,
                                .bytes = (size_t)n * (size_t)dim * sizeof *x,
                                .n = x ? 1 : 0 };
}

/* What a hook gets of n tokens.  Queries and inputs are on the device; a hook that does not look leaves them there. */
static int hand_query(struct kvl_session *s, const struct kvl_query *q, int32_t n)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    const struct kvl_pieces list[] = { floats_given(q->q, n * sh->n_heads, sh->head_dim),
                                       floats_given(q->q_raw, n * sh->n_heads, sh->head_dim),
                                       floats_given(q->x, n, sh->n_embd),
                                       floats_given(q->x_prev, n, sh->n_embd) };
    return kvl_hand_args(s, list, 4, s->ctx.err);
}

static int hand_keys(struct kvl_session *s, const float *k, const float *v, int32_t n)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    const struct kvl_pieces list[] = { floats_given(k, n * sh->n_kv_heads, sh->head_dim),
                                       floats_given(v, n * sh->n_kv_heads, sh->head_dim) };
    return kvl_hand_args(s, list, 2, s->ctx.err);
}

/* ---- hooks that make and end a session -------------------------------------------------------------- */

/* There is no session yet: planned_create puts the policy's name before the error. */
int kvl_call_plan(const struct kvl_policy *policy, struct kvl_plan *plan)
{
    return policy->plan ? kvl_fp_kept(policy->plan(plan), KVL_EPOLICY, plan->err) : KVL_OK;
}

/* Once per session; forks take the opened state along. */
int kvl_call_open(struct kvl_session *s, struct kvl_err *err)
{
    const struct kvl_policy *p = s->planned->policy;
    KVL_TRY(kvl_hook_begin(s, err));
    int rc = p->open ? p->open(&s->ctx) : KVL_OK;
    s->opened = true;
    return kvl_hook_done(s, "open", -1, rc);
}

/* After the last step, so the device is waited for. */
int kvl_call_report(struct kvl_session *s, struct kvl_report *report, struct kvl_err *err)
{
    const struct kvl_policy *p = s->planned->policy;
    if (!p->report) return KVL_OK;
    KVL_TRY(kvl_hook_begin(s, err));
    return kvl_hook_done(s, "report", -1, p->report(&s->ctx, report));
}

/* ---- hooks of the complete context -------------------------------------------------------------------- */

/* Keys of the chunk are stored already, so that a mask can be made of them. */
int kvl_call_prefill_mask(struct kvl_session *s, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_prefill_mask *mask,
                          struct kvl_err *err)
{
    const struct kvl_step seen = seen_step(s, step);
    KVL_TRY(kvl_hook_begin(s, err));
    KVL_TRY(hand_query(s, q, step->n_tok));
    s->host.n_visible = step->pos + step->n_tok;
    s->host.phase = HOOK_MASK;
    s->host.mask_layer = s->engine->desc.prefill_kv_host ? step->layer : -1;
    int rc = s->planned->policy->prefill_mask(&s->ctx, &seen, q, mask);
    s->host.phase = HOOK_OTHER;
    return kvl_hook_done(s, "prefill_mask", step->layer, rc);
}

/* Keys come from the store, in order, for all that is in it. */
int kvl_call_replay(struct kvl_session *s, const struct kvl_step *step, const float *k,
                    const float *v, struct kvl_err *err)
{
    const struct kvl_step seen = seen_step(s, step);
    KVL_TRY(kvl_hook_begin(s, err));
    int rc = s->planned->policy->append(&s->ctx, &seen, k, v);
    return kvl_hook_done(s, "append", step->layer, rc);
}

int kvl_call_prefilled(struct kvl_session *s, int32_t layer, struct kvl_err *err)
{
    const struct kvl_policy *p = s->planned->policy;
    KVL_TRY(kvl_hook_begin(s, err));
    s->host.phase = HOOK_CONTEXT;
    int rc = p->prefilled ? kvl_hook_done(s, "prefilled", layer,
                                          p->prefilled(&s->ctx, kvl_seen_as(s->planned, layer)))
                          : KVL_OK;
    s->host.phase = HOOK_OTHER;
    return rc;
}

int kvl_call_score(struct kvl_session *s, int32_t layer, struct kvl_scores *scores)
{
    s->host.phase = HOOK_CONTEXT;
    int rc = s->planned->policy->score(&s->ctx, kvl_seen_as(s->planned, layer), scores);
    s->host.phase = HOOK_OTHER;
    return kvl_fp_kept(rc, KVL_EPOLICY, s->ctx.err);
}

/* From inside a hook of the outer policy, whose context this is but for the inner one's own part. */
int kvl_call_asked(struct kvl_pctx *ctx, const struct kvl_policy *inner, int32_t layer,
                   const struct kvl_asked *asked, struct kvl_scores *scores)
{
    ctx->host->asked = asked;
    int rc = inner->score(ctx, layer, scores);
    ctx->host->asked = NULL;
    return rc;
}

/* ---- hooks of a step ---------------------------------------------------------------------------------- */

/* A policy that looks at nothing runs ahead: no wait, operators in order, scratch that the device may still
 * read. Others get what every hook gets. */
int kvl_step_hook_begin(const struct kvl_row *row, struct kvl_err *err)
{
    struct kvl_session *s = row->s;
    struct kvl_engine *e = s->engine;
    if (kvl_session_async(s)) {
        kvl_hook_enter(s, err);
        s->host.ahead = e->marks = e->pending = true;
        s->ctx.ops = e->ops;
        e->dev->mark_row((int32_t)(row - e->row));
        /* The next hook's operators come after those that still use it. */
        kvl_arena_reset(&e->scratch);
        e->scratch.ahead = true;
    } else {
        KVL_TRY(kvl_hook_begin(s, err));
    }
    s->host.n_visible = row->pos + 1;
    return KVL_OK;
}

int kvl_call_append(const struct kvl_row *row, const struct kvl_step *step, const float *k,
                    const float *v, struct kvl_err *err)
{
    struct kvl_session *s = row->s;
    struct kvl_engine *e = s->engine;
    const struct kvl_step seen = seen_step(s, step);
    KVL_TRY(kvl_step_hook_begin(row, err));
    KVL_TRY(hand_keys(s, k, v, step->n_tok));
    s->host.input_layer = step->layer;
    s->host.input = e->xn + (size_t)(row - e->row) * (size_t)e->model->shape.n_embd;
    int rc = s->planned->policy->append(&s->ctx, &seen, k, v);
    s->host.input = NULL;
    return kvl_hook_done(s, "append", step->layer, rc);
}

/* Asked for every layer and token, so it waits for nothing and may not look. */
int kvl_call_schedule(struct kvl_session *s, const struct kvl_step *step, struct kvl_err *err)
{
    const struct kvl_step seen = seen_step(s, step);
    kvl_hook_enter(s, err);
    s->host.n_visible = step->pos + 1;
    return kvl_fp_kept(s->planned->policy->schedule(&s->ctx, &seen), KVL_EPOLICY, err);
}

/* A selection is complete and saved before the next layer can ask for it. */
int kvl_call_select(const struct kvl_row *row, const struct kvl_step *step,
                    const struct kvl_query *q, struct kvl_sel *sel, struct kvl_err *err)
{
    struct kvl_session *s = row->s;
    const struct kvl_step seen = seen_step(s, step);
    KVL_TRY(kvl_step_hook_begin(row, err));
    KVL_TRY(hand_query(s, q, 1));
    s->host.phase = HOOK_SELECT;
    int rc = s->planned->policy->select(&s->ctx, &seen, q, sel);
    s->host.phase = HOOK_OTHER;
    rc = kvl_fp_kept(rc, KVL_EPOLICY, err);
    s->count.n_select++;
    if (rc == KVL_OK) rc = kvl_sel_complete(sel);
    if (rc == KVL_OK) rc = kvl_sel_save(sel, row);
    return kvl_hook_done(s, "select", step->layer, rc);
}

/* Weights lie on the device until the hook looks at them. */
int kvl_call_observe(const struct kvl_row *row, const struct kvl_step *step, struct kvl_err *err)
{
    struct kvl_session *s = row->s;
    const struct kvl_observed *ob = &row->ob;
    const struct kvl_step seen = seen_step(s, step);
    KVL_TRY(kvl_step_hook_begin(row, err));
    int rc = s->planned->policy->observe(&s->ctx, &seen, ob->probs, ob->n, ob->lse);
    return kvl_hook_done(s, "observe", step->layer, rc);
}

/* kvl_evict_layer begins and ends it: what is kept is part of the same hook. */
int kvl_call_evict(struct kvl_session *s, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct kvl_step seen = seen_step(s, step);
    /* On attach the hook judges the context, whose reads are no cost of a token. */
    s->host.phase = step->replay ? HOOK_OTHER : HOOK_EVICT;
    int rc = s->planned->policy->evict(&s->ctx, &seen, keep);
    s->host.phase = HOOK_OTHER;
    return kvl_fp_kept(rc, KVL_EPOLICY, s->ctx.err);
}
