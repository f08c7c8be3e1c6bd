/* Operators that read clusters, and those of low ranks: what defines their results, and cpu against ref. */
#include "ops/ops_util.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- sym_eig ----------------------------------------------------------------------------------- */

/* A = B B' / n of n x m random numbers: rank m at most. */
static float *random_gram(struct kvl_rng *r, int32_t n, int32_t m)
{
    float *b = ut_random(r, (size_t)(n * m), 1), *a = ut_alloc((size_t)(n * n), sizeof *a);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) {
            double sum = 0;
            for (int32_t c = 0; c < m; c++) sum += (double)b[i * m + c] * (double)b[j * m + c];
            a[i * n + j] = j > i ? NAN : (float)(sum / n); /* the upper triangle is not read */
        }
    kvl_free(b);
    return a;
}

static double lower(const float *a, int32_t n, int32_t i, int32_t j)
{
    return (double)a[KVL_MAX(i, j) * n + KVL_MIN(i, j)];
}

static void eig_is_right(const float *a, const float *vec, const float *val, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const float *v = vec + i * n;
        int32_t at = 0;
        assert_true(i == 0 || val[i] <= val[i - 1]);
        for (int32_t c = 1; c < n; c++)
            if (fabsf(v[c]) > fabsf(v[at])) at = c;
        assert_true(v[at] > 0);
        for (int32_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int32_t c = 0; c < n; c++) sum += (double)v[c] * (double)vec[j * n + c];
            if (fabs(sum - (i == j)) > 1e-5) fail_msg("vectors %d and %d: %g", i, j, sum);
        }
        for (int32_t r = 0; r < n; r++) {
            double sum = 0;
            for (int32_t c = 0; c < n; c++) sum += lower(a, n, r, c) * (double)v[c];
            if (fabs(sum - (double)val[i] * (double)v[r]) > 1e-5)
                fail_msg("row %d of vector %d of %d: %g, want %g", r, i, n, sum,
                         (double)val[i] * (double)v[r]);
        }
    }
}

static void body_sym_eig(struct kvl_rng *r)
{
    static const int32_t sizes[] = { 1, 2, 3, 5, 16, 33, 64, 90 };
    for (int32_t i = 0; i < 16; i++) {
        int32_t n = sizes[i / 2], m = i % 2 ? n : (n + 1) / 2;
        float *a = random_gram(r, n, m);
        float *vec = ut_poison((size_t)(n * n)), *val = ut_poison((size_t)n);
        float *want = ut_poison((size_t)n);
        struct kvl_sym_eig_args arg = { .vec = vec, .val = want, .a = a, .n = n };
        assert_int_equal(kvl_ops_ref.sym_eig(&arg), KVL_OK);
        eig_is_right(a, vec, want, n);
        arg.val = val;
        assert_int_equal(kvl_ops_cpu.sym_eig(&arg), KVL_OK);
        eig_is_right(a, vec, val, n);
        ut_near("eigenvalue", val, want, (size_t)n, 1e-6);
        kvl_free(a);
        kvl_free(vec);
        kvl_free(val);
        kvl_free(want);
    }
}

static void test_sym_eig(void **state)
{
    (void)state;
    ut_each_isa(body_sym_eig);
}

/* Eigenvalues 3 and 1; a diagonal matrix, a zero matrix, and what is no number. */
static void test_sym_eig_edges(void **state)
{
    (void)state;
    static const float pair[] = { 2, 0, -1, 2 }, order[] = { 1, 0, 0, 0, 3, 0, 0, 0, 2 };
    static const float zero[9] = { 0 }, nan[] = { 1, 0, NAN, 1 };
    const struct kvl_ops *ops[] = { &kvl_ops_cpu, &kvl_ops_ref };
    for (int32_t i = 0; i < 2; i++) {
        float vec[9], val[3], half = sqrtf(0.5f);
        struct kvl_sym_eig_args a = { .vec = vec, .val = val, .a = pair, .n = 2 };
        assert_int_equal(ops[i]->sym_eig(&a), KVL_OK);
        ut_near("value", val, (float[]){ 3, 1 }, 2, 1e-6);
        ut_near("size", (float[]){ fabsf(vec[0]), fabsf(vec[1]), vec[2], vec[3] },
                (float[]){ half, half, half, half }, 4, 1e-6);
        assert_true(vec[0] * vec[1] < 0);
        a.a = order;
        a.n = 3;
        assert_int_equal(ops[i]->sym_eig(&a), KVL_OK);
        ut_near("value", val, (float[]){ 3, 2, 1 }, 3, 1e-6);
        ut_near("axis", vec, (float[]){ 0, 1, 0, 0, 0, 1, 1, 0, 0 }, 9, 1e-6);
        a.a = zero;
        assert_int_equal(ops[i]->sym_eig(&a), KVL_OK);
        ut_near("axis", vec, (float[]){ 1, 0, 0, 0, 1, 0, 0, 0, 1 }, 9, 1e-6);
        a.a = nan;
        a.n = 2;
        assert_int_equal(ops[i]->sym_eig(&a), KVL_ENUMERIC);
    }
}

static int32_t tasks_of_process(void)
{
    int32_t n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void eig_same(const struct kvl_sym_eig_args *arg, const float *want)
{
    size_t n = (size_t)arg->n;
    memset(arg->vec, 0, n * n * sizeof *arg->vec);
    assert_int_equal(kvl_ops_cpu.sym_eig(arg), KVL_OK);
    assert_memory_equal(arg->vec, want, n * n * sizeof *want);
}

/* The library works on the calling thread alone, whatever the environment and others in the process tell it, and
 * in a process that was forked.  The first test: it is not loaded before. */
static void test_sym_eig_alone(void **state)
{
    enum { N = 300 };
    struct kvl_rng r;
    kvl_rng_seed(&r, 7);
    float *a = random_gram(&r, N, N), *want = ut_poison(N * N), *vec = ut_poison(N * N);
    struct kvl_sym_eig_args arg = { .vec = want, .a = a, .n = N };
    int32_t tasks = tasks_of_process();
    (void)state;
    (void)tasks;
    assert_int_equal(setenv("OPENBLAS_NUM_THREADS", "3", 1), 0);
    kvl_ops_set_threads(1);
    assert_int_equal(kvl_ops_cpu.sym_eig(&arg), KVL_OK);
#ifndef KVL_TEST_CUDA /* whose emulation has threads */
    assert_int_equal(tasks_of_process(), tasks);
#endif
    assert_string_equal(getenv("OPENBLAS_NUM_THREADS"), "3");
    arg.vec = vec;
    kvl_ops_set_threads(2);
    eig_same(&arg, want);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    assert_non_null(library);
    void (*set_threads)(int);
    *(void **)(void *)&set_threads = dlsym(library, "openblas_set_num_threads");
    assert_non_null(set_threads);
    set_threads(2);
    eig_same(&arg, want);
#ifndef KVL_TEST_CUDA
    pid_t child = fork();
    if (child == 0) {
        kvl_ops_set_threads(1); /* a team does not outlive a fork */
        int rc = kvl_ops_cpu.sym_eig(&arg);
        _exit(rc == KVL_OK && memcmp(vec, want, N * N * sizeof *vec) == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
#endif
    kvl_ops_set_threads(0);
    dlclose(library);
    kvl_free(a);
    kvl_free(want);
    kvl_free(vec);
}

/* ---- product quantisation ------------------------------------------------------------------------ */

static void body_pq(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 24; i++) {
        int32_t kv = ut_between(r, 1, 3), group = ut_between(r, 1, 5), n = UT_PICK(r, 1, 9, 5000);
        int32_t n_sub = UT_PICK(r, 1, 2, 4), n_codes = UT_PICK(r, 2, 64, 256), heads = kv * group;
        if (i == 7) { /* tables larger than the shared memory of a block of a GPU */
            kv = group = heads = 1;
            n_sub = 64;
            n_codes = 256;
        }
        int32_t dim = n_sub * UT_PICK(r, 1, 8, 11);
        size_t stride = (size_t)(n * n_sub) + 5, cent = (size_t)(n_codes * dim) + 7;
        size_t table = (size_t)(heads * n_sub * n_codes), row = (size_t)n + 2;
        uint8_t *code = ut_alloc(stride * (size_t)kv, 1);
        for (size_t j = 0; j < stride * (size_t)kv; j++)
            code[j] = (uint8_t)kvl_rng_below(r, (uint32_t)n_codes);
        float *q = ut_random(r, (size_t)(heads * dim), 1), *c = ut_random(r, cent * (size_t)kv, 1);
        float *t[2], *y[2];
        for (int32_t j = 0; j < 2; j++) {
            const struct kvl_ops *ops = j ? &kvl_ops_ref : &kvl_ops_cpu;
            t[j] = ut_poison(table);
            y[j] = ut_poison((size_t)heads * row);
            struct kvl_pq_table_args ta = {
                t[j], q, c, cent, heads, kv, dim, n_sub, n_codes, 0.3f
            };
            assert_int_equal(ops->pq_table(&ta), KVL_OK);
            struct kvl_pq_scores_args sa = { y[j], row,   t[0],  code,  stride,
                                             n,    heads, group, n_sub, n_codes };
            assert_int_equal(ops->pq_scores(&sa), KVL_OK);
        }
        ut_near("table", t[0], t[1], table, 1e-5);
        for (int32_t h = 0; h < heads; h++)
            ut_same("score", y[0] + (size_t)h * row, y[1] + (size_t)h * row, (size_t)n);
        assert_true(isnan(y[0][n]));
        for (int32_t j = 0; j < 2; j++) {
            kvl_free(t[j]);
            kvl_free(y[j]);
        }
        kvl_free(code);
        kvl_free(q);
        kvl_free(c);
    }
}

static void test_pq(void **state)
{
    (void)state;
    ut_each_isa(body_pq);
}

/* ---- given logits, given keys ----------------------------------------------------------------------- */

static void body_pseudo(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 24; i++) {
        int32_t heads = ut_between(r, 1, 6), n = UT_PICK(r, 0, 1, 63, 64, 65, 400);
        int32_t dim = UT_PICK(r, 2, 22, 64, 100);
        size_t out = (size_t)(heads * dim);
        float *logit = ut_random(r, (size_t)(heads * n), i % 3 ? 5 : 1e4);
        float *value = ut_random(r, (size_t)(n * dim), 1);
        float *y[2] = { ut_poison(out), ut_poison(out) };
        float *lse[2] = { ut_poison((size_t)heads), ut_poison((size_t)heads) };
        for (int32_t t = 0; t < 2; t++) {
            struct kvl_attn_pseudo_args a = { y[t], lse[t], logit, value, n, heads, dim };
            assert_int_equal((t ? &kvl_ops_ref : &kvl_ops_cpu)->attn_pseudo(&a), KVL_OK);
        }
        ut_near("out", y[0], y[1], out, 1e-5);
        ut_near("lse", lse[0], lse[1], (size_t)heads, 1e-5);
        if (n == 0) assert_true(lse[0][0] == -INFINITY && y[0][0] == 0);
        for (int32_t t = 0; t < 2; t++) {
            kvl_free(y[t]);
            kvl_free(lse[t]);
        }
        kvl_free(logit);
        kvl_free(value);
    }
}

static void test_pseudo(void **state)
{
    (void)state;
    ut_each_isa(body_pseudo);
}

/* Keys that are the stored ones change nothing; others are those of the definition, real or masked. */
static void body_keys(struct kvl_rng *r)
{
    enum { SLOTS = 300 };
    for (int32_t i = 0; i < 18; i++) {
        int32_t dim = UT_PICK(r, 32, 22, 64, 80), heads = ut_between(r, 1, 6);
        size_t cols = (size_t)dim, rows = (size_t)heads;
        struct ut_lanes lanes;
        ut_layout(&lanes.layout, dim, 16, ut_kv_type(r, dim), false);
        ut_lanes_open(&lanes, r, 1, SLOTS);
        float *q = ut_random(r, rows * cols, 1), *keys = ut_random(r, SLOTS * cols, 1);
        float *out[3], *lse[3];
        const float *key[SLOTS] = { NULL };
        uint8_t mask[SLOTS];
        struct kvl_run runs[] = { { 3, 100 }, { 120, 1 }, { 130, 170 } };
        for (int32_t t = 0; t < 3; t++) {
            out[t] = ut_poison(rows * cols);
            lse[t] = ut_poison(rows);
        }
        memset(mask, 0, sizeof mask);
        for (int32_t j = 0, n = 0; j < 3; j++)
            for (int32_t s = runs[j].slot; s < runs[j].slot + runs[j].n; s++, n++) {
                mask[s] = 1;
                key[s] = n % 5 ? keys + (size_t)n * cols : NULL;
                if (key[s]) continue; /* as stored, in both */
                struct kvl_lane_read_args read = {
                    keys + (size_t)n * cols, cols, lanes.lane, KVL_PART_K, s, 1
                };
                assert_int_equal(kvl_ops_ref.lane_read(&read), KVL_OK);
            }
        struct kvl_attn_job job = { .q = q,
                                    .lane = lanes.lane,
                                    .runs = runs,
                                    .n_runs = 3,
                                    .n_slots = 271,
                                    .n_heads = heads,
                                    .keys = keys };
        struct kvl_attn_decode_args a = {
            .jobs = &job, .n_jobs = 1, .head_dim = dim, .scale = 0.3f
        };
        struct kvl_attn_masked_args m = { .q = q,
                                          .lane = lanes.lane,
                                          .mask = mask,
                                          .keys = key,
                                          .n_slots = SLOTS,
                                          .n_heads = heads,
                                          .head_dim = dim,
                                          .scale = 0.3f,
                                          .out = out[2],
                                          .lse = lse[2] };
        job.out = out[0];
        job.lse = lse[0];
        assert_int_equal(kvl_ops_cpu.attn_decode(&a), KVL_OK);
        job.out = out[1];
        job.lse = lse[1];
        assert_int_equal(kvl_ops_ref.attn_decode(&a), KVL_OK);
        /* Weights of bf16 values are rounded where the processor multiplies them. */
        double tol = ut_has_bf16(&lanes.layout) ? 4e-3 : 2e-5;
        ut_near("out", out[0], out[1], rows * cols, tol);
        ut_near("lse", lse[0], lse[1], rows, 2e-5);
        for (int32_t t = 0; t < 2; t++) {
            assert_int_equal((t ? kvl_ops_ref : kvl_ops_cpu).attn_masked(&m), KVL_OK);
            ut_near("masked", out[2], out[1], rows * cols, 2e-5);
            ut_near("masked lse", lse[2], lse[1], rows, 2e-5);
        }
        for (int32_t t = 0; t < 3; t++) {
            kvl_free(out[t]);
            kvl_free(lse[t]);
        }
        kvl_free(q);
        kvl_free(keys);
        ut_lanes_close(&lanes);
    }
}

static void test_given_keys(void **state)
{
    (void)state;
    ut_each_isa(body_keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sym_eig_alone), cmocka_unit_test(test_sym_eig),
        cmocka_unit_test(test_sym_eig_edges), cmocka_unit_test(test_pq),
        cmocka_unit_test(test_pseudo),        cmocka_unit_test(test_given_keys),
    };
    return cmocka_run_group_tests_name("clusters", tests, NULL, NULL);
}
