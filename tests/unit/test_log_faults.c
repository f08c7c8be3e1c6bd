/* The result log between processes and on disks that say no. */
#include "log_maker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- calls that go wrong on demand ---------------------------------------------------------- */

/* These definitions stand before the C library's.  Call number `at` of those counted goes wrong,
 * and all later ones as well when `persistent`. */
enum fault_kind { FAULT_NONE, FAULT_ERROR, FAULT_SHORT };
static struct fault {
    enum fault_kind kind;
    int at, error, calls;
    bool persistent, only_write, hit_write;
} fault;

static bool fault_now(void)
{
    if (fault.kind == FAULT_NONE) return false;
    int call = fault.calls++;
    if (call != fault.at && !(fault.persistent && call > fault.at)) return false;
    errno = fault.error;
    return true;
}

ssize_t write(int fd, const void *data, size_t len)
{
    if (fd > 2 && fault_now()) {
        fault.hit_write = true;
        if (fault.kind == FAULT_ERROR && fault.error != ENOSPC) return -1;
        /* A full disk takes a part first. */
        if (fault.kind == FAULT_SHORT || fault.calls - 1 == fault.at)
            len = (len + 1) / 2;
        else
            return -1;
    }
    return syscall(SYS_write, fd, data, len);
}

int fdatasync(int fd)
{
    if (!fault.only_write && fault_now() && fault.kind == FAULT_ERROR) return -1;
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    if (!fault.only_write && fault_now() && fault.kind == FAULT_ERROR) return -1;
    return (int)syscall(SYS_fsync, fd);
}

int ftruncate(int fd, off_t len)
{
    if (!fault.only_write && fault_now() && fault.kind == FAULT_ERROR) return -1;
    return (int)syscall(SYS_ftruncate, fd, len);
}

/* ---- the lock ------------------------------------------------------------------------------ */

static void test_lock(void **state)
{
    (void)state;
    struct kvl_log *log = open_log(at("a.zst"));
    pid_t child = fork();
    if (child == 0) {
        struct kvl_log *other = NULL;
        struct kvl_err err = { 0 };
        alarm(60); /* it must not wait for the lock */
        int rc = kvl_log_open(at("a.zst"), NULL, NULL, NULL, &other, &err);
        char want[64], host[256] = "";
        snprintf(want, sizeof want, "pid %lld on ", (long long)getppid());
        gethostname(host, sizeof host - 1);
        bool ok = rc == KVL_ELOG && strstr(err.msg, want) && strstr(err.msg, host);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    append(log, 0, 0); /* the refused one has harmed nothing */
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    assert_int_equal(read_file(at("a.zst"), NULL).n, 1); /* readers need no lock */
    kvl_log_close(log, NULL);
    write_groups(at("a.zst"), 1, 1, 1);
    assert_int_equal(read_file(at("a.zst"), NULL).n, 2);
}

/* The note beside a log may be a link that somebody made: what it leads to is neither written nor shown, and what is no
 * file is not waited for. */
static void test_note_follows_no_link(void **state)
{
    (void)state;
    spill(at("other"), "not yours\n", 10);
    assert_int_equal(symlink(at("other"), at("a.zst.lock")), 0);
    struct kvl_log *log = open_log(at("a.zst"));
    struct kvl_buf b = slurp(at("other"));
    assert_int_equal(b.len, 10);
    assert_memory_equal(b.data, "not yours\n", 10);
    kvl_buf_free(&b);
    for (int fifo = 0; fifo < 2; fifo++) {
        struct kvl_log *second = NULL;
        struct kvl_err err = { 0 };
        if (fifo) {
            assert_int_equal(unlink(at("a.zst.lock")), 0);
            assert_int_equal(mkfifo(at("a.zst.lock"), 0600), 0);
        }
        alarm(60);
        assert_int_equal(kvl_log_open(at("a.zst"), NULL, NULL, NULL, &second, &err), KVL_ELOG);
        alarm(0);
        assert_non_null(strstr(err.msg, "another process writes to it (unknown)"));
    }
    kvl_log_close(log, NULL);
    assert_int_equal(access(at("a.zst.lock"), F_OK), -1);
    assert_int_equal(access(at("other"), F_OK), 0);
}

static void test_killed_writer_leaves_no_lock(void **state)
{
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct kvl_log *log = NULL;
        if (kvl_log_open(at("a.zst"), NULL, NULL, NULL, &log, NULL) != KVL_OK) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(access(at("a.zst.lock"), F_OK), 0); /* the stale note stops nobody */
    write_groups(at("a.zst"), 0, 1, 1);
    assert_int_equal(read_file(at("a.zst"), NULL).n, 1);
    close(ready[0]);
    close(ready[1]);
}

/* ---- disks that say no --------------------------------------------------------------------- */

/* The file size limit stands for a full disk: the kernel takes a part of the group, then refuses.
 * The log is cut back, the records stay pending, and a commit with room succeeds. */
static void test_no_space(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, tight;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct kvl_log *log = open_log(at("a.zst"));
    append(log, 0, 0);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    struct stat st;
    assert_int_equal(stat(at("a.zst"), &st), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)st.st_size + 50;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    append(log, 1, 0);
    struct kvl_err err = { 0 };
    int rc = kvl_log_commit(log, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(rc, KVL_EIO);
    assert_int_equal(kvl_status_exit(rc), 4);
    assert_non_null(strstr(err.msg, "a.zst"));
    assert_non_null(strstr(err.msg, "no space for"));
    struct stat after;
    assert_int_equal(stat(at("a.zst"), &after), 0);
    assert_int_equal(after.st_size, st.st_size);
    struct kvl_log_health h = { 0 };
    assert_int_equal(read_file(at("a.zst"), &h).n, 1);
    assert_int_equal(h.n_damage, 0);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK); /* space is back */
    kvl_log_close(log, NULL);
    assert_int_equal(read_file(at("a.zst"), NULL).n, 2);
}

static void test_deleted_meanwhile(void **state)
{
    (void)state;
    struct kvl_log *log = open_log(at("a.zst"));
    append(log, 0, 0);
    unlink(at("a.zst"));
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_log_commit(log, &err), KVL_ELOG);
    assert_non_null(strstr(err.msg, "deleted"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_log_commit(log, &err), KVL_ELOG); /* and nothing more is taken */
    kvl_log_close(log, NULL);
}

/* Opens the log, commits groups 0 .. 3, closes; bit g of the result: commit g was acknowledged. */
static unsigned run_with_fault(const char *path, enum fault_kind kind, int error, int call,
                               bool persistent, int *calls)
{
    fault = (struct fault){ .kind = kind, .error = error, .at = call, .persistent = persistent };
    unsigned acknowledged = 0;
    struct kvl_log *log = NULL;
    struct kvl_err err = { 0 };
    int rc = kvl_log_open(path, NULL, NULL, NULL, &log, &err);
    for (int g = 0; g < 4 && rc == KVL_OK; g++) {
        append(log, g, 0);
        append(log, g, 1);
        int done = kvl_log_commit(log, &err);
        if (done == KVL_OK)
            acknowledged |= 1u << g;
        else
            kvl_log_discard(log);
        assert_true(done == KVL_OK || done == KVL_EIO || done == KVL_ELOG);
        if (done != KVL_OK) assert_non_null(strstr(err.msg, path));
    }
    kvl_log_close(log, NULL);
    *calls = fault.calls;
    fault.kind = FAULT_NONE;
    return acknowledged;
}

/* Every call of the writer goes wrong in turn, once or from then on, until a run makes fewer calls:
 * what was acknowledged is there, once and whole; the log opens again and takes more. */
static void test_faults(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        int error;
    } kinds[] = {
        { FAULT_ERROR, ENOSPC }, { FAULT_ERROR, EIO }, { FAULT_ERROR, EINTR }, { FAULT_SHORT, 0 }
    };
    int n_faults = 0;
    for (size_t k = 0; k < 8; k++) {
        bool persistent = k >= 4;
        if (persistent && kinds[k % 4].error == EINTR) continue; /* it would wait for ever */
        for (int call = 0, calls = 1; call < calls; call++, n_faults++) {
            write_groups(at("f.zst"), 10, 1, 2);
            assert_int_equal(shell("printf '\050\265' >> %s", at("f.zst")), 0);
            unsigned ack = run_with_fault(at("f.zst"), kinds[k % 4].kind, kinds[k % 4].error, call,
                                          persistent, &calls);
            write_groups(at("f.zst"), 11, 1, 2);
            struct kvl_log_health h = { 0 };
            struct seen s = read_file(at("f.zst"), &h);
            assert_int_equal(h.n_damage, 0);
            for (int g = 0; g < 4; g++) {
                if (ack >> g & 1) assert_int_equal(s.group[g], 2);
                assert_true(s.group[g] == 0 || s.group[g] == 2);
            }
            assert_int_equal(s.group[10], 2);
            assert_int_equal(s.group[11], 2);
            bool harmless = kinds[k % 4].error == EINTR && fault.hit_write;
            if (harmless || kinds[k % 4].kind == FAULT_SHORT) assert_int_equal(ack, 15);
            assert_int_equal(shell("rm -f %s/f.zst*", dir), 0);
        }
    }
    printf("%d faults of the disk (full, input/output error, interrupted, short), at every call, "
           "once and for good: "
           "what was acknowledged is there\n",
           n_faults);
}

/* A tail that cannot be saved is not cut. */
static void test_torn_tail_that_cannot_be_saved(void **state)
{
    (void)state;
    write_groups(at("a.zst"), 0, 1, 1);
    assert_int_equal(shell("printf '\\050\\265' >> %s", at("a.zst")), 0);
    struct kvl_buf before = slurp(at("a.zst"));
    fault =
        (struct fault){ .kind = FAULT_ERROR, .error = EIO, .persistent = true, .only_write = true };
    struct kvl_log *log = NULL;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_log_open(at("a.zst"), NULL, NULL, NULL, &log, &err), KVL_EIO);
    fault.kind = FAULT_NONE;
    assert_non_null(strstr(err.msg, "2 torn bytes"));
    struct kvl_buf after = slurp(at("a.zst"));
    assert_int_equal(after.len, before.len);
    kvl_buf_free(&before);
    kvl_buf_free(&after);
}

/* After a sync that went wrong nothing more is taken: a second one that succeeds says nothing. */
static void test_failed_sync_is_final(void **state)
{
    (void)state;
    struct kvl_log *log = open_log(at("a.zst"));
    append(log, 0, 0);
    fault = (struct fault){ .kind = FAULT_ERROR, .error = EIO, .at = 1 }; /* write, then sync */
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_log_commit(log, &err), KVL_ELOG);
    assert_int_equal(kvl_status_exit(KVL_ELOG), 5);
    assert_non_null(strstr(err.msg, "cannot sync"));
    fault.kind = FAULT_NONE;
    assert_int_equal(kvl_log_commit(log, NULL), KVL_ELOG);
    kvl_log_close(log, NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_lock),
        T(test_note_follows_no_link),
        T(test_killed_writer_leaves_no_lock),
        T(test_no_space),
        T(test_deleted_meanwhile),
        T(test_faults),
        T(test_torn_tail_that_cannot_be_saved),
        T(test_failed_sync_is_final),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
