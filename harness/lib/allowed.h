/* allowed.h - how many threads this process should have: what the system, its control groups and its scheduler allow.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_ALLOWED_H
#define KVL_ALLOWED_H

#include <stdint.h>

struct kvl_allowed {
    int32_t online, cores; /* of the machine; that this process may run on */
    double quota;          /* processors' worth of time that its control groups give; 0: no limit */
    int32_t
        slurm; /* what Slurm gave the task (SLURM_CPUS_PER_TASK, else _ON_NODE); 0: it says nothing */
    int32_t asked; /* OMP_NUM_THREADS; 0: not set */
};
void kvl_allowed_read(struct kvl_allowed *out);
/* The least of what is known; 1 at least. */
int32_t kvl_allowed_threads(const struct kvl_allowed *a);

/* The least that the control groups in `list` (as /proc/self/cgroup) and those around them give, where they are mounted
 * at `root`; 0 = no limit. */
double kvl_cgroup_cores(const char *list, const char *root);

#endif
