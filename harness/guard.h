/* guard.h - one line that says so when a plug-in crashes the program.
 *
 * A method of somebody else runs in this process: it may read where nothing is.  The program then
 * ends by the same signal as without the guard; the log keeps what was committed.
 * A signal handler can reach nothing but globals: the line is one.
 * Thread-safe: no; called from the main thread.  A crash of any thread is seen.
 */
#ifndef KVL_GUARD_H
#define KVL_GUARD_H

/* Watches from the first plug-in that is opened until the last one is closed. */
void kvl_guard_enter(void);
void kvl_guard_leave(void);
/* The policy that runs from here on; NULL = none. */
void kvl_guard_policy(const char *name);

#endif
