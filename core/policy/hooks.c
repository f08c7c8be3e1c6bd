/* Before and after every hook. */
#include "policy_impl.h"

/* Sessions of a batch lie together by policy: few hooks change the name. */
void kvl_watch_policy(struct kvl_engine *e, const char *policy)
{
    if (!e->watch || e->watched == policy) return;
    e->watched = policy;
    e->watch(policy);
}

void kvl_hook_enter(struct kvl_session *s, struct kvl_err *err)
{
    s->ctx.err = err;
    s->ctx.ops = s->engine->now;
    s->host.session = s;
    s->host.n_visible = s->n_pos;
    s->host.clean = !err || err->code == KVL_OK;
    s->host.fetched = false;
    s->host.ahead = false;
    kvl_watch_policy(s->engine, s->planned->policy->name);
}

int kvl_hook_begin(struct kvl_session *s, struct kvl_err *err)
{
    kvl_hook_enter(s, err);
    KVL_TRY(kvl_engine_wait(s->engine, err));
    kvl_arena_reset(&s->engine->scratch);
    return KVL_OK;
}

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

int kvl_hook_done(struct kvl_session *s, const char *hook, int32_t layer, int code)
{
    struct kvl_err *err = s->ctx.err;
    if (s->tap_rc != KVL_OK) {
        s->failed = true;
        return kvl_fail(err, s->tap_rc, "a tap ended the call");
    }
    /* A hook that ignores a refusal would go on with something else than it asked for. */
    if (code == KVL_OK && err && s->host.clean) code = err->code;
    if (code == KVL_OK) code = kvl_offload_send(s);
    return code == KVL_OK ? KVL_OK : kvl_hook_failed(s, hook, layer, code);
}
