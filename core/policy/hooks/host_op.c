/* Loops of methods on the host (methods/<name>.op.c). */
#include "policy_impl.h"

/* The wait is timed apart: it is what an operator of the device would not need. */
int kvl_host_op(const struct kvl_pctx *ctx, int (*loop)(const void *args), const void *args)
{
    struct kvl_counters *c = &ctx->host->session->count;
    uint64_t begin = kvl_now_ns();
    KVL_TRY(kvl_look(ctx));
    uint64_t ready = kvl_now_ns();
    int rc = loop(args);
    c->host_ops++;
    c->host_wait_ns += ready - begin;
    c->host_op_ns += kvl_now_ns() - ready;
    if (rc == KVL_OK) return KVL_OK;
    if (rc > 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "the loop on the host returned %d, want KVL_OK or a negative status", rc);
    return kvl_fail(ctx->err, rc, "the loop on the host refused its arguments");
}
