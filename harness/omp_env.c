#include "omp_env.h"

#include <stdlib.h>
#include <unistd.h>

void kvl_omp_env(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    /* libgomp reads its environment before main: only a new image can tell it. */
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
}
