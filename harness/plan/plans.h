/* plans.h - plans of policies, found again: cells of a sweep that differ in task and protocol alone share one.
 *
 * Thread-safe: no.
 */
#ifndef KVL_PLANS_H
#define KVL_PLANS_H

#include "config.h"
#include "kvl/model.h"

/* All that a plan is made of, beside the model. */
struct kvl_plan_for {
    const struct kvl_point *policy;
    int32_t budget_tok, context_tok;
    bool own; /* it does its own prefill */
};

struct kvl_plans;

int kvl_plans_create(struct kvl_plans **out, struct kvl_err *err);
void kvl_plans_destroy(struct kvl_plans *t); /* and the plans */
/* NULL: there is none. */
const struct kvl_planned *kvl_plans_find(const struct kvl_plans *t, const struct kvl_plan_for *f);
/* Owns the plan from now on, also after an error. */
int kvl_plans_add(struct kvl_plans *t, const struct kvl_plan_for *f, struct kvl_planned *planned,
                  struct kvl_err *err);

#endif
