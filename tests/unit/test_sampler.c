/* Drawn tokens: what may be drawn, how often, and that nothing but stream and step decides. */
#include "answer.h"
#include "settings.h"

#include "gguf_writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_SMALL = 12, N_DRAWS = 200000, N_LARGE = 1000, N_FEW = 20000 };

static void fill_logits(float *logits, int32_t n, uint64_t seed, double width)
{
    struct kvl_rng rng;
    kvl_rng_seed(&rng, seed);
    for (int32_t i = 0; i < n; i++) logits[i] = (float)(width * (2 * kvl_rng_f64(&rng) - 1));
}

/* ---- by definition ------------------------------------------------------------------------- */

/* Probabilities of all tokens, by sorting: O(n^2), each filter as its sentence says. */
static void define(const struct kvl_sampling *how, const float *logits, int32_t n, double *p)
{
    bool *in = calloc((size_t)n, sizeof *in);
    double *w = calloc((size_t)n, sizeof *w), total = 0, best = 0;
    for (int32_t i = 0; i < n; i++) {
        w[i] = exp((double)logits[i] / how->temperature);
        best = fmax(best, w[i]);
    }
    for (int32_t i = 0; i < n; i++) { /* as many as are better */
        int32_t rank = 0;
        for (int32_t j = 0; j < n; j++) rank += w[j] > w[i] || (w[j] >= w[i] && j < i);
        in[i] = how->top_k == 0 || rank < how->top_k;
    }
    for (int32_t i = 0; i < n; i++) total += in[i] ? w[i] : 0;
    bool *first = calloc((size_t)n, sizeof *first);
    for (int32_t i = 0; i < n; i++) { /* what the better ones have is not enough */
        double better = 0;
        for (int32_t j = 0; j < n; j++)
            if (in[j] && (w[j] > w[i] || (w[j] >= w[i] && j < i))) better += w[j];
        first[i] = in[i] && better < how->top_p * total;
    }
    total = 0;
    for (int32_t i = 0; i < n; i++) {
        first[i] = first[i] && w[i] >= how->min_p * best;
        total += first[i] ? w[i] : 0;
    }
    for (int32_t i = 0; i < n; i++) p[i] = first[i] ? w[i] / total : 0;
    free(first);
    free(in);
    free(w);
}

/* Draws of steps 0 .. n_draws - 1, counted. */
static void draw(const struct kvl_sampling *how, const float *logits, int32_t n, int32_t n_draws,
                 int32_t *count)
{
    struct kvl_sampler s;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_sampler_create(n, &s, &err), KVL_OK);
    memset(count, 0, (size_t)n * sizeof *count);
    uint64_t stream = kvl_sampler_stream(how, 5, 0, 0);
    for (int32_t i = 0; i < n_draws; i++) {
        int32_t id = kvl_sampler_token(&s, how, stream, i, logits, n);
        assert_in_range(id, 0, n - 1);
        count[id]++;
    }
    kvl_sampler_free(&s);
}

static const struct kvl_sampling filters[] = {
    { .temperature = 1.0, .top_p = 1.0, .seed = 1 },
    { .temperature = 0.5, .top_p = 1.0, .seed = 2 },
    { .temperature = 1.0, .top_p = 1.0, .top_k = 3, .seed = 3 },
    { .temperature = 1.0, .top_p = 0.6, .seed = 4 },
    { .temperature = 1.0, .top_p = 1.0, .min_p = 0.3, .seed = 5 },
    { .temperature = 2.0, .top_p = 0.9, .top_k = 7, .min_p = 0.2, .seed = 6 },
    { .temperature = 1.5, .top_p = 0.7, .min_p = 0.05, .seed = 7 },
};
enum { N_FILTERS = sizeof filters / sizeof filters[0] };

/* Frequencies within 4.5 standard deviations of what they are drawn from; what is filtered out never. */
static void test_distribution(void **state)
{
    float logits[N_SMALL];
    double p[N_SMALL];
    int32_t count[N_SMALL];
    (void)state;
    fill_logits(logits, N_SMALL, 11, 2.0);
    for (int32_t f = 0; f < N_FILTERS; f++) {
        define(&filters[f], logits, N_SMALL, p);
        draw(&filters[f], logits, N_SMALL, N_DRAWS, count);
        for (int32_t i = 0; i < N_SMALL; i++) {
            double sigma = sqrt(N_DRAWS * p[i] * (1 - p[i])), off = count[i] - N_DRAWS * p[i];
            if (fabs(off) > 4.5 * sigma)
                fail_msg("filter %d, token %d: %d times, want %.1f", f, i, count[i],
                         N_DRAWS * p[i]);
        }
    }
}

/* The support, over a vocabulary with ties. */
static void test_support(void **state)
{
    static float logits[N_LARGE];
    static double p[N_LARGE];
    static int32_t count[N_LARGE];
    (void)state;
    fill_logits(logits, N_LARGE, 12, 8.0);
    for (int32_t i = 0; i < N_LARGE; i++) logits[i] = (float)(floor((double)logits[i] * 4) / 4);
    for (int32_t f = 2; f < N_FILTERS; f++) {
        int32_t want = 0, got = 0;
        define(&filters[f], logits, N_LARGE, p);
        draw(&filters[f], logits, N_LARGE, N_FEW, count);
        for (int32_t i = 0; i < N_LARGE; i++) {
            want += p[i] > 0;
            got += count[i] > 0;
            if (!(p[i] > 0)) assert_int_equal(count[i], 0);
            if (p[i] * N_FEW > 30) assert_true(count[i] > 0);
        }
        assert_true(got > 0 && got <= want);
    }
}

/* Many small vocabularies: nothing that the filters leave out is ever drawn. */
static void test_small(void **state)
{
    struct kvl_sampler s;
    (void)state;
    assert_int_equal(kvl_sampler_create(17, &s, NULL), KVL_OK);
    for (uint64_t seed = 0; seed < 3000; seed++) {
        float logits[17];
        double p[17];
        int32_t n = 2 + (int32_t)(seed % 16);
        struct kvl_sampling how = { .temperature = 20.0, .top_p = 1.0, .seed = seed };
        how.top_k = 1 + (int32_t)(seed / 16) % n;
        fill_logits(logits, n, seed, 2.0);
        define(&how, logits, n, p);
        for (int32_t i = 0; i < 12; i++) {
            int32_t id = kvl_sampler_token(&s, &how, seed, i, logits, n);
            if (!(p[id] > 0)) fail_msg("seed %d: token %d of %d", (int)seed, id, n);
        }
    }
    kvl_sampler_free(&s);
}

/* ---- edges ----------------------------------------------------------------------------------- */

static void test_greedy(void **state)
{
    static const struct kvl_sampling same[] = {
        { .temperature = 0.0, .top_p = 0.5, .seed = 9 },
        { .temperature = 5.0, .top_p = 1.0, .top_k = 1, .seed = 9 },
        { .temperature = 5.0, .top_p = 0.0, .seed = 9 },
        { .temperature = 5.0, .top_p = 1.0, .min_p = 1.0, .seed = 9 },
        { .temperature = 1e-6, .top_p = 1.0, .seed = 9 },
    };
    static float logits[N_LARGE];
    struct kvl_sampler s;
    (void)state;
    assert_int_equal(kvl_sampler_create(N_LARGE, &s, NULL), KVL_OK);
    for (uint64_t seed = 0; seed < 20; seed++) {
        fill_logits(logits, N_LARGE, seed, 3.0);
        for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
            assert_int_equal(kvl_sampler_token(&s, &same[i], seed, 3, logits, N_LARGE),
                             kvl_argmax(logits, N_LARGE));
        assert_int_equal(kvl_sampler_token(&s, NULL, seed, 3, logits, N_LARGE),
                         kvl_argmax(logits, N_LARGE));
    }
    for (int32_t i = 0; i < N_LARGE; i++) logits[i] = 1.0f; /* all tied: the lowest id */
    assert_int_equal(kvl_sampler_token(&s, &same[1], 1, 1, logits, N_LARGE), 0);
    kvl_sampler_free(&s);
}

/* Neither what was drawn before nor the workspace changes a draw; stream and step do. */
static void test_counters(void **state)
{
    static float logits[N_LARGE];
    int32_t forth[64], back[64], other = 0, next = 0;
    struct kvl_sampler a, b;
    (void)state;
    fill_logits(logits, N_LARGE, 3, 1.0);
    assert_int_equal(kvl_sampler_create(N_LARGE, &a, NULL), KVL_OK);
    assert_int_equal(kvl_sampler_create(N_LARGE, &b, NULL), KVL_OK);
    const struct kvl_sampling *how = &filters[5];
    uint64_t stream = kvl_sampler_stream(how, 7, 1, 2);
    for (int32_t i = 0; i < 64; i++)
        forth[i] = kvl_sampler_token(&a, how, stream, i, logits, N_LARGE);
    for (int32_t i = 64; i-- > 0;) back[i] = kvl_sampler_token(&b, how, stream, i, logits, N_LARGE);
    assert_memory_equal(forth, back, sizeof forth);
    for (int32_t i = 0; i < 64; i++) {
        uint64_t answer = kvl_sampler_stream(how, 7, 1, 3);
        other += kvl_sampler_token(&a, how, answer, i, logits, N_LARGE) != forth[i];
        if (i) next += forth[i] != forth[i - 1];
    }
    assert_true(other > 32 && next > 32);
    struct kvl_sampling seeded = *how;
    seeded.seed = 77;
    assert_true(kvl_sampler_stream(&seeded, 7, 1, 2) != stream);
    assert_true(kvl_sampler_stream(how, 8, 1, 2) != stream);
    assert_true(kvl_sampler_stream(how, 7, 2, 1) != stream);
    kvl_sampler_free(&a);
    kvl_sampler_free(&b);
}

/* ---- forks ----------------------------------------------------------------------------------- */

enum { N_ANSWERS = 6, N_NEW = 12, N_PROMPT = 40 };

struct forks {
    struct kvl_model *model;
    struct kvl_engine *engine;
    struct kvl_ask_room room;
    int32_t prompt[N_PROMPT];
    struct kvl_err err;
};

static void forks_open(struct forks *f)
{
    char path[] = "/tmp/kvl-forks-XXXXXX";
    struct kvl_buf file = { 0 };
    struct gw_llama llama = { .seed = 4 };
    *f = (struct forks){ 0 };
    close(mkstemp(path));
    gw_llama(&llama, &file);
    assert_true(gw_save(&file, path));
    kvl_buf_free(&file);
    if (kvl_model_open(path, &f->model, &f->err) != KVL_OK) fail_msg("%s", f->err.msg);
    unlink(path);
    struct kvl_engine_desc desc = { .model = f->model };
    if (kvl_engine_create(&desc, &f->engine, &f->err) != KVL_OK) fail_msg("%s", f->err.msg);
    assert_int_equal(kvl_ask_room_create(kvl_model_shape(f->model)->n_vocab, &f->room, &f->err),
                     KVL_OK);
    for (int32_t i = 0; i < N_PROMPT; i++) f->prompt[i] = (7 * i * i + 3 * i + 5) % GW_VOCAB;
}

static void forks_close(struct forks *f)
{
    kvl_ask_room_free(&f->room);
    kvl_engine_destroy(f->engine);
    kvl_model_close(f->model);
}

static struct kvl_session *forks_prompt(struct forks *f)
{
    struct kvl_session *s;
    assert_int_equal(kvl_session_create(f->engine, &s, &f->err), KVL_OK);
    assert_int_equal(kvl_session_prefill(s, f->prompt, N_PROMPT - 1, NULL, false, &f->err), KVL_OK);
    return s;
}

static struct kvl_ask forks_ask(struct forks *f, const struct kvl_sampling *how,
                                struct kvl_session *s, int32_t answer)
{
    struct kvl_ask a = { .session = s,
                         .feed = f->prompt + N_PROMPT - 1,
                         .n_feed = 1,
                         .max_new = N_NEW,
                         .sampling = how,
                         .stream = kvl_sampler_stream(how, 3, 0, answer) };
    assert_int_equal(kvl_ask_begin(&a, kvl_model_shape(f->model), &f->err), KVL_OK);
    return a;
}

/* Steps come one by one, and are as many as was said. */
static void see_step(void *user, int32_t step, int32_t most)
{
    int32_t *seen = user;
    assert_int_equal(step, *seen + 1);
    assert_int_equal(most, N_NEW);
    *seen = step;
}

/* Forks of one prompt in one batch answer as prompts that each were run alone. */
static void test_forks(void **state)
{
    struct forks f;
    struct kvl_ask ask[N_ANSWERS], *all[N_ANSWERS];
    int32_t different = 0, n_steps = 0;
    (void)state;
    forks_open(&f);
    const struct kvl_sampling how = { .temperature = 1.2, .top_p = 0.95, .n = N_ANSWERS };
    struct kvl_session *prompt = forks_prompt(&f);
    for (int32_t i = 0; i < N_ANSWERS; i++) {
        struct kvl_session *s;
        assert_int_equal(kvl_session_fork(prompt, &s, &f.err), KVL_OK);
        ask[i] = forks_ask(&f, &how, s, i);
        all[i] = &ask[i];
    }
    kvl_session_destroy(prompt);
    f.room.stepped = see_step;
    f.room.user = &n_steps;
    assert_int_equal(kvl_ask_decode(all, N_ANSWERS, f.model, &f.room, &f.err), KVL_OK);
    assert_int_equal(n_steps, N_NEW);
    f.room.stepped = NULL;
    for (int32_t i = 0; i < N_ANSWERS; i++) {
        struct kvl_ask alone = forks_ask(&f, &how, forks_prompt(&f), i), *one = &alone;
        assert_int_equal(kvl_ask_decode(&one, 1, f.model, &f.room, &f.err), KVL_OK);
        assert_int_equal(alone.n_id, N_NEW);
        assert_int_equal(ask[i].n_id, N_NEW);
        assert_memory_equal(alone.id, ask[i].id, N_NEW * sizeof *alone.id);
        different += memcmp(ask[i].id, ask[0].id, N_NEW * sizeof *alone.id) != 0;
        kvl_ask_free(&alone);
    }
    assert_true(different >= N_ANSWERS - 2);
    for (int32_t i = 0; i < N_ANSWERS; i++) kvl_ask_free(&ask[i]);
    forks_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_support),
        cmocka_unit_test(test_small),        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_counters),     cmocka_unit_test(test_forks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
