/* The records and the words of a worker that died. */
#include "workers_death.h"

#include "child.h"
#include "commit.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

bool kvl_death_killed(const struct kvl_death *d)
{
    bool signal = WIFSIGNALED(d->status) && WTERMSIG(d->status) == SIGKILL;
    return signal && !d->lost && !d->harm && d->late_s <= 0;
}

void kvl_death_text(const struct kvl_death *d, struct kvl_err *out)
{
    char how[128], who[96] = "";
    int code = d->policy ? KVL_EPOLICY : d->task ? KVL_ETASK : KVL_EINTERNAL;
    bool killed = kvl_death_killed(d);
    if (d->harm)
        snprintf(how, sizeof how, "was ended: what ran %s", kvl_harm_text(d->harm));
    else if (d->late_s > 0)
        snprintf(how, sizeof how, "was ended: no answer within %g s (--cell-limit)", d->late_s);
    else if (killed)
        snprintf(how, sizeof how, "was killed (signal %d; the system may have been out of memory)",
                 SIGKILL);
    else
        kvl_child_ended(d->status, how, sizeof how);
    if (d->policy || d->task)
        snprintf(who, sizeof who, " while %s %s ran", d->policy ? "policy" : "task",
                 d->policy ? d->policy : d->task);
    *out = (struct kvl_err){ 0 };
    kvl_fail(out, killed ? KVL_ENOMEM : code, "the worker of this context %s%s", how, who);
}

const char *kvl_death_policy(const struct kvl_runner *r, struct kvl_unit u, const char *name)
{
    const struct kvl_group *g = &r->work->group[u.group];
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (r->work->cell[i].policy->policy->name == name) return name;
    return NULL;
}

const char *kvl_death_task(const struct kvl_runner *r, struct kvl_unit u, const char *name)
{
    const char *task = r->work->group[u.group].task->task->name;
    return task == name ? task : NULL;
}

int kvl_death_blame(struct kvl_runner *r, struct kvl_unit u, const char *policy,
                    const struct kvl_err *why, int32_t *n, struct kvl_err *err)
{
    const struct kvl_group *g = &r->work->group[u.group];
    for (size_t i = g->first; i < g->first + g->n; i++) {
        const struct kvl_cell *c = &r->work->cell[i];
        if (!kvl_state_wants(r->state, u.context, i) ||
            (policy && c->policy->policy->name != policy))
            continue;
        KVL_TRY(kvl_runner_cell_error(r, i, u.context, why, err));
        ++*n;
    }
    return kvl_log_commit(r->log, err);
}

void kvl_death_say(struct kvl_runner *r, struct kvl_unit u, const struct kvl_err *why, int32_t n)
{
    const struct kvl_group *g = &r->work->group[u.group];
    char then[64] = "tried again";
    if (n > 0) snprintf(then, sizeof then, "%d cells failed, the sweep goes on", n);
    kvl_progress_end(&r->progress);
    fprintf(stderr, "kvlab: %s %d, context %d: %s; %s\n", g->task->task->name, g->length, u.context,
            why->msg, then);
}
