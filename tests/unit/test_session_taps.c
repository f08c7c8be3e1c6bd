/* Taps, full attention, logits of blocks and own prefill, with policies whose choices are known. */
#include "conformance/rig.h"

enum { N_CTX = 50, N_TOK = 64 };

static const struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 8 },
                                      .kv_type = KVL_KV_F16 };

/* ---- a policy whose choices are known ---------------------------------------------------------- */

static struct {
    enum { PAGES, TOKENS, SEGMENTS, SCORES, STEPWISE, HANDED } choice;
    bool ignores; /* what its builders return */
    float score[8 * N_TOK];
    struct kvl_scored handed;
} plot;

static int plot_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    (void)ctx;
    return step->layer == 0 ? KVL_DENSE : KVL_SELECT;
}

/* Even positions, then odd ones. */
static int plot_segments(struct kvl_sel *sel, int32_t n)
{
    int32_t pos[N_TOK], m = 0;
    for (int32_t i = 0; i < n; i += 2) pos[m++] = i;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, m));
    KVL_TRY(kvl_sel_segment(sel));
    m = 0;
    for (int32_t i = 1; i < n; i += 4) pos[m++] = i;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, m);
}

static int plot_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    int32_t n = step->pos + 1, n_pages = (n + 7) / 8;
    (void)q;
    int rc = KVL_OK;
    plot.handed.score = plot.score;
    if (plot.choice == HANDED) rc = kvl_tap_scores(ctx, step, &plot.handed);
    if (plot.choice == PAGES)
        rc = kvl_sel_top_pages(sel, KVL_SCOPE_Q_HEAD, plot.score, n_pages, 3, 8, true);
    else if (plot.choice == TOKENS)
        rc = kvl_sel_top_tokens(sel, KVL_SCOPE_KV_HEAD, plot.score, n - 1, 5);
    else if (plot.choice == SEGMENTS)
        rc = plot_segments(sel, n);
    return plot.ignores ? KVL_OK : rc;
}

static int plot_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    (void)layer;
    if (plot.choice != SCORES) {
        scores->keep_tok = scores->n_tok;
        return KVL_OK;
    }
    scores->keep_tok = 10;
    scores->protect_last = 2;
    memcpy(scores->score, plot.score,
           (size_t)ctx->shape->n_kv_heads * (size_t)scores->n_tok * sizeof *plot.score);
    return KVL_OK;
}

/* Head 1 forgets one token a step. */
static int plot_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    (void)ctx;
    if (plot.choice != STEPWISE) return KVL_OK;
    int32_t end = step->pos + step->n_tok;
    KVL_TRY(kvl_keep_range(keep, 0, 0, end));
    return kvl_keep_range(keep, 1, end - 20, end);
}

static const struct kvl_policy plot_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "plot",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS,
    .schedule = plot_schedule,
    .select = plot_select,
    .score = plot_score,
    .evict = plot_evict,
};

/* ---- a tap that writes down --------------------------------------------------------------------- */

static struct {
    int n_reads, n_scores, n_keeps;
    struct kvl_tap_read read;  /* the newest; its arrays are gone */
    int32_t pos[N_TOK], n_pos; /* that its last query head read */
    struct kvl_tap_score score;
    float scores[8 * N_TOK];
    struct kvl_tap_keep keep;
    int32_t kept[N_TOK];
    int rc;          /* what the taps return */
    bool silent;     /* and say nothing */
    bool with_reads; /* read fails, too */
} seen;

static int seen_done(struct kvl_err *err, bool fails)
{
    if (!fails || seen.rc == KVL_OK) return KVL_OK;
    return seen.silent ? seen.rc : kvl_fail(err, seen.rc, "the trace is full");
}

static int seen_read(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    struct rig *r = user;
    int32_t last = rig_shape(r)->n_heads - 1;
    seen.n_reads++;
    seen.read = *t;
    seen.n_pos = t->n_read[last];
    memcpy(seen.pos, t->read[last], (size_t)seen.n_pos * sizeof *seen.pos);
    return seen_done(err, seen.with_reads);
}

static int seen_score(void *user, const struct kvl_tap_score *t, struct kvl_err *err)
{
    (void)user;
    seen.n_scores++;
    seen.score = *t;
    memcpy(seen.scores, t->score, (size_t)t->n_lists * (size_t)t->n * sizeof *t->score);
    return seen_done(err, true);
}

static int seen_keep(void *user, const struct kvl_tap_keep *t, struct kvl_err *err)
{
    (void)user;
    seen.n_keeps++;
    seen.keep = *t;
    memcpy(seen.kept, t->kept, (size_t)t->n_kept * sizeof *t->kept);
    return seen_done(err, true);
}

/* ---- the stage ------------------------------------------------------------------------------------ */

struct stage {
    struct rig r;
    int32_t id[N_TOK];
    struct rig_session rs;
    float *logits;
};

static void stage_open(struct stage *g)
{
    memset(&seen, 0, sizeof seen);
    memset(&plot, 0, sizeof plot);
    *g = (struct stage){ 0 };
    rig_open(&g->r, &desc);
    rig_tokens(g->id, N_TOK, 5);
    g->logits = rig_logits(&g->r, N_TOK);
    for (int i = 0; i < 8 * N_TOK; i++) plot.score[i] = (float)((i * 37) % 101);
}

static void stage_tap(struct stage *g, struct kvl_session *s)
{
    struct kvl_tap tap = {
        .user = &g->r, .read = seen_read, .score = seen_score, .keep = seen_keep
    };
    kvl_session_tap(s, &tap);
}

/* Prefilled and tapped; attached to the policy. */
static int stage_attach(struct stage *g, struct kvl_err *err)
{
    RIG_OK(err,
           kvl_planned_create(&plot_policy, rig_shape(&g->r), "", 20, N_CTX, &g->rs.planned, err));
    RIG_OK(err, kvl_session_create(g->r.engine, &g->rs.s, err));
    RIG_OK(err, kvl_session_prefill(g->rs.s, g->id, N_CTX, NULL, true, err));
    stage_tap(g, g->rs.s);
    return kvl_session_attach(g->rs.s, g->rs.planned, 1, KVL_EXEC_REAL, err);
}

static void stage_step(struct stage *g)
{
    rig_decode(&g->r, &g->rs, &g->id[kvl_session_len(g->rs.s)], 1, g->logits);
}

static void stage_close(struct stage *g)
{
    rig_end(&g->rs);
    kvl_free(g->logits);
    rig_close(&g->r);
}

/* ---- reads ------------------------------------------------------------------------------------------ */

static void test_reads_without_a_policy(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    RIG_OK(&err, kvl_session_create(g.r.engine, &g.rs.s, &err));
    stage_tap(&g, g.rs.s);
    RIG_OK(&err, kvl_session_prefill(g.rs.s, g.id, N_CTX, NULL, true, &err));
    assert_int_equal(seen.n_reads, 0); /* a prefill is not tapped */
    RIG_OK(&err, kvl_session_extend(g.rs.s, g.id + N_CTX, 4, &err));
    assert_int_equal(seen.n_reads, 4 * 3);
    stage_step(&g);
    assert_int_equal(seen.n_reads, 5 * 3);
    assert_ptr_equal(seen.read.session, g.rs.s);
    assert_int_equal(seen.read.layer, 2);
    assert_int_equal(seen.read.index, -1);
    assert_int_equal(seen.read.pos, N_CTX + 4);
    assert_true(seen.read.dense);
    assert_int_equal(seen.n_pos, N_CTX + 5);
    for (int32_t i = 0; i < seen.n_pos; i++) assert_int_equal(seen.pos[i], i);
    stage_close(&g);
}

static void test_reads_of_segments(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = SEGMENTS;
    RIG_OK(&err, stage_attach(&g, &err));
    RIG_OK(&err, kvl_session_extend(g.rs.s, g.id + N_CTX, 2, &err));
    stage_step(&g);
    assert_int_equal(seen.n_reads, 3 * 3);
    assert_int_equal(seen.read.index, 2);
    assert_int_equal(seen.read.pos, N_CTX + 2);
    assert_false(seen.read.dense);
    int32_t at = 0;
    for (int32_t i = 0; i < N_CTX + 3; i++)
        if (i % 2 == 0 || i % 4 == 1) assert_int_equal(seen.pos[at++], i);
    assert_int_equal(seen.n_pos, at);
    stage_close(&g);
}

/* A layer that the policy leaves dense says so. */
static int dense_read(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    int *n = user;
    (void)err;
    assert_int_equal(t->dense, t->layer == 0);
    (*n)++;
    return KVL_OK;
}

static void test_dense_layers(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    int n = 0;
    (void)state;
    stage_open(&g);
    plot.choice = TOKENS;
    RIG_OK(&err, stage_attach(&g, &err));
    kvl_session_tap(g.rs.s, &(struct kvl_tap){ .user = &n, .read = dense_read });
    stage_step(&g);
    assert_int_equal(n, 3);
    stage_close(&g);
}

static void test_taps_are_not_inherited(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = PAGES;
    RIG_OK(&err, stage_attach(&g, &err));
    struct rig_session child = rig_fork(&g.r, &g.rs);
    rig_decode(&g.r, &child, g.id + N_CTX, 1, g.logits);
    assert_int_equal(seen.n_reads + seen.n_scores, 0);
    stage_step(&g);
    int n = seen.n_reads;
    assert_int_equal(n, 3);
    kvl_session_tap(g.rs.s, NULL);
    stage_step(&g);
    assert_int_equal(seen.n_reads, n);
    rig_end(&child);
    stage_close(&g);
}

/* Only the tapped ones of a batch are told of, and as if they were alone. */
static void test_batch(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = PAGES;
    RIG_OK(&err, stage_attach(&g, &err));
    struct rig_session child = rig_fork(&g.r, &g.rs), again = rig_fork(&g.r, &g.rs);
    float *want = rig_logits(&g.r, 1);
    rig_decode(&g.r, &again, g.id + N_CTX, 1, want);
    int32_t ids[] = { g.id[3], g.id[N_CTX] };
    struct kvl_session *two[] = { child.s, g.rs.s };
    RIG_OK(&err, kvl_session_decode(two, 2, ids, g.logits, &err));
    assert_int_equal(seen.n_reads, 3);
    assert_ptr_equal(seen.read.session, g.rs.s);
    rig_expect_same(&g.r, want, g.logits + rig_shape(&g.r)->n_vocab, 1, "alone and in a batch");
    kvl_free(want);
    rig_end(&child);
    rig_end(&again);
    stage_close(&g);
}

/* ---- scores ----------------------------------------------------------------------------------------- */

static void expect_scores(enum kvl_scope scope, int32_t n_lists, int32_t unit_tok, int32_t n,
                          int32_t index, int32_t pos)
{
    assert_int_equal(seen.score.scope, scope);
    assert_int_equal(seen.score.n_lists, n_lists);
    assert_int_equal(seen.score.unit_tok, unit_tok);
    assert_int_equal(seen.score.n, n);
    assert_int_equal(seen.score.index, index);
    assert_int_equal(seen.score.pos, pos);
    assert_memory_equal(seen.scores, plot.score, (size_t)n_lists * (size_t)n * sizeof(float));
}

static void test_scores_of_a_selection(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = PAGES;
    RIG_OK(&err, stage_attach(&g, &err));
    assert_int_equal(seen.n_scores, 0); /* nothing was cut at attach */
    stage_step(&g);
    assert_int_equal(seen.n_scores, 2); /* layer 0 is dense */
    expect_scores(KVL_SCOPE_Q_HEAD, rig_shape(&g.r)->n_heads, 8, 7, 0, N_CTX);
    plot.choice = TOKENS;
    RIG_OK(&err, kvl_session_extend(g.rs.s, g.id + N_CTX + 1, 3, &err));
    assert_int_equal(seen.n_scores, 2 + 3 * 2);
    expect_scores(KVL_SCOPE_KV_HEAD, 2, 1, N_CTX + 3, 3, N_CTX + 3);
    stage_close(&g);
}

static void test_scores_of_an_eviction(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = SCORES;
    RIG_OK(&err, stage_attach(&g, &err));
    assert_int_equal(seen.n_scores, 3);
    assert_int_equal(seen.n_keeps, 3 * 2);
    expect_scores(KVL_SCOPE_KV_HEAD, 2, 1, N_CTX, -1, N_CTX - 1);
    assert_int_equal(seen.keep.index, -1);
    assert_int_equal(seen.keep.pos, N_CTX - 1);
    assert_int_equal(seen.keep.layer, 2);
    assert_int_equal(seen.keep.kv_head, 1);
    rig_expect_kept(&g.rs, 2, 1, seen.kept, seen.keep.n_kept);
    assert_int_equal(seen.keep.n_kept, 10);
    stage_close(&g);
}

/* What a policy hands over itself, as the step that it is of; refused where it makes no sense. */
static void test_scores_handed_over(void **state)
{
    static const struct kvl_scored bad[] = {
        { .scope = KVL_SCOPE_LAYER, .unit_tok = 0, .n = 5 },
        { .scope = KVL_SCOPE_LAYER, .unit_tok = 1, .n = N_CTX + 3 }, /* of N_CTX + 2 positions */
        { .scope = KVL_SCOPE_LAYER, .unit_tok = 1, .n = -1 },
        { .scope = KVL_SCOPE_LAYER, .unit_tok = 1, .n = 5, .first_tok = -1 },
        { .scope = (enum kvl_scope)3, .unit_tok = 1, .n = 5 },
    };
    (void)state;
    for (int32_t i = -1; i < (int32_t)(sizeof bad / sizeof bad[0]); i++) {
        struct stage g;
        struct kvl_err err = { 0 };
        stage_open(&g);
        plot.choice = HANDED;
        plot.handed =
            (struct kvl_scored){ .scope = KVL_SCOPE_Q_HEAD, .first_tok = 3, .unit_tok = 8, .n = 6 };
        RIG_OK(&err, stage_attach(&g, &err));
        stage_step(&g);
        assert_int_equal(seen.n_scores, 2);
        expect_scores(KVL_SCOPE_Q_HEAD, rig_shape(&g.r)->n_heads, 8, 6, 0, N_CTX);
        assert_int_equal(seen.score.first_tok, 3);
        assert_int_equal(seen.score.layer, 2);
        if (i >= 0) plot.handed = bad[i];
        int rc = kvl_session_decode(&g.rs.s, 1, &g.id[N_CTX + 1], g.logits, &err);
        assert_int_equal(rc, i < 0 ? KVL_OK : KVL_EPOLICY);
        if (i >= 0) assert_non_null(strstr(err.msg, "scores of units of"));
        stage_close(&g);
    }
    struct stage g; /* nobody listens: nothing happens, but what is wrong is told all the same */
    struct kvl_err err = { 0 };
    stage_open(&g);
    plot.choice = HANDED;
    plot.handed = (struct kvl_scored){ .scope = KVL_SCOPE_LAYER, .unit_tok = 1, .n = 5 };
    RIG_OK(&err, stage_attach(&g, &err));
    kvl_session_tap(g.rs.s, NULL);
    stage_step(&g);
    assert_int_equal(seen.n_scores, 0);
    plot.handed = bad[0];
    assert_int_equal(kvl_session_decode(&g.rs.s, 1, &g.id[N_CTX + 1], g.logits, &err), KVL_EPOLICY);
    stage_close(&g);
}

/* ---- evictions --------------------------------------------------------------------------------------- */

static void test_keeps_of_steps(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = STEPWISE;
    RIG_OK(&err, stage_attach(&g, &err));
    assert_int_equal(seen.n_keeps, 3); /* head 0 keeps all: nothing happened */
    stage_step(&g);
    stage_step(&g);
    assert_int_equal(seen.n_keeps, 3 * 3);
    assert_int_equal(seen.keep.kv_head, 1);
    assert_int_equal(seen.keep.index, 1);
    assert_int_equal(seen.keep.pos, N_CTX + 1);
    assert_int_equal(seen.keep.n_kept, 20);
    for (int32_t i = 0; i < 20; i++) assert_int_equal(seen.kept[i], N_CTX + 2 - 20 + i);
    stage_close(&g);
}

/* ---- a tap that fails ----------------------------------------------------------------------------------- */

static void expect_ended(struct stage *g, int rc, const struct kvl_err *err, const char *message)
{
    struct kvl_err after = { 0 };
    assert_int_equal(rc, KVL_EIO);
    assert_non_null(strstr(err->msg, message));
    assert_int_equal(kvl_session_extend(g->rs.s, g->id, 1, &after), KVL_EINTERNAL);
    stage_close(g);
}

/* Also when the policy does not pass the status on, and with or without a message. */
static void test_a_tap_ends_the_call(void **state)
{
    struct stage g;
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct kvl_err err = { 0 };
        stage_open(&g);
        plot.ignores = i & 1;
        seen.silent = i & 2;
        seen.with_reads = i & 4;
        plot.choice = i & 4 ? SEGMENTS : PAGES;
        RIG_OK(&err, stage_attach(&g, &err));
        seen.rc = KVL_EIO;
        int rc = kvl_session_decode(&g.rs.s, 1, &g.id[N_CTX], g.logits, &err);
        expect_ended(&g, rc, &err, seen.silent ? "a tap ended the call" : "the trace is full");
    }
    struct kvl_err err = { 0 };
    stage_open(&g);
    plot.choice = STEPWISE;
    seen.rc = KVL_EIO;
    int rc = stage_attach(&g, &err);
    expect_ended(&g, rc, &err, "the trace is full");
}

/* ---- full attention ---------------------------------------------------------------------------------------- */

/* Against plain loops in double over the stored keys and values. */
static void expect_attention(struct stage *g, int32_t layer, const float *q, int32_t n,
                             const float *probs, const float *out)
{
    const struct kvl_shape *sh = rig_shape(&g->r);
    const struct kvl_seq *seq = kvl_session_seq(g->rs.s);
    size_t dim = (size_t)sh->head_dim;
    float *k = rig_floats((size_t)n * dim), *v = rig_floats((size_t)n * dim);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        double w[N_TOK], sum = 0;
        int32_t kv = h / (sh->n_heads / sh->n_kv_heads);
        RIG_OK(&g->r.err, kvl_seq_read(seq, layer, kv, KVL_PART_K, 0, n, k, &g->r.err));
        RIG_OK(&g->r.err, kvl_seq_read(seq, layer, kv, KVL_PART_V, 0, n, v, &g->r.err));
        for (int32_t i = 0; i < n; i++) {
            double x = 0;
            for (size_t c = 0; c < dim; c++)
                x += (double)q[(size_t)h * dim + c] * (double)k[(size_t)i * dim + c];
            sum += w[i] = exp(x / sqrt((double)dim));
        }
        for (int32_t i = 0; i < n; i++)
            if (!(fabs((double)probs[h * n + i] - w[i] / sum) < 1e-5))
                fail_msg("weight of head %d, position %d of %d is %g, want %g", h, i, n,
                         (double)probs[h * n + i], w[i] / sum);
        for (size_t c = 0; out && c < dim; c++) {
            double want = 0;
            for (int32_t i = 0; i < n; i++) want += w[i] / sum * (double)v[(size_t)i * dim + c];
            assert_true(fabs((double)out[(size_t)h * dim + c] - want) < 1e-4);
        }
    }
    kvl_free(k);
    kvl_free(v);
}

static void test_full_attention(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    struct kvl_rng rng;
    (void)state;
    stage_open(&g);
    size_t floats = (size_t)rig_shape(&g.r)->n_heads * (size_t)rig_shape(&g.r)->head_dim;
    float *q = rig_floats(floats), *out = rig_floats(floats);
    float *probs = rig_floats((size_t)rig_shape(&g.r)->n_heads * N_TOK);
    kvl_rng_seed(&rng, 12);
    for (size_t i = 0; i < floats; i++) q[i] = (float)kvl_rng_below(&rng, 1000) / 250.0f - 2.0f;
    RIG_OK(&err, kvl_session_create(g.r.engine, &g.rs.s, &err));
    RIG_OK(&err, kvl_session_prefill(g.rs.s, g.id, N_CTX, NULL, true, &err));
    static const int32_t lengths[] = { 1, 16, 17, N_CTX };
    for (int32_t l = 0; l < 3; l++)
        for (int i = 0; i < 4; i++) {
            struct kvl_counters before = *kvl_session_counters(g.rs.s);
            RIG_OK(&err, kvl_session_full_attention(g.rs.s, l, q, lengths[i], probs, out, &err));
            expect_attention(&g, l, q, lengths[i], probs, out);
            memset(probs, 0, (size_t)lengths[i] * sizeof *probs);
            RIG_OK(&err, kvl_session_full_attention(g.rs.s, l, q, lengths[i], probs, NULL, &err));
            expect_attention(&g, l, q, lengths[i], probs, NULL);
            assert_memory_equal(&before, kvl_session_counters(g.rs.s), sizeof before);
        }
    kvl_free(q);
    kvl_free(out);
    kvl_free(probs);
    stage_close(&g);
}

static void test_full_attention_refuses(void **state)
{
    struct stage g;
    (void)state;
    stage_open(&g);
    float *probs = rig_floats((size_t)rig_shape(&g.r)->n_heads * N_TOK);
    struct kvl_err err = { 0 };
    RIG_OK(&err, stage_attach(&g, &err));
    const float *q = g.logits;
    const struct {
        int32_t layer, n;
        const char *needle;
    } bad[] = { { -1, 5, "layer -1" },
                { 3, 5, "layer 3" },
                { 0, 0, "over 0 positions" },
                { 1, N_CTX + 1, "over 51 positions" } };
    for (int i = 0; i < 4; i++) {
        err = (struct kvl_err){ 0 };
        int rc = kvl_session_full_attention(g.rs.s, bad[i].layer, q, bad[i].n, probs, NULL, &err);
        assert_int_equal(rc, KVL_EINVAL);
        assert_non_null(strstr(err.msg, bad[i].needle));
    }
    plot.choice = STEPWISE;
    stage_step(&g);
    err = (struct kvl_err){ 0 };
    assert_int_equal(kvl_session_full_attention(g.rs.s, 1, q, 20, probs, NULL, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "evicted"));
    kvl_free(probs);
    stage_close(&g);
}

/* A reference pass: another session of the engine, asked from the tap, while rows of a block wait. */
struct reference {
    struct stage *g;
    struct kvl_session *s;
    float *probs, *out;
    int n;
};

static int reference_read(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    struct reference *ref = user;
    KVL_TRY(
        kvl_session_full_attention(ref->s, t->layer, t->q, t->pos + 1, ref->probs, ref->out, err));
    const struct kvl_shape *sh = rig_shape(&ref->g->r);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        double sum = 0;
        for (int32_t i = 0; i <= t->pos; i++) sum += (double)ref->probs[h * (t->pos + 1) + i];
        assert_true(fabs(sum - 1) < 1e-5);
    }
    /* The first layer is dense: the same keys, values and query. */
    for (int32_t i = 0; t->layer == 0 && i < sh->n_heads * sh->head_dim; i++)
        assert_true(fabsf(ref->out[i] - t->out[i]) <= 1e-5f);
    ref->n++;
    return KVL_OK;
}

static void test_reference_pass(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g);
    plot.choice = PAGES;
    RIG_OK(&err, stage_attach(&g, &err));
    kvl_session_tap(g.rs.s, NULL);
    const struct kvl_shape *sh = rig_shape(&g.r);
    struct reference ref = { .g = &g };
    ref.probs = rig_floats((size_t)sh->n_heads * N_TOK);
    ref.out = rig_floats((size_t)sh->n_heads * (size_t)sh->head_dim);
    RIG_OK(&err, kvl_session_create(g.r.engine, &ref.s, &err));
    RIG_OK(&err, kvl_session_prefill(ref.s, g.id, N_TOK, NULL, true, &err));
    struct rig_session plain = rig_fork(&g.r, &g.rs);
    kvl_session_tap(g.rs.s, &(struct kvl_tap){ .user = &ref, .read = reference_read });
    float *want = rig_logits(&g.r, 8);
    RIG_OK(&err, kvl_session_extend_logits(plain.s, g.id + N_CTX, 8, want, &err));
    RIG_OK(&err, kvl_session_extend_logits(g.rs.s, g.id + N_CTX, 8, g.logits, &err));
    rig_expect_same(&g.r, want, g.logits, 8, "with and without a reference pass");
    assert_int_equal(ref.n, 8 * 3);
    rig_end(&plain);
    kvl_session_destroy(ref.s);
    kvl_free(ref.probs);
    kvl_free(ref.out);
    kvl_free(want);
    stage_close(&g);
}

/* ---- logits of a block ---------------------------------------------------------------------------------------- */

/* Those of a dense prefill, up to rounding; the last ones those of a decoded step; chunks do not
 * matter; and the session goes on as after an extend without logits. */
static void test_extend_logits(void **state)
{
    static const int32_t chunks[] = { 0, 5, 1 };
    float *want = NULL, *next = NULL;
    (void)state;
    for (int c = 0; c < 3; c++) {
        struct rig r;
        struct rig_desc d = desc;
        struct kvl_err err = { 0 };
        int32_t id[N_TOK], n = N_TOK - N_CTX - 1;
        d.chunk_tok = chunks[c];
        rig_open(&r, &d);
        rig_tokens(id, N_TOK, 5);
        float *got = rig_logits(&r, n), *dense = rig_logits(&r, N_TOK), *one = rig_logits(&r, 1);
        struct kvl_session *s;
        RIG_OK(&err, kvl_session_create(r.engine, &s, &err));
        RIG_OK(&err, kvl_session_prefill(s, id, N_CTX, NULL, true, &err));
        RIG_OK(&err, kvl_session_extend_logits(s, id + N_CTX, n, got, &err));
        RIG_OK(&err, kvl_session_decode(&s, 1, &id[N_TOK - 1], one, &err));
        kvl_session_destroy(s);
        RIG_OK(&err, kvl_session_create(r.engine, &s, &err));
        RIG_OK(&err, kvl_session_prefill(s, id, N_TOK, dense, false, &err));
        kvl_session_destroy(s);
        size_t row = (size_t)rig_shape(&r)->n_vocab;
        rig_expect_near(&r, dense + N_CTX * row, got, n, 2e-3, "a block and a prefill");
        rig_expect_near(&r, dense + (N_TOK - 1) * row, one, 1, 2e-3, "the step after the block");
        if (!want) {
            want = got;
            next = one;
        } else {
            rig_expect_same(&r, want, got, n, "one chunk and several");
            rig_expect_same(&r, next, one, 1, "the step after one chunk and several");
            kvl_free(got);
            kvl_free(one);
        }
        kvl_free(dense);
        rig_close(&r);
    }
    kvl_free(want);
    kvl_free(next);
}

/* ---- own prefill ------------------------------------------------------------------------------------------------ */

/* Hooks of layer 1, one letter each. */
static char calls[128];

static int call(const struct kvl_pctx *ctx, int32_t layer, char what)
{
    size_t n = strlen(calls);
    assert_int_equal(ctx->context_tok, 0);
    if (layer == 1 && n + 1 < sizeof calls) calls[n] = what;
    return KVL_OK;
}

static int own_open(struct kvl_pctx *ctx)
{
    return call(ctx, 1, 'o');
}
static int own_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                      const float *v)
{
    (void)k;
    (void)v;
    assert_int_equal(step->n_tok, 1);
    return call(ctx, step->layer, 'a');
}
static int own_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    return call(ctx, layer, 'p');
}
static int own_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    scores->keep_tok = scores->n_tok;
    return call(ctx, layer, 'x');
}
static int own_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    (void)q;
    (void)sel;
    assert_int_equal(step->index, step->pos);
    return call(ctx, step->layer, 's');
}
static int own_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    assert_false(step->replay);
    assert_int_equal(step->n_tok, 1);
    KVL_TRY(kvl_keep_range(keep, -1, step->pos & ~3, step->pos + 1));
    return call(ctx, step->layer, 'e');
}

static const struct kvl_policy own_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "own",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS,
    .prefill = KVL_PREFILL_EITHER,
    .open = own_open,
    .append = own_append,
    .prefilled = own_prefilled,
    .score = own_score,
    .select = own_select,
    .evict = own_evict,
};

/* Nothing but open at attach; then every token is a step, and evicts before the next one. */
static void test_own_prefill_is_steps(void **state)
{
    struct stage g;
    struct kvl_err err = { 0 };
    (void)state;
    for (int exec = KVL_EXEC_REAL; exec <= KVL_EXEC_MASKED; exec++) {
        memset(calls, 0, sizeof calls);
        stage_open(&g);
        RIG_OK(&err, kvl_planned_create_own(&own_policy, rig_shape(&g.r), "", 20, N_CTX,
                                            &g.rs.planned, &err));
        RIG_OK(&err, kvl_session_create(g.r.engine, &g.rs.s, &err));
        RIG_OK(&err, kvl_session_attach(g.rs.s, g.rs.planned, 1, (enum kvl_exec)exec, &err));
        assert_string_equal(calls, "o");
        stage_tap(&g, g.rs.s);
        RIG_OK(&err, kvl_session_extend(g.rs.s, g.id, 3, &err));
        RIG_OK(&err, kvl_session_extend(g.rs.s, g.id + 3, 4, &err));
        assert_string_equal(calls, "oaseaseaseaseaseasease");
        assert_int_equal(seen.n_pos, 3); /* 4, 5, 6 */
        assert_int_equal(seen.pos[0], 4);
        stage_step(&g);
        assert_string_equal(calls, "oaseaseaseaseaseaseasease");
        assert_int_equal(seen.read.index, 7);
        assert_int_equal(kvl_session_counters(g.rs.s)->n_tokens, 8);
        stage_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_without_a_policy),
        cmocka_unit_test(test_reads_of_segments),
        cmocka_unit_test(test_dense_layers),
        cmocka_unit_test(test_taps_are_not_inherited),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_scores_of_a_selection),
        cmocka_unit_test(test_scores_of_an_eviction),
        cmocka_unit_test(test_scores_handed_over),
        cmocka_unit_test(test_keeps_of_steps),
        cmocka_unit_test(test_a_tap_ends_the_call),
        cmocka_unit_test(test_full_attention),
        cmocka_unit_test(test_full_attention_refuses),
        cmocka_unit_test(test_reference_pass),
        cmocka_unit_test(test_extend_logits),
        cmocka_unit_test(test_own_prefill_is_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
