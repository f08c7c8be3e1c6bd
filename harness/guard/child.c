/* A fork, a pipe and a wait. */
#include "child.h"

#include "harm.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { APART_POLL_MS = 100 };

static bool child_write(int fd, const void *data, size_t len)
{
    for (const char *p = data; len > 0;) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static bool child_read(int fd, void *data, size_t len)
{
    for (char *p = data; len > 0;) {
        ssize_t n = read(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

void kvl_child_ended(int status, char *out, size_t size)
{
    if (WIFSIGNALED(status))
        snprintf(out, size, "crashed (signal %d, %s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, size, "ended with exit code %d", WEXITSTATUS(status));
}

/* Lives no longer than the parent, which alone decides what a signal to stop means; or hands it on, so
 * that one from a terminal must not come twice. */
static void child_bind(const struct kvl_child *a, pid_t parent)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigemptyset(&ignore.sa_mask);
    for (size_t i = 0; !a->stop && i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &ignore, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it died before that call */
}

/* _exit: what atexit and open files would do is for the parent. */
static _Noreturn void child_child(const struct kvl_child *a, int fd, pid_t parent)
{
    struct kvl_err err = { 0 };
    struct kvl_harm harm;
    child_bind(a, parent);
    kvl_harm_begin(&harm);
    int rc = a->run(a->user, a->out, &err);
    enum kvl_harm_kind harmed = a->foreign ? kvl_harm_look(&harm) : KVL_HARM_NONE;
    if (harmed == KVL_HARM_COPY) _exit(0);
    if (harmed != KVL_HARM_NONE) {
        kvl_err_clear(&err);
        rc = kvl_fail(&err, a->died, "%s %s", a->who, kvl_harm_text(harmed));
    }
    bool told = child_write(fd, &rc, sizeof rc) && child_write(fd, &err, sizeof err) &&
                (rc != KVL_OK || child_write(fd, a->out, a->bytes));
    _exit(told ? 0 : 1);
}

/* Until there is something to read; false: it took too long and was ended. */
static bool child_wait(const struct kvl_child *a, int fd, pid_t pid)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    bool told = false;
    uint64_t begin = kvl_now_ns();
    while ((a->stop || a->limit_s > 0) && poll(&p, 1, APART_POLL_MS) <= 0) {
        if (a->limit_s > 0 && (double)(kvl_now_ns() - begin) > 1e9 * a->limit_s) {
            kill(pid, SIGKILL);
            return false;
        }
        if (!a->stop || !*a->stop || told) continue;
        kill(pid, *a->stop);
        told = true;
    }
    return true;
}

/* What the child said, once it has ended. */
static int child_hear(const struct kvl_child *a, int fd, pid_t pid, struct kvl_err *err)
{
    char how[96];
    bool late = !child_wait(a, fd, pid);
    int rc, status = 0;
    struct kvl_err why;
    bool told = !late && child_read(fd, &rc, sizeof rc) && child_read(fd, &why, sizeof why) &&
                (rc != KVL_OK || child_read(fd, a->out, a->bytes));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    kill(-pid, SIGKILL); /* what it started */
    kvl_child_ended(status, how, sizeof how);
    if (late) snprintf(how, sizeof how, "did not end within %.0f s", a->limit_s);
    if (!told) return kvl_fail(err, a->died, "%s %s", a->who, how);
    if (rc == KVL_OK) return KVL_OK;
    return kvl_fail(err, rc, "%s", why.msg[0] ? why.msg : kvl_status_name(rc));
}

int kvl_child_run(const struct kvl_child *a, struct kvl_err *err)
{
    int fd[2];
    if (pipe(fd) != 0) return kvl_fail(err, KVL_ENOMEM, "%s: no pipe: %s", a->who, strerror(errno));
    fflush(stdout); /* else both would print what waits there */
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        close(fd[0]);
        child_child(a, fd[1], parent);
    }
    close(fd[1]);
    int rc = pid < 0 ? kvl_fail(err, KVL_ENOMEM, "%s: no process: %s", a->who, strerror(errno))
                     : child_hear(a, fd[0], pid, err);
    close(fd[0]);
    return rc;
}
