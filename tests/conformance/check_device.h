/* check_device.h - a device answers as the CPU does: keys in floats, where rounding turns no choice over.  Only
 * where the tests run on a device. */
#ifndef KVL_TESTS_CHECK_DEVICE_H
#define KVL_TESTS_CHECK_DEVICE_H

#include "conformance/fixture.h"

enum { DEVICE_MODEL = 2 }; /* the smallest */

/* kvl_free the logits. */
static float *device_run(void **state, struct fixture *f, const char *device,
                         struct kvl_counters *out)
{
    struct rig_desc desc = models[DEVICE_MODEL];
    desc.device = device;
    open_desc(f, state, &desc);
    struct rig_session rs = rig_start(&f->r, &f->run);
    float *logits = rig_logits(&f->r, N_STEPS);
    rig_decode(&f->r, &rs, f->id + f->run.n_ctx, N_STEPS, logits);
    *out = *kvl_session_counters(rs.s);
    rig_end(&rs);
    return logits;
}

static void check_device(void **state)
{
    struct kvl_counters cpu, gpu;
    struct fixture f;
    const char *name = getenv("KVL_TEST_DEVICE");
    if (!name || strcmp(name, "cuda") != 0) skip();
    float *want = device_run(state, &f, "cpu", &cpu);
    close_model(&f);
    float *got = device_run(state, &f, name, &gpu);
    rig_expect_near(&f.r, want, got, N_STEPS, logits_apart(&f, 1e-3, 8e-3),
                    "on the CPU and on the device");
    assert_int_equal(cpu.attended_tok, gpu.attended_tok);
    assert_int_equal(cpu.dense_tok, gpu.dense_tok);
    assert_int_equal(cpu.kv_read_bytes, gpu.kv_read_bytes);
    assert_int_equal(cpu.index_read_bytes, gpu.index_read_bytes);
    assert_int_equal(cpu.n_evicted, gpu.n_evicted);
    close_model(&f);
    kvl_free(want);
    kvl_free(got);
}

#endif
