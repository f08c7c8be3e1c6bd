/* Wrappers that ask an inner policy anew: numbers of the official code (EntropyGatedChunkKVPress over scores written
 * down), and what block, chunk, dms, per_layer, key_rerotation, criticalkv and criticalada keep over scores that
 * are worked out. */
#include "golden/given.h"
#include "golden/peek.h"

extern const struct kvl_policy *const kvl_policy_entropychunkkv,
    *const kvl_policy_per_layer, *const kvl_policy_block,
                                     *const kvl_policy_chunk,
                                         *const kvl_policy_dms,
                                             *const kvl_policy_key_rerotation,
                                                 *const kvl_policy_criticalkv,
                                                     *const kvl_policy_criticalada,
                                                         *const kvl_policy_knorm,
                                                             *const kvl_policy_keydiff;

static const struct gw_llama llama = {
    .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .n_embd = 64, .head_dim = 16, .seed = 8
};

static void expect_given(struct rig *r, const struct given_run *g, const int32_t (*want)[40],
                         const int32_t *n)
{
    const struct kvl_policy *composed;
    struct rig_session rs = given_start(r, g, &composed);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 2; h++) rig_expect_kept(&rs, l, h, want[l], n[l]);
    rig_end(&rs);
    kvl_policy_decompose(composed);
}

/* kvpress 0.5.5, EntropyGatedChunkKVPress.compress() over these scores of two heads and 33 tokens. */
static void test_entropy_gated_chunks(void **state)
{
    static const struct {
        const char *options;
        int32_t keep, want[40];
    } cases[] = {
        { "chunk=10,few=4", 12, { 0, 1, 2, 3, 4, 5, 6, 7, 9, 30, 31, 32 } },
        { "chunk=10,few=4", 20, { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                                  20, 22, 23, 24, 25, 27, 28, 30, 31, 32 } },
        { "chunk=4,few=1", 9, { 4, 5, 6, 7, 20, 21, 22, 23, 32 } },
        { "chunk=5,few=2", 17, { 5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 32 } },
    };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    memset(&given, 0, sizeof given);
    for (int32_t i = 0; i < 33; i++) {
        given.score[0][i] = (float)((i * 37 + 11) % 23);
        given.score[1][i] = (float)((i * i * 5 + 3) % 19);
    }
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t want[2][40], n[2] = { cases[c].keep, cases[c].keep };
        for (int l = 0; l < 2; l++) memcpy(want[l], cases[c].want, sizeof want[l]);
        struct given_run g = { kvl_policy_entropychunkkv, cases[c].options, cases[c].keep + 1, 33 };
        expect_given(&r, &g, (const int32_t(*)[40])want, n);
    }
    rig_close(&r);
}

/* The same over scores of which some are below zero, and of tokens that are protected: one above the best. */
static void test_entropy_of_any_scores(void **state)
{
    static const struct {
        const char *options;
        int32_t n, keep, first, last, want[40];
    } cases[] = {
        { "chunk=6,few=2", 37, 14, 0, 0, { 6, 7, 8, 9, 10, 11, 22, 23, 24, 25, 26, 27, 28, 29 } },
        { "chunk=6,few=3", 37, 20, 0, 0, { 3,  6,  7,  8,  9,  10, 11, 18, 19, 20,
                                           21, 22, 23, 24, 25, 26, 27, 28, 29, 36 } },
        { "chunk=7,few=1", 40, 25, 0, 3, { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                           13, 21, 22, 23, 24, 25, 26, 27, 28, 29, 34, 37 } },
        { "chunk=5,few=2", 29, 9, 1, 0, { 5, 7, 8, 9, 20, 21, 22, 23, 24 } },
        { "chunk=10,few=4", 33, 12, 0, 0, { 7, 8, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29 } },
    };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t want[2][40], n[2] = { cases[c].keep, cases[c].keep };
        memset(&given, 0, sizeof given);
        given.first = cases[c].first;
        given.last = cases[c].last;
        for (int32_t i = 0; i < 80; i++)
            given.score[i / 40][i % 40] = (float)((i % 40 * 29 + i / 40 * 7 + 5) % 31 - 14);
        for (int l = 0; l < 2; l++) memcpy(want[l], cases[c].want, sizeof want[l]);
        struct given_run g = { kvl_policy_entropychunkkv, cases[c].options, cases[c].keep + 1,
                               cases[c].n };
        expect_given(&r, &g, (const int32_t(*)[40])want, n);
    }
    rig_close(&r);
}

/* Scores of a window of three queries are sums over it: one above the best mean is three above the best here. */
static void test_entropy_beside_a_window(void **state)
{
    static const int32_t kept[12] = { 21, 22, 23, 24, 25, 26, 28, 29, 30, 34, 35, 36 };
    int32_t want[2][40] = { 0 }, n[2] = { 12, 12 };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    memset(&given, 0, sizeof given);
    given.last = given.n_summed = 3;
    for (int32_t i = 0; i < 80; i++) {
        float x = (float)((i % 40 * 29 + i / 40 * 7 + 5) % 31);
        given.score[i / 40][i % 40] = x * x / 1024;
    }
    for (int l = 0; l < 2; l++) memcpy(want[l], kept, sizeof kept);
    struct given_run g = { kvl_policy_entropychunkkv, "chunk=7,few=4", 13, 37 };
    expect_given(&r, &g, (const int32_t(*)[40])want, n);
    rig_close(&r);
}

/* And more of the kind: scores (a i^2 + b (h + 1) i + 5 h + 1) mod m, less a number, of token i in head h. */
static void test_entropy_of_many(void **state)
{
    static const struct {
        const char *options;
        int32_t n, keep, of[4], want[40]; /* of: a, b, m, the number */
    } cases[] = {
        { "chunk=5,few=3", 39, 6, { 18, 21, 31, 0 }, { 10, 11, 12, 13, 14, 20 } },
        { "chunk=3,few=2", 25, 20, { 27, 18, 23, 0 }, { 2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                                        12, 13, 14, 15, 16, 17, 18, 19, 21, 22 } },
        { "chunk=4,few=1", 38, 28, { 29, 9, 23, 0 }, { 2,  4,  5,  6,  7,  11, 12, 13, 14, 15,
                                                       16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                                       26, 27, 28, 29, 30, 31, 36, 37 } },
        { "chunk=4,few=1", 32, 9, { 31, 5, 37, 0 }, { 8, 9, 10, 11, 16, 17, 18, 19, 20 } },
        { "chunk=9,few=1", 20, 8, { 13, 28, 23, 0 }, { 9, 10, 11, 12, 13, 14, 15, 16 } },
        { "chunk=5,few=2",
          29,
          22,
          { 14, 23, 23, 0 },
          { 1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 17, 20, 21, 22, 23, 24, 25, 26, 27, 28 } },
        { "chunk=5,few=1",
          32,
          16,
          { 13, 30, 31, 0 },
          { 3, 6, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24 } },
        { "chunk=3,few=2",
          28,
          14,
          { 40, 1, 37, 9 },
          { 3, 4, 9, 10, 11, 15, 16, 17, 18, 19, 20, 22, 23, 27 } },
        { "chunk=5,few=3",
          22,
          18,
          { 33, 23, 29, 9 },
          { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 16, 17, 18, 19 } },
        { "chunk=6,few=4", 25, 10, { 19, 1, 17, 9 }, { 6, 7, 9, 11, 12, 13, 14, 15, 16, 24 } },
        { "chunk=3,few=2",
          32,
          16,
          { 40, 27, 31, 0 },
          { 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 21, 22, 23, 29 } },
        { "chunk=3,few=1", 34, 24, { 10, 25, 23, 0 }, { 1,  3,  4,  5,  6,  7,  8,  12,
                                                        13, 14, 15, 16, 17, 18, 19, 20,
                                                        24, 25, 26, 27, 28, 29, 30, 33 } },
        { "chunk=5,few=3", 34, 21, { 32, 4, 29, 9 }, { 0,  1,  2,  3,  4,  10, 11, 12, 13, 15, 16,
                                                       17, 18, 19, 21, 23, 24, 30, 31, 32, 33 } },
        { "chunk=3,few=2", 29, 7, { 24, 17, 23, 9 }, { 3, 4, 5, 7, 8, 27, 28 } },
    };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int32_t *of = cases[c].of;
        int32_t want[2][40], n[2] = { cases[c].keep, cases[c].keep };
        memset(&given, 0, sizeof given);
        for (int32_t i = 0; i < 80; i++)
            given.score[i / 40][i % 40] =
                (float)((i % 40 * (i % 40) * of[0] + (i / 40 + 1) * of[1] * (i % 40) +
                         5 * (i / 40) + 1) %
                            of[2] -
                        of[3]);
        for (int l = 0; l < 2; l++) memcpy(want[l], cases[c].want, sizeof want[l]);
        struct given_run g = { kvl_policy_entropychunkkv, cases[c].options, cases[c].keep + 1,
                               cases[c].n };
        expect_given(&r, &g, (const int32_t(*)[40])want, n);
    }
    rig_close(&r);
}

/* 20 tokens a layer: 1/3 is 10 and 30; 1/9 is 4 and 36, of 24 there are: 16 and 24. */
static void test_lists_of_layers(void **state)
{
    static const struct {
        const char *options;
        int32_t n_ctx, kept[2];
    } cases[] = { { "kept=1/3", 40, { 10, 30 } },
                  { "kept=1", 40, { 20, 20 } },
                  { "kept=1/9", 24, { 16, 24 } },
                  { "kept=9/1", 24, { 24, 16 } } };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    memset(&given, 0, sizeof given);
    for (int32_t i = 0; i < 40; i++) given.score[0][i] = given.score[1][i] = (float)-i;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t want[2][40];
        for (int32_t i = 0; i < 80; i++) want[i / 40][i % 40] = i % 40;
        struct given_run g = { kvl_policy_per_layer, cases[c].options, 21, cases[c].n_ctx };
        expect_given(&r, &g, (const int32_t(*)[40])want, cases[c].kept);
    }
    rig_close(&r);
}

/* 80 tokens in four layers: 1, 2, 3 and 4 parts; 5, 7/3, 4/3 and 2, whose rest goes to the first; with 11 protected the
 * first has these and the others what is left, of which no layer has room for more than 30. */
static void test_lists_between_layers(void **state)
{
    static const struct {
        const char *options;
        int32_t first, last, n_ctx, kept[4];
    } cases[] = { { "kept=1/4", 0, 0, 40, { 8, 16, 24, 32 } },
                  { "kept=5/1/2", 0, 0, 40, { 38, 17, 10, 15 } },
                  { "kept=1/4", 6, 5, 40, { 12, 15, 23, 30 } },
                  { "kept=1/9", 6, 5, 30, { 12, 14, 24, 30 } },
                  { "kept=9/1", 0, 0, 30, { 30, 29, 17, 4 } } };
    struct gw_llama four = llama;
    struct rig r;
    (void)state;
    four.n_layers = 4;
    rig_open(&r, &(struct rig_desc){ .llama = four });
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct kvl_policy *composed;
        memset(&given, 0, sizeof given);
        given.first = cases[c].first;
        given.last = cases[c].last;
        for (int32_t i = 0; i < 40; i++) given.score[0][i] = given.score[1][i] = (float)-i;
        struct given_run g = { kvl_policy_per_layer, cases[c].options, 21, cases[c].n_ctx };
        struct rig_session rs = given_start(&r, &g, &composed);
        int32_t sum = 0;
        for (int32_t l = 0; l < 4; l++) {
            int32_t want[40], kept = cases[c].kept[l], ends = cases[c].n_ctx - cases[c].last;
            for (int32_t i = 0; i < kept; i++)
                want[i] = i < kept - cases[c].last ? i : ends + i - (kept - cases[c].last);
            for (int32_t h = 0; h < 2; h++) rig_expect_kept(&rs, l, h, want, kept);
            sum += kept;
        }
        assert_int_equal(sum, 80);
        rig_end(&rs);
        kvl_policy_decompose(composed);
    }
    rig_close(&r);
}

/* ---- over norms of keys ---------------------------------------------------------------------------------- */

enum { N = 100 };

static const struct kvl_policy *over(const struct kvl_policy *outer, const struct kvl_policy *inner)
{
    const struct kvl_policy *p;
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_policy_compose(outer, inner, &p, &err));
    return p;
}

static void norm_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                        double *score)
{
    float *k = shot_read(t, layer, kv_head, KVL_PART_K);
    (void)with;
    for (int32_t i = 0; i < t->n; i++) {
        double sum = 0;
        for (int32_t c = 0; c < 16; c++) sum += pow((double)k[i * 16 + c], 2);
        score[i] = -sqrt(sum);
    }
    kvl_free(k);
}

struct chunked {
    const char *options;
    int32_t size, budget, kept, of[5]; /* tokens that each chunk keeps */
};

/* Norms do not depend on company: block by block the same stay; the best of each chunk. */
static void chunk_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                         double *score)
{
    const struct chunked *w = with;
    norm_scores(t, layer, kv_head, NULL, score);
    for (int32_t at = 0; at < N; at += w->size) {
        uint8_t mark[N];
        int32_t m = KVL_MIN(w->size, N - at);
        record_top(score + at, m, w->of[at / w->size], mark);
        for (int32_t i = 0; i < m; i++) score[at + i] += mark[i] ? 1000 : 0;
    }
}

static void test_blocks_and_chunks(void **state)
{
    static struct shot t;
    const struct kvl_policy *p = over(kvl_policy_block, kvl_policy_knorm),
                            *c = over(kvl_policy_chunk, kvl_policy_knorm),
                            *k = over(kvl_policy_block, kvl_policy_keydiff),
                            *m = over(kvl_policy_key_rerotation, kvl_policy_knorm);
    int32_t want[N];
    (void)state;
    shot_open(&t, &llama, N, 3);
    struct rig_session rs = shot_policy(&t, p, "size=7", 41);
    shot_expect_best(&t, &rs, 40, norm_scores, NULL);
    rig_end(&rs);
    static const struct chunked ways[] = {
        { "size=30", 30, 41, 40, { 12, 12, 12, 4 } },
        { "size=30", 30, 44, 43, { 13, 13, 13, 4 } }, /* 12.9 and 4.3 */
        { "size=30,exact=false", 30, 44, 40, { 12, 12, 12, 4 } },
        { "size=24", 24, 48, 47, { 12, 12, 11, 11, 1 } }, /* 11.28 and 1.88 */
        { "size=24,exact=false", 24, 4, 5, { 1, 1, 1, 1, 1 } },
        { "size=100", 100, 31, 30, { 30 } },
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        rs = shot_policy(&t, c, ways[i].options, ways[i].budget);
        shot_expect_best(&t, &rs, ways[i].kept, chunk_scores, &ways[i]);
        rig_end(&rs);
    }
    rs = shot_policy(&t, m, "", 41);
    shot_expect_best(&t, &rs, 40, norm_scores, NULL);
    rig_end(&rs);
    /* KeyDiff has blocks of its own. */
    rs = shot_policy(&t, k, "size=16,keydiff.block=0", 31);
    struct rig_session own = shot_policy(&t, kvl_policy_keydiff, "block=16", 31);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < 2; h++)
            rig_expect_kept(&rs, l, h, want, rig_kept(&own, l, h, want));
    rig_end(&own);
    rig_end(&rs);
    /* Blocks of one token, and of more than there is. */
    for (int32_t i = 0; i < 2; i++) {
        rs = shot_policy(&t, p, i ? "size=500" : "size=1", 21);
        shot_expect_best(&t, &rs, 20, norm_scores, NULL);
        rig_end(&rs);
    }
    shot_close(&t);
    kvl_policy_decompose(p);
    kvl_policy_decompose(c);
    kvl_policy_decompose(k);
    kvl_policy_decompose(m);
}

/* Of all before the window, those whose norm is not above the threshold; by the budget as many as it has room for. */
static void test_thresholds(void **state)
{
    static struct shot t;
    const struct kvl_policy *p = over(kvl_policy_dms, kvl_policy_knorm);
    double score[2][N];
    char options[64];
    (void)state;
    shot_open(&t, &llama, N, 3);
    norm_scores(&t, 1, 0, NULL, score[0]);
    norm_scores(&t, 1, 1, NULL, score[1]);
    snprintf(options, sizeof options, "window=20,threshold=%.6f", score[0][5] - 1e-4);
    struct rig_session rs = shot_policy(&t, p, options, 0);
    for (int32_t h = 0; h < 2; h++) {
        int32_t want[N], n = 0;
        for (int32_t i = 0; i < N; i++)
            if (i >= N - 20 || score[h][i] >= score[0][5] - 1e-4) want[n++] = i;
        rig_expect_kept(&rs, 1, h, want, n);
    }
    rig_end(&rs);
    rs = shot_policy(&t, p, "window=20", 51);
    uint8_t mark[160];
    double all[160];
    for (int32_t i = 0; i < 160; i++) all[i] = score[i / 80][i % 80];
    record_top(all, 160, 60, mark);
    for (int32_t h = 0; h < 2; h++) {
        int32_t want[N], n = 0;
        for (int32_t i = 0; i < N; i++)
            if (i >= 80 || mark[h * 80 + i]) want[n++] = i;
        rig_expect_kept(&rs, 1, h, want, n);
    }
    rig_end(&rs);
    shot_close(&t);
    kvl_policy_decompose(p);
}

/* By the budget: equal scores stay no more often than there is room; what the inner policy protects stays, and a window
 * is a quarter of the budget.  By a threshold: scores that are equal to it stay. */
static void test_thresholds_of_given_scores(void **state)
{
    static const struct {
        const char *options;
        int32_t budget, first, kept[2], want[2][40];
    } cases[] = {
        { "window=10",
          21,
          0,
          { 30, 10 },
          { { 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,
              15, 16, 17, 18, 19, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39 },
            { 30, 31, 32, 33, 34, 35, 36, 37, 38, 39 } } },
        { "",
          16,
          3,
          { 23, 7 }, /* 4 of 15 are the window, of 22 others 3 in each head are protected */
          { { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 36, 37, 38, 39 },
            { 0, 1, 2, 36, 37, 38, 39 } } },
        { "window=35,threshold=1", 0, 0, { 40, 40 }, { { 0 } } },
        { "window=35,threshold=1.5", 0, 2, { 37, 37 }, { { 0 } } },
    };
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = llama });
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct kvl_policy *composed;
        memset(&given, 0, sizeof given);
        given.first = cases[c].first;
        for (int32_t i = 0; i < 80; i++) given.score[i / 40][i % 40] = 1;
        struct given_run g = { kvl_policy_dms, cases[c].options, cases[c].budget, 40 };
        struct rig_session rs = given_start(&r, &g, &composed);
        for (int32_t h = 0; h < 2; h++) {
            if (cases[c].want[h][1] > 0)
                rig_expect_kept(&rs, 1, h, cases[c].want[h], cases[c].kept[h]);
            else
                assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 1, h), cases[c].kept[h]);
        }
        rig_end(&rs);
        kvl_policy_decompose(composed);
    }
    rig_close(&r);
}

/* ---- CriticalKV ------------------------------------------------------------------------------------------- */

struct critical {
    const char *options;
    double part, epsilon;
    int32_t first, last; /* protected, which count in the first stage */
};

/* A part of 40 by score, the others by (score + epsilon) norm. */
static void critical_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                            double *score)
{
    const struct critical *w = with;
    uint8_t mark[N];
    (void)t;
    for (int32_t i = 0; i < N; i++)
        score[i] = i < w->first || i >= N - w->last ? HUGE_VAL : (double)given.score[kv_head][i];
    record_top(score, N, KVL_MAX(w->first + w->last, (int32_t)(40 * w->part)), mark);
    for (int32_t i = 0; i < N; i++)
        score[i] = mark[i] ? HUGE_VAL : (score[i] + w->epsilon) * peek_norm(layer, kv_head, 2, i);
}

static void given_random(int32_t first, int32_t last)
{
    memset(&given, 0, sizeof given);
    given.first = first;
    given.last = last;
    for (int32_t i = 0; i < 2 * N; i++)
        given.score[i / N][i % N] = (float)((i * 7919 + 13) % 997) / (i < N ? 997.0f : 1500.0f);
}

static void test_critical_stages(void **state)
{
    static const struct critical ways[] = {
        { "epsilon=0.5", .5, .5, 0, 0 },
        { "epsilon=0.01,first_stage=0.25", .25, .01, 0, 0 },
        { "epsilon=0.1,first_stage=0.4", .4, .1, 5, 4 },
        { "epsilon=1,first_stage=0.1", .1, 1, 3,
          8 }, /* more are protected than the first stage has */
        { "epsilon=0.2,first_stage=1", 1, .2, 0, 3 },
        { "epsilon=0.2,first_stage=0", 0, .2, 2, 3 },
    };
    static struct shot t;
    const struct kvl_policy *p = over(kvl_policy_criticalkv, &given_policy);
    (void)state;
    shot_open(&t, &llama, N, 3);
    peek_run(&t);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        given_random(ways[i].first, ways[i].last);
        struct rig_session rs = shot_policy(&t, p, ways[i].options, 41);
        shot_expect_best(&t, &rs, 40, critical_scores, &ways[i]);
        rig_end(&rs);
    }
    shot_close(&t);
    kvl_policy_decompose(p);
}

/* Of both heads' tokens 80 stay, `safe` of each for certain: how many each head has. */
static void critical_shares(const struct critical *w, int32_t safe, int32_t n_of[2])
{
    double all[2 * N], score[N];
    uint8_t mark[2 * N], best[N];
    n_of[0] = n_of[1] = 0;
    for (int32_t h = 0; h < 2; h++) {
        for (int32_t i = 0; i < N; i++)
            score[i] = i < w->first || i >= N - w->last ? HUGE_VAL : (double)given.score[h][i];
        record_top(score, N, KVL_MAX(safe, w->first + w->last), best);
        for (int32_t i = 0; i < N; i++) all[h * N + i] = best[i] ? HUGE_VAL : score[i];
    }
    record_top(all, 2 * N, 80, mark);
    for (int32_t i = 0; i < 2 * N; i++) n_of[i / N] += mark[i];
}

static void test_critical_shares(void **state)
{
    static const struct {
        struct critical how;
        double alpha;
    } ways[] = {
        { { "epsilon=0.5,floor_alpha=0.25", .5, .5, 0, 0 }, .25 },
        { { "epsilon=0.1,floor_alpha=0.9,first_stage=0.2", .2, .1, 0, 0 }, .9 },
        { { "epsilon=0.1,floor_alpha=0.4,first_stage=0.6", .6, .1, 5, 6 }, .4 },
        { { "epsilon=0.1,floor_alpha=0,first_stage=0.3", .3, .1, 4, 0 }, 0 },
    };
    static struct shot t;
    const struct kvl_policy *a = over(kvl_policy_criticalada, &given_policy);
    (void)state;
    shot_open(&t, &llama, N, 3);
    peek_run(&t);
    for (size_t c = 0; c < sizeof ways / sizeof *ways; c++) {
        const struct critical *w = &ways[c].how;
        int32_t safe = (int32_t)(40 * ways[c].alpha), n_of[2];
        given_random(w->first, w->last);
        critical_shares(w, safe, n_of);
        assert_true(n_of[0] != 40 || ways[c].alpha > .5);
        struct rig_session rs = shot_policy(&t, a, w->options, 41);
        for (int32_t lane = 0; lane < 4; lane++) {
            int32_t want[N], n = 0, l = lane / 2, h = lane % 2;
            double score[N];
            uint8_t best[N];
            for (int32_t i = 0; i < N; i++)
                score[i] = i < w->first || i >= N - w->last ? HUGE_VAL : (double)given.score[h][i];
            int32_t stage = KVL_MAX(safe, (int32_t)(n_of[h] * w->part));
            record_top(score, N, KVL_MAX(stage, w->first + w->last), best);
            for (int32_t i = 0; i < N; i++)
                score[i] = best[i] ? HUGE_VAL : (score[i] + w->epsilon) * peek_norm(l, h, 2, i);
            record_top(score, N, n_of[h], best);
            for (int32_t i = 0; i < N; i++)
                if (best[i]) want[n++] = i;
            rig_expect_kept(&rs, l, h, want, n);
        }
        rig_end(&rs);
    }
    shot_close(&t);
    kvl_policy_decompose(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entropy_gated_chunks),
        cmocka_unit_test(test_lists_of_layers),
        cmocka_unit_test(test_entropy_of_any_scores),
        cmocka_unit_test(test_entropy_beside_a_window),
        cmocka_unit_test(test_entropy_of_many),
        cmocka_unit_test(test_lists_between_layers),
        cmocka_unit_test(test_thresholds_of_given_scores),
        cmocka_unit_test(test_critical_shares),
        cmocka_unit_test(test_blocks_and_chunks),
        cmocka_unit_test(test_thresholds),
        cmocka_unit_test(test_critical_stages),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
