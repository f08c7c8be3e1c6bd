/* What a policy says of itself, and what the engine counted of its prefill. */
#include "policy_impl.h"

struct kvl_report {
    struct kvl_report_to to;
};

/* The harness checks names and drops what is not finite: a report must not fail a run that has its answers. */
int kvl_report_num(struct kvl_report *r, const char *name, double value)
{
    if (r->to.num) r->to.num(r->to.user, name, value);
    return KVL_OK;
}

int kvl_report_note(struct kvl_report *r, const char *text)
{
    if (r->to.note) r->to.note(r->to.user, text);
    return KVL_OK;
}

/* What the engine counted of a context under prefill_mask. */
static void report_prefill(const struct kvl_session *s, struct kvl_report *r)
{
    const struct kvl_counters *c = &s->count;
    if (c->prefill_dense_pairs == 0) return;
    const double all = (double)c->prefill_dense_pairs;
    kvl_report_num(r, "prefill_share", (double)c->prefill_pairs / all);
    kvl_report_num(r, "prefill_scored_share", (double)c->prefill_scored_pairs / all);
    kvl_report_num(r, "prefill_read_mib", (double)c->prefill_read_bytes / (1 << 20));
    kvl_report_num(r, "prefill_s", 1e-9 * (double)c->prefill_ns);
    kvl_report_note(r,
                    "prefills the context itself, computing {prefill_share%} of the attention of a "
                    "dense prefill");
}

/* Loops of the method's own on the host. */
static void report_host_ops(const struct kvl_session *s, struct kvl_report *r)
{
    const struct kvl_counters *c = &s->count;
    if (c->host_ops == 0) return;
    kvl_report_num(r, "host_op_calls", (double)c->host_ops);
    kvl_report_num(r, "host_op_s", 1e-9 * (double)c->host_op_ns);
    kvl_report_num(r, "host_op_wait_s", 1e-9 * (double)c->host_wait_ns);
    kvl_report_note(r,
                    "computes with a loop of its own on the host, which waits for the device "
                    "before each of {host_op_calls} calls: its times are not those of operators");
}

/* What the engine counted comes first, for methods refer to it in their notes. */
int kvl_session_report(struct kvl_session *s, const struct kvl_report_to *to, struct kvl_err *err)
{
    if (!s->planned) return KVL_OK;
    struct kvl_report r = { *to };
    report_prefill(s, &r);
    report_host_ops(s, &r);
    return kvl_call_report(s, &r, err);
}
