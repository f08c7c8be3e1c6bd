/* Worker processes from inside: how many, what a log and the guard are to them. */
#include "jobs.h"

#include "crash_line.h"
#include "log_maker.h"

#include <sys/mman.h>

/* ---- how many -------------------------------------------------------------------------------- */

static void test_words(void **state)
{
    int32_t n = -1;
    (void)state;
    assert_int_equal(kvl_jobs_parse("auto", &n, NULL), KVL_OK);
    assert_int_equal(n, 0);
    assert_int_equal(kvl_jobs_parse("1", &n, NULL), KVL_OK);
    assert_int_equal(n, 1);
    assert_int_equal(kvl_jobs_parse("1024", &n, NULL), KVL_OK);
    assert_int_equal(n, 1024);
    assert_int_equal(kvl_jobs_parse(NULL, &n, NULL), KVL_OK);
    assert_int_equal(n, 0);
    static const char *const wrong[] = { "0", "-1", "1025", "two", "", "2x" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_jobs_parse(wrong[i], &n, &err), KVL_EINVAL);
        assert_non_null(strstr(err.msg, "want auto or 1 to 1024"));
    }
}

static void test_choice(void **state)
{
    enum { SMALL = KVL_JOBS_SMALL_BYTES - 1, LARGE = KVL_JOBS_SMALL_BYTES };
    static const struct {
        struct kvl_jobs_ask
            ask; /* asked, threads, contexts, weights, KV of one, free, GPUs, plug-in, limit */
        struct kvl_jobs
            want; /* n, threads, apart, left out, all apart; watched: as there are plug-ins */
    } rows[] = {
        { { 0, 8, 100, SMALL, 1, 0, false, false, false },
          { 8, 1, true, 0, false, false } }, /* auto: a core each */
        { { 0, 8, 100, LARGE, 1, 0, false, false, false }, { 1, 8, false, 0, false, false } },
        { { 0, 1, 100, SMALL, 1, 0, false, false, false }, { 1, 1, false, 0, false, false } },
        { { 0, 8, 3, SMALL, 1, 0, false, false, false },
          { 3, 2, true, 0, false, false } }, /* no more than contexts */
        { { 0, 8, 1, SMALL, 1, 0, false, false, false }, { 1, 8, false, 0, false, false } },
        { { 0, 8, 0, SMALL, 1, 0, false, false, false }, { 1, 8, false, 0, false, false } },
        { { 1, 8, 100, SMALL, 1, 0, false, false, false },
          { 1, 8, false, 0, false, false } }, /* asked for: whatever the model */
        { { 4, 8, 100, LARGE, 1, 0, false, false, false }, { 4, 2, true, 0, false, false } },
        { { 3, 8, 100, LARGE, 1, 0, false, false, false }, { 3, 2, true, 0, false, false } },
        { { 4, 2, 100, LARGE, 1, 0, false, false, false }, { 4, 1, true, 0, false, false } },
        { { 4, 8, 1, LARGE, 1, 0, false, false, false },
          { 1, 8, true, 0, false, false } }, /* one worker is one, too */
        { { 4, 8, 0, LARGE, 1, 0, false, false, false }, { 1, 8, false, 0, false, false } },
        { { 4, 8, 100, LARGE, 1000, 4000, false, false, false },
          { 4, 2, true, 0, false, false } }, /* as many as memory is for */
        { { 4, 8, 100, LARGE, 1000, 3999, false, false, false }, { 3, 2, true, 1, false, false } },
        { { 4, 8, 100, LARGE, 1000, 10, false, false, false }, { 1, 8, true, 3, false, false } },
        { { 0, 8, 100, SMALL, 1000, 10, false, false, false }, { 1, 8, false, 7, false, false } },
        { { 0, 8, 2, SMALL, 1000, 2000, false, false, false }, { 2, 4, true, 0, false, false } },
        { { 0, 8, 100, SMALL, 1, (int64_t)1 << 40, false, false, false },
          { 8, 1, true, 0, false, false } },
        { { 0, 8, 100, SMALL, 1, 0, 1, false, false },
          { 1, 8, true, 0, true, false } }, /* a GPU: one process, apart */
        { { 0, 8, 0, SMALL, 1, 0, 1, false, false }, { 1, 8, true, 0, true, false } },
        { { 1, 8, 100, SMALL, 1, 0, 1, false, false }, { 1, 8, true, 0, true, false } },
        { { 4, 8, 100, SMALL, 1000, 3999, 1, false, false }, { 3, 2, true, 1, true, false } },
        { { 0, 8, 100, SMALL, 1, 0, 4, false, false },
          { 4, 2, true, 0, true, false } }, /* one for each GPU */
        { { 0, 8, 3, LARGE, 1000, 1999, 4, false, false }, { 3, 2, true, 0, true, false } },
        { { 12, 8, 100, LARGE, 1000, 2500, 4, false, false }, { 8, 1, true, 4, true, false } },
        /* A plug-in, or a limit: apart, timed cells too. */
        { { 0, 8, 100, SMALL, 1, 0, false, true, false }, { 8, 1, true, 0, true, false } },
        { { 0, 8, 100, LARGE, 1, 0, false, true, false }, { 1, 8, true, 0, true, false } },
        { { 0, 1, 100, SMALL, 1, 0, false, true, false }, { 1, 1, true, 0, true, false } },
        { { 0, 8, 0, SMALL, 1, 0, false, true, false }, { 1, 8, true, 0, true, false } },
        { { 1, 8, 100, SMALL, 1, 0, false, true, false }, { 1, 8, true, 0, true, false } },
        { { 1, 8, 100, SMALL, 1, 0, false, false, true }, { 1, 8, true, 0, true, false } },
        { { 3, 8, 100, LARGE, 1, 0, false, true, false }, { 3, 2, true, 0, true, false } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvl_jobs got = kvl_jobs_choose(&rows[i].ask), want = rows[i].want;
        if (got.n != want.n || got.threads != want.threads || got.apart != want.apart ||
            got.left_out != want.left_out || got.all_apart != want.all_apart ||
            got.watched != rows[i].ask.plugin)
            fail_msg("row %zu: %d x %d threads, apart %d, %d left out, all apart %d", i, got.n,
                     got.threads, got.apart, got.left_out, got.all_apart);
    }
}

/* ---- the log of a child ---------------------------------------------------------------------- */

static int to_pipe(const char *lines, size_t len, void *user, struct kvl_err *err)
{
    (void)err;
    return write(*(int *)user, lines, len) == (ssize_t)len ? KVL_OK : KVL_EIO;
}

/* In a child: two commits that must reach the pipe, then it waits for the end of `wait`. */
static void child_commits(struct kvl_log *log, int out, int wait)
{
    char c;
    kvl_log_redirect(log, to_pipe, &out);
    bool ok = kvl_log_pending(log) == 0 && kvl_log_commit(log, NULL) == KVL_OK;
    for (int group = 7; group < 9; group++) {
        append(log, group, 0);
        append(log, group, 1);
        ok = ok && kvl_log_commit(log, NULL) == KVL_OK && kvl_log_pending(log) == 0;
    }
    close(out);
    ok = ok && read(wait, &c, 1) == 0;
    _exit(ok ? 0 : 1);
}

static size_t read_lines(int fd)
{
    char text[4096];
    size_t n = 0;
    for (ssize_t got; (got = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < got; i++) n += text[i] == '\n';
    return n;
}

/* Commits of a child go elsewhere, the file is as it was, and the child does not hold its lock. */
static void test_redirect(void **state)
{
    (void)state;
    char *path = at("r.zst");
    struct kvl_log *log = open_log(path);
    append(log, 0, 0);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    append(log, 1, 0); /* pending: the parent's */
    int out[2], wait[2], status;
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(wait), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(out[0]);
        close(wait[1]);
        child_commits(log, out[1], wait[0]);
    }
    close(out[1]);
    close(wait[0]);
    assert_int_equal(read_lines(out[0]), 4);
    close(out[0]);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    assert_int_equal(kvl_log_close(log, NULL), KVL_OK);
    /* The child lives on. */
    kvl_log_close(open_log(path), NULL);
    close(wait[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    struct kvl_log_health h = { 0 };
    struct seen s = read_file(path, &h);
    assert_int_equal(s.n, 2);
    assert_int_equal(h.n_groups, 2);
    assert_int_equal(h.n_damage, 0);
    kvl_log_health_free(&h);
}

/* ---- which policy ran ------------------------------------------------------------------------ */

static void test_guard(void **state)
{
    static const char one[] = "one", two[] = "two";
    size_t size = sizeof(const char *);
    (void)state;
    const char *volatile *seen =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seen != MAP_FAILED);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        kvl_guard_share(seen);
        kvl_guard_policy(one);
        kvl_guard_policy(two);
        _exit(*seen == two ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ptr_equal(*seen, two);
    kvl_guard_share(seen);
    kvl_guard_policy(NULL);
    assert_null(*seen);
    kvl_guard_share(NULL);
    kvl_guard_policy(one);
    assert_null(*seen);
    kvl_guard_policy(NULL);
    munmap((void *)(uintptr_t)seen, size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_choice),
        cmocka_unit_test_setup_teardown(test_redirect, setup, teardown),
        cmocka_unit_test(test_guard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
