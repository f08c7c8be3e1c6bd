/* workers_death.h - why a worker died, and who pays for it. */
#ifndef KVL_WORKERS_DEATH_H
#define KVL_WORKERS_DEATH_H

#include "harm.h"
#include "worker.h"

/* How a worker ended: a status of waitpid, or what it said of its device; and who ran: a policy, the
 * task, or none that is known. */
struct kvl_death {
    int status;
    const struct kvl_err *lost;
    enum kvl_harm_kind harm;
    double late_s; /* its cell took longer; 0: not for that */
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
