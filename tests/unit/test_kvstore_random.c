/* The block store against a naive model, by random operations; with KVL_TEST_CUDA a store on the (emulated)
 * GPU. */
#include "kvl/rng.h"
#include "kvstore_driver.h"

#include <setjmp.h>

#include <cmocka.h>

#ifdef KVL_TEST_CUDA
enum { OPS = 3000 };
#else
enum { OPS = 100000 };
#endif

/* With KVL_LONG ten times as many, with KVL_LONG=10000000 that many. */
static int64_t wanted_ops(void)
{
    const char *more = getenv("KVL_LONG");
    if (!more) return OPS;
    return atoll(more) > OPS ? atoll(more) : 10 * OPS;
}

static void test_random(void **state)
{
    (void)state;
    enum { BYTES = 4000 };
    int64_t want_ops = wanted_ops(), n_ops = 0, n_refused = 0;
    const struct kvl_device *device = NULL;
#ifdef KVL_TEST_CUDA
    struct kvl_err err = { 0 };
    if (kvl_device_open("cuda", &device, &err) != KVL_OK) fail_msg("%s", err.msg);
#endif
    struct drive *d = test_malloc(sizeof *d);
    uint8_t *bytes = test_malloc(BYTES);
    struct kvl_rng rng;
    for (uint64_t seed = 0; n_ops < want_ops; seed++) {
        kvl_rng_seed(&rng, seed);
        for (int i = 0; i < BYTES; i++) bytes[i] = (uint8_t)kvl_rng_u32(&rng);
        memset(d, 0, sizeof *d);
        d->device = device;
        if (!drive_run(d, bytes, BYTES)) fail_msg("seed %d: %s", (int)seed, d->msg);
        n_ops += d->n_ops;
        n_refused += d->n_refused;
    }
    assert_true(n_refused > n_ops / 200); /* limits were met */
    test_free(bytes);
    test_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
