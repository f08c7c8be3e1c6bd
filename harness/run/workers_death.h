/* workers_death.h - why a worker died, and who pays for it. */
#ifndef KVL_WORKERS_DEATH_H
#define KVL_WORKERS_DEATH_H

#include "harm.h"
#include "worker.h"

/* What ends a worker while a policy or task runs: what it may take, and what the machine has. */
struct kvl_limits {
    double time_s; /* without an answer; 0: no limit */
    int64_t bytes; /* that a worker holds; 0: no limit */
    int64_t
        estimate; /* that a worker needs by the plan: beyond it one gives way when memory runs out */
    int64_t least_free; /* below which the machine has too little; 0: not known */
};
enum kvl_limit { KVL_LIMIT_NONE, KVL_LIMIT_TIME, KVL_LIMIT_BYTES, KVL_LIMIT_MACHINE };
/* Of the runner, at its start. */
struct kvl_limits kvl_limits_of(const struct kvl_runner *r);
/* Which one a worker has passed that has run for so long, holds so much, while so much is free (0: not known). */
enum kvl_limit kvl_limit_passed(const struct kvl_limits *l, double quiet_s, int64_t bytes,
                                int64_t free_bytes);

/* How a worker ended: a status of waitpid, or what it said of its device; and who ran: a policy, the
 * task, or none that is known. */
struct kvl_death {
    int status;
    const struct kvl_err *lost;
    enum kvl_harm_kind harm;
    enum kvl_limit passed; /* why we ended it */
    const struct kvl_limits *limits;
    const char *policy, *task;
};

/* By the system or by us, without a word. */
bool kvl_death_killed(const struct kvl_death *d);
/* As the message of an error. */
void kvl_death_text(const struct kvl_death *d, struct kvl_err *out);
/* The policy of the unit's group that ran, by where its name lies; NULL: none, or none of these. */
const char *kvl_death_policy(const struct kvl_runner *r, struct kvl_unit u, const char *name);
/* The same of its task. */
const char *kvl_death_task(const struct kvl_runner *r, struct kvl_unit u, const char *name);
/* Error records of the cells that wanted the unit: those of a policy, or all (NULL); *n counts them.  None where another
 * worker met the same crash. */
int kvl_death_blame(struct kvl_runner *r, struct kvl_unit u, const char *policy,
                    const struct kvl_err *why, int32_t *n, struct kvl_err *err);
/* To the terminal; n cells failed. */
void kvl_death_say(struct kvl_runner *r, struct kvl_unit u, const struct kvl_err *why, int32_t n);

#endif
