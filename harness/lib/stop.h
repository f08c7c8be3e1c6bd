/* stop.h - a request to stop, from a signal.
 *
 * Where long work polls the flag, the first SIGINT, SIGTERM or SIGHUP sets it and a second one ends
 * the program at once; elsewhere the first one does.  SIGPIPE and SIGXFSZ are ignored, so that a
 * closed pipe and a file size limit are write errors with a message.
 * A signal handler can reach nothing but a global: this flag is the one.
 */
#ifndef KVL_STOP_H
#define KVL_STOP_H

/* Makes broken output an error; called once, by main. */
void kvl_stop_ignore(void);
/* From here on signals set the flag: for commands that poll it. */
void kvl_stop_install(void);
/* Number of the signal that asked to stop, 0 = none. */
const volatile int *kvl_stop_flag(void);

#endif
