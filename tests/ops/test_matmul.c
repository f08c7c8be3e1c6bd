/* gemm, gemv, embed: against the definition; rows independent of everything around them; every
 * half, every quantised value; all with every type of weights. */
#include "ops/ops_util.h"
#include "ops/wtype_vectors.h"

#include "kvl/device.h"

static const enum kvl_wtype types[] = {
#define KVL_WTYPE_PLAIN(name, ...) KVL_W_##name,
#define KVL_WTYPE_BLOCK(name, ...) KVL_W_##name,
#include "kvl/wtypes.def"
};
enum { N_TYPES = sizeof types / sizeof *types };

struct matrix {
    struct kvl_weight w;
    uint8_t *data;
};

/* Columns of at least n that are whole blocks of the type. */
static int32_t whole_blocks(enum kvl_wtype type, int32_t n)
{
    int32_t block = kvl_wtype_find((uint32_t)type)->block;
    return (n + block - 1) / block * block;
}

/* A scale, and integers none of which is 0 where their bytes are 0x71. */
static bool centred(enum kvl_wtype type)
{
    return type == KVL_W_Q8_0 || type == KVL_W_Q4_0;
}

/* Every word that makes a block finite or not becomes a half, or a power of two. */
static void set_words(uint8_t *block, const struct kvl_wtype_row *t, float scale)
{
    uint16_t half = kvl_f32_to_f16(scale);
    if (t->type == KVL_W_MXFP4) block[0] = (uint8_t)(half % 4 + 120);
    if (t->type == KVL_W_MXFP4) return;
    memcpy(block + t->word[0], &half, 2);
    memcpy(block + t->word[1], &half, 2);
}

/* Random elements: plain types in [-1, 1], blocks with scales of every size such that none is above 2. */
static void matrix_open(struct kvl_rng *r, struct matrix *m, enum kvl_wtype type, int32_t n_rows,
                        int32_t n_cols)
{
    size_t row_bytes = kvl_wtype_row_bytes(type, n_cols);
    assert_true(row_bytes > 0);
    size_t bytes = row_bytes * (size_t)n_rows;
    const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)type);
    m->data = ut_alloc(bytes, 1);
    m->w = (struct kvl_weight){ m->data, type, n_rows, n_cols, row_bytes };
    for (size_t i = 0; t->block > 1 && i < bytes; i++) m->data[i] = (uint8_t)kvl_rng_u32(r);
    for (size_t i = 0; t->block == 1 && i < (size_t)n_rows * (size_t)n_cols; i++) {
        float x = (float)(kvl_rng_f64(r) * 2 - 1);
        uint16_t half = kvl_f32_to_f16(x), bf = (uint16_t)(kvl_f32_bits(x) >> 16);
        if (type == KVL_W_F32) memcpy(m->data + 4 * i, &x, 4);
        if (type == KVL_W_F16) memcpy(m->data + 2 * i, &half, 2);
        if (type == KVL_W_BF16) memcpy(m->data + 2 * i, &bf, 2);
    }
    double top = t->block == 256 ? 1.0 / 2048 : 1.0 / 64; /* those have scales below */
    for (size_t i = 0; t->block > 1 && i < bytes; i += t->block_bytes)
        set_words(m->data + i, t, (float)(kvl_rng_f64(r) * top));
}

/* Whether gemm rounds x to integers where it may. */
static bool rounds_x(enum kvl_wtype type)
{
#ifdef KVL_TEST_CUDA
    (void)type;
    return false;
#else
    return kvl_wtype_find((uint32_t)type)->x_int16 && strncmp(kvl_ops_isa(), "avx", 3) == 0;
#endif
}

/* Whether gemv does so. */
static bool gemv_rounds_x(enum kvl_wtype type)
{
#ifdef KVL_TEST_CUDA
    return type == KVL_W_Q8_0 || type == KVL_W_Q4_0 || type == KVL_W_Q4_1 || type == KVL_W_Q5_0 ||
           type == KVL_W_Q5_1 || type == KVL_W_Q4_K || type == KVL_W_Q5_K || type == KVL_W_Q6_K;
#else
    return kvl_wtype_find((uint32_t)type)->x_int16;
#endif
}

/* gemm with x as integers, where there is such a gemm: near the definition, which is near that of floats.  Elsewhere
 * the flag changes nothing. */
static void check_int16(const struct kvl_weight *w, const float *x, int32_t n)
{
    size_t n_y = (size_t)n * (size_t)w->n_rows;
    float *y = ut_poison(n_y), *want = ut_poison(n_y), *floats = ut_poison(n_y);
    struct kvl_gemm_args a = { .y = y, .x = x, .w = w, .n = n, .int16 = true };
    assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
    a.y = want;
    assert_int_equal(kvl_ops_ref.gemm(&a), KVL_OK);
    if (rounds_x(w->type)) ut_near("gemm in int16", y, want, n_y, 3e-6 * sqrt(w->n_cols));
    a = (struct kvl_gemm_args){ .y = floats, .x = x, .w = w, .n = n };
    assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
    ut_near("gemm in int16 against gemm", want, floats, n_y, 6e-5 * sqrt(w->n_cols));
    if (!rounds_x(w->type)) ut_same("gemm that may be in int16", y, floats, n_y);
    kvl_free(floats);
    kvl_free(want);
    kvl_free(y);
}

/* gemv near its definition, which is that of gemm where this side does not round x. */
static void check_gemv(const struct kvl_weight *w, const float *x, int32_t n)
{
    size_t n_y = (size_t)n * (size_t)w->n_rows;
    float *y = ut_poison(n_y), *want = ut_poison(n_y), *floats = ut_poison(n_y);
    struct kvl_gemv_args a = { .y = want, .x = x, .w = w, .n = n };
    struct kvl_gemm_args exact = { .y = floats, .x = x, .w = w, .n = n };
    assert_int_equal(kvl_ops_ref.gemv(&a), KVL_OK);
    assert_int_equal(kvl_ops_ref.gemm(&exact), KVL_OK);
    ut_near("gemv against gemm", want, floats, n_y, 3e-5 * sqrt(w->n_cols));
    a.y = y;
    assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
    ut_near("gemv", y, gemv_rounds_x(w->type) ? want : floats, n_y, 3e-6 * sqrt(w->n_cols));
    kvl_free(floats);
    kvl_free(want);
    kvl_free(y);
}

/* A row of x in 8 bits, by long division: what every element of it becomes, and how far off that may be where it lies
 * halfway between two integers but for rounding. */
static void eight_bits(const float *x, int32_t n, int32_t block, double *to, double *slack)
{
    for (int32_t b = 0; b < n; b += block) {
        double top = 0;
        for (int32_t i = b; i < b + block; i++) top = fmax(top, fabs((double)x[i]));
        for (int32_t i = b; i < b + block; i++) {
            double steps = top > 0 ? (double)x[i] / top * 127 : 0, whole = floor(steps + 0.5);
            to[i] = whole * (top / 127);
            slack[i] = fabs(fabs(steps - floor(steps)) - 0.5) < 1e-4 ? top / 127 : 0;
        }
    }
}

/* gemv in 8 bits against products of what x becomes; types that keep x as floats do so. */
static void check_q8(const struct kvl_weight *w, const float *x, int32_t n)
{
    const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)w->type);
    const size_t n_cols = (size_t)w->n_cols, n_y = (size_t)n * (size_t)w->n_rows;
    float *y = ut_poison(n_y), *ref = ut_poison(n_y), *row = ut_poison(n_cols);
    double *q = ut_alloc(n_cols, sizeof *q), *slack = ut_alloc(n_cols, sizeof *slack);
    struct kvl_gemv_args a = { .y = y, .x = x, .w = w, .n = n, .q8 = true };
#ifdef KVL_TEST_CUDA
    assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_EINVAL);
    n = 0;
#else
    assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
    a.y = ref;
    assert_int_equal(kvl_ops_ref.gemv(&a), KVL_OK);
#endif
    for (int32_t i = 0; i < n; i++) {
        for (size_t c = 0; c < n_cols; c++) q[c] = (double)x[(size_t)i * n_cols + c];
        memset(slack, 0, n_cols * sizeof *slack);
        if (t->x_int16) eight_bits(x + (size_t)i * n_cols, w->n_cols, t->block, q, slack);
        for (int32_t r = 0; r < w->n_rows; r++) {
            double want = 0, most = 1e-6;
            struct kvl_embed_args e = { .y = row, .w = w, .id = &r, .n = 1 };
            assert_int_equal(kvl_ops_ref.embed(&e), KVL_OK);
            for (size_t c = 0; c < n_cols; c++) {
                want += q[c] * (double)row[c];
                most += 1e-6 * fabs(q[c] * (double)row[c]) + slack[c] * fabs((double)row[c]);
            }
            size_t at = (size_t)i * (size_t)w->n_rows + (size_t)r;
            if (!(fabs((double)y[at] - want) <= most) || !(fabs((double)ref[at] - want) <= most))
                fail_msg("gemv of %s in 8 bits: row %d is %.9g, the definition's %.9g, want %.9g",
                         t->name, r, (double)y[at], (double)ref[at], want);
        }
    }
    kvl_free(slack);
    kvl_free(q);
    kvl_free(row);
    kvl_free(ref);
    kvl_free(y);
}

static void body_reference(struct kvl_rng *r)
{
    static const int32_t sizes[][3] = {
        /* n, n_rows, n_cols */
        { 1, 1, 32 },
        { 3, 17, 64 },
        { 2, 5, 160 },
        { 5, 4, 224 },
        { 8, 32, 128 },
        { 70, 129, 96 },
        { 5, 200, 576 },
        { 33, 47, 1088 },
#ifdef KVL_TEST_CUDA /* more rows than a warp takes two of, than are rounded at a time */
        { 1, 2201, 64 },
        { 1, 33000, 32 },
        /* more blocks than two for each of 132 multiprocessors; more columns of x than fit beside each other: of one
         * row, of four, of eight */
        { 1, 4301, 256 },
        { 1, 9, 16896 },
        { 4, 11, 4352 },
        { 7, 5, 2304 },
#endif
        { 2, 300, 2816 },
        { 9, 35, 77 },
        { 40, 130, 13 },
        { 3, 77, 19 },
        { 2, 300, 8 },
        { 1, 5, 256 },
        { 35, 66, 768 }
    };
    for (size_t i = 0; i < N_TYPES * (sizeof sizes / sizeof *sizes); i++) {
        const int32_t *s = sizes[i / N_TYPES];
        struct matrix m;
        if (kvl_wtype_row_bytes(types[i % N_TYPES], s[2]) == 0) continue; /* no whole blocks */
        if (ut_left_out((int32_t)(i / N_TYPES), (int32_t)(i % N_TYPES))) continue;
        matrix_open(r, &m, types[i % N_TYPES], s[1], s[2]);
        size_t n_y = (size_t)s[0] * (size_t)s[1];
        float *x = ut_random(r, (size_t)s[0] * (size_t)s[2], 1);
        float *want = ut_poison(n_y), *gemm = ut_poison(n_y);
        struct kvl_gemm_args a = { .y = want, .x = x, .w = &m.w, .n = s[0] };
        assert_int_equal(kvl_ops_ref.gemm(&a), KVL_OK);
        a.y = gemm;
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        ut_near("gemm", gemm, want, n_y, 3e-6 * sqrt(s[2]));
        a.bf16 = true;
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        ut_near("gemm in bf16 against gemm", gemm, want, n_y, 6e-3 * sqrt(s[2]));
        a.y = want;
        assert_int_equal(kvl_ops_ref.gemm(&a), KVL_OK);
        ut_near("gemm in bf16", gemm, want, n_y, 3e-6 * sqrt(s[2]));
        check_int16(&m.w, x, s[0]);
        check_gemv(&m.w, x, s[0]);
        if (n_y < 10000) check_q8(&m.w, x, s[0]);
        kvl_free(gemm);
        kvl_free(want);
        kvl_free(x);
        kvl_free(m.data);
    }
}

static void test_reference(void **state)
{
    (void)state;
    ut_each_isa(body_reference);
}

/* OpenBLAS's products: near the definition, the same with any number of threads; refused by a GPU.  W is widened 256
 * rows at a time: one piece and a row, and more pieces than threads. */
static void body_blas(struct kvl_rng *r)
{
    static const int32_t sizes[][3] = {
        { 1, 1, 32 }, { 29, 1285, 96 }, { 33, 700, 96 }, { 21, 257, 1088 }, { 120, 1500, 288 }
    };
    size_t n_sizes = sizeof sizes / sizeof *sizes - !getenv("KVL_LONG");
    for (size_t i = 0; i < N_TYPES * n_sizes; i++) {
        const int32_t *s = sizes[i / N_TYPES];
        struct matrix m;
        int32_t n_cols = whole_blocks(types[i % N_TYPES], s[2]);
        matrix_open(r, &m, types[i % N_TYPES], s[1], n_cols);
        size_t n_y = (size_t)s[0] * (size_t)s[1];
        float *x = ut_random(r, (size_t)s[0] * (size_t)n_cols, 1), *want = ut_poison(n_y);
        float *one = ut_poison(n_y), *many = ut_poison(n_y);
        int32_t threads = kvl_ops_threads();
        struct kvl_gemm_args a = { .y = want, .x = x, .w = &m.w, .n = s[0], .blas = true };
        assert_int_equal(kvl_ops_ref.gemm(&a), KVL_OK);
#ifdef KVL_TEST_CUDA
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_EINVAL);
#else
        kvl_ops_set_threads(1);
        a.y = one;
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        kvl_ops_set_threads(3);
        a.y = many;
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        ut_near("gemm by BLAS", one, want, n_y, 3e-6 * sqrt(n_cols));
        ut_same("gemm by BLAS on three threads", many, one, n_y);
        kvl_ops_set_threads(threads);
#endif
        (void)threads;
        kvl_free(one);
        kvl_free(many);
        kvl_free(want);
        kvl_free(x);
        kvl_free(m.data);
    }
}

static void test_blas(void **state)
{
    (void)state;
    ut_each_isa(body_blas);
}

/* With multiply-add instructions an element is exactly one chain over the columns. */
static void body_chain(struct kvl_rng *r)
{
    enum { N = 37, ROWS = 75 };
    if (strcmp(kvl_ops_isa(), "scalar") == 0) return;
    for (int32_t t = 0; t < N_TYPES; t++) {
        struct matrix m;
        int32_t n_cols = whole_blocks(types[t], 1120);
        matrix_open(r, &m, types[t], ROWS, n_cols);
        float *x = ut_random(r, (size_t)(N * n_cols), 1), *y = ut_poison(N * ROWS),
              *w = ut_poison((size_t)(ROWS * n_cols));
        int32_t id[ROWS];
        for (int32_t i = 0; i < ROWS; i++) id[i] = i;
        struct kvl_embed_args e = { .y = w, .w = &m.w, .id = id, .n = ROWS };
        struct kvl_gemm_args a = { .y = y, .x = x, .w = &m.w, .n = N };
        assert_int_equal(kvl_ops_ref.embed(&e), KVL_OK);
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        for (int32_t i = 0; i < N * ROWS; i++) {
            float s = 0;
            for (int32_t c = 0; c < n_cols; c++)
                s = fmaf(x[i / ROWS * n_cols + c], w[i % ROWS * n_cols + c], s);
            ut_same("element", &y[i], &s, 1);
        }
        kvl_free(w);
        kvl_free(x);
        kvl_free(y);
        kvl_free(m.data);
    }
}

static void test_gemm_is_a_chain(void **state)
{
    (void)state;
    ut_each_isa(body_chain);
}

/* The largest sums of a block: every x as large as the others, weights as far from 0 as the bytes make
 * them.  Those of Q6_K are -32 times a scale of -128. */
static void body_largest(struct kvl_rng *r)
{
    enum { N = 5, ROWS = 30 };
    static const uint8_t bytes[] = { 0, 0x7f, 0x80, 0xff };
    (void)r;
    for (size_t i = 0; i < N_TYPES * sizeof bytes; i++) {
        const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)types[i % N_TYPES]);
        float x[N * 512];
        if (t->block == 1) continue;
        struct kvl_weight w = { .type = t->type, .n_rows = ROWS, .n_cols = 512 };
        w.row_bytes = kvl_wtype_row_bytes(t->type, 512);
        uint8_t *data = ut_alloc(ROWS * w.row_bytes, 1);
        memset(data, bytes[i / N_TYPES], ROWS * w.row_bytes);
        for (size_t b = 0; b < ROWS * w.row_bytes; b += t->block_bytes) {
            set_words(data + b, t, t->block == 256 ? 0x1p-12f : 0x1p-7f);
            if (t->type == KVL_W_Q6_K) memset(data + b + 192, 0x80, 16);
        }
        for (int32_t k = 0; k < N * 512; k++) x[k] = k / 512 % 2 ? -0.75f : 0.75f;
        w.data = data;
        check_int16(&w, x, N);
        check_gemv(&w, x, N);
        kvl_free(data);
    }
}

static void test_largest_sums(void **state)
{
    (void)state;
    ut_each_isa(body_largest);
}

/* A row by itself, in a chunk of any size, at any place of it, with any number of threads: more rows of W than an item
 * takes, more columns than are packed at a time, packs of rows of x that are full and not.  Where nothing rounds x to
 * integers int16 changes nothing (check_int16). */
static void body_rows(struct kvl_rng *r)
{
#ifdef KVL_TEST_CUDA /* both heights of blocks, two calls of cuBLAS and more; 150 rows take minutes */
    enum { LONG = 100, SHORT = LONG, ROWS = 141, MIN_COLS = 224 };
    static const int32_t chunks[] = { 5, 33, 64 };
#else
    enum { LONG = 150, SHORT = 43, ROWS = 203, MIN_COLS = 736 };
    static const int32_t chunks[] = { 1, 9, 16, 25, 100 };
#endif
    int32_t n = getenv("KVL_LONG") ? LONG : SHORT;
    size_t n_y = (size_t)n * ROWS;
    for (int32_t t = 0; t < 3 * N_TYPES; t++) {
        struct matrix m;
        bool bf16 = t / N_TYPES == 1, int16 = t / N_TYPES == 2;
        int32_t n_cols = whole_blocks(types[t % N_TYPES], MIN_COLS);
        if (int16 && !rounds_x(types[t % N_TYPES])) continue;
        matrix_open(r, &m, types[t % N_TYPES], ROWS, n_cols);
        float *x = ut_random(r, (size_t)n * (size_t)n_cols, 1), *whole = ut_poison(n_y);
        struct kvl_gemm_args a = {
            .y = whole, .x = x, .w = &m.w, .n = n, .bf16 = bf16, .int16 = int16
        };
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks && chunks[c] < n; c++) {
            float *y = ut_poison(n_y);
            kvl_ops_set_threads(1 + (int32_t)c % 3);
            for (int32_t i = 0; i < n; i += chunks[c]) {
                a.y = y + i * ROWS;
                a.x = x + i * n_cols;
                a.n = KVL_MIN(chunks[c], n - i);
                assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
            }
            ut_same("gemm", y, whole, n_y);
            kvl_free(y);
        }
        kvl_free(whole);
        kvl_free(x);
        kvl_free(m.data);
    }
}

static void test_gemm_rows_are_independent(void **state)
{
    (void)state;
    ut_each_isa(body_rows);
}

/* Whether gemv in 8 bits is another one. */
static bool may_q8(enum kvl_wtype type)
{
#ifdef KVL_TEST_CUDA
    (void)type;
    return false;
#else
    return kvl_wtype_find((uint32_t)type)->x_int16;
#endif
}

/* n rows at once, and each alone: the same bits. */
static void check_batch(const struct kvl_weight *w, const float *x, int32_t n, bool q8)
{
    size_t n_y = (size_t)n * (size_t)w->n_rows;
    float *batch = ut_poison(n_y), *alone = ut_poison(n_y);
    struct kvl_gemv_args a = { .y = batch, .x = x, .w = w, .n = n, .q8 = q8 };
    assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
    kvl_ops_set_threads(1 + n % 3);
    a.n = 1;
    for (int32_t i = 0; i < n; i++) {
        a.y = alone + i * w->n_rows;
        a.x = x + i * w->n_cols;
        assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
    }
    ut_same(kvl_wtype_name(w->type), batch, alone, n_y);
    kvl_free(alone);
    kvl_free(batch);
}

/* Rows that share the read of W round as a row alone.  Wide ones are rounded on a GPU in parts, the larger the fewer rows
 * there are. */
static void body_batch(struct kvl_rng *r)
{
    enum { ROWS = 203, WIDE_ROWS = 20, WIDE_COLS = 4352 };
    for (int32_t i_t = 0; i_t < 2 * N_TYPES; i_t++)
        for (int32_t n = 1; n <= 9; n++) {
            const enum kvl_wtype type = types[i_t % N_TYPES];
            const bool q8 = i_t >= N_TYPES;
            struct matrix m;
            int32_t n_cols = whole_blocks(type, 800);
            if (ut_left_out(i_t, n) || (q8 && !may_q8(type))) continue;
            matrix_open(r, &m, type, ROWS, n_cols);
            float *x = ut_random(r, (size_t)(n * n_cols), 1);
            check_batch(&m.w, x, n, q8);
            kvl_free(x);
            kvl_free(m.data);
        }
#ifdef KVL_TEST_CUDA
    for (int32_t i = 0; i < 2 * N_TYPES; i++) {
        struct matrix m;
        int32_t n = i < N_TYPES ? 3 : 7;
        matrix_open(r, &m, types[i % N_TYPES], WIDE_ROWS, WIDE_COLS);
        float *x = ut_random(r, (size_t)(n * WIDE_COLS), 1);
        check_batch(&m.w, x, n, false);
        kvl_free(x);
        kvl_free(m.data);
    }
#endif
}

static void test_gemv_batched_as_alone(void **state)
{
    (void)state;
    ut_each_isa(body_batch);
}

/* Products that share x are those of one call each; one of them may be quantised, one not. */
static void body_together(struct kvl_rng *r)
{
    enum { COLS = 768, N = 3, MATRICES = 7 };
    static const int32_t other[MATRICES] = { 0, 0, 0, 0, 0, 1, 2 };
    for (int32_t i_t = 0; i_t < 2 * N_TYPES; i_t++) {
        const int32_t t = i_t % N_TYPES;
        const bool q8 = i_t >= N_TYPES;
        if (q8 && !may_q8(types[t])) continue;
        struct matrix m[MATRICES];
        struct kvl_gemv_args a[MATRICES];
        float *x = ut_random(r, N * COLS, 1);
        for (int32_t i = 0; i < MATRICES; i++) {
            matrix_open(r, &m[i], types[(t + other[i]) % N_TYPES], ut_between(r, 1, 90), COLS);
            a[i] = (struct kvl_gemv_args){ .x = x, .w = &m[i].w, .n = N, .q8 = q8 };
            a[i].y = ut_poison((size_t)(N * m[i].w.n_rows));
            a[i].next = i + 1 < MATRICES ? &a[i + 1] : NULL;
        }
        assert_int_equal(kvl_ops_cpu.gemv(a), KVL_OK);
        for (int32_t i = 0; i < MATRICES; i++) {
            size_t n_y = (size_t)(N * m[i].w.n_rows);
            float *y = ut_poison(n_y);
            struct kvl_gemv_args alone = { .y = y, .x = x, .w = &m[i].w, .n = N, .q8 = q8 };
            assert_int_equal(kvl_ops_cpu.gemv(&alone), KVL_OK);
            ut_same("gemv", a[i].y, y, n_y);
            kvl_free(y);
            kvl_free(a[i].y);
            kvl_free(m[i].data);
        }
        kvl_free(x);
    }
}

/* What is made of products has the bits of gemv, add and glu one after the other; both products of a gated one may be
 * of other types, and its rows too many or too narrow for one kernel. */
static void body_made(struct kvl_rng *r)
{
    for (int32_t t = 0; t < 2 * N_TYPES; t++) {
        int32_t cols = 256 * ut_between(r, 1, 3), rows = ut_between(r, 1, 90);
        int32_t n = UT_PICK(r, 1, 3, 8, 11);
        size_t n_y = (size_t)(n * rows);
        struct matrix w, up, other;
        enum kvl_act act = (enum kvl_act)ut_between(r, KVL_ACT_SILU, KVL_ACT_SWISH_CLAMPED);
        bool add = t % 3 == 0, biased = t % 2;
        matrix_open(r, &w, types[t % N_TYPES], rows, cols);
        matrix_open(r, &up, types[t < N_TYPES ? t % N_TYPES : ut_between(r, 0, N_TYPES - 1)], rows,
                    cols);
        matrix_open(r, &other, types[t % N_TYPES], 7, cols);
        float *x = ut_random(r, (size_t)(n * cols), 1), *bias = ut_random(r, 2 * (size_t)rows, 1);
        float *got = ut_random(r, n_y, 1), *want = ut_poison(n_y), *u = ut_poison(n_y);
        float *beside = ut_poison((size_t)(n * 7)), *ref = ut_alloc(n_y, sizeof *ref);
        memcpy(ref, got, n_y * sizeof *ref);
        float *start = ut_alloc(n_y, sizeof *start);
        memcpy(start, got, n_y * sizeof *start);
        struct kvl_gemv_args last = { .y = beside, .x = x, .w = &other.w, .n = n };
        struct kvl_gemv_args a = { .y = got,
                                   .x = x,
                                   .w = &w.w,
                                   .n = n,
                                   .next = &last,
                                   .bias = biased ? bias : NULL,
                                   .up = &up.w,
                                   .up_bias = biased ? bias + rows : NULL,
                                   .act = act,
                                   .add = add };
        assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
        for (size_t i = 0; i < (size_t)(n * 7); i++) assert_true(isfinite(beside[i]));
        struct kvl_gemv_args plain = { .y = want, .x = x, .w = &w.w, .n = n };
        assert_int_equal(kvl_ops_cpu.gemv(&plain), KVL_OK);
        plain.y = u;
        plain.w = &up.w;
        assert_int_equal(kvl_ops_cpu.gemv(&plain), KVL_OK);
        struct kvl_add_args sum = { .x = bias, .n = n_y, .n_x = (size_t)rows };
        for (int both = 0; biased && both < 2; both++) {
            sum.y = both ? u : want;
            sum.x = bias + both * rows;
            assert_int_equal(kvl_ops_cpu.add(&sum), KVL_OK);
        }
        assert_int_equal(kvl_ops_cpu.glu(&(struct kvl_glu_args){
                             .y = want, .gate = want, .up = u, .n = n_y, .act = act }),
                         KVL_OK);
        if (add) {
            assert_int_equal(
                kvl_ops_cpu.add(&(struct kvl_add_args){ .y = start, .x = want, .n = n_y }), KVL_OK);
            memcpy(want, start, n_y * sizeof *want);
        }
        ut_same("what is made of gemv", got, want, n_y);
        a.y = ref;
        assert_int_equal(kvl_ops_ref.gemv(&a), KVL_OK);
        ut_near("what is made of gemv", got, ref, n_y, 1e-2);
        a.up = NULL;
        a.next = NULL;
        a.add = true;
        memcpy(got, ref, n_y * sizeof *got);
        assert_int_equal(kvl_ops_ref.gemv(&a), KVL_OK);
        a.y = got;
        assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
        ut_near("gemv added", got, ref, n_y, 1e-4 * sqrt(cols));
        kvl_free(start);
        kvl_free(ref);
        kvl_free(beside);
        kvl_free(u);
        kvl_free(want);
        kvl_free(got);
        kvl_free(bias);
        kvl_free(x);
        kvl_free(other.data);
        kvl_free(up.data);
        kvl_free(w.data);
    }
}

static void test_gemv_made(void **state)
{
    (void)state;
    ut_each_isa(body_made);
}

static void test_gemv_together_as_alone(void **state)
{
    (void)state;
    ut_each_isa(body_together);
}

#ifndef KVL_TEST_CUDA
/* y [n][n_rows] of these vectors; false: the processor lacks them. */
static bool product_by(const char *isa, const struct kvl_weight *w, const float *x, int32_t n,
                       float *y, int32_t kind)
{
    struct kvl_gemv_args v = { .y = y, .x = x, .w = w, .n = n, .q8 = kind == 1 };
    struct kvl_gemm_args m = { .y = y, .x = x, .w = w, .n = n, .int16 = true };
    if (!kvl_kern_select(isa)) return false;
    assert_int_equal(kind < 2 ? kvl_ops_cpu.gemv(&v) : kvl_ops_cpu.gemm(&m), KVL_OK);
    return true;
}

/* Integers are exact and sums have one order: all vectors of x86 give the same bits, of gemv, gemv in 8 bits, and gemm. */
static void test_same_on_x86(void **state)
{
    enum { ROWS = 75, COLS = 1280, N = 13 };
    static const char *const isa[] = { "avx2", "avx512", "avx512bf16" };
    const char *before = kvl_ops_isa();
    struct kvl_rng r;
    int32_t n_compared = 0;
    (void)state;
    kvl_rng_seed(&r, 3);
    for (int32_t t = 0; t < 3 * N_TYPES; t++) {
        struct matrix m;
        const int32_t kind = t / N_TYPES, n = kind < 2 ? 3 : N;
        if (!kvl_wtype_find((uint32_t)types[t % N_TYPES])->x_int16) continue;
        matrix_open(&r, &m, types[t % N_TYPES], ROWS, COLS);
        float *x = ut_random(&r, N * COLS, 1), *first = ut_poison(N * ROWS);
        bool any = product_by(isa[0], &m.w, x, n, first, kind);
        for (size_t i = 1; any && i < sizeof isa / sizeof *isa; i++) {
            float *y = ut_poison(N * ROWS);
            if (product_by(isa[i], &m.w, x, n, y, kind)) {
                ut_same(kvl_wtype_name(types[t % N_TYPES]), y, first, (size_t)(n * ROWS));
                n_compared++;
            }
            kvl_free(y);
        }
        kvl_free(first);
        kvl_free(x);
        kvl_free(m.data);
    }
    assert_true(kvl_kern_select(before));
    assert_true(n_compared > 0 || !getenv("KVL_AVX512_HOST"));
    if (n_compared == 0) skip(); /* one set of vectors is here */
}
#endif

/* Sums of |products|, of each row of W: what a dot product's error is a part of, wherever its terms cancel. */
static void magnitudes(const struct kvl_weight *w, const float *x, double *sum)
{
    float *row = ut_poison((size_t)w->n_cols);
    for (int32_t i = 0; i < w->n_rows; i++) {
        struct kvl_embed_args e = { .y = row, .w = w, .id = &i, .n = 1 };
        assert_int_equal(kvl_ops_ref.embed(&e), KVL_OK);
        sum[i] = 0;
        for (int32_t c = 0; c < w->n_cols; c++) sum[i] += fabs((double)row[c] * (double)x[c]);
    }
    kvl_free(row);
}

/* |a - b| <= tol * magnitude in every row, but for what subnormals round off once for each product. */
static void near_magnitude(const char *what, const struct kvl_weight *w, const float *a,
                           const float *b, const double *magnitude, double tol)
{
    for (int32_t i = 0; i < w->n_rows; i++) {
        double most = tol * magnitude[i] + (double)w->n_cols * 0x1p-149;
        if (!(fabs((double)a[i] - (double)b[i]) <= most))
            fail_msg("%s of %s: row %d is %.9g, want %.9g up to %.3g (isa %s)", what,
                     kvl_wtype_name(w->type), i, (double)a[i], (double)b[i], most, kvl_ops_isa());
    }
}

/* The same product in 8 bits. */
static void check_hard_q8(const struct kvl_gemv_args *of, float **y, const double *magnitude,
                          double tol)
{
    struct kvl_gemv_args a = *of;
    if (!may_q8(a.w->type)) return;
    a.q8 = true;
    a.y = y[0];
    assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
    a.y = y[1];
    assert_int_equal(kvl_ops_ref.gemv(&a), KVL_OK);
    near_magnitude("gemv in 8 bits", a.w, y[0], y[1], magnitude, tol);
}

/* A row of x of that size, and the same with one element that is no number. */
static void check_hard_row(struct kvl_rng *r, const struct kvl_wtype_row *t, double size)
{
    enum { ROWS = 9 };
    struct matrix m;
    int32_t n_cols = whole_blocks(t->type, 96);
    bool below = t->block == 256 || !t->x_int16; /* scales below, or sums of floats */
    double magnitude[ROWS],
        tol = n_cols * 0x1p-23; /* twice what a sum of floats rounds off at most */
    matrix_open(r, &m, t->type, ROWS, n_cols);
    for (size_t i = 0; i < (size_t)(ROWS * n_cols / t->block); i++) { /* nothing that overflows */
        uint8_t *block = m.data + i * t->block_bytes;
        set_words(block, t, below ? 0x1p-24f : 0x1p-14f);
        if (t->type == KVL_W_MXFP4) block[0] = 112;
    }
    float *x = ut_random(r, (size_t)n_cols, size), *y[2] = { ut_poison(ROWS), ut_poison(ROWS) };
    magnitudes(&m.w, x, magnitude);
    for (int32_t i = 0; i < ROWS; i++) assert_true(magnitude[i] < 3e38);
    struct kvl_gemv_args a = { .y = y[0], .x = x, .w = &m.w, .n = 1 };
    assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
    a.y = y[1];
    assert_int_equal(kvl_ops_ref.gemv(&a), KVL_OK);
    struct kvl_gemm_args exact = { .y = y[1], .x = x, .w = &m.w, .n = 1 };
    if (!gemv_rounds_x(t->type)) assert_int_equal(kvl_ops_ref.gemm(&exact), KVL_OK);
    near_magnitude("gemv", &m.w, y[0], y[1], magnitude, tol);
    check_hard_q8(&a, y, magnitude, tol);
    struct kvl_gemm_args g = { .y = y[0], .x = x, .w = &m.w, .n = 1, .int16 = true };
    assert_int_equal(kvl_ops_cpu.gemm(&g), KVL_OK);
    g.y = y[1];
    assert_int_equal(kvl_ops_ref.gemm(&g), KVL_OK);
    if (rounds_x(t->type)) near_magnitude("gemm in int16", &m.w, y[0], y[1], magnitude, tol);
    for (int32_t bad = 0; bad < 3; bad++) { /* never a finite result */
        x[40] = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
        a.y = y[0];
        assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
        assert_int_equal(kvl_ops_cpu.gemm(&g), KVL_OK);
        for (int32_t i = 0; i < ROWS; i++)
            if (isfinite(y[0][i]) || isfinite(y[1][i]))
                fail_msg("finite %g, %g", (double)y[0][i], (double)y[1][i]);
        a.q8 = may_q8(t->type);
        assert_int_equal(kvl_ops_cpu.gemv(&a), KVL_OK);
        for (int32_t i = 0; i < ROWS; i++)
            if (isfinite(y[0][i])) fail_msg("finite %g in 8 bits", (double)y[0][i]);
        a.q8 = false;
    }
    kvl_free(y[0]);
    kvl_free(y[1]);
    kvl_free(x);
    kvl_free(m.data);
}

/* Rows of x that 16-bit integers have trouble with: zeros, subnormals, huge, not finite. */
static void body_hard_rows(struct kvl_rng *r)
{
    static const double hard[] = { 0, 1e-40, 1e-31, 3e38, 1 };
    int32_t turns = getenv("KVL_LONG") ? 30 : 1;
    for (int32_t turn = 0; turn < turns; turn++)
        for (size_t k = 0; k < sizeof hard / sizeof *hard; k++)
            for (int32_t t = 0; t < N_TYPES; t++) {
                const struct kvl_wtype_row *row = kvl_wtype_find((uint32_t)types[t]);
                if (row->block > 1) check_hard_row(r, row, hard[k]);
            }
}

static void test_gemv_hard_rows(void **state)
{
    (void)state;
    ut_each_isa(body_hard_rows);
}

#ifdef KVL_TEST_CUDA
/* Memory of the device at odd places: the same bits as from aligned copies of the host's. */
static void test_any_place(void **state)
{
    enum { N = 21, ROWS = 36 };
    const struct kvl_device *d = NULL;
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 1);
    assert_int_equal(kvl_device_open("cuda", &d, &(struct kvl_err){ 0 }), KVL_OK);
    for (int32_t t = 0; t < 4 * N_TYPES; t++) {
        struct matrix m;
        const bool gemm = t < 2 * N_TYPES;
        int32_t n = gemm ? N : t < 3 * N_TYPES ? 3 : 1;
        int32_t n_cols = whole_blocks(types[t % N_TYPES], 192);
        size_t n_x = (size_t)(N * n_cols);
        matrix_open(&r, &m, types[t % N_TYPES], ROWS, n_cols);
        size_t bytes = ROWS * m.w.row_bytes, by = types[t % N_TYPES] == KVL_W_F32 ? 4 : 2;
        float *x = ut_random(&r, n_x, 1), *want = ut_poison(N * ROWS);
        uint8_t *data = d->alloc(KVL_PLACE_SHARED, bytes + by, 1);
        float *odd_x = d->alloc(KVL_PLACE_SHARED, n_x + 1, sizeof *odd_x);
        float *odd_y = d->alloc(KVL_PLACE_SHARED, N * ROWS + 1, sizeof *odd_y);
        assert_true(data && odd_x && odd_y);
        memcpy(data + by, m.data, bytes);
        memcpy(odd_x + 1, x, n_x * sizeof *x);
        struct kvl_weight odd = { data + by, m.w.type, ROWS, n_cols, m.w.row_bytes };
        for (int32_t there = 0; there < 2; there++) {
            float *y = there ? odd_y + 1 : want;
            const float *from = there ? odd_x + 1 : x;
            const struct kvl_weight *w = there ? &odd : &m.w;
            struct kvl_gemm_args a = { .y = y, .x = from, .w = w, .n = n, .bf16 = t < N_TYPES };
            struct kvl_gemv_args v = { .y = y, .x = from, .w = w, .n = n };
            assert_int_equal(gemm ? kvl_cpu_gemm(&a) : kvl_cpu_gemv(&v), KVL_OK);
        }
        assert_int_equal(d->sync(), KVL_OK);
        ut_same(kvl_wtype_name(types[t % N_TYPES]), odd_y + 1, want, (size_t)(n * ROWS));
        d->free(KVL_PLACE_SHARED, data);
        d->free(KVL_PLACE_SHARED, odd_x);
        d->free(KVL_PLACE_SHARED, odd_y);
        kvl_free(want);
        kvl_free(x);
        kvl_free(m.data);
    }
}
#endif

/* embed of one row, by both sides, bit for bit. */
static void embed_both(const struct kvl_weight *w)
{
    int32_t id = 0;
    float *a = ut_poison((size_t)w->n_cols), *b = ut_poison((size_t)w->n_cols);
    struct kvl_embed_args e = { .y = a, .w = w, .id = &id, .n = 1 };
    assert_int_equal(kvl_ops_cpu.embed(&e), KVL_OK);
    e.y = b;
    assert_int_equal(kvl_ops_ref.embed(&e), KVL_OK);
    ut_same("embed", a, b, (size_t)w->n_cols);
    kvl_free(a);
    kvl_free(b);
}

/* Independent of half.h: the value of a half by arithmetic. */
static double half_value(uint32_t h)
{
    double sign = h & 0x8000 ? -1 : 1;
    int e = (int)(h >> 10 & 31), f = (int)(h & 1023);
    return sign * (e ? ldexp(1024 + f, e - 25) : ldexp(f, -24));
}

static void body_halves(struct kvl_rng *r)
{
    enum { N = 1 << 16 };
    (void)r;
    uint16_t *all = ut_alloc(N, sizeof *all);
    float *y = ut_poison(N);
    int32_t id = 0;
    for (uint32_t i = 0; i < N; i++) all[i] = (uint16_t)i;
    for (int32_t odd = 0; odd < 2; odd++) { /* also from the tail of a row */
        struct kvl_weight f16 = { all + odd, KVL_W_F16, 1, N - 3 * odd, 2 * N };
        struct kvl_weight bf16 = { all + odd, KVL_W_BF16, 1, N - 3 * odd, 2 * N };
        embed_both(&f16);
        embed_both(&bf16);
    }
    struct kvl_weight f16 = { all, KVL_W_F16, 1, N, 2 * N };
    struct kvl_embed_args e = { .y = y, .w = &f16, .id = &id, .n = 1 };
    assert_int_equal(kvl_ops_cpu.embed(&e), KVL_OK);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t mag = i & 0x7fff;
        bool ok = mag > 0x7c00    ? isnan(y[i])
                  : mag == 0x7c00 ? isinf(y[i]) && (y[i] < 0) == (i >= 0x8000)
                                  : (double)y[i] == half_value(i) && !signbit(y[i]) == (i < 0x8000);
        if (!ok) fail_msg("half %04x widens to %g", (unsigned)i, (double)y[i]);
    }
    struct kvl_weight bf16 = { all, KVL_W_BF16, 1, N, 2 * N };
    e.w = &bf16;
    assert_int_equal(kvl_ops_cpu.embed(&e), KVL_OK);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(kvl_f32_bits(y[i]), i << 16);
    kvl_free(y);
    kvl_free(all);
}

static void test_all_halves(void **state)
{
    (void)state;
    ut_each_isa(body_halves);
}

/* Every byte with every kind of scale: zeros, subnormals, the largest, infinity. */
static void body_quantised(struct kvl_rng *r)
{
    static const uint16_t scales[] = { 0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc00,
                                       0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x1234, 0x9abc };
    enum { BLOCKS = 2000 };
    for (int32_t t = 0; t < N_TYPES; t++) {
        const struct kvl_wtype_row *row = kvl_wtype_find((uint32_t)types[t]);
        size_t block = row->block_bytes;
        if (row->block == 1) continue;
        uint8_t *data = ut_alloc(BLOCKS, block);
        for (size_t i = 0; i < BLOCKS * block; i++) data[i] = (uint8_t)kvl_rng_below(r, 256);
        for (size_t b = 0; b < BLOCKS; b++) {
            uint16_t s = b % 2 ? (uint16_t)kvl_rng_below(r, 0x7c00)
                               : scales[b / 2 % (sizeof scales / sizeof *scales)];
            bool infinite = (s & 0x7fff) == 0x7c00;
            if (infinite && !centred(types[t]))
                s = 1; /* 0 times that is a NaN of any sign */
            else if (infinite)
                memset(data + b * block, 0x71, block);
            memcpy(data + b * block + row->word[0], &s, 2);
            if (row->word[1] != row->word[0]) s = (uint16_t)kvl_rng_below(r, 0x7c00);
            memcpy(data + b * block + row->word[1], &s, 2);
        }
        struct kvl_weight w = { data, types[t], 1, BLOCKS * row->block, BLOCKS * block };
        embed_both(&w);
        kvl_free(data);
    }
}

static void test_quantised_values(void **state)
{
    (void)state;
    ut_each_isa(body_quantised);
}

static uint32_t hex_number(const char *hex, size_t n)
{
    char text[9] = { 0 };
    memcpy(text, hex, n);
    return (uint32_t)strtoul(text, NULL, 16);
}

/* Every type against ggml's own floats, by both sides. */
static void body_vectors(struct kvl_rng *r)
{
    bool seen[N_TYPES] = { false };
    (void)r;
    for (size_t i = 0; i < sizeof wtype_vectors / sizeof *wtype_vectors; i++) {
        const char *bits = wtype_vectors[i].bits;
        uint8_t block[512];
        size_t bytes = strlen(wtype_vectors[i].block) / 2, n = strlen(bits) / 8;
        for (size_t b = 0; b < bytes; b++)
            block[b] = (uint8_t)hex_number(wtype_vectors[i].block + 2 * b, 2);
        for (int32_t t = 0; t < N_TYPES; t++) {
            if (strcmp(kvl_wtype_name(types[t]), wtype_vectors[i].type) != 0) continue;
            struct kvl_weight w = { block, types[t], 1, (int32_t)n, bytes };
            float *y = ut_poison(n), *want = ut_alloc(n, sizeof *want);
            int32_t id = 0;
            struct kvl_embed_args e = { .y = y, .w = &w, .id = &id, .n = 1 };
            for (size_t j = 0; j < n; j++) want[j] = kvl_bits_f32(hex_number(bits + 8 * j, 8));
            assert_int_equal(kvl_wtype_row_bytes(types[t], (int64_t)n), bytes);
            assert_int_equal(kvl_ops_cpu.embed(&e), KVL_OK);
            ut_same(wtype_vectors[i].type, y, want, n);
            assert_int_equal(kvl_ops_ref.embed(&e), KVL_OK);
            ut_same(wtype_vectors[i].type, y, want, n);
            seen[t] = true;
            kvl_free(want);
            kvl_free(y);
        }
    }
    for (int32_t t = 0; t < N_TYPES; t++)
        if (!seen[t] && kvl_wtype_find((uint32_t)types[t])->block > 1)
            fail_msg("no vector of type %s", kvl_wtype_name(types[t]));
}

static void test_vectors(void **state)
{
    (void)state;
    ut_each_isa(body_vectors);
}

/* One block of each type by hand: scale 0.5. */
static void test_block_layout(void **state)
{
    (void)state;
    uint8_t q8[34] = { 0x00, 0x38, 0x80, 0x7f, 0x01 }, q4[18] = { 0x00, 0x38, 0xf0, 0x18 };
    float y[32];
    int32_t id = 0;
    struct kvl_weight w8 = { q8, KVL_W_Q8_0, 1, 32, 34 }, w4 = { q4, KVL_W_Q4_0, 1, 32, 18 };
    struct kvl_embed_args e = { .y = y, .w = &w8, .id = &id, .n = 1 };
    assert_int_equal(kvl_ops_cpu.embed(&e), KVL_OK);
    assert_true(y[0] == -64 && y[1] == 63.5f && y[2] == 0.5f && y[3] == 0);
    e.w = &w4;
    assert_int_equal(kvl_ops_cpu.embed(&e), KVL_OK);
    assert_true(y[0] == -4 && y[16] == 3.5f && y[1] == 0 && y[17] == -3.5f && y[2] == -4);
    assert_int_equal(kvl_wtype_row_bytes(KVL_W_Q4_0, 64), 36);
    assert_int_equal(kvl_wtype_row_bytes(KVL_W_Q8_0, 33), 0);
    assert_int_equal(kvl_wtype_row_bytes(KVL_W_F32, INT64_MAX), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_blas),
#ifdef KVL_TEST_CUDA
        cmocka_unit_test(test_any_place),
#else
        cmocka_unit_test(test_same_on_x86),
#endif
        cmocka_unit_test(test_gemm_is_a_chain),
        cmocka_unit_test(test_gemm_rows_are_independent),
        cmocka_unit_test(test_largest_sums),
        cmocka_unit_test(test_gemv_batched_as_alone),
        cmocka_unit_test(test_gemv_together_as_alone),
        cmocka_unit_test(test_gemv_made),
        cmocka_unit_test(test_gemv_hard_rows),
        cmocka_unit_test(test_all_halves),
        cmocka_unit_test(test_quantised_values),
        cmocka_unit_test(test_block_layout),
        cmocka_unit_test(test_vectors),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
