/* Threads and scratch memory of the operators. */
#include "cpu.h"
#include "kvl/fpenv.h"

#include <omp.h>

static int team_threads; /* 0 = all cores of this process */
static void *team_memory;
static size_t team_bytes;

void kvl_ops_set_threads(int32_t n)
{
    team_threads = n > 0 ? n : 0;
}

int32_t kvl_ops_threads(void)
{
    return team_threads ? team_threads : omp_get_num_procs();
}

bool kvl_ops_fp_default(void)
{
    int changed = 0;
#pragma omp parallel num_threads(kvl_ops_threads()) reduction(+ : changed)
    {
        changed += !kvl_fp_default();
        kvl_fp_restore();
    }
    return changed == 0;
}

/* All threads or none: libgomp ends the threads that a smaller team leaves over and makes them anew
 * for the next larger one. */
int kvl_team(double ns)
{
    const double worth_it = 30e3; /* starting and joining a team costs about 10 us */
    return ns < worth_it ? 1 : kvl_ops_threads();
}

void *kvl_cpu_scratch(size_t bytes)
{
    if (!team_memory || bytes > team_bytes) {
        size_t want = KVL_MAX(bytes, team_bytes + team_bytes / 2);
        void *memory = kvl_alloc(want, 1);
        if (!memory) return NULL;
        kvl_free(team_memory);
        team_memory = memory;
        team_bytes = want;
    }
    return team_memory;
}
