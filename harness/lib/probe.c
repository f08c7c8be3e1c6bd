/* What a device is. */
#include "probe.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the process sends, as it lies in memory. */
struct probe_answer {
    int rc;
    struct kvl_err err;
    struct kvl_probed found;
};

static void probe_look(const char *name, struct probe_answer *a)
{
    const struct kvl_device *dev;
    a->rc = kvl_device_open(name, &dev, &a->err);
    if (a->rc != KVL_OK) return;
    dev->info(&a->found.info);
    dev->memory(&a->found.memory);
}

static bool probe_read(int fd, void *to, size_t bytes)
{
    for (char *p = to; bytes > 0;) {
        ssize_t n = read(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* _exit: what atexit and open files would do is for the process that asks. */
static _Noreturn void probe_child(const char *name, int fd)
{
    struct probe_answer a = { 0 };
    probe_look(name, &a);
    ssize_t n = write(fd, &a, sizeof a); /* less than a pipe holds */
    _exit(n == (ssize_t)sizeof a ? 0 : 1);
}

static int probe_ask(const char *name, struct probe_answer *a, struct kvl_err *err)
{
    int fd[2], status = 0;
    if (pipe(fd) != 0)
        return kvl_fail(err, KVL_ENOMEM, "device %s: no pipe: %s", name, strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(fd[0]);
        probe_child(name, fd[1]);
    }
    close(fd[1]);
    bool heard = pid > 0 && probe_read(fd[0], a, sizeof *a);
    close(fd[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (pid < 0)
        return kvl_fail(err, KVL_ENOMEM, "device %s: no process: %s", name, strerror(errno));
    if (heard) return KVL_OK;
    return kvl_fail(
        err, KVL_EDEVICE,
        "device %s: the process that was to open it died (status %d); want a driver that "
        "works: see kvlab doctor",
        name, status);
}

int kvl_device_probe(const char *name, struct kvl_probed *out, struct kvl_err *err)
{
    struct probe_answer a = { 0 };
    KVL_TRY(probe_ask(name, &a, err));
    if (a.rc != KVL_OK) return kvl_fail(err, a.rc, "%s", a.err.msg);
    *out = a.found;
    return KVL_OK;
}
