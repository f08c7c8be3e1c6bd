/* Status codes, messages, sizes, memory, buffers, files, near names. */
#include "kvl/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void test_status(void **state)
{
    (void)state;
    /* The exit codes are part of the command line: scripts depend on them. */
    static const int want[][2] = { { KVL_OK, 0 },      { KVL_EINVAL, 2 },   { KVL_EMODEL, 3 },
                                   { KVL_ENOMEM, 4 },  { KVL_EIO, 4 },      { KVL_ELOG, 5 },
                                   { KVL_EPOLICY, 6 }, { KVL_EDEVICE, 7 },  { KVL_EINTERNAL, 70 },
                                   { KVL_ESTOP, 130 }, { KVL_ENUMERIC, 6 }, { -1000, 70 } };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_int_equal(kvl_status_exit(want[i][0]), want[i][1]);
    assert_string_equal(kvl_status_name(KVL_OK), "ok");
    assert_string_equal(kvl_status_name(KVL_ENOMEM), "out of memory or over a limit");
    assert_string_equal(kvl_status_name(12345), "unknown status");
}

static void test_fail(void **state)
{
    (void)state;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_fail(&err, KVL_EINVAL, "page %d, want %s", 7, "16"), KVL_EINVAL);
    assert_int_equal(kvl_fail(&err, KVL_EIO, "later"), KVL_EIO);
    assert_int_equal(err.code, KVL_EINVAL);
    assert_string_equal(err.msg, "page 7, want 16");
    assert_int_equal(kvl_fail_at(&err, KVL_EINVAL, "file %s", "a.yaml"), KVL_EINVAL);
    assert_string_equal(err.msg, "file a.yaml: page 7, want 16");
    kvl_err_clear(&err);
    assert_int_equal(err.code, KVL_OK);
    assert_int_equal(kvl_fail_at(&err, KVL_EIO, "log"), KVL_EIO);
    assert_int_equal(err.code, KVL_EIO);
    assert_string_equal(err.msg, "log: input or output error");
    assert_int_equal(kvl_fail(NULL, KVL_EIO, "nobody listens"), KVL_EIO);
    assert_int_equal(kvl_fail_at(NULL, KVL_EIO, "nobody listens"), KVL_EIO);
    kvl_err_clear(NULL);
}

/* Messages that are too long are cut, and stay text. */
static void test_fail_long(void **state)
{
    (void)state;
    struct kvl_err err = { 0 };
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    kvl_fail(&err, KVL_EINVAL, "%s", text);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    kvl_fail_at(&err, KVL_EINVAL, "here");
    assert_int_equal(strncmp(err.msg, "here: xxx", 9), 0);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    kvl_fail_at(&err, KVL_EINVAL, "%s", text);
    assert_in_range(strlen(err.msg), 512, sizeof err.msg - 1);
}

static int two_steps(int first, int *reached)
{
    KVL_TRY(first);
    *reached = 1;
    return KVL_OK;
}

static void test_try(void **state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(two_steps(KVL_EIO, &reached), KVL_EIO);
    assert_int_equal(reached, 0);
    assert_int_equal(two_steps(KVL_OK, &reached), KVL_OK);
    assert_int_equal(reached, 1);
}

static void test_sizes(void **state)
{
    (void)state;
    size_t out = 7;
    assert_int_equal(kvl_mul_size(6, 7, &out), KVL_OK);
    assert_int_equal(out, 42);
    assert_int_equal(kvl_mul_size(SIZE_MAX, 0, &out), KVL_OK);
    assert_int_equal(out, 0);
    assert_int_equal(kvl_mul_size(SIZE_MAX / 2 + 1, 2, &out), KVL_ENOMEM);
    assert_null(kvl_alloc(SIZE_MAX / 2 + 1, 2));
    assert_null(kvl_alloc(SIZE_MAX, 1));
    assert_null(kvl_alloc(SIZE_MAX - 30, 1));
}

static void test_alloc(void **state)
{
    (void)state;
    for (size_t n = 0; n < 200; n += 13) {
        unsigned char *p = kvl_alloc(n, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(p[i], 0);
        memset(p, 0xff, 3 * n); /* the next block may reuse it */
        kvl_free(p);
    }
    kvl_free(NULL);
}

static void test_buf(void **state)
{
    (void)state;
    struct kvl_buf b = { 0 };
    assert_int_equal(kvl_buf_adds(&b, ""), KVL_OK);
    assert_string_equal(b.data, "");
    assert_int_equal(kvl_buf_add(&b, NULL, 0), KVL_OK);
    assert_int_equal(kvl_buf_add(&b, "a\0b", 3), KVL_OK);
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "a\0b", 4);
    b.len = 0;
    for (int i = 0; i < 10000; i++) assert_int_equal(kvl_buf_printf(&b, "%05d,", i), KVL_OK);
    assert_int_equal(b.len, 60000);
    assert_int_equal(strlen(b.data), 60000);
    assert_int_equal(strncmp(b.data + 6 * 9999, "09999,", 7), 0);
    assert_int_equal(kvl_buf_add(&b, "x", SIZE_MAX - 10), KVL_ENOMEM);
    assert_int_equal(b.len, 60000);
    kvl_buf_free(&b);
    assert_null(b.data);
    assert_int_equal(b.cap, 0);
    kvl_buf_free(&b);
}

/* A file of n bytes; the name is written to path. */
static void make_file(char path[64], size_t n)
{
    snprintf(path, 64, "/tmp/kvl_test_base_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < n; i++) assert_int_equal(write(fd, &"abcdefg"[i % 7], 1), 1);
    close(fd);
}

static void test_read_file(void **state)
{
    (void)state;
    char path[64];
    struct kvl_err err = { 0 };
    struct kvl_buf b = { 0 };
    make_file(path, 1000);
    assert_int_equal(kvl_read_file(path, 1000, &b, &err), KVL_OK);
    assert_int_equal(b.len, 1000);
    assert_int_equal(b.data[999], "abcdefg"[999 % 7]);
    assert_int_equal(b.data[1000], '\0');
    b.len = 0;
    assert_int_equal(kvl_read_file(path, 999, &b, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "999 bytes"));
    unlink(path);
    kvl_err_clear(&err);
    assert_int_equal(kvl_read_file(path, 1000, &b, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "No such file"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_read_file("/tmp", 1000, &b, &err), KVL_EINVAL);
    kvl_buf_free(&b);

    make_file(path, 0);
    kvl_err_clear(&err);
    assert_int_equal(kvl_read_file(path, 0, &b, &err), KVL_OK);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, ""); /* text even when empty */
    unlink(path);
    kvl_buf_free(&b);
}

static void test_read_stdin(void **state)
{
    (void)state;
    char path[64];
    struct kvl_buf b = { 0 };
    struct kvl_err err = { 0 };
    make_file(path, 20);
    int before = dup(STDIN_FILENO);
    assert_non_null(freopen(path, "r", stdin));
    assert_int_equal(kvl_read_file("-", 100, &b, &err), KVL_OK);
    assert_string_equal(b.data, "abcdefgabcdefgabcdef");
    if (before >= 0) dup2(before, STDIN_FILENO);
    unlink(path);
    kvl_buf_free(&b);
}

static void test_nearest(void **state)
{
    (void)state;
    static const char *const names[] = { "full", "random", "streaming", "quest", "h2o" };
    assert_string_equal(kvl_nearest("qest", names, 5), "quest");
    assert_string_equal(kvl_nearest("straeming", names, 5), "streaming");
    assert_string_equal(kvl_nearest("h20", names, 5), "h2o");
    assert_string_equal(kvl_nearest("random", names, 5), "random");
    assert_null(kvl_nearest("zzzzzzzz", names, 5));
    assert_null(kvl_nearest("full", names, 0));
    /* Singular for plural, two letters that changed places, a beginning. */
    const char *const keys[] = { "name", "model", "policies", "protocols", "lengths", "contexts" };
    assert_string_equal(kvl_nearest("policy", keys, 6), "policies");
    assert_string_equal(kvl_nearest("protocol", keys, 6), "protocols");
    assert_string_equal(kvl_nearest("lenght", keys, 6), "lengths");
    assert_string_equal(kvl_nearest("contexts_per_cell", keys, 6), "contexts");
    const char *const recipes[] = { "quest.figure7", "quest.table1-10k", "snapkv.table1" };
    assert_string_equal(kvl_nearest("quest.tabel1", recipes, 3), "quest.table1-10k");
    assert_string_equal(kvl_nearest("qeust.table1-10k", recipes, 3), "quest.table1-10k");
    assert_null(kvl_nearest("speed", keys, 6));
    static const char *const commands[] = { "list", "log", "plot" };
    assert_null(kvl_nearest("foo", commands, 3)); /* two letters of three are another word */
    char text[200];
    memset(text, 'q', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)kvl_nearest(text, names, 5); /* longer than the table of distances */
}

static void test_clock(void **state)
{
    (void)state;
    struct timespec t;
    uint64_t a = kvl_now_ns();
    usleep(2000);
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t b = kvl_now_ns(), between = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    assert_true(b - a >= 2000000u && between >= a && between <= b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),     cmocka_unit_test(test_fail),
        cmocka_unit_test(test_fail_long),  cmocka_unit_test(test_try),
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_buf),        cmocka_unit_test(test_read_file),
        cmocka_unit_test(test_read_stdin), cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
