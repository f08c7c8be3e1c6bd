/* attn_decode against its definition, and what it promises beyond: independence of threads, of how
 * the list is written, and of everything that is not on the list. */
#include "ops/ops_util.h"

#include "kvl/device.h"

struct decode_case {
    struct ut_lanes lanes;
    struct kvl_run *runs;
    float *q, *log_weight, *out[2], *lse[2], *probs[2];
    int32_t *pos;
    double *inv_freq;
    struct kvl_rope rope;
    struct kvl_attn_job job;
    struct kvl_attn_decode_args args;
    int32_t n_slots;
};

/* A random list: single tokens or longer runs, ascending, some slots left out. */
static void case_list(struct kvl_rng *r, struct decode_case *t)
{
    int32_t total = t->lanes.lane[0].n_slots, slot = 0, max_run = UT_PICK(r, 1, 5, 40);
    t->runs = ut_alloc((size_t)total, sizeof *t->runs);
    t->job.runs = t->runs;
    while (slot < total) {
        int32_t want = ut_between(r, 1, max_run), n = KVL_MIN(want, total - slot);
        if (kvl_rng_below(r, 3) > 0) {
            t->runs[t->job.n_runs++] = (struct kvl_run){ .slot = slot, .n = n };
            t->job.n_slots += n;
        }
        slot += n;
    }
}

static void case_repositioned(struct kvl_rng *r, struct decode_case *t)
{
    t->pos = ut_alloc((size_t)t->job.n_slots, sizeof *t->pos);
    for (int32_t i = 0; i < t->job.n_slots; i++) t->pos[i] = ut_between(r, 0, 100000);
    t->job.pos = t->pos;
    t->job.q_pos = ut_between(r, 0, 100000);
    t->rope.style = (enum kvl_rope_style)UT_PICK(r, KVL_ROPE_NORM, KVL_ROPE_NEOX);
    if (kvl_rng_below(r, 2)) t->rope.n_rot = ut_between(r, 1, t->rope.n_rot / 2) * 2;
    t->rope.mag = kvl_rng_below(r, 2) ? 1 : 1.25f;
}

struct decode_shape {
    int32_t n_slots, head_dim, n_heads;
    enum kvl_kv_type type;
    bool raw;
};

static void case_open_shape(struct kvl_rng *r, struct decode_case *t, const struct decode_shape *s,
                            double amplitude)
{
    int32_t n_slots = s->n_slots, head_dim = s->head_dim, n_heads = s->n_heads;
    enum kvl_kv_type type = s->type;
    bool raw = s->raw;
    memset(t, 0, sizeof *t);
    ut_layout(&t->lanes.layout, head_dim, kvl_kv_seals(type) ? 32 : UT_PICK(r, 8, 16, 32), type,
              raw);
    ut_lanes_open(&t->lanes, r, 1, n_slots);
    t->inv_freq = ut_inv_freq(head_dim);
    t->rope = (struct kvl_rope){ .inv_freq = t->inv_freq, .n_rot = head_dim, .mag = 1 };
    t->q = ut_random(r, (size_t)n_heads * (size_t)head_dim, amplitude);
    if (kvl_kv_keys(type) == KVL_KV_BF16) ut_round_bf16(t->q, (size_t)n_heads * (size_t)head_dim);
    t->job = (struct kvl_attn_job){ .q = t->q, .lane = &t->lanes.lane[0], .n_heads = n_heads };
    t->args = (struct kvl_attn_decode_args){ .jobs = &t->job,
                                             .n_jobs = 1,
                                             .head_dim = head_dim,
                                             .scale = 1 / sqrtf((float)head_dim),
                                             .rope = &t->rope };
    t->args.cap = (float)UT_PICK(r, 0, 0, 1, 30);
    if (kvl_rng_below(r, 3))
        case_list(r, t);
    else
        t->job.n_slots = n_slots;
    if (raw && kvl_rng_below(r, 2)) case_repositioned(r, t);
    if (kvl_rng_below(r, 2)) {
        t->log_weight = ut_random(r, (size_t)t->job.n_slots, 2);
        int32_t none = UT_PICK(r, 0, 1, 70); /* more than a tile of weights of zero */
        for (int32_t i = 0; i < none && i < t->job.n_slots; i++) t->log_weight[i] = -INFINITY;
        t->job.log_weight = t->log_weight;
    }
    for (int i = 0; i < 2; i++) {
        t->out[i] = ut_poison((size_t)n_heads * (size_t)head_dim);
        t->lse[i] = ut_poison((size_t)n_heads);
        t->probs[i] = ut_poison((size_t)n_heads * (size_t)t->job.n_slots);
    }
}

static void case_open(struct kvl_rng *r, struct decode_case *t, int32_t n_slots, double amplitude)
{
    struct decode_shape s = { .n_slots = n_slots };
    s.head_dim = UT_PICK(r, 32, 64, 80, 128, 100, 2, 22);
    s.n_heads = ut_between(r, 1, 8);
    s.type = ut_kv_type(r, s.head_dim);
    s.raw = kvl_rng_below(r, 2);
    case_open_shape(r, t, &s, amplitude);
}

static void case_close(struct decode_case *t)
{
    for (int i = 0; i < 2; i++) {
        kvl_free(t->out[i]);
        kvl_free(t->lse[i]);
        kvl_free(t->probs[i]);
    }
    kvl_free(t->pos);
    kvl_free(t->runs);
    kvl_free(t->log_weight);
    kvl_free(t->inv_freq);
    kvl_free(t->q);
    ut_lanes_close(&t->lanes);
}

static void case_run(struct decode_case *t, const struct kvl_ops *ops, int i)
{
    t->job.out = t->out[i];
    t->job.lse = t->lse[i];
    t->job.probs = t->probs[i];
    assert_int_equal(ops->attn_decode(&t->args), KVL_OK);
}

/* Weights of bf16 values are rounded, by 2^-9 at most. */
static double case_out_tol(const struct decode_case *t, double tol)
{
    return ut_has_bf16(&t->lanes.layout) ? tol + 2e-3 : tol;
}

static void case_compare(const struct decode_case *t, double tol)
{
    size_t n_heads = (size_t)t->job.n_heads;
    ut_near("out", t->out[0], t->out[1], n_heads * (size_t)t->args.head_dim, case_out_tol(t, tol));
    ut_near("lse", t->lse[0], t->lse[1], n_heads, tol);
    ut_near("probs", t->probs[0], t->probs[1], n_heads * (size_t)t->job.n_slots, tol);
}

static void body_reference(struct kvl_rng *r)
{
    static const int32_t sizes[] = { 1, 2, 7, 8, 16, 31, 32, 33, 100, 511, 512, 513, 1300, 2048 };
    for (size_t i = 0; i < 3 * sizeof sizes / sizeof *sizes; i++) {
        struct decode_case t;
        case_open(r, &t, sizes[i % (sizeof sizes / sizeof *sizes)], 1);
        case_run(&t, &kvl_ops_cpu, 0);
        case_run(&t, &kvl_ops_ref, 1);
        case_compare(&t, 2e-5);
        case_close(&t);
    }
}

static void test_reference(void **state)
{
    (void)state;
    ut_each_isa(body_reference);
}

/* Lanes with sealed blocks: tiles that are a whole group are read as they lie there, all others are widened. */
static void body_sealed(struct kvl_rng *r)
{
    const enum kvl_kv_type types[] = { KVL_KV_KIVI4, KVL_KV_KIVI2,
                                       kvl_kv_pair(KVL_KV_KIVI4, KVL_KV_Q4_0_TURNED),
                                       kvl_kv_pair(KVL_KV_F16, KVL_KV_KIVI2) };
    for (int32_t i = 0; i < 48; i++) {
        const struct decode_shape s = { .n_slots = ut_between(r, 33, 700),
                                        .head_dim = UT_PICK(r, 32, 64, 96, 128),
                                        .n_heads = 1 + i % 8,
                                        .type = types[i / 8 % 4],
                                        .raw = i % 3 == 0 };
        struct decode_case t;
        case_open_shape(r, &t, &s, 1);
        case_run(&t, &kvl_ops_cpu, 0);
        case_run(&t, &kvl_ops_ref, 1);
        case_compare(&t, 2e-5);
        case_close(&t);
    }
}

static void test_sealed(void **state)
{
    (void)state;
    ut_each_isa(body_sealed);
}

/* A GPU cuts lists by their length, the CPU into spans of 512: there they are shorter, by whole spans where a few slots
 * more or less are what counts. */
static int32_t long_slots(int32_t n)
{
#ifndef KVL_TEST_CUDA
    if (!getenv("KVL_LONG")) return n < 6 * 1024 ? n - 3 * 1024 : n / 4;
#endif
    return n;
}

/* Lists of many pieces; groups of more heads than one pass takes. */
static void body_long(struct kvl_rng *r)
{
    static const struct decode_shape shapes[] = {
        { 4096, 64, 16, KVL_KV_F16, false },  { 4096, 22, 9, KVL_KV_BF16, true },
        { 4097, 128, 4, KVL_KV_BF16, false }, { 4100, 128, 1, KVL_KV_F16, false },
        { 8200, 128, 12, KVL_KV_F16, false }, { 8200, 256, 2, KVL_KV_F32, false },
        { 16500, 64, 2, KVL_KV_BF16, false }, { 16500, 128, 5, KVL_KV_BF16, true },
        { 4099, 64, 4, KVL_KV_Q8_0, false },  { 8200, 128, 16, KVL_KV_Q8_0, false },
        { 5001, 96, 3, KVL_KV_Q8_0, true },   { 16500, 128, 1, KVL_KV_Q8_0, false },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct decode_case t;
        struct decode_shape s = shapes[i];
        s.n_slots = long_slots(s.n_slots);
        case_open_shape(r, &t, &s, 1);
        case_run(&t, &kvl_ops_cpu, 0);
        case_run(&t, &kvl_ops_ref, 1);
        case_compare(&t, 2e-5);
        case_close(&t);
    }
}

static void test_long(void **state)
{
    (void)state;
    ut_each_isa(body_long);
}

/* Jobs of one call know nothing of each other: whole lists and chosen slots, stored, repositioned and
 * given keys, weights, of any length, have the bits that they have alone. */
static void batch_of(struct kvl_rng *r, enum kvl_kv_type type)
{
    enum { JOBS = 7, SLOTS = 1100, DIM = 64, HEADS = 5 };
    struct ut_lanes lanes = { 0 };
    double *inv_freq = ut_inv_freq(DIM);
    struct kvl_rope rope = { .inv_freq = inv_freq, .n_rot = DIM, .style = KVL_ROPE_NEOX, .mag = 1 };
    float *q = ut_random(r, JOBS * HEADS * DIM, 2), *keys = ut_random(r, SLOTS * DIM, 1);
    float *weight = ut_random(r, SLOTS, 2), *y[2];
    int32_t pos[SLOTS];
    struct kvl_run runs[] = { { 700, 16 }, { 3, 1 }, { 40, 0 }, { 40, 300 }, { 1099, 1 } };
    struct kvl_attn_job jobs[JOBS];
    struct kvl_attn_decode_args a = {
        .jobs = jobs, .head_dim = DIM, .scale = 0.125f, .rope = &rope
    };
    size_t n = HEADS * (DIM + 1 + SLOTS);
    ut_layout(&lanes.layout, DIM, 16, type, true);
    ut_lanes_open(&lanes, r, 2, SLOTS);
    for (int32_t i = 0; i < SLOTS; i++) pos[i] = i * 7;
    for (int k = 0; k < 2; k++) {
        y[k] = ut_poison(JOBS * n);
        for (int32_t j = 0; j < JOBS; j++)
            jobs[j] = (struct kvl_attn_job){ .out = y[k] + (size_t)j * n,
                                             .lse = y[k] + (size_t)j * n + HEADS * DIM,
                                             .probs = y[k] + (size_t)j * n + HEADS * (DIM + 1),
                                             .q = q + j * HEADS * DIM,
                                             .lane = &lanes.lane[j % 2],
                                             .n_slots = SLOTS,
                                             .n_heads = j == 2 ? 1 : HEADS,
                                             .log_weight = j % 2 ? weight : NULL };
        jobs[1].pos = pos;
        jobs[1].q_pos = 8000;
        jobs[3].keys = keys;
        jobs[4].n_slots = 0;
        for (int32_t j = 5; j < JOBS; j++) {
            jobs[j].runs = runs + (j - 5); /* a list with its first run, one without */
            jobs[j].n_runs = 5 - (j - 5);
            jobs[j].n_slots = j == 5 ? 318 : 302;
        }
        if (k == 0) {
            a.n_jobs = JOBS;
            assert_int_equal(kvl_ops_cpu.attn_decode(&a), KVL_OK);
        }
        for (int32_t j = 0; k == 1 && j < JOBS; j++) {
            a.n_jobs = 1;
            a.jobs = &jobs[j];
            assert_int_equal(kvl_ops_cpu.attn_decode(&a), KVL_OK);
        }
    }
    ut_same("batch", y[0], y[1], JOBS * n);
    assert_true(isfinite(y[0][0]) && y[0][4 * n + HEADS * DIM] == -INFINITY);
    kvl_free(y[0]);
    kvl_free(y[1]);
    kvl_free(weight);
    kvl_free(keys);
    kvl_free(q);
    kvl_free(inv_freq);
    ut_lanes_close(&lanes);
}

static void body_batch(struct kvl_rng *r)
{
    batch_of(r, KVL_KV_BF16);
    batch_of(r, KVL_KV_Q8_0);
}

static void test_batch(void **state)
{
    (void)state;
    ut_each_isa(body_batch);
}

/* Threads only spread the spans; a list of everything is everything; how runs are cut is nothing. */
static void body_same(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 6; i++) {
        struct decode_case t;
        case_open(r, &t, 1700, 3);
        size_t n_out = (size_t)t.job.n_heads * (size_t)t.args.head_dim;
        struct kvl_run *single = ut_alloc(1700, sizeof *single);
        int32_t n = 0;
        for (int32_t k = 0; k < t.job.n_runs; k++)
            for (int32_t j = 0; j < t.job.runs[k].n; j++)
                single[n++] = (struct kvl_run){ .slot = t.job.runs[k].slot + j, .n = 1 };
        for (; !t.job.runs && n < t.job.n_slots; n++)
            single[n] = (struct kvl_run){ .slot = n, .n = 1 };
        case_run(&t, &kvl_ops_cpu, 0);
        kvl_ops_set_threads(3);
        t.job.runs = single;
        t.job.n_runs = n;
        case_run(&t, &kvl_ops_cpu, 1);
        ut_same("out", t.out[1], t.out[0], n_out);
        ut_same("lse", t.lse[1], t.lse[0], (size_t)t.job.n_heads);
        ut_same("probs", t.probs[1], t.probs[0], (size_t)t.job.n_heads * (size_t)t.job.n_slots);
        kvl_free(single);
        case_close(&t);
    }
}

static void test_same_bits(void **state)
{
    (void)state;
    ut_each_isa(body_same);
}

/* A list of pages: a few of those of page_tok slots that end before the last `open` ones, in any order, then
 * these; and the same as runs. */
static void pages_open(struct kvl_rng *r, struct decode_case *t, int32_t page_tok)
{
    int32_t n_slots = t->lanes.lane[0].n_slots, open = ut_between(r, 0, KVL_MIN(90, n_slots));
    int32_t n = (n_slots - open) / page_tok, n_pages = ut_between(r, 0, n);
    int32_t *page = ut_alloc((size_t)n, sizeof *page);
    for (int32_t i = 0; i < n; i++) page[i] = i;
    kvl_rng_shuffle(r, page, n);
    t->job.page = page;
    t->job.n_pages = n_pages;
    t->job.page_tok = page_tok;
    t->job.tail = n_slots - open;
    t->job.n_slots = n_pages * page_tok + open;
    t->runs = ut_alloc((size_t)n_pages + 1, sizeof *t->runs);
    for (int32_t i = 0; i < n_pages; i++)
        t->runs[i] = (struct kvl_run){ .slot = page[i] * page_tok, .n = page_tok };
    t->runs[n_pages] = (struct kvl_run){ .slot = t->job.tail, .n = open };
}

/* With `page` in place of the list's own array. */
static void pages_same(struct decode_case *t, const struct kvl_ops *ops, const int32_t *page)
{
    struct kvl_attn_job pages = t->job;
    size_t heads = (size_t)t->job.n_heads, n_out = heads * (size_t)t->args.head_dim;
    memset(t->out[1], 0xff, n_out * sizeof **t->out);
    memset(t->lse[1], 0xff, heads * sizeof **t->lse);
    t->job.page = NULL;
    t->job.runs = t->runs;
    t->job.n_runs = pages.n_pages + 1;
    for (int k = 0; k < 2; k++) {
        t->job.out = t->out[k];
        t->job.lse = t->lse[k];
        assert_int_equal(ops->attn_decode(&t->args), KVL_OK);
        t->job = pages;
        t->job.page = page;
    }
    t->job = pages;
    ut_same("out of pages", t->out[1], t->out[0], n_out);
    ut_same("lse of pages", t->lse[1], t->lse[0], heads);
}

static void pages_run(struct decode_case *t)
{
    pages_same(t, &kvl_ops_cpu, t->job.page);
    pages_same(t, &kvl_ops_ref, t->job.page);
#ifdef KVL_TEST_CUDA
    const struct kvl_device *d = NULL;
    size_t n = (size_t)t->job.n_pages;
    assert_int_equal(kvl_device_open("cuda", &d, &(struct kvl_err){ 0 }), KVL_OK);
    int32_t *page = d->alloc(KVL_PLACE_DEVICE, n, sizeof *page);
    assert_non_null(page);
    assert_int_equal(d->copy(page, t->job.page, n * sizeof *page, KVL_STREAM_MAIN), KVL_OK);
    pages_same(t, &kvl_ops_cpu, page);
    d->free(KVL_PLACE_DEVICE, page);
#endif
}

/* A list of pages is the list of its runs: pages within blocks and across them, of lengths that are no power
 * of two, none at all, in one split and in many, in both kernels of a GPU. */
static void body_pages(struct kvl_rng *r)
{
    static const int32_t sizes[] = { 700, 64, 5000 };
    for (int32_t i = 0; i < 24; i++) {
        struct decode_case t;
        struct decode_shape s = { .n_slots = sizes[i % 3] + i,
                                  .head_dim = UT_PICK(r, 64, 128, 22),
                                  .n_heads = ut_between(r, 1, 5) };
        s.type = ut_kv_type(r, s.head_dim);
        case_open_shape(r, &t, &s, 1);
        kvl_free(t.runs);
        t.job.runs = NULL;
        t.job.log_weight = NULL;
        t.job.n_runs = 0;
        pages_open(r, &t, UT_PICK(r, 16, 1, 7, 48, 33, 100));
        if (i < 2) {
            t.job.n_slots -= t.job.n_pages * t.job.page_tok;
            t.job.n_pages = 0;
            t.runs[0] = (struct kvl_run){ .slot = t.job.tail, .n = t.job.n_slots };
        }
        pages_run(&t);
        kvl_free((void *)(uintptr_t)t.job.page);
        case_close(&t);
    }
}

static void test_pages(void **state)
{
    (void)state;
    ut_each_isa(body_pages);
}

/* The oracle of real execution: a mask over all slots against a list of the chosen ones. */
static void body_masked(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 16; i++) {
        struct decode_case t;
        case_open(r, &t, 600, 2);
        t.job.log_weight = NULL;
        uint8_t *mask = ut_alloc(600, 1);
        int32_t *pos = ut_alloc(600, sizeof *pos), n = 0;
        for (int32_t k = 0; k < t.job.n_runs; k++)
            for (int32_t j = 0; j < t.job.runs[k].n; j++, n++) {
                mask[t.job.runs[k].slot + j] = 1;
                pos[t.job.runs[k].slot + j] = t.pos ? t.pos[n] : 0;
            }
        if (!t.job.runs) memset(mask, 1, 600);
        if (!t.job.runs && t.pos) memcpy(pos, t.pos, 600 * sizeof *pos);
        struct kvl_attn_masked_args m = { .out = t.out[1],
                                          .lse = t.lse[1],
                                          .q = t.q,
                                          .lane = t.job.lane,
                                          .mask = mask,
                                          .pos = t.pos ? pos : NULL,
                                          .q_pos = t.job.q_pos,
                                          .n_slots = 600,
                                          .n_heads = t.job.n_heads,
                                          .head_dim = t.args.head_dim,
                                          .scale = t.args.scale,
                                          .cap = t.args.cap,
                                          .rope = &t.rope };
        case_run(&t, &kvl_ops_cpu, 0);
        assert_int_equal(kvl_ops_cpu.attn_masked(&m), KVL_OK);
        ut_near("masked lse", t.lse[1], t.lse[0], (size_t)t.job.n_heads, 2e-5);
        ut_near("masked out", t.out[1], t.out[0], (size_t)t.job.n_heads * (size_t)t.args.head_dim,
                case_out_tol(&t, 2e-5));
        m.out = t.out[0];
        m.lse = t.lse[0];
        assert_int_equal(kvl_ops_ref.attn_masked(&m), KVL_OK);
        ut_near("lse", t.lse[1], t.lse[0], (size_t)t.job.n_heads, 2e-5);
        ut_near("out", t.out[1], t.out[0], (size_t)t.job.n_heads * (size_t)t.args.head_dim, 2e-5);
        kvl_free(pos);
        kvl_free(mask);
        case_close(&t);
    }
}

static void test_masked(void **state)
{
    (void)state;
    ut_each_isa(body_masked);
}

/* Several jobs in one call, among them empty lists and lists whose weights are all zero. */
static void body_empty(struct kvl_rng *r)
{
    struct decode_case t;
    float zero[1024] = { 0 };
    case_open(r, &t, 40, 1);
    int32_t n_heads = t.job.n_heads;
    size_t n_out = (size_t)n_heads * (size_t)t.args.head_dim;
    float none[40], *out = ut_poison(3 * n_out), *lse = ut_poison(3 * (size_t)n_heads);
    for (int32_t i = 0; i < 40; i++) none[i] = -INFINITY;
    struct kvl_attn_job jobs[3];
    for (int32_t j = 0; j < 3; j++) {
        jobs[j] = t.job;
        jobs[j].probs = NULL;
        jobs[j].out = out + (size_t)j * n_out;
        jobs[j].lse = lse + j * n_heads;
    }
    jobs[0].n_slots = jobs[0].n_runs = 0;
    jobs[2].log_weight = none;
    jobs[1].log_weight = NULL;
    t.args.jobs = jobs;
    t.args.n_jobs = 3;
    assert_int_equal(kvl_ops_cpu.attn_decode(&t.args), KVL_OK);
    ut_same("empty list", out, zero, n_out);
    ut_same("weights of zero", out + 2 * n_out, zero, n_out);
    for (int32_t h = 0; h < n_heads; h++) {
        assert_true(lse[h] == -INFINITY && lse[2 * n_heads + h] == -INFINITY);
        assert_true(isfinite(lse[n_heads + h]));
    }
    kvl_free(out);
    kvl_free(lse);
    case_close(&t);
}

static void test_empty(void **state)
{
    (void)state;
    ut_each_isa(body_empty);
}

/* Logits of +-1e4: no overflow, no NaN; rounding of the logit itself is what remains. */
static void body_huge(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 4; i++) {
        struct decode_case t;
        case_open(r, &t, 200, 1e4);
        case_run(&t, &kvl_ops_cpu, 0);
        case_run(&t, &kvl_ops_ref, 1);
        case_compare(&t, 2e-2);
        case_close(&t);
    }
}

static void test_huge_logits(void **state)
{
    (void)state;
    ut_each_isa(body_huge);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_long),      cmocka_unit_test(test_batch),
        cmocka_unit_test(test_masked),    cmocka_unit_test(test_empty),
        cmocka_unit_test(test_pages),     cmocka_unit_test(test_huge_logits),
        cmocka_unit_test(test_sealed),
    };
    return cmocka_run_group_tests_name("attn_decode", tests, NULL, NULL);
}
