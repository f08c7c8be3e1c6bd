/* stop.h - a request to stop, from a signal.
 *
 * Where long work polls the flag, the first SIGINT, SIGTERM or SIGHUP sets it and a second one ends
 * the program at once, with 128 + its number; elsewhere the first one does.  What goes on where it was when it is
 * started again takes SIGUSR1 and SIGUSR2 too, which schedulers send ahead of a time limit or a pre-emption, and ends
 * after these and SIGTERM with KVL_STOP_AGAIN, "run me again" (EX_TEMPFAIL of sysexits.h).  What has not ended KVL_STOP_GRACE_S after the
 * first one is ended: a policy's hook polls nothing and may never return.  The log then ends with its
 * last commit.  SIGPIPE and SIGXFSZ are ignored, so that a closed pipe and a file size limit are write
 * errors with a message.
 * A signal handler can reach nothing but globals: the flag is one, and whether its clock runs another.
 */
#ifndef KVL_STOP_H
#define KVL_STOP_H

#include <stdbool.h>

/* Engines poll once per layer: only what does not poll takes longer. */
enum { KVL_STOP_GRACE_S = 5, KVL_STOP_AGAIN = 75 };

/* Makes broken output an error; called once, by main. */
void kvl_stop_ignore(void);
/* This command goes on when it is started again.  Until kvl_stop_install it ends at once. */
void kvl_stop_goes_on(void);
/* From here on signals set the flag: for commands that poll it.  SIGTERM and SIGHUP stay ignored where they
 * were (nohup). */
void kvl_stop_install(void);
/* Whether this process is ended when its time is over (true).  false: it runs no policy and has to see
 * to those that do.  true again: the time begins anew where a signal has come. */
void kvl_stop_watch(bool on);
/* Number of the signal that asked to stop, 0 = none. */
const volatile int *kvl_stop_flag(void);
/* Exit code of a program that it stopped. */
int kvl_stop_exit(void);

#endif
