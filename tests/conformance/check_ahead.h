/* check_ahead.h - hooks that say they look at nothing (KVL_CAP_ASYNC) answer the same whether or not the
 * engine waits for them.  On the CPU nothing runs ahead. */
#ifndef KVL_TESTS_CHECK_AHEAD_H
#define KVL_TESTS_CHECK_AHEAD_H

#include "conformance/fixture.h"

struct ahead {
    float *logits;
    struct kvl_counters count;
};

static void ahead_run(void **state, const struct rig_desc *desc, struct fixture *f,
                      struct ahead *out)
{
    open_desc(f, state, desc);
    struct rig_session rs = rig_start(&f->r, &f->run);
    out->logits = rig_logits(&f->r, N_STEPS);
    rig_decode(&f->r, &rs, f->id + f->run.n_ctx, N_STEPS, out->logits);
    out->count = *kvl_session_counters(rs.s);
    rig_end(&rs);
}

static void check_runs_ahead(void **state)
{
    const struct subject *subject = *state;
    struct ahead ahead, waits;
    struct fixture f;
    if (!(subject->policy->caps & KVL_CAP_ASYNC)) return;
    for (int i = 0; i < N_MODELS; i++) {
        struct rig_desc desc = models[i];
        if (!model_exists(i) || desc.path) continue; /* the others are of all kinds */
        ahead_run(state, &desc, &f, &ahead);
        close_model(&f);
        desc.wait_hooks = true;
        ahead_run(state, &desc, &f, &waits);
        rig_expect_same(&f.r, ahead.logits, waits.logits, N_STEPS, "ahead of the device");
        assert_int_equal(ahead.count.attended_tok, waits.count.attended_tok);
        assert_int_equal(ahead.count.dense_tok, waits.count.dense_tok);
        assert_int_equal(ahead.count.kv_read_bytes, waits.count.kv_read_bytes);
        assert_int_equal(ahead.count.index_read_bytes, waits.count.index_read_bytes);
        assert_int_equal(ahead.count.n_evicted, waits.count.n_evicted);
        close_model(&f);
        kvl_free(ahead.logits);
        kvl_free(waits.logits);
    }
}

#endif
