/* A store whose keys and values lie in memory of a device, where test_kvstore.c does not judge: what a call costs in
 * copies and launches, memory that runs short, blocks that come and go as they are, the device's own promises.
 * With KVL_TEST_CUDA on the (emulated) GPU; there is nothing to see on the CPU. */
#include "place.h"
#include "restore.h"
#include "store.h"
#include "tier.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef KVL_TEST_CUDA

#include "cuda_host_control.h"

enum { DIM = 8, HEADS = 2, TOK = 8 };

static struct kvl_err err;
static const struct kvl_device *device;

static void ok_at(int rc, int line)
{
    if (rc != KVL_OK) fail_msg("line %d: code %d: %s", line, rc, err.msg);
}
#define OK(expr) ok_at((expr), __LINE__)

static struct kvl_store *store_of(int32_t layers, size_t limit_blocks)
{
    struct kvl_store_desc d = { .n_layers = layers,
                                .n_kv_heads = HEADS,
                                .head_dim = DIM,
                                .block_tok = TOK,
                                .type = KVL_KV_F32,
                                .device = device };
    struct kvl_store *store;
    struct kvl_store_stats st;
    OK(kvl_store_create(&d, &store, &err));
    if (limit_blocks == 0) return store;
    kvl_store_stats(store, &st);
    kvl_store_destroy(store);
    d.limit_bytes = limit_blocks * st.block_bytes;
    OK(kvl_store_create(&d, &store, &err));
    return store;
}

/* Rows of a head hold their position, plus a quarter in head 1. */
static int append(struct kvl_seq *seq, int32_t layer, int32_t from, int32_t n, float *rows)
{
    int32_t pos[512];
    for (int32_t i = 0; i < n; i++) {
        pos[i] = from + i;
        for (int32_t c = 0; c < HEADS * DIM; c++)
            rows[i * HEADS * DIM + c] = (float)(from + i) + 0.25f * (float)(c / DIM);
    }
    return kvl_seq_append(seq, layer, n, pos, rows, NULL, rows, &err);
}

static void expect_lane(const struct kvl_seq *seq, int32_t layer, int32_t head)
{
    static float rows[1024 * DIM];
    int32_t pos[1024], n = kvl_seq_len(seq, layer, head);
    kvl_seq_positions(seq, layer, head, pos);
    for (int part = 0; part < 2; part++) {
        OK(kvl_seq_read(seq, layer, head, (enum kvl_kv_part)part, 0, n, rows, &err));
        for (int32_t i = 0; i < n * DIM; i++)
            assert_true(rows[i] == (float)pos[i / DIM] + 0.25f * (float)head);
    }
}

static struct kvl_device_traffic traffic(void)
{
    struct kvl_device_traffic t;
    device->traffic(&t);
    return t;
}

/* An append is one launch, whatever the number of heads and blocks; the list of spans travels, and rows that the host
 * has just written, and nobody waits. */
static void test_append_cost(void **state)
{
    const size_t row = HEADS * DIM * sizeof(float);
    (void)state;
    struct kvl_store *store = store_of(1, 0);
    struct kvl_seq *seq, *fork;
    float *rows = device->alloc(KVL_PLACE_SHARED, 128 * HEADS * DIM, sizeof *rows);
    assert_non_null(rows);
    OK(kvl_seq_create(store, &seq, &err));
    OK(append(seq, 0, 0, 100, rows));
    OK(device->sync());
    struct kvl_device_traffic a = traffic();
    OK(append(seq, 0, 100, 20, rows));
    struct kvl_device_traffic b = traffic();
    assert_int_equal(b.n_launches - a.n_launches, 1);
    assert_int_equal(b.n_syncs - a.n_syncs, 0);
    assert_int_equal(b.h2d_calls - a.h2d_calls, 2);
    assert_int_equal(b.h2d_bytes - a.h2d_bytes, HEADS * 3 * sizeof(struct kvl_kv_span) + 20 * row);
    assert_int_equal(b.d2h_calls - a.d2h_calls, 0);

    /* The table of a lane goes to the device when somebody looks, and once; new blocks with their rows. */
    (void)kvl_seq_lane(seq, 0, 1);
    OK(device->sync());
    OK(append(seq, 0, 120, 1, rows));
    b = traffic();
    (void)kvl_seq_lane(seq, 0, 1);
    assert_int_equal(traffic().h2d_calls, b.h2d_calls);

    /* A fork takes the tables over on the device; its first write copies one block per lane. */
    OK(device->sync());
    a = traffic();
    OK(kvl_seq_fork(seq, &fork, &err));
    (void)kvl_seq_lane(fork, 0, 1);
    b = traffic();
    assert_int_equal(b.h2d_calls - a.h2d_calls, 0);
    assert_int_equal(b.d2d_calls - a.d2d_calls, 1);
    OK(append(fork, 0, 121, 1, rows));
    assert_int_equal(traffic().n_launches - b.n_launches, 3); /* out, in, put */
    for (int32_t h = 0; h < HEADS; h++) {
        expect_lane(seq, 0, h);
        expect_lane(fork, 0, h);
    }
    OK(kvl_store_check(store, &err));
    OK(device->sync());
    device->free(KVL_PLACE_SHARED, rows);
    kvl_seq_destroy(fork);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* Rows that hooks will see are rounded by the launch that stores them, and become what the store itself makes of them;
 * keys before RoPE stay.  Types that rows of attention are widened from take launches of their own. */
static void append_rounding(enum kvl_kv_type type, int32_t dim)
{
    enum { N = 20, WIDE = 64, MOST = N * HEADS * WIDE };
    const int32_t n_floats = N * HEADS * dim;
    struct kvl_store_desc d = { .n_layers = 1,
                                .n_kv_heads = HEADS,
                                .head_dim = dim,
                                .block_tok = TOK,
                                .type = type,
                                .raw_keys = true,
                                .device = device };
    struct kvl_store *store;
    struct kvl_seq *seq;
    static float want[2][MOST];
    float *rows[3];
    int32_t pos[N];
    OK(kvl_store_create(&d, &store, &err));
    OK(kvl_seq_create(store, &seq, &err));
    for (int part = 0; part < 3; part++) {
        rows[part] = device->alloc(KVL_PLACE_SHARED, (size_t)n_floats, sizeof(float));
        assert_non_null(rows[part]);
        for (int i = 0; i < n_floats; i++)
            rows[part][i] = sinf((float)(i * (3 + part))) * (i % 7 == 0 ? 9.0f : 0.3f);
    }
    for (int32_t i = 0; i < N; i++) pos[i] = i;
    for (int part = 0; part < 2; part++) {
        memcpy(want[part], rows[part], (size_t)n_floats * sizeof **want);
        kvl_store_round(store, (enum kvl_kv_part)part, want[part], (size_t)n_floats);
    }
    struct kvl_device_traffic before = traffic();
    OK(kvl_seq_append_rounding(seq, 0, N, pos, rows[0], rows[2], rows[1], &err));
    int64_t launches = traffic().n_launches - before.n_launches;
    if (type <= KVL_KV_Q8_0) assert_int_equal(launches, 1);
    OK(device->sync());
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < n_floats; i++)
            if (rows[part][i] != want[part][i])
                fail_msg("%s, heads of %d, part %d, element %d: %g, want %g",
                         kvl_kv_name(type).text, dim, part, i, (double)rows[part][i],
                         (double)want[part][i]);
    for (int i = 0; i < n_floats; i++)
        assert_true(rows[2][i] == sinf((float)(i * 5)) * (i % 7 == 0 ? 9.0f : 0.3f));
    for (int part = 0; part < 3; part++) device->free(KVL_PLACE_SHARED, rows[part]);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

static void test_append_rounding(void **state)
{
    (void)state;
    const enum kvl_kv_type type[] = { KVL_KV_F32, KVL_KV_F16, KVL_KV_BF16, KVL_KV_Q8_0,
                                      kvl_kv_pair(KVL_KV_Q8_0, KVL_KV_F16) };
    for (size_t i = 0; i < sizeof type / sizeof type[0]; i++) {
        append_rounding(type[i], 64);
        /* No whole vector: stored element by element.  Q8_0 has blocks of 32. */
        if (i < 3) append_rounding(type[i], 6);
    }
}

/* Moves beyond the room of the lists go in several calls. */
static void test_many_moves(void **state)
{
    (void)state;
    enum { N = 512, ROUNDS = 24 }; /* 12288 slots */
    struct kvl_store *store = store_of(1, 0);
    struct kvl_seq *seq;
    static float rows[N * HEADS * DIM];
    static int32_t keep[N * ROUNDS];
    static float got[N * ROUNDS * DIM];
    int32_t n = 0;
    OK(kvl_seq_create(store, &seq, &err));
    for (int32_t i = 0; i < ROUNDS; i++) OK(append(seq, 0, i * N, N, rows));
    for (int32_t p = 0; p < N * ROUNDS; p++)
        if (p % 2 == 0) keep[n++] = p;
    struct kvl_device_traffic a = traffic();
    OK(kvl_seq_keep(seq, 0, 0, keep, n, &err));
    assert_int_equal(traffic().n_launches - a.n_launches, 4);
    OK(kvl_seq_read(seq, 0, 0, KVL_PART_V, 0, n, got, &err));
    for (int32_t i = 0; i < n * DIM; i++) assert_true(got[i] == (float)keep[i / DIM]);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* The n-th allocation of the device fails: everything is as it was, and the same call succeeds then. */
static void test_no_memory(void **state)
{
    (void)state;
    static float rows[512 * HEADS * DIM];
    int32_t n_failed = 0;
    for (int64_t nth = 1;; nth++) {
        struct kvl_store *store = store_of(1, 0);
        struct kvl_seq *seq, *fork;
        OK(kvl_seq_create(store, &seq, &err));
        OK(append(seq, 0, 0, 500, rows));
        OK(device->sync()); /* nothing waits to be freed, so that nothing is tried twice */
        kvl_emu_fail(KVL_EMU_MALLOC, nth, 2); /* cudaErrorMemoryAllocation */
        int rc = append(seq, 0, 500, 492, rows);
        if (rc != KVL_OK) {
            assert_int_equal(rc, KVL_ENOMEM);
            assert_true(err.msg[0] != '\0');
            kvl_err_clear(&err);
            assert_int_equal(kvl_seq_len(seq, 0, 1), 500);
            OK(kvl_store_check(store, &err));
            expect_lane(seq, 0, 1);
            OK(append(seq, 0, 500, 492, rows));
        }
        OK(device->sync());
        int rc_fork = kvl_seq_fork(seq, &fork, &err);
        if (rc_fork != KVL_OK) {
            assert_int_equal(rc_fork, KVL_ENOMEM);
            kvl_err_clear(&err);
            OK(kvl_store_check(store, &err));
            OK(kvl_seq_fork(seq, &fork, &err));
        }
        kvl_emu_fail(KVL_EMU_MALLOC, 0, 0);
        for (int32_t h = 0; h < HEADS; h++) {
            expect_lane(seq, 0, h);
            expect_lane(fork, 0, h);
        }
        assert_string_equal(device->error(), "");
        kvl_seq_destroy(fork);
        kvl_seq_destroy(seq);
        kvl_store_destroy(store);
        n_failed += rc != KVL_OK || rc_fork != KVL_OK;
        if (rc == KVL_OK && rc_fork == KVL_OK && nth > 4) break;
    }
    assert_true(n_failed >= 2); /* tables, the fork's tables */
}

/* More arguments in host memory than there is room for at once: a call that ends there, not a device. */
static void test_no_temporary_memory(void **state)
{
    (void)state;
    enum { PARTS = 64, N_HEADS = 64, WIDTH = 128, LEFT = 900 << 10 };
    static float part[N_HEADS * WIDTH], lse[N_HEADS], out[N_HEADS * WIDTH];
    const float *parts[PARTS], *lses[PARTS];
    struct kvl_emu_counts n;
    for (int i = 0; i < N_HEADS * WIDTH; i++) part[i] = 3;
    for (int i = 0; i < PARTS; i++) parts[i] = part, lses[i] = lse;
    struct kvl_attn_merge_args a = { .out = out,
                                     .part = parts,
                                     .part_lse = lses,
                                     .n_parts = PARTS,
                                     .n_heads = N_HEADS,
                                     .head_dim = WIDTH };
    kvl_emu_counts(&n);
    kvl_emu_memory_limit((size_t)n.device_bytes + LEFT);
    assert_int_equal(device->ops_now->attn_merge(&a), KVL_ENOMEM);
    assert_string_equal(device->error(), "");
    kvl_emu_memory_limit(0);
    OK(device->ops_now->attn_merge(&a));
    assert_true(out[0] > 2.9999f && out[N_HEADS * WIDTH - 1] > 2.9999f);
}

/* The first product of this process, which opens cuBLAS. */
static void test_no_memory_for_products(void **state)
{
    (void)state;
    static const uint16_t w[8 * 8] = { 0x3f80 }; /* bf16: 1, then zeros */
    static const float x[8] = { 5 };
    float y[8] = { 0 };
    struct kvl_weight weight = { w, KVL_W_BF16, 8, 8, 16 };
    struct kvl_gemm_args a = { .y = y, .x = x, .w = &weight, .n = 1, .bf16 = true };
    OK(device->ops_now->add(&(struct kvl_add_args){ .y = y, .x = y, .n = 8 })); /* settles memory */
    kvl_emu_fail(KVL_EMU_MALLOC, 1, 2); /* cudaErrorMemoryAllocation */
    assert_int_equal(device->ops_now->gemm(&a), KVL_ENOMEM);
    kvl_emu_fail(KVL_EMU_MALLOC, 0, 0);
    assert_string_equal(device->error(), "");
    OK(device->ops_now->gemm(&a));
    assert_true(y[0] == 5.0f && y[1] == 0.0f);
}

/* What blocks hold leaves and comes back as it is, in few copies. */
static void test_blocks_out_and_in(void **state)
{
    (void)state;
    enum { BLOCKS = 12 };
    struct kvl_store *store = store_of(1, 0);
    struct kvl_seq *seq, *back;
    static float rows[BLOCKS * TOK * HEADS * DIM];
    uint8_t *out[HEADS * BLOCKS];
    size_t bytes;
    OK(kvl_seq_create(store, &seq, &err));
    OK(kvl_seq_create(store, &back, &err));
    OK(append(seq, 0, 0, BLOCKS * TOK, rows));
    assert_int_equal(kvl_layout_data(&store->layout, &bytes), 0);
    uint8_t *stage = device->alloc(KVL_PLACE_PINNED, HEADS * BLOCKS, bytes);
    assert_non_null(stage);
    struct kvl_device_traffic a = traffic();
    for (int32_t h = 0; h < HEADS; h++)
        OK(kvl_blocks_read(store, kvl_seq_lane(seq, 0, h).blocks, BLOCKS,
                           stage + (size_t)(h * BLOCKS) * bytes, &err));
    struct kvl_device_traffic b = traffic();
    assert_int_equal(b.d2h_calls - a.d2h_calls, HEADS);
    assert_int_equal(b.d2h_bytes - a.d2h_bytes, HEADS * BLOCKS * bytes);
    OK(device->sync());
    OK(kvl_seq_restore(back, 0, 0, BLOCKS * TOK, BLOCKS * TOK, out, &err));
    a = traffic();
    OK(kvl_blocks_write(store, out, HEADS * BLOCKS, stage, &err));
    assert_int_equal(traffic().h2d_calls - a.h2d_calls, 1);
    for (int32_t h = 0; h < HEADS; h++) expect_lane(back, 0, h);
    OK(kvl_store_check(store, &err));
    device->free(KVL_PLACE_PINNED, stage);
    kvl_seq_destroy(back);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* What eviction frees goes back to the device with the next sync, and is counted until then. */
static void test_memory_returns(void **state)
{
    (void)state;
    struct kvl_device_memory m;
    OK(device->sync());
    device->memory(&m);
    size_t before = m.place_bytes[KVL_PLACE_DEVICE];
    struct kvl_store *store = store_of(1, 0);
    struct kvl_seq *seq;
    static float rows[512 * HEADS * DIM];
    OK(kvl_seq_create(store, &seq, &err));
    for (int32_t i = 0; i < 100; i++) OK(append(seq, 0, i * 512, 512, rows));
    device->memory(&m);
    assert_true(m.place_bytes[KVL_PLACE_DEVICE] >= before + 100 * 512 * HEADS * DIM * 4);
    size_t full = m.place_bytes[KVL_PLACE_DEVICE];
    int32_t pos[] = { 51199 };
    for (int32_t h = 0; h < HEADS; h++) OK(kvl_seq_keep(seq, 0, h, pos, 1, &err));
    device->memory(&m);
    assert_int_equal(m.place_bytes[KVL_PLACE_DEVICE], full);
    OK(device->sync());
    device->memory(&m);
    assert_true(m.place_bytes[KVL_PLACE_DEVICE] < full - (full - before) / 4);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
    OK(device->sync());
    device->memory(&m);
    assert_int_equal(m.place_bytes[KVL_PLACE_DEVICE], before);
}

/* More than the ring of uploads holds, with nobody waiting: every byte arrives. */
static void test_upload_wraps(void **state)
{
    (void)state;
    enum { BYTES = 37 << 20, N = 5 };
    uint8_t *host = test_malloc(BYTES), *back = test_malloc(BYTES);
    uint8_t *there = device->alloc(KVL_PLACE_DEVICE, BYTES, 1);
    assert_non_null(there);
    for (size_t i = 0; i < BYTES; i++) host[i] = (uint8_t)(i * 7 + (i >> 12));
    size_t at = 0;
    for (int i = 0; i < N; i++) { /* pieces of odd lengths */
        size_t n = i < N - 1 ? (size_t)BYTES / N + (size_t)i * 1003 : (size_t)BYTES - at;
        OK(device->copy(there + at, host + at, n, KVL_STREAM_MAIN));
        memcpy(back, host + at, n);
        memset(host + at, 0, n); /* it has been read */
        memcpy(host + at, back, n);
        at += n;
    }
    OK(device->copy(back, there, BYTES, KVL_STREAM_MAIN));
    assert_memory_equal(host, back, BYTES);
    device->free(KVL_PLACE_DEVICE, there);
    test_free(host);
    test_free(back);
}

/* Neighbours move in one copy; what is shared stays for who shares it, and what is not full where it is. */
static void test_place_cost(void **state)
{
    (void)state;
    struct kvl_store *store = store_of(1, 0);
    struct kvl_store_stats st;
    struct kvl_seq *seq, *fork;
    float rows[100 * HEADS * DIM];
    OK(kvl_seq_create(store, &seq, &err));
    OK(append(seq, 0, 0, 100, rows));
    OK(kvl_seq_fork(seq, &fork, &err));
    struct kvl_device_traffic a = traffic();
    OK(kvl_seq_to_host(seq, 0, &err));
    struct kvl_device_traffic b = traffic();
    assert_int_equal(b.d2h_calls - a.d2h_calls, HEADS);
    assert_int_equal(b.d2h_bytes - a.d2h_bytes, HEADS * 96 * 2 * DIM * sizeof(float));
    assert_int_equal(kvl_seq_host_slots(seq, 0), HEADS * 96);
    assert_int_equal(kvl_seq_host_slots(fork, 0), 0);
    kvl_seq_destroy(fork);
    OK(kvl_store_check(store, &err));
    assert_int_equal(store->pool.n_blocks, HEADS); /* of the last tokens */
    assert_int_equal(store->host.n_blocks, HEADS * 12);

    /* A second time there is nothing to do, and what comes new goes to the device. */
    a = traffic();
    OK(kvl_seq_to_host(seq, 0, &err));
    assert_int_equal(traffic().d2h_calls, a.d2h_calls);
    OK(append(seq, 0, 100, 50, rows));
    assert_int_equal(kvl_seq_host_slots(seq, 0), HEADS * 96);
    for (int32_t h = 0; h < HEADS; h++) expect_lane(seq, 0, h);
    OK(kvl_seq_to_device(seq, 0, &err));
    assert_int_equal(kvl_seq_host_slots(seq, 0), 0);
    assert_int_equal(store->host.n_blocks, 0);
    for (int32_t h = 0; h < HEADS; h++) expect_lane(seq, 0, h);

    /* Nothing but blocks of the sequence was ever there twice. */
    kvl_store_stats(store, &st);
    assert_int_equal(st.peak_bytes, HEADS * (12 + 1 + 12) * st.block_bytes);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

/* "Any two places": between ordinary and pinned memory too, as a snapshot of blocks of the host tier does. */
static void test_any_two_places(void **state)
{
    (void)state;
    enum { BYTES = 1000 };
    for (int from = 0; from < KVL_PLACES; from++)
        for (int to = 0; to < KVL_PLACES; to++) {
            uint8_t *x = device->alloc((enum kvl_place)from, BYTES, 1), want[BYTES], got[BYTES];
            uint8_t *y = device->alloc((enum kvl_place)to, BYTES, 1);
            assert_true(x && y);
            for (int i = 0; i < BYTES; i++) want[i] = (uint8_t)(i * 7 + 4 * from + to);
            OK(device->copy(x, want, BYTES, KVL_STREAM_MAIN));
            OK(device->copy(y, x, BYTES, KVL_STREAM_MAIN));
            OK(device->copy(got, y, BYTES, KVL_STREAM_MAIN));
            assert_memory_equal(got, want, BYTES);
            device->free((enum kvl_place)from, x);
            device->free((enum kvl_place)to, y);
        }
}

/* One stream after the other, and operators on a mirror of host memory. */
static void test_order_and_mirror(void **state)
{
    (void)state;
    enum { N = 1000 };
    float host[N], sum[N];
    uint8_t *pinned = device->alloc(KVL_PLACE_PINNED, sizeof host, 1);
    float *there = device->alloc(KVL_PLACE_DEVICE, N, sizeof *there);
    assert_true(pinned && there);
    for (int i = 0; i < N; i++) host[i] = (float)i;
    memcpy(pinned, host, sizeof host);
    for (int round = 0; round < 8; round++) { /* the emulation mixes streams: by luck is seldom */
        OK(device->fill(there, 0xff, sizeof host, KVL_STREAM_MAIN));
        OK(device->order(KVL_STREAM_MAIN, KVL_STREAM_COPY));
        OK(device->copy(there, pinned, sizeof host, KVL_STREAM_COPY));
        OK(device->order(KVL_STREAM_COPY, KVL_STREAM_MAIN));
        OK(device->ops->scale(&(struct kvl_scale_args){ .y = there, .n = N, .factor = 0.5f }));
        OK(device->copy(sum, there, sizeof sum, KVL_STREAM_MAIN));
        assert_true(sum[0] == 0.0f && sum[257] == 128.5f && sum[999] == 499.5f);
    }
    OK(device->mirror(host, sizeof host));
    host[5] = 77.0f; /* not seen: operators read the copy */
    memset(sum, 0, sizeof sum);
    OK(device->ops_now->add(&(struct kvl_add_args){ .y = sum, .x = host, .n = N }));
    assert_true(sum[5] == 5.0f && sum[999] == 999.0f);
    device->unmirror(host);
    memset(sum, 0, sizeof sum);
    OK(device->ops_now->add(&(struct kvl_add_args){ .y = sum, .x = host, .n = N }));
    assert_true(sum[5] == 77.0f);
    device->free(KVL_PLACE_PINNED, pinned);
    device->free(KVL_PLACE_DEVICE, there);
}

static int keep_but(struct kvl_seq *seq, int32_t first, int32_t n)
{
    int32_t pos[512], kept[512], n_kept = 0, len = kvl_seq_len(seq, 0, 0);
    kvl_seq_positions(seq, 0, 0, pos);
    for (int32_t at = 0; at < 512; at++) { /* ascending */
        bool live = false;
        for (int32_t i = 0; i < len; i++) live = live || pos[i] == at;
        if (live && (at < first || at >= first + n)) kept[n_kept++] = at;
    }
    for (int32_t h = 0; h < HEADS; h++) KVL_TRY(kvl_seq_keep(seq, 0, h, kept, n_kept, &err));
    return KVL_OK;
}

static void guess_survives(struct kvl_store *store, const struct kvl_tier_desc *d)
{
    static float rows[512 * HEADS * DIM];
    float got[TOK * DIM];
    struct kvl_seq *seq;
    struct kvl_tier *tier;
    struct kvl_run run[4];
    int32_t n;
    OK(kvl_seq_create(store, &seq, &err));
    OK(append(seq, 0, 0, 8 * TOK, rows));
    OK(keep_but(seq, TOK, TOK - 1)); /* the end fills the hole: the order is lost */
    OK(kvl_tier_create(store, d, &tier, &err));
    OK(kvl_tier_age(tier, seq, 0, 8 * TOK));
    OK(device->sync());
    assert_true(kvl_tier_guess(tier, 0, 0, 8 * TOK - 1));
    OK(kvl_tier_want(tier, 0, 0, 6 * TOK, TOK));
    OK(kvl_tier_fetch(tier, seq, 0, 0, &n));
    OK(kvl_tier_send(tier));
    assert_int_equal(n, 1);
    OK(keep_but(seq, 2 * TOK, TOK + 1)); /* its slots move, and their block is free */
    OK(append(seq, 0, 8 * TOK, 2 * TOK, rows));
    kvl_tier_begin(tier, 0, 0);
    OK(kvl_tier_want(tier, 0, 0, 6 * TOK, TOK));
    OK(kvl_tier_fetch(tier, seq, 0, 0, &n));
    OK(kvl_tier_await(tier));
    assert_int_equal(n, 0);
    assert_int_equal(kvl_tier_map(tier, 0, 0, 6 * TOK, 2 * TOK, TOK, run, 0), 1);
    struct kvl_lane view = kvl_tier_view(tier, 0, 0);
    OK(device->ops_now->lane_read(&(struct kvl_lane_read_args){ .out = got,
                                                                .stride = DIM,
                                                                .lane = &view,
                                                                .part = KVL_PART_K,
                                                                .slot0 = run[0].slot,
                                                                .n = TOK }));
    for (int32_t i = 0; i < TOK * DIM; i++) assert_true(got[i] == (float)(6 * TOK + i / DIM));
    kvl_tier_destroy(tier);
    kvl_seq_destroy(seq);
}

/* What comes ahead of its request is read before the blocks that it comes from are written again, in lanes
 * out of order too, none of whose blocks moved to the host. */
static void test_guess_survives(void **state)
{
    (void)state;
    const struct kvl_tier_desc d = { .keep_last = TOK, .unit_tok = TOK, .cache_tok = 8 * TOK };
    for (uint64_t seed = 1; seed <= 16; seed++) {
        struct kvl_store *store = store_of(1, 0);
        kvl_emu_seed(seed);
        guess_survives(store, &d);
        kvl_store_destroy(store);
    }
    kvl_emu_seed(1);
}

/* A failed launch is kept with its kernel, and every later call gives it again. */
static void test_sticky(void **state)
{
    (void)state;
    static float rows[64 * HEADS * DIM];
    struct kvl_store *store = store_of(1, 0);
    struct kvl_seq *seq;
    OK(kvl_seq_create(store, &seq, &err));
    OK(append(seq, 0, 0, 20, rows));
    OK(device->sync());
    kvl_emu_fail(KVL_EMU_RUN, 1, 700); /* cudaErrorIllegalAddress */
    int rc = append(seq, 0, 20, 20, rows);
    if (rc == KVL_OK) rc = device->sync();
    assert_int_equal(rc, KVL_EDEVICE);
    assert_non_null(strstr(device->error(), "kv_put_kernel"));
    assert_non_null(strstr(device->error(), "illegal memory access"));
    kvl_err_clear(&err);
    assert_int_equal(append(seq, 0, 40, 1, rows), KVL_EDEVICE);
    assert_non_null(strstr(err.msg, "illegal memory access"));
    kvl_err_clear(&err);
    assert_int_equal(device->sync(), KVL_EDEVICE);
    assert_null(device->alloc(KVL_PLACE_DEVICE, 1, 1));
    assert_int_equal(device->ops->add(&(struct kvl_add_args){ .y = rows, .x = rows, .n = 1 }),
                     KVL_EDEVICE);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_temporary_memory), /* before there is more of it */
        cmocka_unit_test(test_no_memory_for_products),
        cmocka_unit_test(test_place_cost),
        cmocka_unit_test(test_append_cost),
        cmocka_unit_test(test_append_rounding),
        cmocka_unit_test(test_many_moves),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_blocks_out_and_in),
        cmocka_unit_test(test_memory_returns),
        cmocka_unit_test(test_upload_wraps),
        cmocka_unit_test(test_order_and_mirror),
        cmocka_unit_test(test_any_two_places),
        cmocka_unit_test(test_guess_survives),
        cmocka_unit_test(test_sticky), /* the last */
    };
    if (kvl_device_open("cuda", &device, &err) != KVL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 77; /* left out */
}

#endif
