/* attn_prefill_sparse against a softmax under a mask that is marked here pair by pair; a mask that lets
 * everything through is dense attention bit for bit; a row is the same in every chunk. */
#include "ops/ops_util.h"

enum { MAX_HEADS = 24 };

/* A head's lists and, beside them, every pair that they mean: seen [n][past + n]. */
struct sparse_lists {
    int32_t *column, *distance, *off, *block;
    uint8_t *seen;
};

struct sparse_case {
    struct ut_lanes lanes;
    struct kvl_attn_prefill_sparse_args args;
    struct kvl_sparse_head head[MAX_HEADS];
    struct sparse_lists lists[MAX_HEADS];
    float *q, *out[2];
    size_t n_out;
    int32_t past, n_slots;
};

/* Ascending numbers below `below`, each with probability 1 / one_in. */
static int32_t draw(struct kvl_rng *r, int32_t *to, int32_t below, int32_t one_in)
{
    int32_t n = 0;
    for (int32_t i = 0; i < below; i++)
        if (kvl_rng_below(r, (uint32_t)one_in) == 0) to[n++] = i;
    return n;
}

static void see(struct sparse_case *t, int32_t h, int32_t i, int32_t j)
{
    if (j >= 0 && j <= i)
        t->lists[h].seen[(size_t)(i - t->past) * (size_t)t->n_slots + (size_t)j] = 1;
}

static void draw_blocks(struct kvl_rng *r, struct sparse_case *t, int32_t h)
{
    struct kvl_sparse_head *m = &t->head[h];
    struct sparse_lists *l = &t->lists[h];
    int32_t n = 0, tok = m->block_tok, rows = (t->args.n + tok - 1) / tok;
    l->off = ut_alloc((size_t)rows + 1, sizeof *l->off);
    l->block = ut_alloc((size_t)rows * (size_t)(t->n_slots / tok + 1), sizeof *l->block);
    for (int32_t b = 0; b < rows; b++) {
        l->off[b] = n;
        for (int32_t k = 0; k * tok <= t->past + b * tok; k++) {
            if (kvl_rng_below(r, 3) > 0) continue;
            l->block[n++] = k;
            for (int32_t i = b * tok; i < KVL_MIN(t->args.n, (b + 1) * tok); i++)
                for (int32_t j = k * tok; j < (k + 1) * tok; j++) see(t, h, t->past + i, j);
        }
    }
    l->off[rows] = n;
    m->block_off = l->off;
    m->block = l->block;
}

static void draw_ranges(struct kvl_rng *r, struct sparse_case *t, int32_t h)
{
    struct kvl_sparse_head *m = &t->head[h];
    struct sparse_lists *l = &t->lists[h];
    int32_t n = 0, tok = m->block_tok, rows = (t->args.n + tok - 1) / tok;
    l->off = ut_alloc((size_t)rows + 1, sizeof *l->off);
    l->block = ut_alloc((size_t)rows * (size_t)(t->n_slots + 2), sizeof *l->block);
    for (int32_t b = 0; b < rows; b++) {
        int32_t end = t->past + KVL_MIN(t->args.n, (b + 1) * tok), last;
        l->off[b] = n;
        for (int32_t first = ut_between(r, 0, 70); first < end;
             first = last + ut_between(r, 1, 90)) {
            int32_t n_more = ut_between(r, 1, 90); /* KVL_MIN takes its arguments twice */
            last = KVL_MIN(end, first + n_more);
            l->block[2 * n] = first;
            l->block[2 * n++ + 1] = last;
            for (int32_t i = b * tok; i < KVL_MIN(t->args.n, (b + 1) * tok); i++)
                for (int32_t j = first; j < last; j++) see(t, h, t->past + i, j);
        }
    }
    l->off[rows] = n;
    m->ranges = true;
    m->block_off = l->off;
    m->block = l->block;
}

/* What a head reads, of a kind: 0 window, 1 columns and distances, 2 blocks, 3 the chunk and columns,
 * 4 everything together, 5 dense, 6 ranges, 7 ranges and columns. */
static void draw_head(struct kvl_rng *r, struct sparse_case *t, int32_t h, int32_t kind)
{
    struct kvl_sparse_head *m = &t->head[h];
    struct sparse_lists *l = &t->lists[h];
    size_t n = (size_t)t->n_slots;
    l->seen = ut_alloc((size_t)t->args.n * n, 1);
    l->column = ut_alloc(n, sizeof *l->column);
    l->distance = ut_alloc(n, sizeof *l->distance);
    m->dense = kind == 5;
    m->chunk = kind == 3;
    if (kind == 0 || kind == 4) m->sink = ut_between(r, 0, 9);
    if (kind == 0 || kind == 4) m->window = ut_between(r, 0, 90);
    if (kind == 1 || (kind >= 3 && kind != 6)) m->n_columns = draw(r, l->column, t->n_slots, 30);
    if (kind == 1 || kind == 4 || kind == 5) m->n_distances = draw(r, l->distance, t->n_slots, 40);
    m->column = l->column;
    m->distance = l->distance;
    if (kind == 2 || kind == 4 || kind >= 6) m->block_tok = UT_PICK(r, 16, 64, 50);
    if (m->block_tok > 0) (kind >= 6 ? draw_ranges : draw_blocks)(r, t, h);
    for (int32_t i = t->past; i < t->n_slots; i++) {
        see(t, h, i, i);
        for (int32_t j = 0; j < m->sink; j++) see(t, h, i, j);
        for (int32_t d = 0; d < m->window; d++) see(t, h, i, i - d);
        for (int32_t c = 0; c < m->n_columns; c++) see(t, h, i, m->column[c]);
        for (int32_t d = 0; d < m->n_distances; d++) see(t, h, i, i - m->distance[d]);
        for (int32_t j = t->past; m->chunk && j <= i; j++) see(t, h, i, j);
        for (int32_t j = 0; m->dense && j <= i; j++) see(t, h, i, j);
    }
}

/* kind -1: any; heads of a group share lists now and then, or repeat them. */
static void case_open(struct kvl_rng *r, struct sparse_case *t, int32_t past, int32_t n,
                      int32_t kind)
{
    int32_t head_dim = UT_PICK(r, 32, 64, 80, 128, 2, 22, 160, 256);
    int32_t n_kv_heads = ut_between(r, 1, 3), group = ut_between(r, 1, 8);
    enum kvl_kv_type type = ut_kv_type(r, head_dim);
    bool shared = kvl_rng_below(r, 2);
    memset(t, 0, sizeof *t);
    ut_layout(&t->lanes.layout, head_dim, UT_PICK(r, 8, 16, 32), type, false);
    ut_lanes_open(&t->lanes, r, n_kv_heads, past + n);
    t->past = past;
    t->n_slots = past + n;
    t->n_out = (size_t)(n * n_kv_heads * group) * (size_t)head_dim;
    t->q = ut_random(r, t->n_out, 3);
    for (int i = 0; i < 2; i++) t->out[i] = ut_poison(t->n_out);
    t->args = (struct kvl_attn_prefill_sparse_args){ .q = t->q,
                                                     .lanes = t->lanes.lane,
                                                     .head = t->head,
                                                     .n = n,
                                                     .n_heads = n_kv_heads * group,
                                                     .n_kv_heads = n_kv_heads,
                                                     .head_dim = head_dim,
                                                     .scale = 1 / sqrtf((float)head_dim),
                                                     .cap = (float)UT_PICK(r, 0, 0, 2, 30) };
    for (int32_t h = 0; h < n_kv_heads * group; h++) {
        if (shared && h % group > 0)
            t->head[h] = t->head[h - 1];
        else
            draw_head(r, t, h, kind < 0 ? (int32_t)kvl_rng_below(r, 8) : kind);
    }
    for (int32_t h = 1; shared && h < n_kv_heads * group; h++)
        if (h % group > 0) t->lists[h].seen = t->lists[h - 1].seen;
}

static void case_close(struct sparse_case *t)
{
    for (int32_t h = 0; h < t->args.n_heads; h++) {
        struct sparse_lists *l = &t->lists[h];
        if (l->column) kvl_free(l->seen); /* the others borrow */
        kvl_free(l->column);
        kvl_free(l->distance);
        kvl_free(l->off);
        kvl_free(l->block);
    }
    for (int i = 0; i < 2; i++) kvl_free(t->out[i]);
    kvl_free(t->q);
    ut_lanes_close(&t->lanes);
}

static int64_t case_run(struct sparse_case *t, const struct kvl_ops *ops, int i)
{
    int64_t pairs = 0, reads = 0;
    t->args.out = t->out[i];
    t->args.n_pairs = &pairs;
    t->args.n_reads = &reads;
    assert_int_equal(ops->attn_prefill_sparse(&t->args), KVL_OK);
    t->args.n_pairs = t->args.n_reads = NULL;
    assert_true(reads > 0 && reads <= pairs);
    return pairs;
}

/* Row by row under the marked mask, by the oracle of decoding; returns the number of marks. */
static int64_t case_naive(struct sparse_case *t, int i)
{
    const struct kvl_attn_prefill_sparse_args *a = &t->args;
    size_t dim = (size_t)a->head_dim, n = (size_t)t->n_slots;
    int64_t pairs = 0;
    for (int32_t row = 0; row < a->n; row++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            size_t at = ((size_t)row * (size_t)a->n_heads + (size_t)h) * dim;
            const uint8_t *seen = t->lists[h].seen + (size_t)row * n;
            float lse;
            struct kvl_attn_masked_args m = {
                .out = t->out[i] + at,
                .lse = &lse,
                .q = a->q + at,
                .lane = &a->lanes[h / (a->n_heads / a->n_kv_heads)],
                .mask = seen,
                .n_slots = t->n_slots,
                .n_heads = 1,
                .head_dim = a->head_dim,
                .scale = a->scale,
                .cap = a->cap,
            };
            for (size_t j = 0; j < n; j++) pairs += seen[j];
            assert_int_equal(kvl_ops_ref.attn_masked(&m), KVL_OK);
        }
    return pairs;
}

static void body_reference(struct kvl_rng *r)
{
    static const int32_t sizes[][2] = { { 0, 1 },    { 0, 33 },   { 5, 3 },   { 63, 2 },
                                        { 127, 2 },  { 0, 130 },  { 200, 7 }, { 60, 70 },
                                        { 99, 211 }, { 300, 64 },
#ifdef KVL_TEST_CUDA
                                        { 4090, 9 }
#endif
    };
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        struct sparse_case t;
        case_open(r, &t, sizes[i / 2][0], sizes[i / 2][1], i % 2 ? (int32_t)(i / 2 % 6) : -1);
        int64_t pairs = case_naive(&t, 0);
        assert_int_equal(case_run(&t, &kvl_ops_ref, 1), pairs);
        ut_near("ref", t.out[1], t.out[0], t.n_out, 1e-6);
        assert_int_equal(case_run(&t, &kvl_ops_cpu, 1), pairs);
        ut_near("cpu", t.out[1], t.out[0], t.n_out, 2e-5);
        t.args.bf16 = true;
        assert_int_equal(case_run(&t, &kvl_ops_cpu, 1), pairs);
        case_run(&t, &kvl_ops_ref, 0);
        ut_near("bf16", t.out[1], t.out[0], t.n_out, 1e-2);
        case_close(&t);
    }
}

static void test_reference(void **state)
{
    (void)state;
    ut_each_isa(body_reference);
}

/* Everything by one kind of list or another. */
static void body_everything(struct kvl_rng *r)
{
    for (int32_t kind = 0; kind < 5; kind++) {
        struct sparse_case t;
        case_open(r, &t, 77, 190, kind);
        for (int32_t h = 0; h < t.args.n_heads; h++) {
            struct kvl_sparse_head *m = &t.head[h];
            struct sparse_lists *l = &t.lists[h];
            if (!l->column) { /* as the head before it */
                *m = t.head[h - 1];
                continue;
            }
            if (kind == 0) m->window = t.n_slots;
            if (kind == 1) m->n_distances = draw(r, l->distance, t.n_slots, 1);
            if (kind == 2 || kind == 4) m->sink = t.n_slots;
            if (kind == 3) m->n_columns = draw(r, l->column, t.past, 1);
        }
        int64_t pairs = case_run(&t, &kvl_ops_cpu, 0);
        assert_int_equal(pairs, (int64_t)t.args.n_heads * 190 * (2 * 77 + 191) / 2);
        struct kvl_attn_prefill_args dense = { .out = t.out[1],
                                               .q = t.q,
                                               .lanes = t.lanes.lane,
                                               .n = t.args.n,
                                               .n_heads = t.args.n_heads,
                                               .n_kv_heads = t.args.n_kv_heads,
                                               .head_dim = t.args.head_dim,
                                               .scale = t.args.scale,
                                               .cap = t.args.cap };
        assert_int_equal(kvl_ops_cpu.attn_prefill(&dense), KVL_OK);
        ut_same("everything", t.out[0], t.out[1], t.n_out);
        case_close(&t);
    }
}

static void test_everything_is_dense(void **state)
{
    (void)state;
    ut_each_isa(body_everything);
}

/* The lanes grow with the prefill; what is of a chunk (blocks, its own slots) has no part in this. */
static int64_t run_in_chunks(struct sparse_case *t, int32_t chunk)
{
    struct kvl_attn_prefill_sparse_args whole = t->args;
    int64_t pairs = 0;
    for (int32_t i = 0; i < whole.n; i += chunk) {
        size_t at = (size_t)i * (size_t)whole.n_heads * (size_t)whole.head_dim;
        struct kvl_sparse_head head[MAX_HEADS];
        int32_t n = KVL_MIN(chunk, whole.n - i), end = t->past + i + n;
        memcpy(head, t->head, sizeof head);
        for (int32_t h = 0; h < whole.n_heads; h++) {
            while (head[h].n_columns > 0 && head[h].column[head[h].n_columns - 1] >= end)
                head[h].n_columns--;
            while (head[h].n_distances > 0 && head[h].distance[head[h].n_distances - 1] >= end)
                head[h].n_distances--;
        }
        t->args = whole;
        t->args.head = head;
        t->args.n = n;
        t->args.q = whole.q + at;
        t->args.out = t->out[1] + at;
        t->args.n_pairs = &pairs;
        for (int32_t h = 0; h < whole.n_kv_heads; h++) t->lanes.lane[h].n_slots = end;
        assert_int_equal(kvl_ops_cpu.attn_prefill_sparse(&t->args), KVL_OK);
    }
    t->args = whole;
    return pairs;
}

static void body_chunks(struct kvl_rng *r)
{
    static const int32_t chunks[] = { UT_SMALL_CHUNKS, 64, 150, 400 };
    for (int32_t k = 0; k < 4; k++) {
        struct sparse_case t;
        case_open(r, &t, k / 2 * 101, UT_CHUNKED, k % 2);
        int64_t pairs = case_run(&t, &kvl_ops_cpu, 0);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            kvl_ops_set_threads(1 + (int32_t)(i % 3));
            assert_int_equal(run_in_chunks(&t, chunks[i]), pairs);
            ut_same("out", t.out[1], t.out[0], t.n_out);
        }
        case_close(&t);
    }
}

static void test_row_does_not_depend_on_chunk(void **state)
{
    (void)state;
    ut_each_isa(body_chunks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_everything_is_dense),
        cmocka_unit_test(test_row_does_not_depend_on_chunk),
    };
    return cmocka_run_group_tests_name("attn_prefill_sparse", tests, NULL, NULL);
}
