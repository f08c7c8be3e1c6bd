/* omp_env.h - how OpenMP threads wait, settled before OpenMP reads its environment. */
#ifndef KVL_OMP_ENV_H
#define KVL_OMP_ENV_H

/* Makes waiting threads sleep unless the user said otherwise (OMP_WAIT_POLICY or GOMP_SPINCOUNT), by
 * starting the program again with OMP_WAIT_POLICY=passive.  Threads that spin at a barrier while the
 * one they wait for has no core cost up to eight times the time on a machine that others use, too;
 * on one that is idle, sleeping costs microseconds where work is cut in pieces of tens of them.
 * Returns when there is nothing to do, or when the program cannot be started again. */
void kvl_omp_env(char **argv);

#endif
