/* The records and the words of a worker that died. */
#include "workers_death.h"

#include "child.h"
#include "commit.h"
#include "machine.h"
#include "memory.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

/* ---- limits ---------------------------------------------------------------------------------- */

/* Libraries, what policies allocate themselves: what no plan knows. */
enum { LIMITS_BESIDE = 256 << 20, LIMITS_LEAST = 512 << 20 };

struct kvl_limits kvl_limits_of(const struct kvl_runner *r)
{
    const struct kvl_sweep *s = r->work->sweep;
    struct kvl_limits l = { .time_s = s->cell_limit_s, .bytes = s->cell_memory_bytes };
    struct kvl_memory m;
    int64_t free_bytes = kvl_memory_free_bytes();
    if (free_bytes <= 0 || kvl_memory_plan(r, s->kv_type, &m, NULL) != KVL_OK) return l;
    l.estimate = kvl_memory_all(&m) + LIMITS_BESIDE;
    l.least_free = KVL_MIN(free_bytes / 16, LIMITS_LEAST);
    return l;
}

enum kvl_limit kvl_limit_passed(const struct kvl_limits *l, double quiet_s, int64_t bytes,
                                int64_t free_bytes)
{
    if (l->time_s > 0 && quiet_s >= l->time_s) return KVL_LIMIT_TIME;
    if (l->bytes > 0 && bytes > l->bytes) return KVL_LIMIT_BYTES;
    bool scarce = l->least_free > 0 && free_bytes > 0 && free_bytes < l->least_free;
    return scarce && bytes > l->estimate ? KVL_LIMIT_MACHINE : KVL_LIMIT_NONE;
}

/* ---- deaths ---------------------------------------------------------------------------------- */

bool kvl_death_killed(const struct kvl_death *d)
{
    bool signal = WIFSIGNALED(d->status) && WTERMSIG(d->status) == SIGKILL;
    return signal && !d->lost && !d->harm && !d->passed;
}

void kvl_death_text(const struct kvl_death *d, struct kvl_err *out)
{
    char how[128], who[96] = "";
    int code = d->policy ? KVL_EPOLICY : d->task ? KVL_ETASK : KVL_EINTERNAL;
    bool killed = kvl_death_killed(d);
    if (d->harm)
        snprintf(how, sizeof how, "was ended: what ran %s", kvl_harm_text(d->harm));
    else if (d->passed == KVL_LIMIT_TIME)
        snprintf(how, sizeof how, "was ended: no answer within %g s (--cell-limit)",
                 d->limits->time_s);
    else if (d->passed == KVL_LIMIT_BYTES)
        snprintf(how, sizeof how, "was ended: more than %.0f MiB of memory (--cell-memory)",
                 (double)d->limits->bytes / 0x1p20);
    else if (d->passed == KVL_LIMIT_MACHINE)
        snprintf(how, sizeof how,
                 "was ended: this machine ran out of memory, of which it held more than planned");
    else if (killed)
        snprintf(how, sizeof how, "was killed (signal %d; the system may have been out of memory)",
                 SIGKILL);
    else
        kvl_child_ended(d->status, how, sizeof how);
    if (d->policy || d->task)
        snprintf(who, sizeof who, " while %s %s ran", d->policy ? "policy" : "task",
                 d->policy ? d->policy : d->task);
    *out = (struct kvl_err){ 0 };
    bool memory = killed || d->passed == KVL_LIMIT_BYTES || d->passed == KVL_LIMIT_MACHINE;
    kvl_fail(out, memory ? KVL_ENOMEM : code, "the worker of this context %s%s", how, who);
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
