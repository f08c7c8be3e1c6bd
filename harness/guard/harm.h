/* harm.h - what a policy or task may have done to the process that it runs in: everything that others rely on and that
 * no answer shows.
 *
 * Looked at between calls of plug-ins: a few system calls.
 * Thread-safe: no.
 */
#ifndef KVL_HARM_H
#define KVL_HARM_H

#include <sys/types.h>

enum kvl_harm_kind {
    KVL_HARM_NONE,
    KVL_HARM_COPY,  /* this is a copy of the process, which a fork has made */
    KVL_HARM_FORK,  /* it has children */
    KVL_HARM_FILES, /* a file that was open is closed or another one */
    KVL_HARM_FOLDER,
    KVL_HARM_LOCALE,
    KVL_HARM_FLOAT,
    KVL_HARM_STUCK /* told by who waits for it: its socket is closed, and it goes on */
};

enum { KVL_HARM_FILES_MAX = 64 };

struct kvl_harm {
    pid_t self;
    struct kvl_harm_file {
        int fd;
        dev_t device;
        ino_t inode;
    } file[KVL_HARM_FILES_MAX], folder;
    int n_files;
};

/* How the process is now; it has no children. */
void kvl_harm_begin(struct kvl_harm *h);
enum kvl_harm_kind kvl_harm_look(const struct kvl_harm *h);
/* "started another process". */
const char *kvl_harm_text(enum kvl_harm_kind kind);

/* Ends all children of this process but `keep` [n]: those that children of children left behind come to it once it has
 * called kvl_harm_inherit. */
void kvl_harm_inherit(void);
void kvl_harm_end_children(const pid_t *keep, int n);

#endif
