/* Memory of both sides (SHARED, TABLE): each sees what the other did to it, no byte travels that nobody asked for, and
 * the emulated GPU finds a host that touches what the device alone has.  Exit status 77: there is no GPU here. */
#include "ops/ops_util.h"

#include "kvl/device.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef KVL_TEST_CUDA
#include "cuda_host_control.h"
#endif

enum { N = 3000, LINE = 64 / sizeof(float) };

static const struct kvl_device *device;

static struct kvl_device_traffic traffic(void)
{
    struct kvl_device_traffic t;
    device->traffic(&t);
    return t;
}

static float *twin(enum kvl_place place)
{
    float *p = device->alloc(place, N, sizeof *p);
    assert_non_null(p);
    return p;
}

static void fill(const struct kvl_ops *ops, float *y, size_t n, uint64_t seed)
{
    assert_int_equal(
        ops->random_fill(&(struct kvl_random_fill_args){ .y = y, .n = n, .seed = seed }), KVL_OK);
}

static void add(const struct kvl_ops *ops, float *y, const float *x, size_t n)
{
    assert_int_equal(ops->add(&(struct kvl_add_args){ .y = y, .x = x, .n = n }), KVL_OK);
}

static void host(float *p, size_t n, bool writes)
{
    const struct kvl_pieces one = {
        .data = (uint8_t *)p, .bytes = n * sizeof *p, .n = 1, .writes = writes
    };
    assert_int_equal(device->host(&one, 1), KVL_OK);
}

/* ---- any order of things ------------------------------------------------------------------------------ */

struct both {
    float *x, *want; /* [N] */
    bool table;
    struct kvl_rng rng;
};

static size_t below(struct both *b, size_t n)
{
    return (size_t)kvl_rng_below(&b->rng, (uint32_t)n);
}

/* Where the host may look and write. */
static void host_has(struct both *b, size_t at, size_t n)
{
    if (b->table)
        host(b->x + at, n, true);
    else
        assert_int_equal(device->sync(), KVL_OK);
}

static void host_step(struct both *b, size_t at, size_t n)
{
    host_has(b, at, n);
    for (size_t i = at; i < at + n; i++) {
        assert_true(b->x[i] == b->want[i]);
        b->x[i] = b->want[i] = (float)below(b, 1000);
    }
}

/* What a hook that waits does: what it was given stays the host's, whatever operators write of it. */
static void hook_step(struct both *b, size_t at, size_t n)
{
    host_step(b, at, n);
    for (int i = 0; i < 3; i++) {
        size_t part = below(b, n), m = n - part;
        b->x[at] = b->want[at] = (float)i;
        fill(device->ops_now, b->x + at + part, m, at + n);
        fill(kvl_device_cpu()->ops, b->want + at + part, m, at + n);
        for (size_t j = at; j < at + n; j++) assert_true(b->x[j] == b->want[j]);
    }
    device->settle();
}

static void both_step(struct both *b)
{
    const struct kvl_ops *ops = device->ops, *cpu = kvl_device_cpu()->ops;
    size_t n = 1 + below(b, below(b, 4) ? 40 : N / 3), at = below(b, N - n);
    size_t other = at < N / 2 ? N / 2 + below(b, N / 2 - n) : below(b, N / 2 - n);
    uint64_t seed = below(b, 1000);
    bool apart = at + n <= N / 2 || at >= N / 2;
    switch (below(b, 8)) {
    case 0:
    case 1: host_step(b, at, n); break;
    case 6: hook_step(b, at, n); break;
    case 2:
        fill(ops, b->x + at, n, seed);
        fill(cpu, b->want + at, n, seed);
        break;
    case 3:
        if (!apart) break;
        add(ops, b->x + at, b->x + other, n);
        add(cpu, b->want + at, b->want + other, n);
        break;
    case 4:
        if (!apart) break;
        assert_int_equal(device->copy(b->x + at, b->x + other, n * sizeof(float), KVL_STREAM_MAIN),
                         KVL_OK);
        memcpy(b->want + at, b->want + other, n * sizeof(float));
        break;
    case 5: assert_int_equal(device->rest(), KVL_OK); break;
    default: device->settle(); break;
    }
}

static void any_order(enum kvl_place place)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct both b = { .x = twin(place),
                          .want = ut_alloc(N, sizeof(float)),
                          .table = place == KVL_PLACE_TABLE };
        kvl_rng_seed(&b.rng, seed);
        memset(b.want, 0, N * sizeof(float));
        for (int i = 0; i < 60; i++) both_step(&b);
        host_step(&b, 0, N);
        device->settle();
        device->free(place, b.x);
        kvl_free(b.want);
    }
}

static void test_any_order(void **state)
{
    (void)state;
    any_order(KVL_PLACE_SHARED);
    any_order(KVL_PLACE_TABLE);
}

/* ---- what travels --------------------------------------------------------------------------------------- */

static int64_t up(const struct kvl_device_traffic *since)
{
    return traffic().h2d_bytes - since->h2d_bytes;
}

static int64_t down(const struct kvl_device_traffic *since)
{
    return traffic().d2h_bytes - since->d2h_bytes;
}

static void test_bytes_of_shared(void **state)
{
    float *x = twin(KVL_PLACE_SHARED), *y = twin(KVL_PLACE_SHARED);
    (void)state;
    struct kvl_device_traffic t = traffic();
    for (int32_t i = 0; i < 100; i++) x[i] = 1;
    add(device->ops, y + LINE, x, 100);
    assert_int_equal(up(&t), 2 * 448); /* what was read, in whole lines */
    add(device->ops, y + LINE, x, 100);
    assert_int_equal(up(&t), 2 * 448); /* is there already */
    assert_int_equal(device->rest(), KVL_OK);
    assert_int_equal(down(&t), 0);
    assert_int_equal(device->sync(), KVL_OK);
    assert_int_equal(down(&t), 448);
    assert_true(y[LINE] == 2 && y[LINE + 99] == 2 && y[LINE + 100] == 0 && y[0] == 0);
    fill(device->ops, y, 4 * LINE, 1);
    device->fresh(y, 4 * LINE * sizeof *y, true);
    assert_int_equal(device->sync(), KVL_OK);
    assert_int_equal(down(&t), 448); /* nobody asks for it */
    device->free(KVL_PLACE_SHARED, x);
    device->free(KVL_PLACE_SHARED, y);
}

static void test_bytes_of_tables(void **state)
{
    float *x = twin(KVL_PLACE_TABLE);
    (void)state;
    struct kvl_device_traffic t = traffic();
    fill(device->ops, x, N, 7);
    assert_int_equal(device->sync(), KVL_OK);
    assert_int_equal(up(&t) + down(&t), 0);
    host(x + 4 * LINE, LINE, false);
    assert_int_equal(down(&t), 64);
    host(x + 4 * LINE, 2 * LINE, true);
    assert_int_equal(down(&t), 128); /* one of them was there */
    x[4 * LINE] = 5;
    add(device->ops, x, x + 3 * LINE, 3 * LINE);
    assert_int_equal(up(&t), 128);
    add(device->ops, x, x + 3 * LINE, 3 * LINE);
    assert_int_equal(up(&t), 256); /* the host may have written again */
    device->settle();
    add(device->ops, x, x + 3 * LINE, 3 * LINE);
    add(device->ops, x, x + 3 * LINE, 3 * LINE);
    assert_int_equal(up(&t), 384);
    assert_int_equal(down(&t), 128);
    device->free(KVL_PLACE_TABLE, x);
}

/* ---- a host that touches what it does not have ------------------------------------------------------------ */

#ifdef KVL_TEST_CUDA
enum crime { READS_PAGE, WRITES_PAGE, WRITES_LINE, WRITES_BOTH, CRIMES };

static void commit(enum crime which)
{
    float *x = twin(KVL_PLACE_TABLE);
    size_t n = which == WRITES_LINE ? LINE : N;
    fill(device->ops, x, n, 3);
    assert_int_equal(device->sync(), KVL_OK);
    if (which == WRITES_BOTH) host(x, n, false);
    if (which == READS_PAGE) {
        volatile float seen = x[1];
        (void)seen;
    } else {
        x[1] = 0;
    }
    add(device->ops, x, x + N / 2, N / 2);
    host(x, N, false);
}

/* Where the device has a whole page at once, elsewhere when operators read it or the host asks for it. */
static void test_crimes(void **state)
{
    (void)state;
    for (int which = -1; which < CRIMES; which++) {
        int status;
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            signal(SIGABRT, SIG_DFL);
            signal(SIGSEGV, SIG_DFL);
            if (!freopen("/dev/null", "w", stderr)) _exit(0);
            kvl_emu_adopt();
            if (which >= 0) commit((enum crime)which);
            _exit(which < 0 ? 7 : 0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (which < 0)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        else if (!WIFSIGNALED(status))
            fail_msg("case %d lives on", which);
        else
            assert_int_equal(WTERMSIG(status), which <= WRITES_PAGE ? SIGSEGV : SIGABRT);
    }
}
#endif

int main(void)
{
    struct kvl_err err = { 0 };
    setenv("KVL_CUDA_CHECKS", "0", 1); /* they wait */
    if (kvl_device_open("cuda", &device, &err) != KVL_OK) {
        fprintf(stderr, "test_gpu_twins: skipped: %s\n", err.msg);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_bytes_of_shared),
        cmocka_unit_test(test_bytes_of_tables),
#ifdef KVL_TEST_CUDA
        cmocka_unit_test(test_crimes),
#endif
    };
    return cmocka_run_group_tests_name("gpu_twins", tests, NULL, NULL);
}
