/* check_hybrid.h - attention where blocks lie gives what attention to fetched blocks gives. */
#ifndef KVL_TESTS_CHECK_HYBRID_H
#define KVL_TESTS_CHECK_HYBRID_H

#include "conformance/fixture.h"

/* The devices that fetch and that attend on the host, of which the other checks run on either. */
static const char *const *hybrid_devices(void)
{
    static const char *const cpu[] = { "cpu", "cpu-hybrid" }, *const gpu[] = { "cuda", "hybrid" };
    const char *name = getenv("KVL_TEST_DEVICE");
    return name && (strcmp(name, gpu[0]) == 0 || strcmp(name, gpu[1]) == 0) ? gpu : cpu;
}

/* Where a policy, or the one that it wraps, offloads when it is asked to, it is asked. */
static const char *hybrid_options(const struct kvl_policy *p)
{
    static char text[96];
    text[0] = '\0';
    for (const struct kvl_opt *o = p->opts; o && o->name; o++) {
        const char *own = strrchr(o->name, '.');
        if (o->type == KVL_OPT_BOOL && strcmp(own ? own + 1 : o->name, "offload") == 0)
            snprintf(text, sizeof text, "%s=true", o->name);
    }
    return text;
}

/* One model on one device; kvl_free the logits. */
static float *hybrid_run(void **state, struct fixture *f, int model, const char *device,
                         struct kvl_counters *out)
{
    struct rig_desc desc = models[model];
    desc.device = device;
    open_desc(f, state, &desc);
    f->run.options = hybrid_options(f->run.policy);
    struct rig_session rs = rig_start(&f->r, &f->run);
    float *logits = rig_logits(&f->r, f->run.n_steps);
    rig_decode(&f->r, &rs, f->run.id + f->run.n_ctx, f->run.n_steps, logits);
    *out = *kvl_session_counters(rs.s);
    rig_end(&rs);
    return logits;
}

static void expect_hybrid_same(struct fixture *f, const float *a, const float *b)
{
    int32_t n_vocab = rig_shape(&f->r)->n_vocab;
    rig_expect_near(&f->r, a, b, f->run.n_steps, logits_apart(f, 2e-3, 8e-3),
                    "attended on the host, or fetched");
    for (int32_t i = 0; i < f->run.n_steps; i++, a += n_vocab, b += n_vocab)
        assert_int_equal(kvl_argmax(a, n_vocab), kvl_argmax(b, n_vocab));
}

static void check_hybrid(void **state)
{
    const struct subject *subject = *state;
    struct kvl_counters fetched, hosted;
    struct fixture f;
    if (!(subject->policy->caps & KVL_CAP_OFFLOADS)) skip();
    for (int i = 0; i < N_MODELS; i++) {
        if (!model_serves(state, i)) continue;
        float *want = hybrid_run(state, &f, i, hybrid_devices()[0], &fetched);
        close_model(&f);
        float *got = hybrid_run(state, &f, i, hybrid_devices()[1], &hosted);
        expect_hybrid_same(&f, want, got);
        assert_int_equal(fetched.host_attend_tok, 0);
        assert_true(hosted.host_attend_tok > 0);
        assert_true(hosted.host_attend_bytes <= hosted.kv_read_bytes);
        assert_int_equal(hosted.cache_hits + hosted.cache_misses + hosted.prefetch_bytes, 0);
        assert_int_equal(hosted.kv_read_bytes, fetched.kv_read_bytes);
        kvl_free(want);
        kvl_free(got);
        close_model(&f);
    }
}

#endif
