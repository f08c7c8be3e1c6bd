/* log_maker.h - what the tests of the log share: a folder per test, logs whose records are known, and
 * a reader that checks them. */
#ifndef LOG_MAKER_H
#define LOG_MAKER_H

#include "log.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvl/rng.h"

/* Of the running test.  zstd is used as an oracle through the command, never the library. */
static char dir[256];

static inline char *at(const char *name)
{
    static char path[4][512];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static inline int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/kvlab-log-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int teardown(void **state)
{
    (void)state;
    glob_t g;
    if (glob(at("*"), 0, NULL, &g) == 0) {
        for (size_t i = 0; i < g.gl_pathc; i++) unlink(g.gl_pathv[i]);
        globfree(&g);
    }
    return rmdir(dir);
}

static inline struct kvl_buf slurp(const char *path)
{
    struct kvl_buf b = { 0 };
    assert_int_equal(kvl_read_file(path, (size_t)1 << 30, &b, NULL), KVL_OK);
    return b;
}

static inline void spill(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline struct kvl_log *open_log(const char *path)
{
    struct kvl_log *log = NULL;
    struct kvl_err err = { 0 };
    if (kvl_log_open(path, NULL, NULL, NULL, &log, &err) != KVL_OK) fail_msg("%s", err.msg);
    return log;
}

static inline void append(struct kvl_log *log, int group, int i)
{
    json_t *r = json_pack("{ss si si sf ss}", "kind", "sample", "group", group, "i", i, "x",
                          0.1 * i, "text", "a line\nof text \xc3\xa4");
    assert_non_null(r);
    assert_int_equal(kvl_log_append(log, r, NULL), KVL_OK);
    json_decref(r);
}

/* Groups `first` .. `first + n - 1`, `per` records each. */
static inline void write_groups(const char *path, int first, int n, int per)
{
    struct kvl_log *log = open_log(path);
    for (int g = first; g < first + n; g++) {
        for (int i = 0; i < per; i++) append(log, g, i);
        assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    }
    assert_int_equal(kvl_log_close(log, NULL), KVL_OK);
}

/* Counts records per group and checks that each is as it was written. */
struct seen {
    int n, group[512];
    bool wrong;
};

static inline int look(json_t *r, void *user, struct kvl_err *err)
{
    (void)err;
    struct seen *s = user;
    int group = (int)json_integer_value(json_object_get(r, "group"));
    int i = (int)json_integer_value(json_object_get(r, "i"));
    const char *text = json_string_value(json_object_get(r, "text"));
    double x = json_real_value(json_object_get(r, "x"));
    bool ok = group >= 0 && group < 512 && text && strcmp(text, "a line\nof text \xc3\xa4") == 0 &&
              x > 0.1 * i - 1e-12 && x < 0.1 * i + 1e-12 && json_object_size(r) == 5;
    s->wrong |= !ok;
    s->n++;
    if (ok) s->group[group]++;
    return KVL_OK;
}

static inline struct seen read_memory(const void *data, size_t len, struct kvl_log_health *h)
{
    struct seen s = { 0 };
    struct kvl_err err = { 0 };
    int rc = kvl_log_read_memory("mem", data, len, look, &s, h, &err);
    if (rc != KVL_OK) fail_msg("%s", err.msg);
    assert_false(s.wrong);
    return s;
}

static inline struct seen read_file(const char *path, struct kvl_log_health *h)
{
    struct kvl_buf b = slurp(path);
    struct seen s = read_memory(b.len ? b.data : "", b.len, h);
    kvl_buf_free(&b);
    return s;
}

static inline int shell(const char *fmt, ...) KVL_PRINTF(1, 2);
static inline int shell(const char *fmt, ...)
{
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int rc = system(line);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

/* Where the groups of a log end, from the file sizes while it was written. */
static inline size_t grow_log(const char *path, int n, int per, size_t *ends)
{
    struct kvl_log *log = open_log(path);
    for (int g = 0; g < n; g++) {
        for (int i = 0; i < per; i++) append(log, g, i);
        assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        ends[g] = (size_t)st.st_size;
    }
    kvl_log_close(log, NULL);
    return ends[n - 1];
}

#endif
