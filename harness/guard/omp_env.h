/* omp_env.h - how OpenMP threads wait, settled before OpenMP reads its environment. */
#ifndef KVL_OMP_ENV_H
#define KVL_OMP_ENV_H

/* Settles how long waiting threads spin before they sleep, unless the user said so (OMP_WAIT_POLICY or
 * GOMP_SPINCOUNT), by starting the program again with these set.
 *
 * A decoded token is some 40 parallel loops with a few microseconds between them, and waking a
 * sleeping thread costs 10 to 20 each: on a machine that is idle, threads spin for about 25 us first.
 * Threads that spin for one that has no core take time from it: under a load of ten processes on two
 * cores, 25 us cost 17 % of a token, 200 us 150 %.  So with other work running, a quarter of the cores
 * or more, they sleep at once.
 * Returns when there is nothing to do, or when the program cannot be started again. */
void kvl_omp_env(char **argv);

#endif
