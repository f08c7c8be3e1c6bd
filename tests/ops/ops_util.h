/* ops_util.h - what the operator tests share: random data, lanes built by hand, comparisons, and a
 * loop over every instruction set this machine has, with 1 and 2 threads. */
#ifndef KVL_OPS_UTIL_H
#define KVL_OPS_UTIL_H

#include "cpu.h"
#include "half.h"
#include "kv_rows.h"
#include "kvl/ops.h"
#include "kvl/rng.h"
#include "lane.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_LANES 8

/* An emulated GPU takes whole tiles for a chunk of one, and its time for long contexts and for rows that are cut into
 * chunks. */
#ifdef KVL_TEST_CUDA
#define UT_SMALL_CHUNKS 17
#define UT_CHUNKED      170
#define UT_LONG_CONTEXT 1536
#else
#define UT_SMALL_CHUNKS 1, 7
#define UT_CHUNKED      333
#define UT_LONG_CONTEXT 8192
#endif

/* Whether the emulated GPU leaves out the pair of two sweeps: half of them unless KVL_LONG is set, and none of either
 * sweep. */
static inline bool ut_left_out(int32_t i, int32_t j)
{
#ifdef KVL_TEST_CUDA
    return (i + j) % 2 != 0 && !getenv("KVL_LONG");
#else
    (void)i, (void)j;
    return false;
#endif
}

static inline void *ut_alloc(size_t n, size_t item)
{
    void *p = kvl_alloc(n ? n : 1, item);
    assert_non_null(p);
    return p;
}

/* Outputs start as NaN, so that an element that is not written shows. */
static inline float *ut_poison(size_t n)
{
    float *p = ut_alloc(n, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = NAN;
    return p;
}

static inline void ut_fill(struct kvl_rng *r, float *x, size_t n, double amplitude)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)((kvl_rng_f64(r) * 2 - 1) * amplitude);
}

static inline float *ut_random(struct kvl_rng *r, size_t n, double amplitude)
{
    float *x = ut_alloc(n, sizeof *x);
    ut_fill(r, x, n, amplitude);
    return x;
}

/* |a - b| <= tol * (1 + |b|) everywhere; equal infinities are equal, NaN never is. */
static inline void ut_near(const char *what, const float *a, const float *b, size_t n, double tol)
{
    for (size_t i = 0; i < n; i++) {
        double x = (double)a[i], y = (double)b[i];
        if (x == y || fabs(x - y) <= tol * (1 + fabs(y))) continue;
        fail_msg("%s[%zu] = %.9g, want %.9g (isa %s, %d threads)", what, i, x, y, kvl_ops_isa(),
                 kvl_ops_threads());
    }
}

static inline void ut_same(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s[%zu] = %.9g, want exactly %.9g (isa %s, %d threads)", what, i,
                     (double)a[i], (double)b[i], kvl_ops_isa(), kvl_ops_threads());
}

/* Runs `body` for every instruction set of this machine, by turns with one thread and with two, and the best
 * one (with KVL_LONG each) with both; once where the operators are those of a GPU. */
typedef void (*ut_body)(struct kvl_rng *r);
#ifdef KVL_TEST_CUDA
static inline void ut_each_isa(ut_body body)
{
    struct kvl_rng r;
    kvl_rng_seed(&r, 1);
    body(&r);
}
#else
static inline void ut_each_isa(ut_body body)
{
    static const char *const names[] = { "scalar", "avx2", "avx512", "avx512bf16" };
    enum { N = sizeof names / sizeof *names };
    const size_t first =
        getenv("KVL_AVX512_HOST") ? 2 : 0; /* ops/avx512_host: slow, so once each */
    size_t best = 0;
    int n_sets = 0;
    for (size_t i = first; i < N; i++)
        if (kvl_kern_select(names[i])) best = i;
    for (size_t i = first; i < N; i++) {
        struct kvl_rng r;
        if (!kvl_kern_select(names[i])) continue;
        bool both = (i == best && first == 0) || getenv("KVL_LONG");
        for (int32_t threads = 1; threads <= 2; threads++) {
            if (!both && threads != 1 + n_sets % 2) continue;
            kvl_ops_set_threads(threads);
            kvl_rng_seed(&r, 1);
            body(&r);
        }
        n_sets++;
    }
    kvl_ops_set_threads(0);
    assert_true(n_sets > 0);
}
#endif

static inline int32_t ut_pick(struct kvl_rng *r, const int32_t *v, size_t n)
{
    return v[kvl_rng_below(r, (uint32_t)n)];
}
#define UT_PICK(r, ...)                                                                            \
    ut_pick((r), (const int32_t[]){ __VA_ARGS__ },                                                 \
            sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

static inline int32_t ut_between(struct kvl_rng *r, int32_t lo, int32_t hi)
{
    return lo + (int32_t)kvl_rng_below(r, (uint32_t)(hi - lo + 1));
}

/* What the processor multiplies bf16 keys with. */
static inline void ut_round_bf16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = kvl_bf16_to_f32(kvl_f32_to_bf16(x[i]));
}

/* Lanes whose blocks lie in memory in random order; unused slots of the last block hold poison. */
struct ut_lanes {
    struct kvl_layout layout, sealed; /* sealed: of types that seal */
    struct kvl_lane lane[MAX_LANES];
    const uint8_t **table;
    uint8_t *memory;
};

/* Any type, or a pair of them, that takes such heads; the four that have kernels of their own often. */
static inline enum kvl_kv_type ut_kv_type(struct kvl_rng *r, int32_t head_dim)
{
    int32_t n_types = 0, v;
    while (kvl_kv_facts((enum kvl_kv_type)n_types)) n_types++;
    int32_t k = (int32_t)kvl_rng_below(r, (uint32_t)(kvl_rng_below(r, 2) ? 4 : n_types));
    v = kvl_rng_below(r, 4) ? k : (int32_t)kvl_rng_below(r, (uint32_t)n_types);
    enum kvl_kv_type type = kvl_kv_pair((enum kvl_kv_type)k, (enum kvl_kv_type)v);
    return kvl_kv_check(type, head_dim, NULL) == KVL_OK ? type : KVL_KV_F16;
}

static inline void ut_layout(struct kvl_layout *l, int32_t head_dim, int32_t block_tok,
                             enum kvl_kv_type type, bool raw)
{
    assert_int_equal(kvl_kv_check(type, head_dim, NULL), KVL_OK);
    *l = (struct kvl_layout){ .head_dim = head_dim, .block_tok = block_tok };
    while (1 << l->block_shift < block_tok) l->block_shift++;
    for (int part = 0; part < 3; part++) {
        l->type[part] = part == KVL_PART_V ? kvl_kv_values(type) : kvl_kv_keys(type);
        l->row_bytes[part] = kvl_kv_row_bytes(l->type[part], head_dim);
        l->part_off[part] = part == KVL_PART_K_RAW && !raw ? SIZE_MAX : l->pos_off;
        if (l->part_off[part] != SIZE_MAX)
            l->pos_off += ((size_t)block_tok * l->row_bytes[part] + 63) / 64 * 64;
    }
    l->bytes = l->pos_off + ((size_t)block_tok * 4 + 63) / 64 * 64;
}

/* Whether the processor may multiply rounded numbers. */
static inline bool ut_has_bf16(const struct kvl_layout *l)
{
    return l->type[KVL_PART_K] == KVL_KV_BF16 || l->type[KVL_PART_V] == KVL_KV_BF16;
}

/* Whether rows are turned back by sums, whose last bits are not those of the definition in double: numbers that are
 * then rounded may fall to the other side. */
static inline bool ut_is_turned(const struct kvl_layout *l)
{
    return kvl_kv_facts(l->type[KVL_PART_K])->turn != KVL_TURN_NONE ||
           kvl_kv_facts(l->type[KVL_PART_V])->turn != KVL_TURN_NONE;
}

/* Rows of random numbers, quantised; poison is all ones, which is NaN where a scale or an element is a float. */
static inline void ut_fill_block(struct kvl_rng *r, const struct kvl_layout *l, uint8_t *block,
                                 int32_t n_live)
{
    float x[1024];
    for (int part = 0; part < 3; part++) {
        if (l->part_off[part] == SIZE_MAX) continue;
        uint8_t *row = block + l->part_off[part];
        for (int32_t i = 0; kvl_layout_groups(l, (enum kvl_kv_part)part) && i < l->block_tok;
             i += 32) {
            float group[32 * 512];
            for (int32_t c = 0; c < 32 * l->head_dim; c++)
                group[c] = (float)(kvl_rng_f64(r) * 2 - 1);
            kvl_group_put(l->type[part], row + (size_t)i * l->row_bytes[part], group, l->head_dim);
        }
        if (kvl_layout_groups(l, (enum kvl_kv_part)part)) continue;
        for (int32_t i = 0; i < l->block_tok; i++, row += l->row_bytes[part]) {
            for (int32_t c = 0; c < l->head_dim; c++) x[c] = (float)(kvl_rng_f64(r) * 2 - 1);
            kvl_row_put(l->type[part], row, x, l->head_dim);
            if (i >= n_live) memset(row, 0xff, l->row_bytes[part]);
        }
    }
}

/* Blocks of two sizes where the type seals, on the CPU and where groups fit into blocks; returns how many of n full blocks of
 * a lane are sealed. */
static inline int32_t ut_seal(struct ut_lanes *t, struct kvl_rng *r, int32_t n)
{
    struct kvl_layout *l = &t->layout;
    enum kvl_kv_type type = kvl_kv_pair(l->type[KVL_PART_K], l->type[KVL_PART_V]);
#ifdef KVL_TEST_CUDA
    return 0;
#endif
    if (!kvl_kv_seals(type) || l->block_tok % KVL_KV_GROUP || l->head_dim > 512) return 0;
    t->sealed = *l;
    t->sealed.grouped = true;
    ut_layout(l, l->head_dim, l->block_tok, kvl_kv_open(type),
              t->sealed.part_off[KVL_PART_K_RAW] != SIZE_MAX);
    l->sealed = &t->sealed;
    return (int32_t)kvl_rng_below(r, (uint32_t)n + 1);
}

static inline void ut_lanes_open(struct ut_lanes *t, struct kvl_rng *r, int32_t n_lanes,
                                 int32_t n_slots)
{
    int32_t per_lane = (n_slots + t->layout.block_tok - 1) / t->layout.block_tok;
    int32_t n_blocks = per_lane * n_lanes;
    int32_t n_sealed = ut_seal(t, r, n_slots / t->layout.block_tok);
    int32_t *order = ut_alloc((size_t)n_blocks, sizeof *order);
    assert_true(n_lanes <= MAX_LANES);
    t->memory = ut_alloc((size_t)n_blocks, t->layout.bytes);
    t->table = ut_alloc((size_t)n_blocks, sizeof *t->table);
    for (int32_t i = 0; i < n_blocks; i++) order[i] = i;
    kvl_rng_shuffle(r, order, n_blocks);
    for (int32_t i = 0; i < n_blocks; i++) {
        uint8_t *block = t->memory + (size_t)order[i] * t->layout.bytes;
        int32_t live = n_slots - i % per_lane * t->layout.block_tok;
        ut_fill_block(r, i % per_lane < n_sealed ? &t->sealed : &t->layout, block,
                      KVL_MIN(live, t->layout.block_tok));
        t->table[i] = block;
    }
    for (int32_t i = 0; i < n_lanes; i++)
        t->lane[i] = (struct kvl_lane){ .layout = &t->layout,
                                        .blocks = t->table + i * per_lane,
                                        .n_slots = n_slots,
                                        .n_sealed = n_sealed };
    kvl_free(order);
}

static inline void ut_lanes_close(struct ut_lanes *t)
{
    kvl_free(t->memory);
    kvl_free(t->table);
}

static inline double *ut_inv_freq(int32_t head_dim)
{
    double *f = ut_alloc((size_t)head_dim / 2, sizeof *f);
    for (int32_t i = 0; i < head_dim / 2; i++) f[i] = pow(10000.0, -2.0 * i / head_dim);
    return f;
}

/* The k best of every row, as ref finds them. */
static inline void ut_compare_topk(const float *x, size_t stride, int32_t rows, int32_t n,
                                   int32_t k)
{
    size_t n_y = (size_t)rows * (size_t)k;
    int32_t *y[2] = { ut_alloc(n_y, sizeof **y), ut_alloc(n_y, sizeof **y) };
    for (size_t i = 0; i < n_y; i++) y[0][i] = y[1][i] = -1;
    struct kvl_topk_args a = {
        .index = y[0], .x = x, .x_stride = stride, .n_rows = rows, .n = n, .k = k
    };
    assert_int_equal(kvl_ops_cpu.topk(&a), KVL_OK);
    a.index = y[1];
    assert_int_equal(kvl_ops_ref.topk(&a), KVL_OK);
    for (size_t i = 0; i < n_y; i++)
        if (y[0][i] != y[1][i])
            fail_msg("topk n=%d k=%d: entry %zu is %d, want %d", n, k, i, y[0][i], y[1][i]);
    kvl_free(y[0]);
    kvl_free(y[1]);
}

#endif
