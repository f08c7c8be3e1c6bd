/* check_taps.h - what taps say is what attention did. */
#ifndef KVL_TESTS_CHECK_TAPS_H
#define KVL_TESTS_CHECK_TAPS_H

#include "conformance/fixture.h"
#include "model_impl.h"

/* What the taps of one session saw. */
struct tape {
    struct kvl_buf reads, keeps; /* as numbers that can be compared, int32_t */
    struct rig *r;
    bool recompute; /* attention over the positions read, in double, must give `out` */
    int64_t attended, dense, local;
    int32_t n_reads, n_keeps, n_scores;
    /* of the newest token: [n_layers][n_kv_heads][n_tok] as the probe has it */
    uint8_t *hit;
    int32_t n_tok;
};

static void tape_add(struct kvl_buf *b, const int32_t *x, int32_t n)
{
    assert_int_equal(kvl_buf_add(b, x, (size_t)n * sizeof *x), KVL_OK);
}

static void tape_expect_same(const struct kvl_buf *want, const struct kvl_buf *got,
                             const char *what)
{
    size_t n = KVL_MIN(want->len, got->len) / sizeof(int32_t);
    const int32_t *a = (const void *)want->data, *b = (const void *)got->data;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            fail_msg("%s: number %zu of the tape is %d, want %d", what, i, b[i], a[i]);
    assert_int_equal(want->len, got->len);
}

static const int32_t *tape_slots(const struct kvl_tap_read *t, int32_t kv_head, int32_t q_head)
{
    static int32_t slot[MAX_TOK];
    int32_t n = t->n_read[q_head];
    assert_true(n > 0 && n <= MAX_TOK);
    assert_int_equal(
        kvl_seq_find(kvl_session_seq(t->session), t->layer, kv_head, t->read[q_head], n, slot), n);
    return slot;
}

/* What a head's softmax has besides what it reads; -infinity: nothing. */
static double tape_sink(const struct tape *tape, int32_t layer, int32_t q_head)
{
    const float *sinks = tape->r->model->w.layer[layer].attn_sinks;
    return sinks ? (double)sinks[q_head] : -HUGE_VAL;
}

/* softmax(q . k + log-weight) v over what was read, from the stored keys and values, and the residual. */
static void tape_recompute(struct tape *tape, const struct kvl_tap_read *t, int32_t q_head)
{
    const struct kvl_shape *sh = rig_shape(tape->r);
    struct kvl_err err = { 0 };
    int32_t kv_head = q_head / (sh->n_heads / sh->n_kv_heads), n = t->n_read[q_head];
    size_t dim = (size_t)sh->head_dim;
    const int32_t *slot = tape_slots(t, kv_head, q_head);
    const float *q = t->q + (size_t)q_head * dim, *out = t->out + (size_t)q_head * dim;
    float *row = rig_floats(dim);
    double sink = tape_sink(tape, t->layer, q_head), cap = (double)sh->cap, top = sink;
    double *w = test_calloc((size_t)n + dim, sizeof *w), *want = w + n, sum = 0;
    const struct kvl_seq *seq = kvl_session_seq(t->session);
    for (int32_t i = 0; i < n; i++) {
        RIG_OK(&err, kvl_seq_read(seq, t->layer, kv_head, KVL_PART_K, slot[i], 1, row, &err));
        for (size_t c = 0; c < dim; c++) w[i] += (double)q[c] * (double)row[c];
        w[i] *= (double)sh->scale;
        if (cap > 0) w[i] = cap * tanh(w[i] / cap);
        if (t->log_weight[q_head]) w[i] += (double)t->log_weight[q_head][i];
        top = fmax(top, w[i]);
    }
    for (int32_t i = 0; i < n; i++) sum += w[i] = exp(w[i] - top);
    sum += exp(sink - top);
    for (int32_t i = 0; i < n; i++) {
        RIG_OK(&err, kvl_seq_read(seq, t->layer, kv_head, KVL_PART_V, slot[i], 1, row, &err));
        for (size_t c = 0; c < dim; c++) want[c] += w[i] / sum * (double)row[c];
    }
    double alpha = t->alpha ? (double)t->alpha[q_head] : 1;
    for (size_t c = 0; t->alpha && c < dim; c++)
        want[c] = alpha * want[c] + (1 - alpha) * (double)t->mean[(size_t)kv_head * dim + c];
    for (size_t c = 0; c < dim; c++)
        if (!(fabs(want[c] - (double)out[c]) <= 2e-4 * (1 + fabs(want[c]))))
            fail_msg("layer %d, head %d, position %d: attention over the %d positions of the tap "
                     "gives %.7g, it gave %.7g",
                     t->layer, q_head, t->pos, n, want[c], (double)out[c]);
    test_free(w);
    kvl_free(row);
}

static void tape_count(struct tape *tape, const struct kvl_tap_read *t, int32_t kv_head)
{
    const struct kvl_shape *sh = rig_shape(tape->r);
    int32_t group = sh->n_heads / sh->n_kv_heads, n = 0;
    uint8_t seen[MAX_TOK] = { 0 };
    for (int32_t j = kv_head * group; j < (kv_head + 1) * group; j++)
        for (int32_t i = 0; i < t->n_read[j]; i++) seen[t->read[j][i]] = 1;
    for (int32_t i = 0; i <= t->pos; i++) n += seen[i];
    bool local = sh->window && sh->window[t->layer];
    if (local) assert_int_equal(n, KVL_MIN(t->pos + 1, sh->window[t->layer]));
    for (int32_t i = 0; local && i < n; i++) assert_true(seen[t->pos - i]);
    *(local ? &tape->local : t->dense ? &tape->dense : &tape->attended) += n;
    if (tape->hit)
        memcpy(tape->hit + (size_t)(t->layer * sh->n_kv_heads + kv_head) * (size_t)tape->n_tok,
               seen, (size_t)tape->n_tok);
}

static int tape_read(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    struct tape *tape = user;
    const struct kvl_shape *sh = rig_shape(tape->r);
    (void)err;
    tape->n_reads++;
    tape_add(&tape->reads, (const int32_t[]){ t->layer, t->index, t->pos, t->dense }, 4);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        tape_add(&tape->reads, &t->n_read[h], 1);
        tape_add(&tape->reads, t->read[h], t->n_read[h]);
        for (int32_t i = 1; i < t->n_read[h]; i++)
            if (t->read[h][i] <= t->read[h][i - 1]) fail_msg("positions read do not ascend");
        assert_int_equal(t->read[h][t->n_read[h] - 1], t->pos);
        if (tape->recompute && !t->given) tape_recompute(tape, t, h);
    }
    for (int32_t h = 0; h < sh->n_kv_heads; h++) tape_count(tape, t, h);
    return KVL_OK;
}

static int tape_keep(void *user, const struct kvl_tap_keep *t, struct kvl_err *err)
{
    struct tape *tape = user;
    (void)err;
    tape->n_keeps++;
    tape_add(&tape->keeps, (const int32_t[]){ t->layer, t->kv_head, t->index, t->pos, t->n_kept },
             5);
    tape_add(&tape->keeps, t->kept, t->n_kept);
    return KVL_OK;
}

static int tape_score(void *user, const struct kvl_tap_score *t, struct kvl_err *err)
{
    struct tape *tape = user;
    const struct kvl_shape *sh = rig_shape(tape->r);
    const int32_t lists[] = { 1, sh->n_kv_heads, sh->n_heads };
    (void)err;
    tape->n_scores++;
    assert_int_equal(t->n_lists, lists[t->scope]);
    assert_true(t->n >= 1 && t->n <= t->pos / t->unit_tok + 1);
    for (size_t i = 0; i < (size_t)t->n_lists * (size_t)t->n; i++)
        assert_true(t->score[i] >= -HUGE_VALF); /* no NaN */
    return KVL_OK;
}

static void tape_start(struct tape *tape, struct rig *r, struct kvl_session *s)
{
    struct kvl_tap tap = {
        .user = tape, .read = tape_read, .keep = tape_keep, .score = tape_score
    };
    tape->r = r;
    kvl_session_tap(s, &tap);
}

static void tape_end(struct tape *tape)
{
    kvl_buf_free(&tape->reads);
    kvl_buf_free(&tape->keeps);
}

/* Attached, extended by a block and decoded under a tap; logits of the decoded steps. */
static float *tape_run(struct fixture *f, const struct rig_run *run, struct tape *tape,
                       struct rig_session *rs)
{
    struct kvl_err *err = &f->r.err;
    const int32_t *id = run->id + run->n_ctx;
    float *logits = rig_logits(&f->r, N_STEPS);
    *rs = (struct rig_session){ 0 };
    RIG_OK(err, kvl_planned_create(run->policy, rig_shape(&f->r), run->options, run->budget,
                                   run->n_ctx, &rs->planned, err));
    RIG_OK(err, kvl_session_create(f->r.engine, &rs->s, err));
    bool own = kvl_planned_own_prefill(rs->planned);
    if (!own) RIG_OK(err, kvl_session_prefill(rs->s, run->id, run->n_ctx, NULL, true, err));
    if (tape) tape_start(tape, &f->r, rs->s);
    RIG_OK(err, kvl_session_attach(rs->s, rs->planned, run->seed, run->exec, err));
    if (own) RIG_OK(err, kvl_session_prefill(rs->s, run->id, run->n_ctx, NULL, true, err));
    RIG_OK(err, kvl_session_extend(rs->s, id, N_BLOCK, err));
    rig_decode(&f->r, rs, id + N_BLOCK, N_STEPS, logits);
    return logits;
}

/* A tap changes nothing, and attention over what it tells is the attention that ran. */
static void check_taps_tell_what_was_read(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session a, b;
        struct tape tape = { .recompute = !(f.run.policy->caps & KVL_CAP_REPOSITIONS) };
        float *want = tape_run(&f, &f.run, NULL, &a), *got = tape_run(&f, &f.run, &tape, &b);
        rig_expect_same(&f.r, want, got, N_STEPS, "with and without a tap");
        const struct kvl_counters *c = kvl_session_counters(b.s);
        assert_int_equal(tape.n_reads, (N_BLOCK + N_STEPS) * rig_shape(&f.r)->n_layers);
        assert_int_equal(tape.attended, c->attended_tok);
        assert_int_equal(tape.dense, c->dense_tok);
        assert_int_equal(tape.local, c->window_tok);
        assert_int_equal(tape.n_keeps > 0, c->n_evicted > 0);
        assert_true(kvl_session_counters(a.s)->attended_tok == c->attended_tok &&
                    kvl_session_counters(a.s)->kv_read_bytes == c->kv_read_bytes);
        tape_end(&tape);
        kvl_free(want);
        kvl_free(got);
        rig_end(&a);
        rig_end(&b);
        close_model(&f);
    }
}

/* The mask oracle reads the same positions and keeps the same ones. */
static void check_taps_real_equals_masked(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session a, b;
        struct tape real = { 0 }, masked = { 0 };
        struct rig_run run = f.run;
        kvl_free(tape_run(&f, &run, &real, &a));
        run.exec = KVL_EXEC_MASKED;
        kvl_free(tape_run(&f, &run, &masked, &b));
        tape_expect_same(&real.reads, &masked.reads, "read under the mask");
        assert_int_equal(real.n_keeps, masked.n_keeps);
        tape_expect_same(&real.keeps, &masked.keeps, "kept under the mask");
        assert_int_equal(real.n_scores, masked.n_scores);
        tape_end(&real);
        tape_end(&masked);
        rig_end(&a);
        rig_end(&b);
        close_model(&f);
    }
}

/* The probe, which watches every position, saw what the tap tells. */
static void check_taps_equal_probe(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session rs = rig_start(&f.r, &f.run);
        size_t lanes = (size_t)rig_shape(&f.r)->n_layers * (size_t)rig_shape(&f.r)->n_kv_heads;
        float *logits = rig_logits(&f.r, 1);
        for (int32_t t = 0; t < N_STEPS; t++) {
            struct tape tape = { .n_tok = f.run.n_ctx + t + 1 };
            tape.hit = test_calloc(lanes, (size_t)tape.n_tok);
            tape_start(&tape, &f.r, rs.s);
            const uint8_t *hit = rig_decode_probed(&f.r, &rs, f.id[f.run.n_ctx + t], logits);
            assert_memory_equal(hit, tape.hit, lanes * (size_t)tape.n_tok);
            test_free(tape.hit);
            tape_end(&tape);
        }
        kvl_free(logits);
        rig_end(&rs);
        close_model(&f);
    }
}

/* ---- own prefill ----------------------------------------------------------------------------------- */

/* The whole context under the policy, in one call; logits of the steps after it. */
static float *own_run(struct fixture *f, enum kvl_exec exec, struct tape *tape,
                      struct rig_session *rs)
{
    struct kvl_err *err = &f->r.err;
    const struct rig_run *run = &f->run;
    float *logits = rig_logits(&f->r, N_STEPS);
    *rs = (struct rig_session){ 0 };
    RIG_OK(err, kvl_planned_create_own(run->policy, rig_shape(&f->r), run->options, run->budget,
                                       run->n_ctx, &rs->planned, err));
    RIG_OK(err, kvl_session_create(f->r.engine, &rs->s, err));
    if (tape) tape_start(tape, &f->r, rs->s);
    RIG_OK(err, kvl_session_attach(rs->s, rs->planned, run->seed, exec, err));
    RIG_OK(err, kvl_session_prefill(rs->s, run->id, run->n_ctx, NULL, true, err));
    rig_decode(&f->r, rs, run->id + run->n_ctx, N_STEPS, logits);
    return logits;
}

static bool can_own(void **state)
{
    return ((const struct subject *)*state)->policy->prefill != KVL_PREFILL_SHARED;
}

static bool own_by_steps(void **state)
{
    return can_own(state) && !((const struct subject *)*state)->policy->prefill_mask;
}

static void expect_same_choices(struct fixture *f, const float *want, const struct tape *real)
{
    struct rig_session b;
    struct tape masked = { 0 };
    float *got = own_run(f, KVL_EXEC_MASKED, &masked, &b);
    rig_expect_near(&f->r, want, got, N_STEPS, 5e-4, "own prefill, real and masked");
    tape_expect_same(&real->reads, &masked.reads, "read under the mask");
    assert_int_equal(real->n_keeps, masked.n_keeps);
    tape_expect_same(&real->keeps, &masked.keeps, "kept under the mask");
    tape_end(&masked);
    kvl_free(got);
    rig_end(&b);
}

/* Same choices under the mask, and whatever the chunk.  Not under the mask in q8_0: where one number rounds the other
 * way, scores change, and with them which of two near equals goes, in every token of the context. */
static void check_own_prefill(void **state)
{
    struct fixture f, cut;
    for (int i = 0; can_own(state) && i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_desc desc = models[i];
        struct rig_session a, c;
        struct tape real = { .recompute = !(f.run.policy->caps & KVL_CAP_REPOSITIONS) };
        float *want = own_run(&f, KVL_EXEC_REAL, &real, &a);
        if (!quantised(&f)) expect_same_choices(&f, want, &real);
        desc.chunk_tok = 7;
        open_desc(&cut, state, &desc);
        float *in_cuts = own_run(&cut, KVL_EXEC_REAL, NULL, &c);
        rig_expect_same(&f.r, want, in_cuts, N_STEPS, "own prefill in one chunk and several");
        tape_end(&real);
        kvl_free(want);
        kvl_free(in_cuts);
        rig_end(&a);
        rig_end(&c);
        close_model(&f);
        close_model(&cut);
    }
}

/* A block under an own prefill is its tokens one by one, eviction included, up to rounding. */
static void check_own_prefill_is_steps(void **state)
{
    struct fixture f;
    for (int i = 0; own_by_steps(state) && i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct kvl_err *err = &f.r.err;
        struct rig_session a, b = { 0 };
        struct tape block = { 0 }, steps = { 0 };
        float *want = own_run(&f, KVL_EXEC_REAL, &block, &a), *got = rig_logits(&f.r, N_STEPS);
        RIG_OK(err, kvl_session_create(f.r.engine, &b.s, err));
        tape_start(&steps, &f.r, b.s);
        RIG_OK(err, kvl_session_attach(b.s, a.planned, f.run.seed, KVL_EXEC_REAL, err));
        for (int32_t t = 0; t < f.run.n_ctx; t++) rig_decode(&f.r, &b, &f.id[t], 1, got);
        rig_decode(&f.r, &b, f.id + f.run.n_ctx, N_STEPS, got);
        if (!(f.run.policy->caps & KVL_CAP_SELECTS)) /* rounding may turn a close choice */
            rig_expect_near(&f.r, want, got, N_STEPS, 5e-3, "own prefill as a block and in steps");
        assert_int_equal(block.n_reads, steps.n_reads);
        assert_int_equal(block.attended, steps.attended);
        assert_int_equal(block.dense, steps.dense);
        assert_int_equal(kvl_session_counters(a.s)->n_evicted,
                         kvl_session_counters(b.s)->n_evicted);
        tape_end(&block);
        tape_end(&steps);
        kvl_free(want);
        kvl_free(got);
        rig_end(&b);
        rig_end(&a);
        close_model(&f);
    }
}

/* Planned for one kind of start, attached to the other. */
static void check_own_prefill_refusals(void **state)
{
    struct fixture f;
    struct kvl_planned *p;
    struct kvl_session *s;
    struct kvl_err err = { 0 };
    open_desc(&f, state, &models[1]);
    RIG_OK(&err, kvl_session_create(f.r.engine, &s, &err));
    RIG_OK(&err, kvl_planned_create(f.run.policy, rig_shape(&f.r), "", f.run.budget, f.run.n_ctx,
                                    &p, &err));
    bool only_own = f.run.policy->prefill == KVL_PREFILL_OWN;
    assert_int_equal(kvl_planned_own_prefill(p), only_own);
    if (!only_own) {
        assert_int_equal(kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &err), KVL_EINVAL);
        assert_non_null(strstr(err.msg, "empty"));
    }
    kvl_planned_destroy(p);
    err = (struct kvl_err){ 0 };
    int rc = kvl_planned_create_own(f.run.policy, rig_shape(&f.r), "", f.run.budget, f.run.n_ctx,
                                    &p, &err);
    assert_int_equal(rc, can_own(state) ? KVL_OK : KVL_EINVAL);
    if (can_own(state)) {
        RIG_OK(&err, kvl_session_prefill(s, f.id, 9, NULL, true, &err));
        assert_int_equal(kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &err), KVL_EINVAL);
        assert_non_null(strstr(err.msg, "holds 9 tokens"));
        kvl_planned_destroy(p);
    } else {
        assert_non_null(strstr(err.msg, "own prefill"));
    }
    kvl_session_destroy(s);
    close_model(&f);
}

#endif
