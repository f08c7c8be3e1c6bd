/* rates.h - what answers and prefills of a sweep took, and what those that are left will take.
 *
 * One is a question's answer, a text under a policy, the prefill of a context, or a timed cell.  Policies
 * differ a hundredfold per unit of cost (sweep_plan.h), so that what is left takes what the
 * most alike of those that are known took: first of the same policy, then protocol, budget, task, length.
 * To another length it is carried over along the line through two known lengths, and with
 * one alone by cost.
 *
 * Thread-safe: no.
 */
#ifndef KVL_RATES_H
#define KVL_RATES_H

#include "runner.h"

struct kvl_rate {
    const struct kvl_point *task, *policy; /* policy NULL: a prefill */
    int protocol;
    bool timed; /* a timed cell, or the prefill for some */
    int32_t budget_tok, length;
    double cost;  /* of one, in units */
    double ns, n; /* mean of one, how many are known */
};

struct kvl_rates {
    struct kvl_rate *rate;
    size_t n, cap;
    double ns; /* of all that are known */
};

/* Time of one process each. */
struct kvl_rates_left {
    double ns,
        timed_ns; /* timed cells and their prefills: one process, whatever the number of workers */
};

/* Adds what the state of `r` knows.  KVL_ENOMEM. */
int kvl_rates_read(struct kvl_rates *rates, const struct kvl_runner *r, struct kvl_err *err);
void kvl_rates_free(struct kvl_rates *rates);
/* Of the shard of `r`; NaN where nothing is known. */
struct kvl_rates_left kvl_rates_left(const struct kvl_rates *rates, const struct kvl_runner *r);
/* Whether the policy of each cell that is left is known; of timed ones any is enough. */
bool kvl_rates_know(const struct kvl_rates *rates, const struct kvl_runner *r);

#endif
