/* Masks of a prefill that are tried: what they name, weights that fall on them, and what a mask is made of - sums along
 * columns and diagonals, means of blocks - against loops written out. */
#include "conformance/rig.h"
#include "parts/mask_estimates.h"

enum {
    N_LAYERS = 2,
    N_HEADS = 4,
    N_KV = 2,
    GROUP = N_HEADS / N_KV,
    DIM = 16,
    N_CTX = 200,
    CHUNK = 128
};

static struct rig rig;
static int32_t id[N_CTX];
static int n_chunks;
static const char *wrong; /* a call that is refused; NULL: none */

static void near(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-5)) fail_msg("%s: %.9g, want %.9g", what, got, want);
}

/* ---- whole blocks of diagonals ------------------------------------------------------------------ */

/* Of 64 queries from 128 on.  Diagonal 0 meets 128 .. 191, 3 meets 125 .. 188, to which 0 adds 64 that the block's end
 * cuts; 70 meets 58 .. 121, which 122 .. 124 part from these; 150 begins before the first key: 0 .. 63, which grow to
 * 127 for 70 and to 191 for 3; 192 meets nothing.  The last block, from 192 on, ends with the keys. */
static const struct {
    int32_t slash[4], n_slash, start, want[4], n_want;
} rows[] = {
    { { 0 }, 1, 128, { 128, 192 }, 1 },
    { { 0, 3 }, 2, 128, { 125, 192 }, 1 },
    { { 0, 3, 70 }, 3, 128, { 58, 122, 125, 192 }, 2 },
    { { 0, 100 }, 2, 128, { 28, 92, 128, 192 }, 2 },
    { { 0, 3, 70, 150 }, 4, 128, { 0, 192 }, 1 },
    { { 0, 190, 192 }, 3, 128, { 0, 64, 128, 192 }, 2 },
    { { 0, 50 }, 2, 0, { 0, 64 }, 1 },
    { { 0, 3 }, 2, 192, { 189, 200 }, 1 },
};

/* Whether a mask names key j for query i of the chunk: of all weight on that key it captures all. */
static bool named(struct kvl_prefill_mask *m, const struct kvl_step *step, int32_t i, int32_t j)
{
    static float probs[N_HEADS * N_CTX];
    float captured[N_HEADS];
    memset(probs, 0, sizeof probs);
    probs[step->pos + i + 1 + j] = 1; /* of head 1 */
    assert_int_equal(kvl_mask_captures(m, i, probs, captured), KVL_OK);
    near("another head", (double)captured[0], 0);
    return captured[1] > 0;
}

/* The last query of the block sees all that the block reads. */
static int whole_blocks(const struct kvl_step *step, struct kvl_prefill_mask *mask)
{
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int32_t first = rows[r].start - step->pos, last = KVL_MIN(first + 64, step->n_tok) - 1;
        struct kvl_prefill_mask *trial;
        if (first < 0 || first >= step->n_tok) continue;
        KVL_TRY(kvl_mask_trial(mask, &trial));
        int32_t n = rows[r].n_slash;
        while (rows[r].slash[n - 1] >= step->pos + step->n_tok) n--;
        KVL_TRY(kvl_mask_slash_blocks(trial, 1, 64, rows[r].slash, n));
        for (int32_t j = 0; j <= step->pos + last; j++) {
            bool want = j == step->pos + last;
            for (int32_t k = 0; k < rows[r].n_want; k++)
                want = want || (j >= rows[r].want[2 * k] && j < rows[r].want[2 * k + 1]);
            if (named(trial, step, last, j) != want)
                fail_msg("row %zu, key %d: want %d", r, j, want);
        }
    }
    return KVL_OK;
}

/* ---- what a mask captures ------------------------------------------------------------------------ */

/* A trial captures what falls on first and latest keys, a second one everything; the chunk's own mask stays. */
static int windows(const struct kvl_pctx *ctx, const struct kvl_step *step,
                   const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    static float probs[N_HEADS * N_CTX];
    float captured[N_HEADS];
    int32_t i = step->n_tok - 5, n = step->pos + i + 1;
    struct kvl_prefill_mask *trial, *all;
    KVL_TRY(kvl_mask_trial(mask, &trial));
    KVL_TRY(kvl_mask_trial(mask, &all));
    KVL_TRY(kvl_mask_window(trial, -1, 3, 20));
    KVL_TRY(kvl_mask_weights(ctx, step, q, i, probs, n));
    KVL_TRY(kvl_mask_captures(trial, i, probs, captured));
    for (int32_t h = 0; h < N_HEADS; h++) {
        double want = 0;
        for (int32_t j = 0; j < n; j++)
            if (j < 3 || j >= n - 20) want += (double)probs[h * n + j];
        near("window", (double)captured[h], want);
    }
    KVL_TRY(kvl_mask_captures(all, i, probs, captured));
    for (int32_t h = 0; h < N_HEADS; h++) near("everything", (double)captured[h], 1);
    if (wrong) return kvl_mask_captures(trial, step->n_tok, probs, captured);
    return KVL_OK;
}

/* ---- what it is made of --------------------------------------------------------------------------- */

static int sums(const struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q)
{
    static double want_c[N_HEADS][N_CTX], want_d[N_HEADS][N_CTX];
    static float probs[N_HEADS * N_CTX];
    int32_t n = step->pos + step->n_tok;
    float *column, *diagonal;
    memset(want_c, 0, sizeof want_c);
    memset(want_d, 0, sizeof want_d);
    for (int32_t i = step->n_tok - 10; i < step->n_tok; i++) {
        int32_t seen = step->pos + i + 1;
        KVL_TRY(kvl_mask_weights(ctx, step, q, i, probs, seen));
        for (int32_t at = 0; at < N_HEADS * seen; at++) {
            want_c[at / seen][at % seen] += (double)probs[at];
            want_d[at / seen][step->pos + i - at % seen] += (double)probs[at];
        }
    }
    KVL_TRY(kvl_mask_sums(ctx, step, q, 10, &column, &diagonal));
    for (int32_t at = 0; at < N_HEADS * n; at++) {
        near("column", (double)column[at], want_c[at / n][at % n]);
        near("diagonal", (double)diagonal[at], want_d[at / n][at % n]);
    }
    return KVL_OK;
}

/* Blocks of 24: the last of the context's 200 keys has 8, of a chunk of 128 queries as well. */
static int means(const struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q)
{
    enum { BLOCK = 24 };
    int32_t n = step->pos + step->n_tok;
    float *key, *mean;
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &key));
    for (int32_t h = 0; h < N_HEADS; h++) {
        double want[2][(N_CTX + BLOCK - 1) / BLOCK][DIM] = { 0 };
        KVL_TRY(kvl_read_key_span(ctx, step->layer, h / GROUP, 0, n, false, key));
        for (int32_t i = 0; i < n * DIM; i++) {
            int32_t b = i / DIM / BLOCK, size = KVL_MIN(BLOCK, n - b * BLOCK);
            want[0][b][i % DIM] += (double)key[i] / size;
        }
        for (int32_t i = 0; i < step->n_tok * DIM; i++) {
            int32_t b = i / DIM / BLOCK, size = KVL_MIN(BLOCK, step->n_tok - b * BLOCK);
            want[1][b][i % DIM] += (double)q->q[(i / DIM * N_HEADS + h) * DIM + i % DIM] / size;
        }
        KVL_TRY(kvl_key_means(ctx, step->layer, h / GROUP, n, BLOCK, &mean));
        for (int32_t i = 0; i < (n + BLOCK - 1) / BLOCK * DIM; i++)
            near("mean key", (double)mean[i], want[0][i / DIM][i % DIM]);
        KVL_TRY(kvl_query_means(ctx, step, q, h, BLOCK, &mean));
        for (int32_t i = 0; i < (step->n_tok + BLOCK - 1) / BLOCK * DIM; i++)
            near("mean query", (double)mean[i], want[1][i / DIM][i % DIM]);
    }
    return KVL_OK;
}

static int trials_mask(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_prefill_mask *mask)
{
    static const int32_t down[] = { 5, 3 };
    float *mean;
    n_chunks++;
    if (wrong && wrong[0] == 'd') return kvl_mask_slash_blocks(mask, 0, 64, down, 2);
    if (wrong && wrong[0] == 'b') return kvl_mask_slash_blocks(mask, 0, 0, down, 1);
    if (wrong && wrong[0] == 'm') return kvl_key_means(ctx, step->layer, 0, 10, 0, &mean);
    if (wrong && wrong[0] == 'h') return kvl_query_means(ctx, step, q, N_HEADS, 24, &mean);
    KVL_TRY(whole_blocks(step, mask));
    KVL_TRY(windows(ctx, step, q, mask));
    KVL_TRY(sums(ctx, step, q));
    return means(ctx, step, q);
}

static int trials_plan(struct kvl_plan *plan)
{
    plan->prefill_chunk_tok = CHUNK;
    return KVL_OK;
}

RIG_POLICY(trials, .prefill = KVL_PREFILL_OWN, .plan = trials_plan, .prefill_mask = trials_mask);

static int run(struct kvl_err *err, int64_t *pairs_left_out)
{
    struct kvl_planned *planned;
    struct kvl_session *s;
    n_chunks = 0;
    RIG_OK(err, kvl_planned_create(&trials, rig_shape(&rig), "", 40, N_CTX, &planned, err));
    RIG_OK(err, kvl_session_create(rig.engine, &s, err));
    RIG_OK(err, kvl_session_attach(s, planned, 1, KVL_EXEC_REAL, err));
    int rc = kvl_session_prefill(s, id, N_CTX, NULL, true, err);
    const struct kvl_counters *c = kvl_session_counters(s);
    *pairs_left_out = c->prefill_dense_pairs - c->prefill_pairs;
    kvl_session_destroy(s);
    kvl_planned_destroy(planned);
    return rc;
}

/* The session's own mask was never said: all pairs are computed. */
static void test_trials(void **state)
{
    struct kvl_err err = { 0 };
    int64_t left_out;
    (void)state;
    wrong = NULL;
    RIG_OK(&err, run(&err, &left_out));
    assert_int_equal(n_chunks, 2 * N_LAYERS);
    assert_int_equal(left_out, 0);
}

static void test_refusals(void **state)
{
    static const char *const why[][2] = { { "d", "diagonal 3 after 5" },
                                          { "b", "blocks of 0" },
                                          { "m", "blocks of 0, want 0 and 1" },
                                          { "h", "query head 4, want 0 to 3" },
                                          { "c", "query 128 captures, the chunk has 128" } };
    (void)state;
    for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
        struct kvl_err err = { 0 };
        int64_t left_out;
        wrong = why[i][0];
        assert_int_equal(run(&err, &left_out), KVL_EPOLICY);
        if (!strstr(err.msg, why[i][1]))
            fail_msg("message \"%s\" lacks \"%s\"", err.msg, why[i][1]);
    }
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 91 }, .kv_type = KVL_KV_F32 };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_CTX, 92);
    return rig_shape(&rig)->n_heads == N_HEADS && rig_shape(&rig)->n_kv_heads == N_KV &&
                   rig_shape(&rig)->head_dim == DIM
               ? 0
               : 1;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trials),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("mask_trials", tests, open_rig, close_rig);
}
