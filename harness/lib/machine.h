/* machine.h - facts about this machine for the log. */
#ifndef KVL_MACHINE_H
#define KVL_MACHINE_H

#include <stdint.h>

struct kvl_machine {
    char host[128], cpu[128], os[160], isa[32];
    int32_t cores; /* that this process may use */
    int64_t ram_bytes;
    double mhz; /* mean clock of the processors now; 0, as in many virtual machines: not known */
};

/* What cannot be found out is "" or 0. */
void kvl_machine_read(struct kvl_machine *out);
/* Bytes that this process may still take, by the account of the system, of its control groups and of
 * ulimit; 0 = unknown. */
int64_t kvl_memory_free_bytes(void);
/* Peak resident memory of this process. */
int64_t kvl_rss_peak_bytes(void);
/* The least that the control groups in `list` (as /proc/self/cgroup) and those around them leave, where
 * they are mounted at `root`; -1 = no limit. */
int64_t kvl_cgroup_free_bytes(const char *list, const char *root);
/* What a process holds of its own, not shared with a file or another process; 0 = unknown. */
int64_t kvl_process_bytes(int64_t pid);
/* What this process has allocated and not freed; the blocks of a store are not among it.  0 = unknown. */
int64_t kvl_heap_bytes(void);
/* Threads of this process; 0 = unknown. */
int32_t kvl_machine_threads(void);
/* UTC, ISO 8601 with milliseconds: informative only. */
void kvl_time_utc(char out[32]);

#endif
