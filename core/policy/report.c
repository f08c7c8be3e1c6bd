/* What a policy says of itself, and what the engine counted of its prefill. */
#include "policy_impl.h"

struct kvl_report {
    struct kvl_report_to to;
};

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

/* Of a context under prefill_mask: what the engine counted. */
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

int kvl_session_report(struct kvl_session *s, const struct kvl_report_to *to, struct kvl_err *err)
{
    if (!s->planned) return KVL_OK;
    struct kvl_report r = { *to };
    report_prefill(s, &r);
    return kvl_call_report(s, &r, err);
}
