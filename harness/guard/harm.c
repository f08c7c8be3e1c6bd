/* Files, folder, locale, children, floating point. */
#include "harm.h"

#include "kvl/fpenv.h"

#include <dirent.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kvl_harm_file harm_file(int fd)
{
    struct stat st = { 0 };
    bool open = (fd < 0 ? stat(".", &st) : fstat(fd, &st)) == 0;
    return (struct kvl_harm_file){ fd, open ? st.st_dev : 0, open ? st.st_ino : 0 };
}

static bool harm_same(const struct kvl_harm_file *f)
{
    struct kvl_harm_file now = harm_file(f->fd);
    return now.device == f->device && now.inode == f->inode;
}

void kvl_harm_begin(struct kvl_harm *h)
{
    DIR *dir = opendir("/proc/self/fd");
    *h = (struct kvl_harm){ .self = getpid(), .folder = harm_file(-1) };
    for (struct dirent *e; dir && h->n_files < KVL_HARM_FILES_MAX && (e = readdir(dir));) {
        int fd = e->d_name[0] == '.' ? -1 : atoi(e->d_name);
        if (fd >= 0 && fd != dirfd(dir)) h->file[h->n_files++] = harm_file(fd);
    }
    if (dir) closedir(dir);
}

enum kvl_harm_kind kvl_harm_look(const struct kvl_harm *h)
{
    siginfo_t child;
    const char *locale = setlocale(LC_ALL, NULL);
    if (getpid() != h->self) return KVL_HARM_COPY;
    if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0) return KVL_HARM_FORK;
    for (int i = 0; i < h->n_files; i++)
        if (!harm_same(&h->file[i])) return KVL_HARM_FILES;
    if (!harm_same(&h->folder)) return KVL_HARM_FOLDER;
    if (!locale || strcmp(locale, "C") != 0) return KVL_HARM_LOCALE;
    return kvl_fp_default() ? KVL_HARM_NONE : KVL_HARM_FLOAT;
}

const char *kvl_harm_text(enum kvl_harm_kind kind)
{
    static const char *const texts[] = {
        [KVL_HARM_NONE] = "did no harm",
        [KVL_HARM_COPY] = "is a copy of the process",
        [KVL_HARM_FORK] = "started another process (fork)",
        [KVL_HARM_FILES] = "closed or replaced files that others have open",
        [KVL_HARM_FOLDER] = "changed the working folder",
        [KVL_HARM_LOCALE] = "changed the locale",
        [KVL_HARM_FLOAT] = "changed how floating point rounds, flushes to zero or traps",
        [KVL_HARM_STUCK] = "closed the files of its worker and went on",
    };
    return texts[kind];
}

/* ---- children -------------------------------------------------------------------------------- */

void kvl_harm_inherit(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static bool harm_kept(pid_t pid, const pid_t *keep, int n)
{
    for (int i = 0; i < n; i++)
        if (keep[i] == pid) return true;
    return false;
}

/* One pass: those that these leave behind come next.  Returns how many there were. */
static int harm_end_some(const pid_t *keep, int n)
{
    char path[64];
    long pid;
    int found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/children", (long)getpid());
    FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%ld", &pid) == 1) {
        if (harm_kept((pid_t)pid, keep, n)) continue;
        kill((pid_t)pid, SIGKILL);
        while (waitpid((pid_t)pid, NULL, 0) < 0 && errno == EINTR) continue;
        found++;
    }
    if (f) fclose(f);
    return found;
}

void kvl_harm_end_children(const pid_t *keep, int n)
{
    enum { PASSES = 1000 }; /* against one that forks for ever */
    for (int i = 0; i < PASSES && harm_end_some(keep, n) > 0; i++) continue;
}
