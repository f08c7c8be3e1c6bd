/* stop.h - a request to stop, from a signal.
 *
 * The first SIGINT, SIGTERM or SIGHUP sets a flag that long work polls; a second one ends the
 * program at once.  SIGPIPE and SIGXFSZ are ignored, so that a closed pipe and a file size limit are
 * write errors with a message.
 * A signal handler can reach nothing but a global: this flag is the one.
 */
#ifndef KVL_STOP_H
#define KVL_STOP_H

/* Installs the handlers; called once, by main. */
void kvl_stop_install(void);
/* Number of the signal that asked to stop, 0 = none. */
const volatile int *kvl_stop_flag(void);

#endif
