/* child.h - code that may crash, in a process of its own: a crash there is a message here.
 *
 * Thread-safe: no.
 */
#ifndef KVL_CHILD_H
#define KVL_CHILD_H

#include "kvl/base.h"

struct kvl_child {
    int (*run)(const void *user, void *out, struct kvl_err *err);
    const void *user;
    void *out; /* [bytes], copied back when run returns KVL_OK */
    size_t bytes;
    int died;        /* the failure that it is when the process ends without an answer */
    const char *who; /* of that failure's message: "who crashed (signal 11, ...)" */
    /* NULL: signals to stop mean nothing to the child.  Else it stops by itself when it gets one: this is the
     * parent's flag (stop.h), and a signal that raised it is handed on, once. */
    const volatile int *stop;
    bool foreign;   /* a plug-in's: what it does to the process is `died`, too (harm.h) */
    double limit_s; /* 0 = none: a process that takes longer is ended, which is `died` */
};

/* Returns what `run` returned in a child, or `died`; KVL_ENOMEM: there is no process. */
int kvl_child_run(const struct kvl_child *a, struct kvl_err *err);

/* How a process ended that should not have, of a status of waitpid: "crashed (signal 11, ...)". */
void kvl_child_ended(int status, char *out, size_t size);

#endif
