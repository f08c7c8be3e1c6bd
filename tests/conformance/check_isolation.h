/* check_isolation.h - sessions do not meet, and what must not matter does not. */
#ifndef KVL_TESTS_CHECK_ISOLATION_H
#define KVL_TESTS_CHECK_ISOLATION_H

#include "conformance/fixture.h"

static void check_forks(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        const int32_t *id = f.id + f.run.n_ctx, *other = f.id + f.run.n_ctx + 100;
        float *want = rig_run(&f.r, &f.run);
        struct rig_session alone = rig_start(&f.r, &f.run);
        float *want_other = rig_logits(&f.r, N_STEPS), *got = rig_logits(&f.r, N_STEPS);
        rig_decode(&f.r, &alone, id, 2, want_other);
        rig_decode(&f.r, &alone, other, N_STEPS, want_other);
        rig_end(&alone);

        size_t two = 2 * (size_t)rig_shape(&f.r)->n_vocab;
        struct rig_session parent = rig_start(&f.r, &f.run);
        rig_decode(&f.r, &parent, id, 2, got);
        struct rig_session child = rig_fork(&f.r, &parent);
        float *got_child = rig_logits(&f.r, N_STEPS);
        rig_decode(&f.r, &child, other, N_STEPS, got_child);
        rig_decode(&f.r, &parent, id + 2, N_STEPS - 2, got + two);
        rig_expect_same(&f.r, want_other, got_child, N_STEPS, "a fork and a straight run");
        rig_expect_same(&f.r, want, got, N_STEPS, "a parent with and without a fork");
        rig_end(&child);
        rig_end(&parent);
        kvl_free(want);
        kvl_free(want_other);
        kvl_free(got);
        kvl_free(got_child);
        close_model(&f);
    }
}

/* Policies start from forks of one prefill: the prefill is whole afterwards, and a second policy
 * decides as if the first had not been. */
static void check_prefill_serves_many(void **state)
{
    struct fixture f;
    if (((const struct subject *)*state)->policy->prefill == KVL_PREFILL_OWN) return;
    open_desc(&f, state, &models[1]);
    struct rig_run run = f.run;
    float *want = rig_run(&f.r, &run), *got = rig_logits(&f.r, N_STEPS);
    struct kvl_planned *p;
    struct kvl_session *prefill;
    struct kvl_err *err = &f.r.err;
    RIG_OK(err,
           kvl_planned_create(run.policy, rig_shape(&f.r), "", run.budget, run.n_ctx, &p, err));
    RIG_OK(err, kvl_session_create(f.r.engine, &prefill, err));
    RIG_OK(err, kvl_session_prefill(prefill, run.id, run.n_ctx, NULL, true, err));
    for (int turn = 0; turn < 3; turn++) {
        struct rig_session s = { 0 };
        struct kvl_session *question; /* goes on densely: the window of its parent stays */
        RIG_OK(err, kvl_session_fork(prefill, &question, err));
        RIG_OK(err, kvl_session_prefill(question, run.id + 5, 70, NULL, true, err));
        kvl_session_destroy(question);
        RIG_OK(err, kvl_session_fork(prefill, &s.s, err));
        RIG_OK(err, kvl_session_attach(s.s, p, run.seed, run.exec, err));
        rig_decode(&f.r, &s, run.id + run.n_ctx, N_STEPS, got);
        rig_expect_same(&f.r, want, got, N_STEPS, "straight and from a shared prefill");
        rig_end(&s);
        for (int32_t l = 0; l < rig_shape(&f.r)->n_layers; l++)
            assert_int_equal(kvl_seq_len(kvl_session_seq(prefill), l, 0), run.n_ctx);
    }
    kvl_session_destroy(prefill);
    kvl_planned_destroy(p);
    kvl_free(want);
    kvl_free(got);
    close_model(&f);
}

/* A question that is prefilled behind the context: in its session, or in a fork, which takes the observers
 * as they are and goes on with them. */
static void check_question(void **state)
{
    enum { N_QUESTION = 70 };
    struct fixture f;
    if (((const struct subject *)*state)->policy->prefill == KVL_PREFILL_OWN) return;
    open_desc(&f, state, &models[1]);
    const struct rig_run *run = &f.run;
    struct kvl_err *err = &f.r.err;
    float *want = rig_logits(&f.r, N_STEPS), *got = rig_logits(&f.r, N_STEPS);
    struct rig_session whole = { 0 }, fork;
    struct kvl_session *context;
    RIG_OK(err, kvl_planned_create(run->policy, rig_shape(&f.r), "", run->budget,
                                   run->n_ctx + N_QUESTION, &whole.planned, err));
    rig_observe(&f.r, whole.planned);
    RIG_OK(err, kvl_session_create(f.r.engine, &whole.s, err));
    RIG_OK(err, kvl_session_create(f.r.engine, &context, err));
    RIG_OK(err, kvl_session_prefill(whole.s, run->id, run->n_ctx, NULL, true, err));
    RIG_OK(err, kvl_session_prefill(context, run->id, run->n_ctx, NULL, true, err));
    fork = rig_fork(&f.r, &(struct rig_session){ .s = context });
    struct rig_session *both[] = { &whole, &fork };
    for (int i = 0; i < 2; i++) {
        RIG_OK(err, kvl_session_prefill(both[i]->s, run->id + 5, N_QUESTION, NULL, true, err));
        RIG_OK(err, kvl_session_attach(both[i]->s, whole.planned, run->seed, run->exec, err));
        rig_decode(&f.r, both[i], run->id + run->n_ctx, N_STEPS, i ? got : want);
    }
    rig_expect_same(&f.r, want, got, N_STEPS, "a question in a fork");
    rig_end(&fork);
    rig_end(&whole);
    kvl_session_destroy(context);
    kvl_free(want);
    kvl_free(got);
    close_model(&f);
}

/* Two sequences, token by token in turn, and A before B: each as if it were alone. */
static void check_sessions_do_not_meet(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_run a = f.run, b = f.run;
        b.id = f.id + 50;
        b.n_ctx -= 20;
        b.seed = 5;
        float *want_b = rig_run(&f.r, &b), *want_a = rig_run(&f.r, &a);
        expect_same_run(&f, want_b, &b, "B before and after A");
        struct rig_session sa = rig_start(&f.r, &a), sb = rig_start(&f.r, &b);
        float *got_a = rig_logits(&f.r, N_STEPS), *got_b = rig_logits(&f.r, N_STEPS);
        size_t n_vocab = (size_t)rig_shape(&f.r)->n_vocab;
        for (int32_t t = 0; t < N_STEPS; t++) {
            rig_decode(&f.r, &sa, a.id + a.n_ctx + t, 1, got_a + (size_t)t * n_vocab);
            rig_decode(&f.r, &sb, b.id + b.n_ctx + t, 1, got_b + (size_t)t * n_vocab);
        }
        rig_expect_same(&f.r, want_a, got_a, N_STEPS, "A alone and interleaved");
        rig_expect_same(&f.r, want_b, got_b, N_STEPS, "B alone and interleaved");
        rig_end(&sa);
        rig_end(&sb);
        kvl_free(want_a);
        kvl_free(want_b);
        kvl_free(got_a);
        kvl_free(got_b);
        close_model(&f);
    }
}

/* A batch of three sequences of different lengths: each as a fork of it that went alone, with KVL_LONG as a session
 * that shares nothing with it. */
static void check_batch(void **state)
{
    enum { N_BATCH = 3 };
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session rs[N_BATCH];
        struct kvl_session *s[N_BATCH];
        struct rig_run run[N_BATCH];
        float *want[N_BATCH], *logits = rig_logits(&f.r, N_BATCH);
        size_t n_vocab = (size_t)rig_shape(&f.r)->n_vocab;
        for (int b = 0; b < N_BATCH; b++) {
            run[b] = f.run;
            run[b].id = f.id + 30 * b;
            run[b].n_ctx -= 17 * b;
            rs[b] = rig_start(&f.r, &run[b]);
            s[b] = rs[b].s;
            want[b] = rig_logits(&f.r, N_STEPS);
            struct rig_session alone = fork_or_own(&f, &run[b], &rs[b]);
            rig_decode(&f.r, &alone, run[b].id + run[b].n_ctx, N_STEPS, want[b]);
            rig_end(&alone);
        }
        for (int32_t t = 0; t < N_STEPS; t++) {
            int32_t id[N_BATCH];
            for (int b = 0; b < N_BATCH; b++) id[b] = run[b].id[run[b].n_ctx + t];
            RIG_OK(&f.r.err, kvl_session_decode(s, N_BATCH, id, logits, &f.r.err));
            for (int b = 0; b < N_BATCH; b++)
                rig_expect_same(&f.r, want[b] + (size_t)t * n_vocab, logits + (size_t)b * n_vocab,
                                1, "alone and in a batch");
        }
        for (int b = 0; b < N_BATCH; b++) {
            rig_end(&rs[b]);
            kvl_free(want[b]);
        }
        kvl_free(logits);
        close_model(&f);
    }
}

/* ---- what must not matter ---------------------------------------------------------------------- */

/* Context, a block and single tokens; logits of the single ones.  What is kept goes to `end`. */
static float *run_in_chunks(struct fixture *f, struct rig_session *end)
{
    const int32_t *id = f->id + f->run.n_ctx;
    float *logits = rig_logits(&f->r, N_STEPS);
    *end = rig_start(&f->r, &f->run);
    RIG_OK(&f->r.err, kvl_session_extend(end->s, id, N_BLOCK, &f->r.err));
    rig_decode(&f->r, end, id + N_BLOCK, N_STEPS, logits);
    return logits;
}

static void expect_same_kept(const struct fixture *f, const struct rig_session *want,
                             const struct rig_session *got)
{
    int32_t pos[MAX_TOK];
    for (int32_t l = 0; l < rig_shape(&f->r)->n_layers; l++)
        for (int32_t h = 0; h < rig_shape(&f->r)->n_kv_heads; h++)
            rig_expect_kept(got, l, h, pos, rig_kept(want, l, h, pos));
}

static void check_chunks(void **state)
{
    static const int32_t chunks[] = { 1, 7, 64 };
    /* The last one seals: a chunk is attended and observed in pieces. */
    static const int of[] = { 0, 1, 2, N_MODELS - 1 };
    for (int i = 0; i < 4; i++) {
        struct rig_desc desc = models[of[i]];
        if (model_refuses(*state, of[i])) continue;
        struct fixture whole, cut;
        struct rig_session a, b;
        open_desc(&whole, state, &desc);
        float *want = run_in_chunks(&whole, &a);
        for (int c = 0; c < 3; c++) {
            desc.chunk_tok = chunks[c];
            open_desc(&cut, state, &desc);
            float *got = run_in_chunks(&cut, &b);
            rig_expect_same(&cut.r, want, got, N_STEPS, "one chunk and several");
            expect_same_kept(&cut, &a, &b);
            kvl_free(got);
            rig_end(&b);
            close_model(&cut);
        }
        kvl_free(want);
        rig_end(&a);
        close_model(&whole);
    }
}

/* Nor whether they go through the layers together, and where keys and values are left.  Those that read the
 * context themselves: test_prefill_layers.c. */
static void check_layers(void **state)
{
    const struct subject *subject = *state;
    struct rig_desc desc = models[1];
    struct fixture chunks, layers;
    struct rig_session a, b;
    if (subject->policy->prefill == KVL_PREFILL_OWN) return;
    open_desc(&chunks, state, &desc);
    float *want = run_in_chunks(&chunks, &a);
    desc.prefill_kv_host = true;
    desc.chunk_tok = 50;
    open_desc(&layers, state, &desc);
    float *got = run_in_chunks(&layers, &b);
    rig_expect_same(&layers.r, want, got, N_STEPS, "a prefill layer by layer");
    expect_same_kept(&layers, &a, &b);
    kvl_free(want);
    kvl_free(got);
    rig_end(&a);
    rig_end(&b);
    close_model(&chunks);
    close_model(&layers);
}

static void check_threads(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        kvl_ops_set_threads(1);
        float *want = rig_run(&f.r, &f.run);
        kvl_ops_set_threads(2);
        expect_same_run(&f, want, &f.run, "one thread and two");
        kvl_ops_set_threads(0);
        kvl_free(want);
        close_model(&f);
    }
}

/* Only a policy that says it samples may care for the seed, and it must. */
static void check_seed(void **state)
{
    struct fixture f;
    open_desc(&f, state, &models[0]);
    float *want = rig_run(&f.r, &f.run);
    expect_same_run(&f, want, &f.run, "the same seed twice");
    struct rig_run run = f.run;
    run.seed++;
    if (run.policy->caps & KVL_CAP_SAMPLES) {
        float *got = rig_run(&f.r, &run);
        assert_true(rig_distance(&f.r, want, got, N_STEPS) > 1e-3);
        kvl_free(got);
    } else {
        expect_same_run(&f, want, &run, "two seeds");
    }
    kvl_free(want);
    close_model(&f);
}

#endif
