/* Steps of the (emulated) GPU where the results do not show it: what is prepared and how often, a driver that
 * refuses, errors that come with a graph.  With KVL_TEST_CUDA; there is nothing to see on the CPU. */
#include "kvl/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef KVL_TEST_CUDA

#include "cuda_host_control.h"

#include <sys/wait.h>
#include <unistd.h>

enum { N = 300, INVALID_CONFIGURATION = 9, NO_MEMORY = 2, ILLEGAL_ADDRESS = 700 };

static const struct kvl_device *device;
static float *x, *y; /* [N] on the device */
static int32_t *index_of;

static struct kvl_emu_counts counts(void)
{
    struct kvl_emu_counts c;
    kvl_emu_counts(&c);
    return c;
}

static int64_t graphs(void)
{
    struct kvl_device_traffic t;
    device->traffic(&t);
    return t.n_graphs;
}

static bool has_graphs(void)
{
    struct kvl_device_info info;
    device->info(&info);
    return info.graphs;
}

static void *array(size_t n, size_t item)
{
    void *p = device->alloc(KVL_PLACE_DEVICE, n, item);
    assert_non_null(p);
    return p;
}

static void open_device(void)
{
    struct kvl_err err = { 0 };
    if (kvl_device_open("cuda", &device, &err) != KVL_OK) fail_msg("%s", err.msg);
    x = array(N, sizeof *x);
    y = array(N, sizeof *y);
    index_of = array(N, sizeof *index_of);
}

static int add(void)
{
    return device->ops->add(&(struct kvl_add_args){ .y = y, .x = x, .n = N });
}

static int find(void)
{
    return device->ops->topk(&(struct kvl_topk_args){
        .index = index_of, .x = y, .x_stride = N, .n_rows = 1, .n = N, .k = 7 });
}

/* A step of n_adds adds, and of a topk. */
static void run_step(int32_t n_adds, bool top)
{
    float one[N];
    for (int32_t i = 0; i < N; i++) one[i] = 1;
    assert_int_equal(device->step_begin(), KVL_OK);
    assert_int_equal(device->copy(x, one, sizeof one, KVL_STREAM_MAIN), KVL_OK);
    for (int32_t i = 0; i < n_adds; i++) assert_int_equal(add(), KVL_OK);
    if (top) assert_int_equal(find(), KVL_OK);
    assert_int_equal(device->step_end(), KVL_OK);
}

static float total(void)
{
    float host[N];
    assert_int_equal(device->copy(host, y, sizeof host, KVL_STREAM_MAIN), KVL_OK);
    for (int32_t i = 1; i < N; i++) assert_true(host[i] == host[0]);
    return host[0];
}

/* Steps of two kinds, of as many calls, are prepared twice; an upload costs one copy. */
static void test_two_kinds(void **state)
{
    (void)state;
    float before = total();
    assert_true(has_graphs()); /* which it tries at first */
    struct kvl_emu_counts a = counts();
    int64_t n = graphs();
    for (int32_t i = 0; i < 12; i++) run_step(i % 2 ? 4 : 3, i % 2 == 0);
    float after = total();
    struct kvl_emu_counts b = counts();
    assert_true(after - before == 42);
    assert_int_equal(b.n_instantiated - a.n_instantiated, 2);
    assert_int_equal(graphs() - n, 12);
    assert_int_equal(b.n_graph_launches - a.n_graph_launches, 12);
    assert_int_equal(b.h2d_calls - a.h2d_calls, 12);
}

/* A long step is a few graphs, of which the GPU runs one while the next is gathered; each is prepared once, and takes
 * what was uploaded since the one before. */
static void test_long_steps(void **state)
{
    (void)state;
    float before = total();
    struct kvl_emu_counts a = counts();
    for (int32_t i = 0; i < 3; i++) run_step(200, true);
    assert_true(total() - before == 600);
    struct kvl_emu_counts b = counts();
    assert_int_equal(b.n_instantiated - a.n_instantiated, 4);
    assert_int_equal(b.n_graph_launches - a.n_graph_launches, 12);
    assert_int_equal(b.h2d_calls - a.h2d_calls, 3);
}

/* Four kinds stay prepared; a fifth takes the place of the one that was used longest ago. */
static void test_five_kinds(void **state)
{
    (void)state;
    static const int32_t kinds[] = { 5, 6, 7, 8, 5, 6, 7, 8, 9, 6, 7, 8, 9, 5 };
    int64_t want[] = { 1, 2, 3, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6 }, before = counts().n_instantiated;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        run_step(kinds[i], false);
        assert_int_equal(counts().n_instantiated - before, want[i]);
    }
    assert_int_equal(device->sync(), KVL_OK);
}

/* Steps that are all of kinds of their own run as they come after a while, and are tried again. */
static void test_no_kind(void **state)
{
    (void)state;
    int64_t before = graphs();
    float was = total();
    int32_t n = 0;
    run_step(4, false);
    for (int32_t i = 10; i < 100; n += i++) run_step(i, false);
    int64_t gathered = graphs() - before;
    assert_in_range(gathered, 10, 30);
    assert_true(total() == was + 4 + (float)n);
    for (int32_t i = 0; i < 64; i++) run_step(4, false); /* it has rested */
}

/* Memory that a call takes in a step is there until the step has run. */
static void test_memory_in_step(void **state)
{
    enum { ROWS = 60, LONG = 17000 };
    (void)state;
    float *wide = array((size_t)ROWS * LONG, sizeof *wide);
    int32_t *got = array(ROWS * 3, sizeof *got), host[ROWS * 3];
    struct kvl_topk_args a = {
        .index = got, .x = wide, .x_stride = LONG, .n_rows = ROWS, .n = LONG, .k = 3
    };
    float high = 1;
    for (int32_t r = 0; r < ROWS; r++)
        assert_int_equal(
            device->copy(wide + (size_t)r * LONG + 16000 + r, &high, sizeof high, KVL_STREAM_MAIN),
            KVL_OK);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(device->step_begin(), KVL_OK);
        assert_int_equal(find(), KVL_OK);
        assert_int_equal(device->ops->topk(&a), KVL_OK);
        assert_int_equal(find(), KVL_OK);
        assert_int_equal(device->step_end(), KVL_OK);
        assert_int_equal(device->copy(host, got, sizeof host, KVL_STREAM_MAIN), KVL_OK);
        for (int32_t r = 0; r < ROWS; r++) assert_int_equal(host[3 * r + 2], 16000 + r);
    }
    device->free(KVL_PLACE_DEVICE, wide);
    device->free(KVL_PLACE_DEVICE, got);
}

/* A call whose first argument had room in the step and whose second had not, at the beginning of a graph that has
 * nothing else in it: the first one was left where kernels do not find it. */
static void test_room_ends_in_a_call(void **state)
{
    enum { WIDE = 70000 }; /* two of them are more than a step has room for at first */
    static float a[WIDE], b[WIDE];
    (void)state;
    for (int32_t turn = 1; turn <= 2; turn++) {
        for (int32_t i = 0; i < WIDE; i++) {
            a[i] = (float)(turn * i);
            b[i] = 1;
        }
        assert_int_equal(device->step_begin(), KVL_OK);
        assert_int_equal(device->ops->add(&(struct kvl_add_args){ .y = b, .x = a, .n = WIDE }),
                         KVL_OK);
        assert_int_equal(device->step_end(), KVL_OK);
        for (int32_t i = 0; i < WIDE; i++) assert_true(b[i] == (float)(turn * i + 1));
    }
}

/* ---- in processes of their own ---------------------------------------------------------------------------------- */

/* Runs body in a child, which opens the device itself. */
static void in_child(void (*body)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("the child ended with %d", status);
}

#define EXPECT(cond)                                                                               \
    do {                                                                                           \
        if (cond) break;                                                                           \
        fprintf(stderr, "line %d: %s: %s\n", __LINE__, #cond, device ? device->error() : "");      \
        _exit(1);                                                                                  \
    } while (0)

static void steps_as_they_come(void)
{
    open_device();
    EXPECT(!has_graphs());
    run_step(3, true);
    run_step(3, true);
    EXPECT(total() == 6 && graphs() == 0 && counts().n_captured == 0 && device->error()[0] == '\0');
}

static void body_refused(void)
{
    setenv("KVL_EMU_GRAPHS", "0", 1);
    steps_as_they_come();
}

static void body_switched_off(void)
{
    setenv("KVL_CUDA_GRAPH", "0", 1);
    steps_as_they_come();
}

/* Where there is no memory for what goes up, steps run as they come. */
static void body_no_room(void)
{
    open_device();
    EXPECT(has_graphs());
    kvl_emu_fail(KVL_EMU_HOST_ALLOC, 1, NO_MEMORY);
    run_step(3, false);
    EXPECT(total() == 3 && graphs() == 0);
    run_step(3, false);
    EXPECT(total() == 6 && graphs() == 1);
}

static size_t pinned_bytes(void)
{
    struct kvl_device_memory m;
    device->memory(&m);
    return m.place_bytes[KVL_PLACE_PINNED];
}

/* What goes up while nothing is gathered was counted twice, and so was the room for it; which there is half as much of
 * again, and twice. */
static void body_room_once(void)
{
    enum { WIDE = 1 << 19 };
    static float host[WIDE];
    open_device();
    float *there = array(WIDE, sizeof *there);
    EXPECT(device->step_begin() == KVL_OK); /* the first of a process is not gathered */
    EXPECT(device->ops->add(&(struct kvl_add_args){ .y = there, .x = host, .n = WIDE }) == KVL_OK);
    EXPECT(device->step_end() == KVL_OK);
    size_t before = pinned_bytes();
    run_step(3, false);
    EXPECT(pinned_bytes() - before <= 3 * sizeof host + 4096);
}

/* Of a call inside. */
static void body_bad_launch(void)
{
    open_device();
    run_step(3, false); /* the first of a process is not gathered */
    EXPECT(device->step_begin() == KVL_OK && add() == KVL_OK);
    int64_t started = counts().n_graph_launches;
    kvl_emu_fail(KVL_EMU_LAUNCH, 1, INVALID_CONFIGURATION);
    EXPECT(add() == KVL_EDEVICE && add() == KVL_EDEVICE);
    EXPECT(strstr(device->error(), "invalid configuration"));
    EXPECT(device->step_end() == KVL_EDEVICE && counts().n_graph_launches == started);
}

/* Of a kernel, when the graph has run. */
static void body_bad_run(void)
{
    open_device();
    run_step(3, false);
    EXPECT(device->sync() == KVL_OK && device->step_begin() == KVL_OK);
    kvl_emu_fail(KVL_EMU_RUN, 2, ILLEGAL_ADDRESS);
    EXPECT(add() == KVL_OK && add() == KVL_OK && add() == KVL_OK);
    EXPECT(device->step_end() == KVL_OK && device->sync() == KVL_EDEVICE);
    EXPECT(strstr(device->error(), "illegal memory access"));
    EXPECT(device->step_begin() == KVL_EDEVICE);
}

/* Of the graph's own start, and no device is lost; whoever waits in the middle is told. */
static void body_bad_start(void)
{
    open_device();
    run_step(3, false);
    for (int32_t wait = 0; wait < 2; wait++) {
        EXPECT(device->step_begin() == KVL_OK && add() == KVL_OK);
        kvl_emu_fail(KVL_EMU_LAUNCH, 1, NO_MEMORY);
        EXPECT((wait ? device->sync() : device->step_end()) == KVL_ENOMEM);
        if (wait) EXPECT(device->sync() == KVL_ENOMEM && device->step_end() == KVL_ENOMEM);
        run_step(3, false);
        EXPECT(total() == (float)(3 * wait + 6));
    }
}

static void test_in_children(void **state)
{
    (void)state;
    in_child(body_refused);
    in_child(body_switched_off);
    in_child(body_no_room);
    in_child(body_room_once);
    in_child(body_bad_launch);
    in_child(body_bad_run);
    in_child(body_bad_start);
}

/* The device does not outlive a fork. */
static int open_after(void **state)
{
    (void)state;
    open_device();
    run_step(3, false);
    return graphs() == 0 ? 0 : -1; /* the first of a process is not gathered */
}

int main(void)
{
    const struct CMUnitTest children[] = { cmocka_unit_test(test_in_children) };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_kinds),           cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_five_kinds),          cmocka_unit_test(test_no_kind),
        cmocka_unit_test(test_room_ends_in_a_call), cmocka_unit_test(test_memory_in_step),
    };
    int n = cmocka_run_group_tests(children, NULL, NULL);
    return n + cmocka_run_group_tests(tests, open_after, NULL);
}

#else

int main(void)
{
    return 77; /* left out */
}

#endif
