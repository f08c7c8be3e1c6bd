/* MInference: what is forced, blocks by means, tables; and on a model what every layer chooses against a
 * softmax computed here.  The file of the method is included, so that its parts
 * can be called one by one. */
#define KVL_PLUGIN
#include "kvl/policy.h"

/* What the method says goes through the test. */
static int seen_lines(struct kvl_prefill_mask *mask, int32_t head, const int32_t *vertical,
                      int32_t n_vertical, const int32_t *slash, int32_t n_slash);
static int seen_blocks(struct kvl_prefill_mask *mask, int32_t head, int32_t block_tok,
                       const int32_t *off, const int32_t *block, int32_t n_blocks);
static int seen_window(struct kvl_prefill_mask *mask, int32_t head, int32_t sink, int32_t window);
static int seen_slash(struct kvl_prefill_mask *mask, int32_t head, int32_t block_tok,
                      const int32_t *slash, int32_t n_slash);
#define kvl_mask_slash_blocks   seen_slash
#define kvl_mask_vertical_slash seen_lines
#define kvl_mask_blocks         seen_blocks
#define kvl_mask_window         seen_window
#include "../methods/minference.c"
#undef kvl_mask_vertical_slash
#undef kvl_mask_blocks
#undef kvl_mask_window
#undef kvl_mask_slash_blocks

#include "conformance/rig.h"

/* ---- parts without a model
 * ----------------------------------------------------------------------------
 */

static int bare_hook(struct kvl_pctx *ctx);
static struct kvl_pctx *bare_ctx;

static const struct kvl_policy bare_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "bare",
    .title = "t",
    .paper = "p",
    .help = "h",
    .caps = KVL_CAP_BOUND,
    .open = bare_hook,
};

static void check_choice(const struct kvl_pctx *ctx);

static int bare_hook(struct kvl_pctx *ctx)
{
    bare_ctx = ctx;
    check_choice(ctx);
    return KVL_OK;
}

/* 200 keys: columns 150 and 99, diagonals 180 and 120 stand out. */
static void check_choice(const struct kvl_pctx *ctx)
{
    enum { N = 200 };
    float vertical[N] = { 0 }, slash[N] = { 0 };
    int32_t *column, *diagonal;
    vertical[150] = 2;
    vertical[99] = 1;
    slash[180] = 2;
    slash[120] = 1;
    assert_int_equal(mi_best(ctx, vertical, N, MI_COLUMNS, 31, &column), KVL_OK);
    assert_int_equal(mi_best(ctx, slash, N, MI_DIAGONALS, 101, &diagonal), KVL_OK);
    for (int i = 0; i < 30; i++) assert_int_equal(column[i], i);
    for (int i = 0; i < 100; i++) assert_int_equal(diagonal[i], i);
    assert_int_equal(column[30], 150);
    assert_int_equal(diagonal[100], 180);
    /* Fewer than what is forced: the nearest. */
    assert_int_equal(mi_best(ctx, slash, N, MI_DIAGONALS, 50, &diagonal), KVL_OK);
    for (int i = 0; i < 50; i++) assert_int_equal(diagonal[i], i);
}

static void test_forced(void **state)
{
    struct kvl_planned *p;
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .n_kv_heads = 1, .seed = 1 } });
    int32_t id[4];
    rig_tokens(id, 4, 1);
    struct kvl_session *s;
    RIG_OK(&r.err, kvl_planned_create(&bare_policy, rig_shape(&r), "", 0, 4, &p, &r.err));
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, 4, NULL, true, &r.err));
    RIG_OK(&r.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err));
    assert_non_null(bare_ctx);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    rig_close(&r);
}

/* ---- sizes and tables
 * ------------------------------------------------------------------------------------
 */

static const struct kvl_shape two_heads = {
    .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .n_embd = 16, .n_vocab = 9
};

static int plan_with(const char *options, int32_t budget, int32_t context, struct mi_opts *o,
                     struct kvl_err *err)
{
    struct kvl_planned *p = NULL;
    *err = (struct kvl_err){ 0 };
    int rc = kvl_planned_create(&minference, &two_heads, options, budget, context, &p, err);
    if (rc == KVL_OK) {
        kvl_opt_defaults(mi_options, o, err);
        RIG_OK(err, kvl_opt_parse(mi_options, o, kvl_planned_options(p), err));
        assert_true(kvl_planned_own_prefill(p));
    }
    kvl_planned_destroy(p);
    return rc;
}

static void test_sizes(void **state)
{
    struct mi_opts o;
    struct kvl_err err;
    (void)state;
    RIG_OK(&err, plan_with("", 0, 100000, &o, &err));
    assert_int_equal(o.vertical_size, 1000);
    assert_int_equal(o.slash_size, 6096);
    assert_int_equal(o.sink, 100);
    assert_int_equal(o.local, 800);
    assert_int_equal(o.block_topk, 100);
    assert_int_equal(o.chunk, 32768);
    RIG_OK(&err, plan_with("", 1024, 5000, &o, &err));
    assert_int_equal(o.vertical_size + o.slash_size, 1024);
    assert_int_equal(o.vertical_size, 1024 * 1000 / 7096);
    assert_int_equal(o.sink + o.local, 1024);
    assert_int_equal(o.block_topk, 16);
    assert_int_equal(o.chunk, 5000);
    RIG_OK(&err, plan_with("vertical_size=200", 1024, 5000, &o, &err));
    assert_int_equal(o.slash_size, 824);
    assert_int_equal(plan_with("chunk=100", 1024, 5000, &o, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "multiple of 64"));
    assert_int_equal(plan_with("", 79, 5000, &o, &err), KVL_EINVAL);
}

static void expect_table(const char *text, const char *why)
{
    char path[] = "/tmp/kvl-table-XXXXXX", options[64];
    struct mi_opts o;
    struct kvl_err err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    snprintf(options, sizeof options, "table=%s", path);
    int rc = plan_with(options, 1024, 5000, &o, &err);
    unlink(path);
    if (!why) {
        RIG_OK(&err, rc);
        assert_int_equal(strlen(o.table_sum), 16);
        return;
    }
    assert_int_equal(rc, KVL_EINVAL);
    if (!strstr(err.msg, why) || !strstr(err.msg, path)) fail_msg("\"%s\", want %s", err.msg, why);
}

static void test_tables(void **state)
{
    struct mi_opts o;
    struct kvl_err err;
    (void)state;
    expect_table("# head\n0 0 vertical_slash 30 800 # 0.5\n\n0 1 block_sparse 7\n", NULL);
    expect_table("0 0 a_shape 4 8\n", "layer 0 head 1 is missing");
    expect_table("0 0 a_shape 4 8\n1 0 a_shape 4 8\n", "line 2: layer \"1\"");
    expect_table("\n0 0 a_shap 4 8\n", "line 2: kind \"a_shap\"");
    expect_table("0 0 a_shape 4\n0 1 a_shape 4 8\n", "line 1: second size \"\"");
    expect_table("0 0 a_shape 4 8 9\n0 1 a_shape 4 8\n", "line 1: more behind");
    expect_table("0 0 a_shape 4 8\n0 0 a_shape 4 8\n", "line 2: layer 0 head 0 stands twice");
    expect_table("0 0 a_shape 4.5 8\n", "want a whole number");
    assert_int_equal(plan_with("table=/nowhere/x.txt", 1024, 5000, &o, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "/nowhere/x.txt"));
}

/* ---- on a model
 * ----------------------------------------------------------------------------------------------
 */

enum { N_CTX = 300, N_HEADS = 4 };

/* The hook that is running, and what it said: a byte per query of the chunk,
 * key and head. */
static struct {
    const struct kvl_pctx *ctx;
    const struct kvl_step *step;
    const struct kvl_query *q;
    int n_lines, n_blocks, n_windows;
    uint8_t reads[MI_KINDS][N_HEADS][N_CTX][N_CTX]; /* of the last call, by kind */
    double slash[N_CTX];                            /* scores of the head that slash=blocks is at */
    int32_t sizes[2][2];                            /* columns and diagonals of heads 0 and 1 */
    int n_ranges;
} seen;

/* Keys of a head's lane, [n][head_dim]. */
static float *keys_of(int32_t h, int32_t n)
{
    const struct kvl_shape *sh = seen.ctx->shape;
    int32_t pos[N_CTX];
    float *k = rig_floats((size_t)(n * sh->head_dim));
    for (int32_t j = 0; j < n; j++) pos[j] = j;
    assert_int_equal(kvl_read_keys(seen.ctx, seen.step->layer, h / (sh->n_heads / sh->n_kv_heads),
                                   pos, n, false, k),
                     KVL_OK);
    return k;
}

static const float *query_of(int32_t h, int32_t i)
{
    const struct kvl_shape *sh = seen.ctx->shape;
    return seen.q->q + (size_t)(i * sh->n_heads + h) * (size_t)sh->head_dim;
}

/* Weights of query i of head h, in double, from what is stored. */
static void naive_weights(int32_t i, int32_t h, const float *k, double *p)
{
    int32_t d = seen.ctx->shape->head_dim, n = seen.step->pos + i + 1;
    const float *x = query_of(h, i);
    double max = -HUGE_VAL, sum = 0;
    for (int32_t j = 0; j < n; j++) {
        p[j] = 0;
        for (int32_t c = 0; c < d; c++) p[j] += (double)x[c] * (double)k[j * d + c];
        p[j] /= sqrt(d);
        max = fmax(max, p[j]);
    }
    for (int32_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - max);
    for (int32_t j = 0; j < n; j++) p[j] /= sum;
}

/* Whether `list` holds the n best of `score`, up to near ties. */
static void expect_best(const double *score, int32_t n_score, const int32_t *list, int32_t n)
{
    double least = HUGE_VAL;
    bool in[N_CTX] = { false };
    for (int32_t i = 0; i < n; i++) {
        assert_true(list[i] >= 0 && list[i] < n_score);
        in[list[i]] = true;
        least = fmin(least, score[list[i]]);
    }
    for (int32_t j = 0; j < n_score; j++)
        if (!in[j] && score[j] > least + 1e-4)
            fail_msg("%d of score %g is left out, one of %g is in", j, score[j], least);
}

static int seen_lines(struct kvl_prefill_mask *mask, int32_t h, const int32_t *vertical,
                      int32_t n_vertical, const int32_t *slash, int32_t n_slash)
{
    const struct mi_opts *o = seen.ctx->opts;
    int32_t n = seen.step->pos + seen.step->n_tok;
    double want_v[N_CTX] = { 0 }, want_s[N_CTX] = { 0 }, p[N_CTX];
    float *k = keys_of(h, n);
    for (int32_t i = KVL_MAX(0, seen.step->n_tok - 64); i < seen.step->n_tok; i++) {
        naive_weights(i, h, k, p);
        for (int32_t j = 0; j <= seen.step->pos + i; j++) {
            want_v[j] += p[j];
            want_s[seen.step->pos + i - j] += p[j];
        }
    }
    for (int32_t j = 0; j < 30; j++) want_v[j] = 1e9;
    for (int32_t j = 0; j < 100; j++) want_s[j] = 1e9 - j;
    if (!o->table[0]) {
        assert_int_equal(n_vertical, KVL_MIN(n, o->vertical_size));
        assert_int_equal(n_slash, o->slash == MI_WHOLE_BLOCKS ? 0 : KVL_MIN(n, o->slash_size));
    }
    expect_best(want_v, n, vertical, n_vertical);
    if (h < 2) seen.sizes[h][0] = n_vertical, seen.sizes[h][1] = n_slash;
    if (o->slash == MI_DIAGONALS_ALONE) expect_best(want_s, n, slash, n_slash);
    memcpy(seen.slash, want_s, sizeof want_s);
    kvl_free(k);
    memset(seen.reads[MI_VERTICAL_SLASH][h], 0, sizeof seen.reads[0][0]);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t c = 0; c < n_vertical; c++)
            seen.reads[MI_VERTICAL_SLASH][h][i][vertical[c]] = 1;
        for (int32_t c = 0; c < n_slash && slash[c] <= i; c++)
            seen.reads[MI_VERTICAL_SLASH][h][i][i - slash[c]] = 1;
    }
    seen.n_lines++;
    return kvl_mask_vertical_slash(mask, h, vertical, n_vertical, slash, n_slash);
}

/* The kernel's index of 64 queries from `start` on: marks the keys that they read of the diagonals. */
static void naive_whole(const bool *slash, int32_t n, int32_t start, uint8_t *mark)
{
    int32_t end = -1;
    memset(mark, 0, N_CTX);
    for (int32_t d = n - 1; d >= 0; d--) {
        int32_t first = KVL_MAX(0, start - d); /* where it meets the first query */
        if (!slash[d] || d >= start + 64) continue;
        bool apart = end < 0 || first > end;
        int32_t from = apart ? first : end, to = first + 64 > end ? from + 64 : end;
        for (int32_t j = from; j < to && j < KVL_MIN(n, start + 64); j++) mark[j] = 1;
        end = to;
    }
}

/* What the hook says are the best diagonals; what the builder makes of them is counted (test_slash_is_told). */
static int seen_slash(struct kvl_prefill_mask *mask, int32_t h, int32_t block_tok,
                      const int32_t *slash, int32_t n_slash)
{
    const struct mi_opts *o = seen.ctx->opts;
    int32_t n = seen.step->pos + seen.step->n_tok;
    bool in[N_CTX] = { false };
    assert_int_equal(block_tok, 64);
    assert_int_equal(n_slash, KVL_MIN(n, o->slash_size));
    expect_best(seen.slash, n, slash, n_slash);
    for (int32_t i = 0; i < n_slash; i++) in[slash[i]] = true;
    for (int32_t start = seen.step->pos; start < n; start += 64) {
        uint8_t want[N_CTX];
        naive_whole(in, n, start, want);
        for (int32_t i = start; i < KVL_MIN(n, start + 64); i++)
            for (int32_t j = 0; j <= i; j++) seen.reads[MI_VERTICAL_SLASH][h][i][j] |= want[j];
    }
    seen.n_ranges++;
    return kvl_mask_slash_blocks(mask, h, block_tok, slash, n_slash);
}

/* Mean query of block i times mean key of block j, in double. */
static double naive_block(int32_t h, const float *key, int32_t i, int32_t j)
{
    int32_t d = seen.ctx->shape->head_dim, n = seen.step->pos + seen.step->n_tok;
    int32_t rows = KVL_MIN(64, seen.step->n_tok - i * 64), cols = KVL_MIN(64, n - j * 64);
    double dot = 0;
    for (int32_t c = 0; c < d; c++) {
        double mq = 0, mk = 0;
        for (int32_t r = 0; r < rows; r++) mq += (double)query_of(h, i * 64 + r)[c] / rows;
        for (int32_t r = 0; r < cols; r++) mk += (double)key[(j * 64 + r) * d + c] / cols;
        dot += mq * mk;
    }
    return dot;
}

static int seen_blocks(struct kvl_prefill_mask *mask, int32_t h, int32_t block_tok,
                       const int32_t *off, const int32_t *block, int32_t n_blocks)
{
    const struct mi_opts *o = seen.ctx->opts;
    int32_t n = seen.step->pos + seen.step->n_tok, first = seen.step->pos / 64;
    float *key = keys_of(h, n);
    assert_int_equal(block_tok, 64);
    assert_int_equal(n_blocks, (seen.step->n_tok + 63) / 64);
    memset(seen.reads[MI_BLOCK_SPARSE][h], 0, sizeof seen.reads[0][0]);
    for (int32_t i = 0; i < n_blocks; i++) {
        double score[N_CTX] = { 0 };
        for (int32_t j = 0; j < first + i; j++) score[j] = naive_block(h, key, i, j);
        score[first + i] = 1e9;
        if (!o->table[0])
            assert_int_equal(off[i + 1] - off[i], KVL_MIN(o->block_topk, first + i + 1));
        expect_best(score, first + i + 1, block + off[i], off[i + 1] - off[i]);
        for (int32_t b = off[i]; b < off[i + 1]; b++)
            for (int32_t r = i * 64; r < KVL_MIN(seen.step->n_tok, (i + 1) * 64); r++)
                for (int32_t j = block[b] * 64; j < KVL_MIN(N_CTX, (block[b] + 1) * 64); j++)
                    seen.reads[MI_BLOCK_SPARSE][h][seen.step->pos + r][j] = 1;
    }
    kvl_free(key);
    seen.n_blocks++;
    return kvl_mask_blocks(mask, h, block_tok, off, block, n_blocks);
}

static int seen_window(struct kvl_prefill_mask *mask, int32_t h, int32_t sink, int32_t window)
{
    for (int32_t i = 0; i < N_CTX; i++)
        for (int32_t j = 0; j < N_CTX; j++)
            seen.reads[MI_A_SHAPE][h][i][j] = j <= i && (j < sink || i - j < window);
    seen.n_windows++;
    return kvl_mask_window(mask, h, sink, window);
}

/* Asked by the search: captured weight of sampled queries on what the patterns
 * read before. */
static double captured[N_HEADS][MI_KINDS];

static void naive_captures(int32_t budget)
{
    int32_t room = seen.step->n_tok - budget;
    for (int32_t h = 0; h < N_HEADS; h++) {
        float *k = keys_of(h, N_CTX);
        for (int32_t s = 0; s < 16; s++) {
            double p[N_CTX];
            int32_t i = budget + s * room / 16;
            naive_weights(i, h, k, p);
            for (int kind = 0; kind < MI_KINDS; kind++)
                for (int32_t j = 0; j <= i; j++)
                    captured[h][kind] += seen.reads[kind][h][i][j] ? p[j] / 16 : 0;
        }
        kvl_free(k);
    }
}

static int checked_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    seen.ctx = ctx;
    seen.step = step;
    seen.q = q;
    if (((const struct mi_opts *)ctx->opts)->search) naive_captures(ctx->budget_tok);
    return mi_prefill_mask(ctx, step, q, mask);
}

static struct kvl_policy checked;
static int32_t checked_id[N_CTX];

static struct rig_session checked_run(struct rig *r, const char *options, int32_t budget)
{
    checked = minference;
    checked.prefill_mask = checked_mask;
    rig_tokens(checked_id, N_CTX, 5);
    seen.n_lines = seen.n_blocks = seen.n_windows = seen.n_ranges = 0;
    struct rig_run run = {
        .policy = &checked, .options = options, .budget = budget, .id = checked_id, .n_ctx = N_CTX
    };
    return rig_start(r, &run);
}

/* Every kind, in one chunk and in several, against sums and means of the test's
 * own. */
static void test_model(void **state)
{
    static const struct {
        const char *options;
        int32_t budget, lines, blocks, windows; /* calls */
    } runs[] = {
        { "", 180, 8, 0, 0 },
        { "chunk=128", 180, 24, 0, 0 },
        { "slash=blocks", 130, 8, 0, 0 },
        { "slash=blocks,chunk=128", 130, 24, 0, 0 },
        { "pattern=block_sparse", 130, 0, 8, 0 },
        { "pattern=block_sparse,chunk=64", 130, 0, 40, 0 },
        { "pattern=a_shape", 130, 0, 0, 8 },
        { "", 300, 0, 0, 0 }, /* reads everything */
    };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 4 } });
    assert_int_equal(rig_shape(&r)->n_heads, N_HEADS);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct rig_session rs = checked_run(&r, runs[i].options, runs[i].budget);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        assert_int_equal(seen.n_lines, runs[i].lines);
        assert_int_equal(seen.n_blocks, runs[i].blocks);
        assert_int_equal(seen.n_ranges, strstr(runs[i].options, "blocks") ? runs[i].lines : 0);
        assert_int_equal(seen.n_windows, runs[i].windows);
        assert_int_equal(c->prefill_dense_pairs, 2 * N_HEADS * N_CTX * (N_CTX + 1) / 2);
        assert_int_equal(c->prefill_pairs == c->prefill_dense_pairs, runs[i].budget == 300);
        rig_end(&rs);
    }
    rig_close(&r);
}

/* Heads of a table read what their line says, at the budget's size. */
static void test_table_on_model(void **state)
{
    static const char text[] = "0 0 vertical_slash 40 60\n0 1 a_shape 10 30\n0 2 block_sparse 9\n"
                               "0 3 a_shape 30 10\n";
    char path[] = "/tmp/kvl-table-XXXXXX", options[64];
    struct rig r;
    int fd = mkstemp(path), n_in_blocks = 0;
    (void)state;
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    snprintf(options, sizeof options, "table=%s", path);
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .n_kv_heads = 2, .seed = 4 } });
    struct rig_session rs = checked_run(&r, options, 200);
    unlink(path);
    assert_int_equal(seen.n_lines, 1);
    assert_int_equal(seen.n_blocks, 1);
    assert_int_equal(seen.n_windows, 2);
    assert_memory_equal(seen.sizes[0], ((int32_t[]){ 80, 120 }), sizeof seen.sizes[0]);
    for (int32_t j = 0; j < N_CTX; j++) {
        n_in_blocks += seen.reads[MI_BLOCK_SPARSE][2][N_CTX - 1][j];
        assert_int_equal(seen.reads[MI_A_SHAPE][1][N_CTX - 1][j], j < 50 || j >= N_CTX - 150);
        assert_int_equal(seen.reads[MI_A_SHAPE][3][N_CTX - 1][j], j < 150 || j >= N_CTX - 50);
    }
    assert_int_equal(n_in_blocks, 2 * 64 + N_CTX % 64); /* 200 / 64 blocks, the last one its own */
    rig_end(&rs);
    rig_close(&r);
}

/* Sizes of a table without a budget are what it says, but never below what is forced. */
static void test_raised(void **state)
{
    static const char text[] = "0 0 vertical_slash 1 1\n0 1 vertical_slash 40 70\n"
                               "0 2 block_sparse 2\n0 3 a_shape 3 5\n";
    static const int32_t want[2][2] = { { 30, 50 }, { 40, 70 } };
    char path[] = "/tmp/kvl-table-XXXXXX", options[64];
    struct rig r;
    int fd = mkstemp(path);
    (void)state;
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    snprintf(options, sizeof options, "table=%s", path);
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .n_kv_heads = 2, .seed = 4 } });
    struct rig_session rs = checked_run(&r, options, 0);
    unlink(path);
    assert_memory_equal(seen.sizes, want, sizeof want);
    assert_true(seen.reads[MI_A_SHAPE][3][N_CTX - 1][2] &&
                !seen.reads[MI_A_SHAPE][3][N_CTX - 1][3]);
    rig_end(&rs);
    rig_close(&r);
}

static void read_note(void *user, const char *text)
{
    size_t n = strlen(user);
    snprintf((char *)user + n, 400 - n, "%s\n", text);
}

/* Pairs are those that the marks of the test say; the report says which reading it was. */
static void test_slash_is_told(void **state)
{
    static const char *const options[] = { "", "slash=blocks", "pattern=a_shape" };
    static const char *const why[] = { "diagonals themselves", "whole blocks", "prefill" };
    int64_t pairs[3];
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .n_kv_heads = 2, .seed = 4 } });
    for (int o = 0; o < 3; o++) {
        char note[400] = "";
        int64_t want = 0;
        struct rig_session rs = checked_run(&r, options[o], 130);
        RIG_OK(&r.err,
               kvl_session_report(rs.s, &(struct kvl_report_to){ .user = note, .note = read_note },
                                  &r.err));
        if (!strstr(note, why[o]) || !strstr(note, "vertical_slash") != (o == 2))
            fail_msg("%s: \"%s\"", options[o], note);
        for (int32_t i = 0; i < N_CTX * N_CTX * N_HEADS; i++) {
            int32_t h = i % N_HEADS, q = i / N_HEADS % N_CTX, j = i / N_HEADS / N_CTX;
            want += j <= q && (j == q || seen.reads[o == 2 ? MI_A_SHAPE : 0][h][q][j]);
        }
        pairs[o] = kvl_session_counters(rs.s)->prefill_pairs;
        assert_int_equal(pairs[o], want);
        rig_end(&rs);
    }
    assert_true(pairs[1] > pairs[0]);
    rig_close(&r);
}

static void search_num(void *user, const char *name, double value)
{
    int layer, head, k = 0;
    char kind[32];
    int *n = user;
    if (sscanf(name, "capture.%d.%d.%31s", &layer, &head, kind) != 3) return;
    while (strcmp(kind, mi_kinds[k]) != 0) k++;
    assert_int_equal(layer, 0);
    if (fabs(value - captured[head][k]) > 1e-4)
        fail_msg("%s is %g, want %g", name, value, captured[head][k]);
    ++*n;
}

/* The search says what of full attention falls on what each kind reads: a model
 * of one layer, which no mask above it changes. */
static void test_search(void **state)
{
    struct rig r;
    struct kvl_err err = { 0 };
    int n = 0;
    struct kvl_report_to to = { .user = &n, .num = search_num };
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .n_kv_heads = 2, .seed = 4 } });
    static const char *const kinds[] = { "",
                                         "pattern=a_shape",
                                         "pattern=block_sparse",
                                         "search=true",
                                         "slash=blocks",
                                         "slash=blocks,search=true" };
    for (int i = 0; i < 6; i++) {
        struct rig_session rs = checked_run(&r, kinds[i], 140);
        if (i % 2 && i > 1) {
            RIG_OK(&err, kvl_session_report(rs.s, &to, &err));
            memset(captured, 0, sizeof captured);
        }
        rig_end(&rs);
    }
    assert_int_equal(n, 2 * N_HEADS * MI_KINDS);
    rig_close(&r);
}

/* What a query reads is at most the budget: with all keys alike the sizes sum
 * up. */
static void test_budget(void **state)
{
    static const char *const kinds[] = { "", "pattern=a_shape", "pattern=block_sparse" };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .n_kv_heads = 2, .seed = 4 } });
    for (int k = 0; k < 3; k++) {
        struct rig_session rs = checked_run(&r, kinds[k], 130);
        int64_t most = 0, pairs = kvl_session_counters(rs.s)->prefill_pairs;
        for (int32_t i = 0; i < N_CTX; i++) most += KVL_MIN(i + 1, 130) * N_HEADS;
        assert_true(pairs <= most && pairs > most / 2);
        rig_end(&rs);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced),         cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_tables),         cmocka_unit_test(test_model),
        cmocka_unit_test(test_table_on_model), cmocka_unit_test(test_raised),
        cmocka_unit_test(test_search),         cmocka_unit_test(test_budget),
        cmocka_unit_test(test_slash_is_told),
    };
    return cmocka_run_group_tests_name("minference", tests, NULL, NULL);
}
