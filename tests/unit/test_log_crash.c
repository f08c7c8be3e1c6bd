/* The result log after a power cut: files as they may lie on a disk that had not been told to keep everything yet,
 * rebuilt from a recorded trace of writes, cuts and syncs.
 *
 * What a sync was told of is there.  Of what came after it any part may be: a write as a whole, some of its sectors with
 * zeros or nothing in the others, nothing of it; a cut may or may not have happened.
 *
 * KVL_CRASH_STATES sets how many are looked at (2000), KVL_SEED which. */
#include "log_maker.h"

#include <fcntl.h>
#include <sys/syscall.h>

/* ---- the trace ------------------------------------------------------------------------------ */

enum { TRACE_MAX = 1024, SECTOR = 512 };
enum trace_kind { TRACE_WRITE, TRACE_CUT, TRACE_SYNC, TRACE_ACK };
struct trace_op {
    enum trace_kind kind;
    size_t at, len; /* of a write; at: length after a cut, number of an acknowledged group */
    char *data;
};
static struct {
    struct trace_op op[TRACE_MAX];
    size_t n;
    ino_t file; /* what is traced; 0: nothing */
} trace;

static struct trace_op *trace_add(enum trace_kind kind, size_t at)
{
    assert_true(trace.n < TRACE_MAX);
    trace.op[trace.n] = (struct trace_op){ .kind = kind, .at = at };
    return &trace.op[trace.n++];
}

static bool traced(int fd, struct stat *st)
{
    return trace.file && fstat(fd, st) == 0 && st->st_ino == trace.file;
}

/* These definitions stand before the C library's. */
ssize_t write(int fd, const void *data, size_t len)
{
    struct stat st;
    bool mine = traced(fd, &st);
    ssize_t n = syscall(SYS_write, fd, data, len);
    if (!mine || n <= 0) return n;
    struct trace_op *op = trace_add(TRACE_WRITE, (size_t)st.st_size);
    op->len = (size_t)n;
    op->data = malloc(op->len);
    memcpy(op->data, data, op->len);
    return n;
}

int ftruncate(int fd, off_t length)
{
    struct stat st;
    if (traced(fd, &st)) trace_add(TRACE_CUT, (size_t)length);
    return (int)syscall(SYS_ftruncate, fd, length);
}

int fdatasync(int fd)
{
    struct stat st;
    if (traced(fd, &st)) trace_add(TRACE_SYNC, 0);
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    struct stat st;
    if (traced(fd, &st)) trace_add(TRACE_SYNC, 0);
    return (int)syscall(SYS_fsync, fd);
}

/* ---- what is recorded ------------------------------------------------------------------------ */

enum { RUNS = 5, GROUPS = 50, PER = 8 };

/* Runs that append groups; what a crash left behind the first ones is cut by the next. */
static void record(const char *path)
{
    struct stat st;
    int group = 0;
    spill(path, "", 0);
    assert_int_equal(stat(path, &st), 0);
    trace.file = st.st_ino;
    for (int run = 0; run < RUNS; run++) {
        struct kvl_log *log = open_log(path);
        for (int i = 0; i < GROUPS / RUNS; i++, group++) {
            for (int r = 0; r < PER; r++) append(log, group, r);
            assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
            trace_add(TRACE_ACK, (size_t)group);
        }
        assert_int_equal(kvl_log_close(log, NULL), KVL_OK);
        int fd = open(path, O_WRONLY | O_APPEND);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "\050\265\057\375 torn", 9), 9);
        close(fd);
    }
    trace.file = 0;
}

/* ---- a state of the disk ---------------------------------------------------------------------- */

struct disk {
    char *data;
    size_t len, cap;
};

static void disk_put(struct disk *d, size_t at, const char *data, size_t len)
{
    assert_true(at + len <= d->cap);
    if (data) memcpy(d->data + at, data, len);
    d->len = KVL_MAX(d->len, at + len);
}

/* An unsynced write: whole, none, or by sectors, of which the last ones may not even have made the file longer. */
static void disk_write(struct disk *d, const struct trace_op *op, struct kvl_rng *rng)
{
    uint32_t how = kvl_rng_below(rng, 4);
    if (how == 0) return;
    for (size_t i = 0, n; i < op->len; i += n) {
        n = KVL_MIN(SECTOR - (op->at + i) % SECTOR, op->len - i);
        uint32_t fate = how == 1 ? 0 : kvl_rng_below(rng, how == 2 ? 2 : 3);
        if (fate < 2) disk_put(d, op->at + i, fate == 0 ? op->data + i : NULL, n);
    }
}

static void disk_cut(struct disk *d, size_t len)
{
    if (len >= d->len) return;
    memset(d->data + len, 0, d->len - len);
    d->len = len;
}

/* After `n` operations of the trace; *acked: groups that were acknowledged by then. */
static void disk_make(struct disk *d, size_t n, struct kvl_rng *rng, size_t *acked)
{
    size_t synced = 0;
    *acked = 0;
    memset(d->data, 0, d->cap);
    d->len = 0;
    for (size_t i = 0; i < n; i++) {
        if (trace.op[i].kind == TRACE_SYNC) synced = i;
        if (trace.op[i].kind == TRACE_ACK) *acked = trace.op[i].at + 1;
    }
    for (size_t i = 0; i < n; i++) {
        const struct trace_op *op = &trace.op[i];
        if (op->kind == TRACE_WRITE && i < synced) disk_put(d, op->at, op->data, op->len);
        if (op->kind == TRACE_WRITE && i >= synced) disk_write(d, op, rng);
        if (op->kind == TRACE_CUT && (i < synced || kvl_rng_below(rng, 2))) disk_cut(d, op->at);
    }
}

static void groups_are(const struct seen *s, size_t acked, size_t state)
{
    for (size_t g = 0; g < GROUPS; g++)
        if (s->group[g] != PER && (g < acked || s->group[g] != 0))
            fail_msg("state %zu: %d records of group %zu, %zu acknowledged", state, s->group[g], g,
                     acked);
}

/* The log opens, what a crash left is set aside, and it takes more. */
static void goes_on(const struct disk *d, size_t acked, size_t state)
{
    spill(at("again.zst"), d->data, d->len);
    struct kvl_log *log = open_log(at("again.zst"));
    append(log, GROUPS, 0);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    assert_int_equal(kvl_log_close(log, NULL), KVL_OK);
    struct seen s = read_file(at("again.zst"), NULL);
    groups_are(&s, acked, state);
    assert_int_equal(s.group[GROUPS], 1);
    unlink(at("again.zst"));
    unlink(at("again.zst.torn-1"));
}

static void test_crash_states(void **state)
{
    const char *asked = getenv("KVL_CRASH_STATES"), *seed = getenv("KVL_SEED");
    size_t n_states = asked ? strtoul(asked, NULL, 10) : 2000, n_partial = 0;
    struct kvl_rng rng;
    (void)state;
    kvl_rng_seed(&rng, seed ? strtoull(seed, NULL, 10) : 1);
    record(at("log.zst"));
    struct disk d = { .cap = 1 << 20 };
    d.data = malloc(d.cap);
    for (size_t i = 0; i < n_states; i++) {
        /* Every prefix of the trace comes, and then any. */
        size_t n = i < trace.n ? i + 1 : 1 + kvl_rng_below(&rng, (uint32_t)trace.n), acked;
        disk_make(&d, n, &rng, &acked);
        struct kvl_log_health h = { 0 };
        struct seen s = read_memory(d.data, d.len, &h);
        groups_are(&s, acked, i);
        n_partial += h.n_damage > 0;
        kvl_log_health_free(&h);
        if (i % 20 == 0) goes_on(&d, acked, i);
    }
    printf("%zu states after a crash, %zu of them torn: no acknowledged record lost\n", n_states,
           n_partial);
    assert_true(n_states < 1000 || n_partial > n_states / 20);
    free(d.data);
    for (size_t i = 0; i < trace.n; i++) free(trace.op[i].data);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_crash_states, setup,
                                                                        teardown) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
