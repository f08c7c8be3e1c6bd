/* The block store where test_kvstore_random.c does not judge: failing allocations, evictions that
 * free, sharing, messages, memory given back. */
#include "store.h"

#include "kvl/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sys/mman.h>

/* ---- allocations that fail ------------------------------------------------------------------ */

/* The linker sends kvl_alloc and mmap here (--wrap, tests/CMakeLists.txt). */
void *__wrap_kvl_alloc(size_t n, size_t item);
void *__real_kvl_alloc(size_t n, size_t item);
void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off);
void *__real_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off);

static int64_t alloc_count;
static int64_t alloc_fails_at = -1; /* the allocation that fails, counted from 0 */

static bool alloc_fails(void)
{
    return alloc_count++ == alloc_fails_at;
}

void *__wrap_kvl_alloc(size_t n, size_t item)
{
    return alloc_fails() ? NULL : __real_kvl_alloc(n, item);
}

void *__wrap_mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
    return alloc_fails() ? MAP_FAILED : __real_mmap(at, len, prot, flags, fd, off);
}

/* ---- helpers -------------------------------------------------------------------------------- */

enum { DIM = 4 };

static struct kvl_err err;
static const struct kvl_device *device; /* of all stores; NULL: the CPU */

static void ok_at(int rc, int line)
{
    if (rc != KVL_OK) fail_msg("line %d: code %d: %s", line, rc, err.msg);
}
#define OK(expr) ok_at((expr), __LINE__)

static void refused_at(int rc, int want, const char *text, int line)
{
    if (rc != want || !strstr(err.msg, text))
        fail_msg("line %d: code %d, message '%s', want %d '%s'", line, rc, err.msg, want, text);
    kvl_err_clear(&err);
}
#define REFUSED(expr, code, text) refused_at((expr), (code), (text), __LINE__)

static struct kvl_store *store_of(int32_t layers, int32_t heads, size_t limit_blocks)
{
    struct kvl_store_desc d = {
        .n_layers = layers, .n_kv_heads = heads, .head_dim = DIM, .block_tok = 8, .device = device
    };
    struct kvl_store *store;
    OK(kvl_store_create(&d, &store, &err));
    if (limit_blocks == 0) return store;
    struct kvl_store_stats st;
    kvl_store_stats(store, &st);
    kvl_store_destroy(store);
    d.limit_bytes = limit_blocks * st.block_bytes;
    OK(kvl_store_create(&d, &store, &err));
    return store;
}

/* Appends positions from..from + n - 1; head h of position p holds p + h / 16. */
static int try_append(struct kvl_seq *seq, int32_t layer, int32_t from, int32_t n)
{
    int32_t heads = kvl_store_desc(seq->store)->n_kv_heads;
    float row[8 * DIM];
    for (int32_t p = from; p < from + n; p++) {
        for (int32_t i = 0; i < heads * DIM; i++) row[i] = (float)p + (float)(i / DIM) / 16.0f;
        int rc = kvl_seq_append(seq, layer, 1, &p, row, NULL, row, &err);
        if (rc != KVL_OK) return rc;
    }
    return KVL_OK;
}

static void append(struct kvl_seq *seq, int32_t layer, int32_t from, int32_t n)
{
    OK(try_append(seq, layer, from, n));
}

static struct kvl_store_stats stats(const struct kvl_store *store)
{
    struct kvl_store_stats st;
    OK(kvl_store_check(store, &err));
    kvl_store_stats(store, &st);
    return st;
}

static int compare_i32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The lane holds exactly these positions, with the values that belong to them. */
static void expect_lane(const struct kvl_seq *seq, int32_t layer, int32_t head, const int32_t *want,
                        int32_t n)
{
    int32_t pos[512];
    float row[DIM];
    assert_int_equal(kvl_seq_len(seq, layer, head), n);
    kvl_seq_positions(seq, layer, head, pos);
    for (int32_t s = 0; s < n; s++) {
        OK(kvl_seq_read(seq, layer, head, KVL_PART_V, s, 1, row, &err));
        assert_true(row[DIM - 1] == (float)pos[s] + (float)head / 16.0f);
    }
    qsort(pos, (size_t)n, sizeof *pos, compare_i32);
    assert_memory_equal(pos, want, (size_t)n * sizeof *pos);
}

/* Positions 0..n_start-1 and from..end-1. */
static int32_t two_ranges(int32_t n_start, int32_t from, int32_t end, int32_t *pos)
{
    int32_t n = 0;
    for (int32_t p = 0; p < end; p++)
        if (p < n_start || p >= from) pos[n++] = p;
    return n;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_bad_descriptions(void **state)
{
    (void)state;
    const struct kvl_store_desc good = { .n_layers = 1, .n_kv_heads = 1, .head_dim = 1 };
    struct kvl_store *store = NULL;
    struct kvl_store_desc d = good;
    d.n_layers = 0;
    REFUSED(kvl_store_create(&d, &store, &err), KVL_EINVAL, "n_layers is 0");
    d = good;
    d.head_dim = INT32_MAX;
    REFUSED(kvl_store_create(&d, &store, &err), KVL_EINVAL, "head_dim is 2147483647");
    d = good;
    for (int32_t b = -8; b <= 520; b++) {
        d.block_tok = b;
        if (b == 0 || b == 8 || b == 16 || b == 32 || b == 64 || b == 128 || b == 256) continue;
        REFUSED(kvl_store_create(&d, &store, &err), KVL_EINVAL, "power of two from 8 to 256");
    }
    d = good;
    d.type = (enum kvl_kv_type)200;
    REFUSED(kvl_store_create(&d, &store, &err), KVL_EINVAL, "element type 200");
    d.type = kvl_kv_pair(KVL_KV_F16, (enum kvl_kv_type)200);
    REFUSED(kvl_store_create(&d, &store, &err), KVL_EINVAL, "element type 200");
    assert_null(store);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(2, 2, 0);
    struct kvl_seq *seq;
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 1, 0, 20);
    float row[2 * DIM] = { 0 };
    int32_t pos[] = { 20, 21 };
    REFUSED(kvl_seq_append(seq, 2, 1, pos, row, NULL, row, &err), KVL_EINVAL, "layer");
    REFUSED(kvl_seq_append(seq, -1, 1, pos, row, NULL, row, &err), KVL_EINVAL, "layer");
    REFUSED(kvl_seq_append(seq, 0, -1, pos, row, NULL, row, &err), KVL_EINVAL, "-1 slots");
    REFUSED(kvl_seq_append(seq, 0, 1, pos, row, row, row, &err), KVL_EINVAL, "before RoPE");
    pos[0] = 19;
    REFUSED(kvl_seq_append(seq, 1, 1, pos, row, NULL, row, &err), KVL_EINVAL, "19 is live");
    pos[0] = 21;
    REFUSED(kvl_seq_append(seq, 1, 2, pos, row, NULL, row, &err), KVL_EINVAL, "21 twice");
    REFUSED(kvl_seq_keep(seq, 1, 2, pos, 0, &err), KVL_EINVAL, "want below");
    REFUSED(kvl_seq_keep(seq, 1, 0, pos, -1, &err), KVL_EINVAL, "-1 positions");
    const int32_t twice[] = { 0, 0 }, past[] = { 0, kvl_seq_len(seq, 1, 0) };
    REFUSED(kvl_seq_drop(seq, 1, 2, pos, 0, &err), KVL_EINVAL, "want below");
    REFUSED(kvl_seq_drop(seq, 1, 0, pos, -1, &err), KVL_EINVAL, "-1 ranks");
    REFUSED(kvl_seq_drop(seq, 1, 0, twice, 2, &err), KVL_EINVAL, "entry 1 is rank 0");
    REFUSED(kvl_seq_drop(seq, 1, 0, past, 2, &err), KVL_EINVAL, "entry 1 is rank");
    REFUSED(kvl_seq_truncate(seq, -1, &err), KVL_EINVAL, "-1");
    REFUSED(kvl_seq_read(seq, 1, 0, KVL_PART_K, 20, 1, row, &err), KVL_EINVAL, "has 20");
    REFUSED(kvl_seq_read(seq, 1, 0, KVL_PART_K, INT32_MAX, INT32_MAX, row, &err), KVL_EINVAL,
            "has");
    REFUSED(kvl_seq_read(seq, 1, 0, KVL_PART_K, -1, 1, row, &err), KVL_EINVAL, "from -1");
    REFUSED(kvl_seq_read(seq, 1, 0, KVL_PART_K_RAW, 0, 1, row, &err), KVL_EINVAL, "part 2");
    REFUSED(kvl_seq_read(seq, 0, 2, KVL_PART_K, 0, 0, row, &err), KVL_EINVAL, "lane (0, 2)");
    OK(kvl_seq_append(seq, 1, 0, NULL, NULL, NULL, NULL, &err));
    int32_t want[20];
    expect_lane(seq, 1, 1, want, two_ranges(20, 20, 20, want));
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
    kvl_seq_destroy(NULL);
    kvl_store_destroy(NULL);
}

/* Rows of any block may be read as aligned vectors. */
static void test_alignment(void **state)
{
    (void)state;
    struct kvl_store_desc d = { .n_layers = 1,
                                .n_kv_heads = 1,
                                .head_dim = 3,
                                .type = KVL_KV_F16,
                                .raw_keys = true,
                                .device = device };
    struct kvl_store *store;
    struct kvl_seq *seq;
    OK(kvl_store_create(&d, &store, &err));
    OK(kvl_seq_create(store, &seq, &err));
    assert_int_equal(kvl_store_desc(store)->block_tok, 16);
    float row[3] = { 1.0f, 2.0f, 3.0f };
    for (int32_t p = 0; p < 100; p++) OK(kvl_seq_append(seq, 0, 1, &p, row, row, row, &err));
    struct kvl_lane lane = kvl_seq_lane(seq, 0, 0);
    assert_int_equal(lane.n_slots, 100);
    assert_true(lane.sorted);
    for (int32_t b = 0; b < 7; b++) {
        for (int part = 0; part < 3 && !device; part++)
            assert_int_equal((uintptr_t)kvl_lane_slot(&lane, (enum kvl_kv_part)part, b * 16) % 16,
                             0);
        assert_int_equal((uintptr_t)kvl_lane_pos(&lane, b) % 16, 0);
        assert_int_equal(kvl_lane_pos(&lane, b)[1], b * 16 + 1);
    }
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* A fork costs nothing until one side writes, and then one block per lane written. */
static void test_fork_shares(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 2, 0);
    struct kvl_seq *seq, *fork;
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 0, 0, 100); /* 13 blocks per lane, the last with 4 slots */
    OK(kvl_seq_fork(seq, &fork, &err));
    assert_int_equal(stats(store).n_blocks, 26);
    assert_int_equal(stats(store).n_refs, 52);
    append(fork, 0, 100, 1);
    assert_int_equal(stats(store).n_blocks, 28);
    append(seq, 0, 100, 1); /* the last reference to the old block: written in place */
    assert_int_equal(stats(store).n_blocks, 28);
    struct kvl_seq_stats st;
    kvl_seq_stats(fork, &st);
    assert_int_equal(st.n_shared, 24);
    assert_int_equal(st.n_slots, 202);
    assert_int_equal(st.logical_bytes, 202 * 2 * DIM * 4);
    assert_int_equal(st.physical_bytes, 26 * stats(store).block_bytes);

    /* Eviction of one early slot: only the block with the hole is copied. */
    int32_t pos[128], n = two_ranges(4, 5, 101, pos);
    OK(kvl_seq_keep(fork, 0, 0, pos, n, &err));
    kvl_seq_stats(fork, &st);
    assert_int_equal(st.n_shared, 23);
    expect_lane(fork, 0, 0, pos, n);
    n = two_ranges(101, 101, 101, pos);
    expect_lane(seq, 0, 0, pos, n);

    /* Start and window: of the 5 blocks that stay in lane 1, 2 lose a part and are copied. */
    n = two_ranges(6, 74, 101, pos);
    OK(kvl_seq_keep(fork, 0, 1, pos, n, &err));
    expect_lane(fork, 0, 1, pos, n);
    kvl_seq_stats(fork, &st);
    assert_int_equal(st.n_blocks, 18);
    assert_int_equal(st.n_shared, 11 + 2);
    kvl_seq_destroy(seq);
    assert_int_equal(stats(store).n_blocks, 18);
    kvl_seq_destroy(fork);
    assert_int_equal(stats(store).n_blocks, 0);
    assert_int_equal(stats(store).peak_bytes, 31 * stats(store).block_bytes);
    kvl_store_reset_peak(store);
    assert_int_equal(stats(store).peak_bytes, 0);
    kvl_store_destroy(store);
}

/* keep() of everything copies nothing; of an owned lane it frees whole blocks. */
static void test_keep_frees(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 1, 0);
    struct kvl_seq *seq;
    int32_t pos[512], n = two_ranges(400, 400, 400, pos);
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 0, 0, 400);
    const uint8_t *first = kvl_seq_lane(seq, 0, 0).blocks[0];
    OK(kvl_seq_keep(seq, 0, 0, pos, n, &err));
    assert_true(kvl_seq_lane(seq, 0, 0).blocks[0] == first);
    assert_int_equal(stats(store).n_blocks, 50);
    n = two_ranges(5, 380, 400, pos);
    OK(kvl_seq_keep(seq, 0, 0, pos, n, &err));
    assert_int_equal(stats(store).n_blocks, 4);
    expect_lane(seq, 0, 0, pos, n);
    assert_true(kvl_seq_lane(seq, 0, 0).sorted);
    OK(kvl_seq_keep(seq, 0, 0, NULL, 0, &err));
    assert_int_equal(stats(store).n_blocks, 0);
    append(seq, 0, 7, 9); /* usable again, at any position */
    expect_lane(seq, 0, 0, (const int32_t[]){ 7, 8, 9, 10, 11, 12, 13, 14, 15 }, 9);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* A lane is out of order while a slot from its end fills a hole, and in order again once that slot
 * is gone. */
static void test_keep_order(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 1, 0);
    struct kvl_seq *seq;
    int32_t pos[128], slots[2];
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 0, 0, 100);
    OK(kvl_seq_keep(seq, 0, 0, pos, two_ranges(3, 4, 100, pos), &err));
    assert_false(kvl_seq_lane(seq, 0, 0).sorted);
    assert_int_equal(kvl_seq_find(seq, 0, 0, (const int32_t[]){ 3, 99 }, 2, slots), 1);
    assert_int_equal(slots[0], -1);
    assert_int_equal(slots[1], 3);
    OK(kvl_seq_keep(seq, 0, 0, pos, two_ranges(3, 4, 40, pos), &err));
    assert_true(kvl_seq_lane(seq, 0, 0).sorted);
    expect_lane(seq, 0, 0, pos, two_ranges(3, 4, 40, pos));
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* StreamingLLM with 4 sinks and a window of 3, token by token: the cache before and after each
 * eviction, worked out by hand.  The query position in the cache is the length - 1. */
static void test_streaming_golden(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 1, 0);
    struct kvl_seq *seq;
    OK(kvl_seq_create(store, &seq, &err));
    for (int32_t p = 0; p < 10; p++) {
        append(seq, 0, p, 1);
        if (p == 9) expect_lane(seq, 0, 0, (const int32_t[]){ 0, 1, 2, 3, 6, 7, 8, 9 }, 8);
        int32_t pos[16], n = two_ranges(4, p - 2, p + 1, pos), kept = 0;
        for (int32_t i = 0; i < n; i++) /* what was dropped earlier is not there to be kept */
            if (kvl_seq_find(seq, 0, 0, &pos[i], 1, &(int32_t){ 0 })) pos[kept++] = pos[i];
        OK(kvl_seq_keep(seq, 0, 0, pos, kept, &err));
    }
    expect_lane(seq, 0, 0, (const int32_t[]){ 0, 1, 2, 3, 7, 8, 9 }, 7);
    kvl_seq_destroy(seq);

    /* Room for m more before a prompt: 4 sinks, window 8, length 12. */
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 0, 0, 12);
    const int32_t m5[] = { 0, 1, 2, 3, 9, 10, 11 };
    OK(kvl_seq_keep(seq, 0, 0, m5, 7, &err));
    expect_lane(seq, 0, 0, m5, 7);
    const int32_t m10[] = { 0, 1, 2, 3 };
    OK(kvl_seq_keep(seq, 0, 0, m10, 4, &err));
    expect_lane(seq, 0, 0, m10, 4);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* A long stream at a fixed budget keeps its blocks and, once warm, allocates nothing. */
static void test_streaming_steady(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 1, 0);
    struct kvl_seq *seq;
    int32_t pos[128], n = 0;
    int64_t warm = 0;
    OK(kvl_seq_create(store, &seq, &err));
    for (int32_t p = 0; p < 5000; p++) {
        append(seq, 0, p, 1);
        pos[n++] = p;
        if (n > 104) {
            memmove(pos + 4, pos + 5, (size_t)(n - 5) * sizeof *pos);
            OK(kvl_seq_keep(seq, 0, 0, pos, --n, &err));
        }
        if (p == 1000) warm = alloc_count;
        if (p % 100 == 0) assert_true(stats(store).n_blocks <= 14);
    }
    assert_int_equal(alloc_count, warm);
    expect_lane(seq, 0, 0, pos, n);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

static void test_limit(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(2, 2, 8); /* 2 blocks for each of 4 lanes */
    struct kvl_seq *seq, *fork;
    int32_t pos[32], n = two_ranges(16, 16, 16, pos);
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 0, 0, 16);
    append(seq, 1, 0, 15);
    append(seq, 1, 15, 1);
    REFUSED(try_append(seq, 0, 16, 1), KVL_ENOMEM, "2 more blocks");
    expect_lane(seq, 0, 0, pos, n);
    expect_lane(seq, 0, 1, pos, n);

    OK(kvl_seq_fork(seq, &fork, &err));
    n = two_ranges(0, 1, 16, pos); /* both shared blocks change: no room for copies */
    REFUSED(kvl_seq_keep(fork, 0, 0, pos, n, &err), KVL_ENOMEM, "limit");
    n = two_ranges(16, 16, 16, pos);
    expect_lane(fork, 0, 0, pos, n);
    n = two_ranges(8, 16, 16, pos); /* the tail alone goes: no copy needed */
    OK(kvl_seq_keep(fork, 0, 0, pos, n, &err));
    kvl_seq_destroy(seq);
    assert_int_equal(stats(store).n_blocks, 7);
    kvl_seq_destroy(fork);
    assert_int_equal(stats(store).n_blocks, 0);
    kvl_store_destroy(store);
}

/* Runs forks, evictions and appends with the n-th allocation failing; every failure must be clean
 * and the same work must then succeed.  Returns how many allocations there are. */
static int64_t scenario(int64_t fail_at)
{
    struct kvl_store *store = NULL;
    struct kvl_seq *seq = NULL, *fork = NULL;
    int32_t all[64], few[64], many[64], n_all, n_few, n_many = 0;
    struct kvl_store_desc d = {
        .n_layers = 1, .n_kv_heads = 2, .head_dim = DIM, .block_tok = 8, .device = device
    };
    alloc_count = 0;
    alloc_fails_at = fail_at;
/* The first try may fail, for want of memory only; the second may not. */
#define RETRY(expr)                                                                                \
    do {                                                                                           \
        int rc_ = (expr);                                                                          \
        if (rc_ != KVL_OK) {                                                                       \
            assert_int_equal(rc_, KVL_ENOMEM);                                                     \
            assert_true(err.msg[0] != '\0');                                                       \
            kvl_err_clear(&err);                                                                   \
            if (store) OK(kvl_store_check(store, &err));                                           \
            if (seq) expect_lane(seq, 0, 1, all, n_all);                                           \
            if (fork && n_many == 0) expect_lane(fork, 0, 1, all, n_all);                          \
            OK(expr);                                                                              \
        }                                                                                          \
    } while (0)
    n_all = 0;
    RETRY(kvl_store_create(&d, &store, &err));
    RETRY(kvl_seq_create(store, &seq, &err));
    for (; n_all < 61; n_all++) {
        all[n_all] = n_all;
        RETRY(try_append(seq, 0, n_all, 1));
    }
    RETRY(kvl_seq_fork(seq, &fork, &err));
    n_few = two_ranges(20, 22, 61, few);
    RETRY(kvl_seq_keep(fork, 0, 0, few, n_few, &err)); /* fills holes: lane 0 gets an index */
    expect_lane(fork, 0, 0, few, n_few);
    for (int32_t p = 0; p < 61; p += 2) many[n_many++] = p;
    RETRY(kvl_seq_keep(fork, 0, 1, many, n_many, &err));
    expect_lane(fork, 0, 1, many, n_many);
    struct kvl_seq *second = NULL;
    RETRY(kvl_seq_fork(fork, &second, &err)); /* with an index */
    RETRY(kvl_seq_truncate(second, 21, &err));
    expect_lane(second, 0, 0, all, 20);
    expect_lane(second, 0, 1, many, 11);
    RETRY(try_append(second, 0, 21, 1));
    expect_lane(fork, 0, 0, few, n_few);
    expect_lane(seq, 0, 1, all, n_all);
    kvl_seq_destroy(second);
    kvl_seq_destroy(fork);
    kvl_seq_destroy(seq);
    assert_int_equal(stats(store).n_blocks, 0);
    kvl_store_destroy(store);
    alloc_fails_at = -1;
    return alloc_count;
#undef RETRY
}

static void test_allocation_failures(void **state)
{
    (void)state;
    int64_t n = scenario(-1);
    assert_true(n > 20);
    for (int64_t i = 0; i < n; i++) assert_true(scenario(i) > i);
}

/* The second of three slabs cannot be had: the blocks of the first go back. */
static void test_pool_takes_all_or_none(void **state)
{
    (void)state;
    enum { BLOCK = 1 << 20, N = 20 };
    struct kvl_pool pool;
    uint8_t *blocks[N];
    bool consistent;
    kvl_pool_init(&pool, &(struct kvl_layout){ .host_bytes = BLOCK, .bytes = BLOCK }, NULL,
                  KVL_PLACE_HOST, 0);
    assert_int_equal(pool.slab_blocks, 8);
    alloc_count = 0;
    alloc_fails_at = 3; /* slab, mapping, slab, mapping */
    REFUSED(kvl_pool_take(&pool, N, blocks, &err), KVL_ENOMEM, "no memory for 20 more blocks");
    alloc_fails_at = -1;
    assert_int_equal(pool.n_blocks, 0);
    assert_int_equal(pool.n_refs, 0);
    assert_int_equal(pool.peak_bytes, 0);
    OK(kvl_pool_take(&pool, N, blocks, &err));
    assert_int_equal(kvl_pool_count(&pool, &consistent), N);
    assert_true(consistent);
    for (int i = 0; i < N; i++) kvl_block_unref(blocks[i]);
    kvl_pool_close(&pool);
}

static int64_t resident_bytes(void)
{
    long long total, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return -1;
    int n = fscanf(f, "%lld %lld", &total, &resident);
    fclose(f);
    return n == 2 ? (int64_t)resident * (int64_t)sysconf(_SC_PAGESIZE) : -1;
}

/* What eviction frees goes back to the system, not only to the pool. */
static void test_memory_returns(void **state)
{
    (void)state;
    enum { CHUNK = 256, CHUNKS = 64, HEADS = 2, D = 128 }; /* 32 MiB of keys and values */
    struct kvl_store_desc d = { .n_layers = 1, .n_kv_heads = HEADS, .head_dim = D };
    struct kvl_store *store;
    struct kvl_seq *seq;
    if (resident_bytes() < 0 || device) skip(); /* of a device: test_kvstore_device.c */
    OK(kvl_store_create(&d, &store, &err));
    OK(kvl_seq_create(store, &seq, &err));
    float *row = kvl_alloc((size_t)CHUNK * HEADS * D, sizeof *row);
    int32_t pos[CHUNK];
    assert_non_null(row);
    for (int32_t c = 0; c < CHUNKS; c++) {
        for (int32_t i = 0; i < CHUNK; i++) pos[i] = c * CHUNK + i;
        OK(kvl_seq_append(seq, 0, CHUNK, pos, row, NULL, row, &err));
    }
    int64_t full = resident_bytes();
    for (int32_t i = 0; i < CHUNK; i++) pos[i] = i < 4 ? i : CHUNKS * CHUNK - CHUNK + i;
    for (int32_t h = 0; h < HEADS; h++) OK(kvl_seq_keep(seq, 0, h, pos, CHUNK, &err));
    int64_t freed = full - resident_bytes();
    struct kvl_store_stats st = stats(store);
    assert_int_equal(st.n_blocks, HEADS * CHUNK / 16);
    assert_true(freed > (int64_t)(st.peak_bytes - st.bytes) - (8 << 20));
    kvl_free(row);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* Values are stored as kvl_store_round rounds them. */
static void check_rounding(enum kvl_kv_type type, const float *in, const float *want)
{
    struct kvl_store_desc d = {
        .n_layers = 1, .n_kv_heads = 1, .head_dim = DIM * 2, .type = type, .device = device
    };
    struct kvl_store *store;
    struct kvl_seq *seq;
    float out[DIM * 2], rounded[DIM * 2];
    OK(kvl_store_create(&d, &store, &err));
    OK(kvl_seq_create(store, &seq, &err));
    OK(kvl_seq_append(seq, 0, 1, &(int32_t){ 0 }, in, NULL, in, &err));
    OK(kvl_seq_read(seq, 0, 0, KVL_PART_V, 0, 1, out, &err));
    assert_memory_equal(out, want, sizeof out);
    memcpy(rounded, in, sizeof rounded);
    kvl_store_round(store, KVL_PART_V, rounded, DIM * 2);
    assert_memory_equal(rounded, want, sizeof rounded);
    struct kvl_seq_stats st;
    kvl_seq_stats(seq, &st);
    assert_int_equal(st.logical_bytes, 2 * DIM * 2 * 2);
    float k[DIM * 2], v[DIM * 2];
    memcpy(k, in, sizeof k);
    memcpy(v, in, sizeof v);
    OK(kvl_seq_append_rounding(seq, 0, 1, &(int32_t){ 1 }, k, NULL, v, &err));
    assert_memory_equal(k, want, sizeof k);
    assert_memory_equal(v, want, sizeof v);
    OK(kvl_seq_read(seq, 0, 0, KVL_PART_K, 1, 1, out, &err));
    assert_memory_equal(out, want, sizeof out);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* Ties to even, overflow to infinity, tiny ones kept. */
static void test_f16_rounding(void **state)
{
    (void)state;
    const float in[DIM * 2] = { 1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, 65519.0f, 65520.0f,
                                0x1p-25f,        0x1.8p-25f,        -0.0f,    -3.14159265f };
    const float want[DIM * 2] = { 1.0f, 1.0f + 0x1p-9f, 65504.0f, INFINITY,
                                  0.0f, 0x1p-24f,       -0.0f,    -3.140625f };
    check_rounding(KVL_KV_F16, in, want);
}

static void test_bf16_rounding(void **state)
{
    (void)state;
    const float in[DIM * 2] = { 1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, 65519.0f, 3.4e38f,
                                0x1p-134f,      0x1.8p-134f,      -0.0f,    -3.14159265f };
    const float want[DIM * 2] = { 1.0f, 1.0f + 0x1p-6f, 65536.0f, INFINITY,
                                  0.0f, 0x1p-133f,      -0.0f,    -3.140625f };
    check_rounding(KVL_KV_BF16, in, want);
}

/* A row of two blocks, stored and read. */
static void store_q8(const float in[64], float out[64])
{
    struct kvl_store_desc d = {
        .n_layers = 1, .n_kv_heads = 1, .head_dim = 64, .type = KVL_KV_Q8_0, .device = device
    };
    struct kvl_store *store;
    struct kvl_seq *seq;
    struct kvl_seq_stats st;
    float rounded[64];
    OK(kvl_store_create(&d, &store, &err));
    OK(kvl_seq_create(store, &seq, &err));
    OK(kvl_seq_append(seq, 0, 1, &(int32_t){ 0 }, in, NULL, in, &err));
    OK(kvl_seq_read(seq, 0, 0, KVL_PART_K, 0, 1, out, &err));
    memcpy(rounded, in, sizeof rounded);
    kvl_store_round(store, KVL_PART_K, rounded, 64);
#ifdef KVL_TEST_CUDA /* a GPU has a NaN of its own */
    for (int i = 0; i < 64; i++)
        if (isnan(rounded[i]) && isnan(out[i])) rounded[i] = out[i];
#endif
    assert_memory_equal(out, rounded, sizeof rounded);
    kvl_seq_stats(seq, &st);
    assert_int_equal(st.logical_bytes, 2 * 2 * 34);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* Scale 1 and 2: ties to even, signs; a block of zeros beside. */
static void test_q8_0_rounding(void **state)
{
    (void)state;
    const float in[] = { 127.0f, 0.5f, 1.5f, -2.5f, 3.49f, -3.51f, -126.6f, 0x1p-30f };
    const float want[] = { 127.0f, 0.0f, 2.0f, -2.0f, 3.0f, -4.0f, -127.0f, 0.0f };
    for (int at = 0; at < 64; at += 32)
        for (int doubled = 1; doubled <= 2; doubled++) {
            float x[64] = { 0 }, y[64];
            for (int i = 0; i < 8; i++) x[at + 4 * i + 1] = in[i] * (float)doubled;
            store_q8(x, y);
            for (int i = 0; i < 64; i++) {
                bool set = i / 32 == at / 32 && i % 4 == 1;
                float expect = set ? want[(i - at) / 4] * (float)doubled : 0;
                assert_true(y[i] == expect);
            }
        }
}

/* A block whose scale is 0 as a half is zero; one that no half is the scale of, or with a number that is none,
 * is NaN, and the other block is not. */
static void test_q8_0_ends(void **state)
{
    const float none[] = { INFINITY, -INFINITY, NAN, 1e7f, -3e38f };
    (void)state;
    float x[64] = { 0 }, y[64];
    x[3] = 127 * 0x1p-26f;
    x[40] = 8e6f; /* below 127 * 65504 */
    store_q8(x, y);
    assert_true(y[3] == 0);
    assert_true(fabsf(y[40] - 8e6f) <= 8e6f / 2048);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        x[40] = none[i];
        store_q8(x, y);
        for (int c = 0; c < 64; c++) assert_true(c < 32 ? y[c] == 0 : isnan(y[c]));
    }
}

/* Of any size: off by at most 0.57 scales, and the same when it is stored again. */
static void test_q8_0_again(void **state)
{
    struct kvl_rng rng;
    (void)state;
    kvl_rng_seed(&rng, 7);
    for (int round = 0; round < 200; round++) {
        float x[64], y[64], again[64], top[2] = { 0, 0 };
        float size = ldexpf(1, round % 40 - 25);
        for (int i = 0; i < 64; i++) {
            x[i] = (float)(kvl_rng_f64(&rng) * 2 - 1) * size;
            top[i / 32] = KVL_MAX(top[i / 32], fabsf(x[i]));
        }
        store_q8(x, y);
        store_q8(y, again);
        assert_memory_equal(again, y, sizeof y);
        for (int i = 0; i < 64; i++) {
            /* Where a half has fewer digits the scale itself is off by up to 2^-25. */
            float bound = top[i / 32] / 127 * 0.57f + 127 * 0x1p-25f;
            assert_true(fabsf(x[i] - y[i]) <= bound);
        }
    }
}

static void test_q8_0_heads(void **state)
{
    struct kvl_store_desc d = { .n_layers = 1, .n_kv_heads = 1, .type = KVL_KV_Q8_0 };
    struct kvl_store *store;
    (void)state;
    for (d.head_dim = 1; d.head_dim < 128; d.head_dim++) {
        if (d.head_dim % 32 == 0) continue;
        REFUSED(kvl_store_create(&d, &store, &err), KVL_EINVAL, "want a multiple of 32");
    }
}

/* The checker itself: each kind of damage is seen. */
static void test_check_sees_damage(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 1, 0);
    struct kvl_seq *seq;
    OK(kvl_seq_create(store, &seq, &err));
    append(seq, 0, 0, 20);
    struct kvl_table *t = seq->tables;
    int32_t *pos = kvl_block_pos(&store->layout, t->blocks[1]);
    struct kvl_block *block = kvl_block_head(t->blocks[0]);
#define DAMAGE(wound, heal, text)                                                                  \
    do {                                                                                           \
        wound;                                                                                     \
        REFUSED(kvl_store_check(store, &err), KVL_EINTERNAL, text);                                \
        heal;                                                                                      \
        OK(kvl_store_check(store, &err));                                                          \
    } while (0)
    DAMAGE(pos[3] = 2, pos[3] = 11, "position");
    DAMAGE(t->max_pos--, t->max_pos++, "largest position");
    DAMAGE(block->refs++, block->refs--, "references");
    DAMAGE(store->pool.n_refs++, store->pool.n_refs--, "references");
    DAMAGE(store->pool.n_blocks++, store->pool.n_blocks--, "blocks");
    DAMAGE(store->pool.limit_bytes = 64, store->pool.limit_bytes = 0, "bytes in use");
    DAMAGE(store->n_seqs++, store->n_seqs--, "sequences");
#undef DAMAGE
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

int main(void)
{
#ifdef KVL_TEST_CUDA
    if (kvl_device_open("cuda", &device, &err) != KVL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_descriptions),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_fork_shares),
        cmocka_unit_test(test_keep_frees),
        cmocka_unit_test(test_keep_order),
        cmocka_unit_test(test_streaming_golden),
        cmocka_unit_test(test_streaming_steady),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_pool_takes_all_or_none),
        cmocka_unit_test(test_memory_returns),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_q8_0_rounding),
        cmocka_unit_test(test_q8_0_ends),
        cmocka_unit_test(test_q8_0_again),
        cmocka_unit_test(test_q8_0_heads),
        cmocka_unit_test(test_check_sees_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
