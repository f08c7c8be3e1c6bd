/* kvl/fpenv.h - rounding, flush-to-zero and traps of floating point, which code of others may leave changed.
 *
 * All numbers here are those of the environment that a process begins with.  A thread has its own; a new one begins with
 * that of the thread that made it.
 */
#ifndef KVL_FPENV_H
#define KVL_FPENV_H

#include "kvl/base.h"

/* Whether it is the one that a process begins with: a few cycles.  Always true for a processor that is not known. */
bool kvl_fp_default(void);
/* The same of all threads that operators use (ops.h), which it is made for; where it is another, that is undone. */
bool kvl_ops_fp_default(void);
/* Makes it that again. */
void kvl_fp_restore(void);
/* After a call of others' code that returned rc: where it left another environment, that is undone and `code` is
 * returned with a message; else rc. */
int kvl_fp_kept(int rc, int code, struct kvl_err *err);

#endif
