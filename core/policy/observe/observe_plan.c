/* Observers that plans ask for. */
#include "policy_impl.h"

/* For messages and for keys of snapshots. */
const char *kvl_observer_name(enum kvl_observer what)
{
    static const char *const names[] = {
        [KVL_OBS_WINDOW] = "window", [KVL_OBS_COLUMNS] = "columns",
        [KVL_OBS_LOGITS] = "logits", [KVL_OBS_MOMENTS] = "moments",
        [KVL_OBS_REPLAY] = "replay", [KVL_OBS_REPLAY_PLUS] = "replay_plus",
        [KVL_OBS_BLOCKS] = "blocks", [KVL_OBS_REREAD] = "reread",
        [KVL_OBS_INPUTS] = "inputs"
    };
    return names[what];
}

bool kvl_observer_set_has(const struct kvl_observer_set *set, enum kvl_observer what, int32_t param)
{
    for (int32_t i = 0; i < set->n_columns; i++)
        if (set->column[i].what == what && set->column[i].param == param) return true;
    return false;
}

/* Sorted, so that the same observers are the same set, in whatever order policies ask for them. */
int kvl_observer_set_merge(struct kvl_observer_set *into, const struct kvl_observer_set *from,
                           struct kvl_err *err)
{
    into->window = KVL_MAX(into->window, from->window);
    for (int32_t i = 0; i < from->n_columns; i++) {
        enum kvl_observer what = from->column[i].what;
        int32_t param = from->column[i].param, at = into->n_columns;
        if (kvl_observer_set_has(into, what, param)) continue;
        if (at == KVL_MAX_COLUMNS)
            return kvl_fail(err, KVL_EINVAL,
                            "one prefill observes at most %d different column sums; want fewer "
                            "policies and budgets that ask for their own",
                            KVL_MAX_COLUMNS);
        for (; at > 0 && (into->column[at - 1].what > what || (into->column[at - 1].what == what &&
                                                               into->column[at - 1].param > param));
             at--) {
            into->column[at] = into->column[at - 1];
            into->scorer[at] = into->scorer[at - 1];
        }
        into->column[at].what = what;
        into->column[at].param = param;
        into->scorer[at] = from->scorer[i];
        into->n_columns++;
    }
    return KVL_OK;
}

/* Parameters that mean something: [what] smallest, largest. */
static const int32_t observer_range[][2] = {
    [KVL_OBS_WINDOW] = { 1, 65536 },     [KVL_OBS_COLUMNS] = { 0, INT32_MAX },
    [KVL_OBS_LOGITS] = { 0, INT32_MAX }, [KVL_OBS_MOMENTS] = { 0, INT32_MAX },
    [KVL_OBS_REPLAY] = { 1, 65536 },     [KVL_OBS_REPLAY_PLUS] = { 1, 65536 },
    [KVL_OBS_BLOCKS] = { 1, INT32_MAX }, [KVL_OBS_REREAD] = { 0, 0 },
};

/* A policy that prefills itself has no second pass over the context: only queries that go by can be kept for
 * it. */
int kvl_plan_observe(struct kvl_plan *plan, enum kvl_observer what, int32_t param)
{
    if (plan->own_prefill && (what != KVL_OBS_WINDOW || !plan->p->policy->prefill_mask))
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "observer %d, but the policy does its own prefill%s", (int)what,
                        plan->p->policy->prefill_mask ? ", which has the last queries alone" : "");
    if (what < KVL_OBS_WINDOW || what > KVL_OBS_REREAD)
        return kvl_fail(plan->err, KVL_EPOLICY, "observer %d is not served, want %d to %d",
                        (int)what, KVL_OBS_WINDOW, KVL_OBS_REREAD);
    if (param < observer_range[what][0] || param > observer_range[what][1])
        return kvl_fail(plan->err, KVL_EINVAL, "observer \"%s\" of %d, want %d to %d",
                        kvl_observer_name(what), param, observer_range[what][0],
                        observer_range[what][1]);
    struct kvl_observer_set one = { .n_columns = 1, .column = { { what, param } } };
    /* The queries of the block that the context ends in are those of a window. */
    if (what == KVL_OBS_BLOCKS) one.window = (param & 0xffff) + (param >> 24);
    if (what == KVL_OBS_BLOCKS && (param & 0xffff) == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "observer \"blocks\" of 0 tokens, want 1 or more");
    /* The window is a length and no column: the longest that is asked for serves all. */
    if (what == KVL_OBS_WINDOW) one = (struct kvl_observer_set){ .window = param };
    return kvl_observer_set_merge(&plan->p->observers, &one, plan->err);
}
