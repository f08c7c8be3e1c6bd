/* attn_decode against its definition, and what it promises beyond: independence of threads, of how
 * the list is written, and of everything that is not on the list. */
#include "ops/ops_util.h"

struct decode_case {
    struct ut_lanes lanes;
    struct kvl_run *runs;
    float *q, *log_weight, *out[2], *lse[2], *probs[2];
    int32_t *pos;
    double *inv_freq;
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
    t->args.style = UT_PICK(r, KVL_ROPE_NORM, KVL_ROPE_NEOX);
}

static void case_open(struct kvl_rng *r, struct decode_case *t, int32_t n_slots, double amplitude)
{
    int32_t head_dim = UT_PICK(r, 32, 64, 80, 128, 100), n_heads = ut_between(r, 1, 8);
    enum kvl_kv_type type = (enum kvl_kv_type)UT_PICK(r, KVL_KV_F32, KVL_KV_F16);
    bool raw = kvl_rng_below(r, 2);
    memset(t, 0, sizeof *t);
    ut_layout(&t->lanes.layout, head_dim, UT_PICK(r, 8, 16, 32), type, raw);
    ut_lanes_open(&t->lanes, r, 1, n_slots);
    t->inv_freq = ut_inv_freq(head_dim);
    t->q = ut_random(r, (size_t)n_heads * (size_t)head_dim, amplitude);
    t->job = (struct kvl_attn_job){ .q = t->q, .lane = &t->lanes.lane[0], .n_heads = n_heads };
    t->args = (struct kvl_attn_decode_args){ .jobs = &t->job,
                                             .n_jobs = 1,
                                             .head_dim = head_dim,
                                             .scale = 1 / sqrtf((float)head_dim),
                                             .inv_freq = t->inv_freq };
    if (kvl_rng_below(r, 3))
        case_list(r, t);
    else
        t->job.n_slots = n_slots;
    if (raw && kvl_rng_below(r, 2)) case_repositioned(r, t);
    if (kvl_rng_below(r, 2)) {
        t->log_weight = ut_random(r, (size_t)t->job.n_slots, 2);
        if (t->job.n_slots) t->log_weight[0] = -INFINITY;
        t->job.log_weight = t->log_weight;
    }
    for (int i = 0; i < 2; i++) {
        t->out[i] = ut_poison((size_t)n_heads * (size_t)head_dim);
        t->lse[i] = ut_poison((size_t)n_heads);
        t->probs[i] = ut_poison((size_t)n_heads * (size_t)t->job.n_slots);
    }
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

static void case_compare(const struct decode_case *t, double tol)
{
    size_t n_heads = (size_t)t->job.n_heads;
    ut_near("out", t->out[0], t->out[1], n_heads * (size_t)t->args.head_dim, tol);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests_name("attn_decode", tests, NULL, NULL);
}
