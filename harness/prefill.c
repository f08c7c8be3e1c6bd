/* Prefills and their snapshots. */
#include "prefill.h"

int kvl_snapshots_open(struct kvl_snapshots *s, const char *dir, struct kvl_err *err)
{
    *s = (struct kvl_snapshots){ 0 };
    if (!dir) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "--snapshots: this build cannot save a session yet");
}

static int prefill_run(struct kvl_engine *engine, const int32_t *id, int32_t n,
                       struct kvl_session **out, double *ns, struct kvl_err *err)
{
    struct kvl_session *s;
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(kvl_session_create(engine, &s, err));
    int rc = n > 0 ? kvl_session_prefill(s, id, n, NULL, false, err) : KVL_OK;
    *ns = (double)(kvl_now_ns() - t0);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}

int kvl_prefill(struct kvl_engine *engine, struct kvl_snapshots *s, const int32_t *id, int32_t n,
                struct kvl_session **out, double *ns, struct kvl_err *err)
{
    (void)s;
    return prefill_run(engine, id, n, out, ns, err);
}
