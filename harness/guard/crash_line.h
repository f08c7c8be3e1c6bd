/* crash_line.h - one line that says so when a plug-in crashes the program.
 *
 * A plug-in's method or task runs in this process: it may read where nothing is.  The program then
 * ends by the same signal as without the guard; the log keeps what was committed.
 * A policy that runs in a process of its own takes that one along: kvl_guard_share tells another which
 * policy or task it was.
 * A signal handler can reach nothing but globals: the line is one, and so is where it is shared.
 * Thread-safe: no; called from the main thread.  A crash of any thread is seen.
 */
#ifndef KVL_CRASH_LINE_H
#define KVL_CRASH_LINE_H

#include <stdbool.h>

/* Watches from the first plug-in that is opened until the last one is closed. */
void kvl_guard_enter(void);
void kvl_guard_leave(void);
/* The policy that runs from here on; NULL = none.  The name is kept, not copied: this is called before
 * every hook. */
void kvl_guard_policy(const char *name);
/* The task whose code runs from here on; NULL = none, and again what kvl_guard_policy said last. */
void kvl_guard_task(const char *name);
/* Called whenever a policy or task has run, before anything else does; NULL: no more. */
void kvl_guard_after(void (*check)(void));
/* The name of what runs, and whether it is a task; NULL: nothing that is known.  Async-signal-safe. */
const char *kvl_guard_running(bool *is_task);
/* `where` holds the name of what runs, policy or task: memory that another process sees, too.  That one
 * compares the pointer with names that it knows: they lie where they lay before the fork.  NULL: no
 * more. */
void kvl_guard_share(const char *volatile *where);

#endif
