/* What a GPU promises where nobody waits: marks of what is no number, and steps
 * that are gathered. */
#include "ops/ops_util.h"

#include "kvl/device.h"

#ifdef KVL_TEST_CUDA

static const struct kvl_device *device;

static struct kvl_device_traffic traffic(void) {
  struct kvl_device_traffic t;
  device->traffic(&t);
  return t;
}

static void *device_alloc(size_t n, size_t item) {
  void *p = device->alloc(KVL_PLACE_DEVICE, n, item);
  assert_non_null(p);
  return p;
}

static void copy(void *to, const void *from, size_t bytes) {
  assert_int_equal(device->copy(to, from, bytes, KVL_STREAM_MAIN), KVL_OK);
}

/* ---- marks
 * ---------------------------------------------------------------------------------------------------
 */

enum { MARK_N = 20000, MARK_K = 9 };

enum mark_op {
  MARK_TOPK,
  MARK_TOPK_LONG,
  MARK_NONE_WANTED,
  MARK_TOP_P,
  MARK_SHARE,
  MARK_CHUNKS,
  MARK_OPS
};

/* Two rows at x; index [2 * MARK_K], count [2]. */
static int mark_call(enum mark_op op, const struct kvl_ops *ops, float *x,
                     int32_t *index, int32_t *count) {
  const int32_t n = op == MARK_TOPK_LONG ? MARK_N : 100;
  const int32_t k = op == MARK_NONE_WANTED ? 0 : MARK_K;
  if (op == MARK_TOP_P)
    return ops->top_p(&(struct kvl_top_p_args){.index = index,
                                               .n_index = count,
                                               .weight = x,
                                               .stride = MARK_N,
                                               .n_rows = 2,
                                               .n = n,
                                               .k = MARK_K,
                                               .p = 0.5f});
  if (op == MARK_SHARE)
    return ops->joint_share(&(struct kvl_joint_share_args){.count = count,
                                                           .x = x,
                                                           .x_stride = MARK_N,
                                                           .n_rows = 2,
                                                           .n = n,
                                                           .k = MARK_K,
                                                           .safe = 2});
  if (op == MARK_CHUNKS)
    return ops->chunk_mean(&(struct kvl_chunk_mean_args){.x = x,
                                                         .stride = MARK_N,
                                                         .n_rows = 2,
                                                         .n = n,
                                                         .chunk = 7,
                                                         .k = 2,
                                                         .n_best = count});
  return ops->topk(&(struct kvl_topk_args){
      .index = index, .x = x, .x_stride = MARK_N, .n_rows = 2, .n = n, .k = k});
}

/* On the device: values, some with a NaN, and room for results. */
struct mark_case {
  float *host, *good, *bad;
  int32_t *index, *count;
};

static void mark_open(struct mark_case *t, struct kvl_rng *r) {
  t->host = ut_alloc(2 * MARK_N, sizeof *t->host);
  for (int32_t i = 0; i < 2 * MARK_N; i++)
    t->host[i] = (float)kvl_rng_f64(r);
  t->good = device_alloc(2 * MARK_N, sizeof *t->good);
  t->bad = device_alloc(2 * MARK_N, sizeof *t->bad);
  t->index = device_alloc(2 * MARK_K, sizeof *t->index);
  t->count = device_alloc(2, sizeof *t->count);
}

/* Chunks of NaN stay. */
static void mark_fill(struct mark_case *t) {
  copy(t->good, t->host, 2 * MARK_N * sizeof *t->host);
  t->host[MARK_N + 50] = NAN;
  copy(t->bad, t->host, 2 * MARK_N * sizeof *t->host);
  t->host[MARK_N + 50] = 0.5f;
}

static void mark_close(struct mark_case *t) {
  kvl_free(t->host);
  device->free(KVL_PLACE_DEVICE, t->good);
  device->free(KVL_PLACE_DEVICE, t->bad);
  device->free(KVL_PLACE_DEVICE, t->index);
  device->free(KVL_PLACE_DEVICE, t->count);
}

static void mark_row_call(const struct mark_case *t, enum mark_op op,
                          int32_t row, float *x) {
  device->mark_row(row);
  assert_int_equal(mark_call(op, device->ops, x, t->index, t->count), KVL_OK);
}

static void mark_range(const struct mark_case *t, enum mark_op op) {
  int32_t index[2 * MARK_K], count[2], n = op == MARK_TOPK_LONG ? MARK_N : 100;
  copy(index, t->index, sizeof index);
  copy(count, t->count, sizeof count);
  for (int32_t i = 0; op <= MARK_TOPK_LONG && i < 2 * MARK_K; i++)
    assert_true(index[i] >= 0 && index[i] < n);
  if (op == MARK_TOP_P)
    assert_in_range(count[0], 0, MARK_K);
  if (op == MARK_SHARE)
    assert_int_equal(count[0] + count[1], MARK_K);
  if (op == MARK_CHUNKS)
    assert_in_range(count[0], 7 + 2, 14);
}

static int32_t marked(void) {
  int32_t row = -2;
  assert_int_equal(device->marked(&row), KVL_OK);
  return row;
}

/* Calls that return at once leave their row's mark, whoever else waits
 * meanwhile; the first row is told. */
static void test_marks(void **state) {
  struct mark_case t;
  struct kvl_rng r;
  int32_t index[2 * MARK_K], count[2];
  (void)state;
  kvl_rng_seed(&r, 1);
  mark_open(&t, &r);
  assert_int_equal(marked(), -1);
  for (enum mark_op op = 0; op < MARK_OPS; op++) {
    mark_fill(&t);
    int64_t syncs = traffic().n_syncs;
    mark_row_call(&t, op, 7, t.bad);
    mark_row_call(&t, op, 2, t.good);
    mark_row_call(&t, op, 5, t.bad);
    mark_row_call(&t, op, 100000, t.bad);
    assert_int_equal(traffic().n_syncs, syncs);
    mark_range(&t, op);
    assert_int_equal(mark_call(op, device->ops, t.host, index, count), KVL_OK);
    mark_fill(&t);
    assert_int_equal(mark_call(op, device->ops_now, t.good, t.index, t.count),
                     KVL_OK);
    assert_int_equal(marked(), 5);
    assert_int_equal(marked(), -1);
    mark_row_call(&t, op, KVL_DEVICE_MARKS + 3, t.bad);
    assert_int_equal(marked(), KVL_DEVICE_MARKS - 1);
  }
  device->mark_row(0);
  mark_close(&t);
}

/* Calls that wait tell themselves, and leave no mark: not to the next one of
 * their kind either. */
static void test_told(void **state) {
  struct mark_case t;
  struct kvl_rng r;
  int32_t index[2 * MARK_K], count[2];
  (void)state;
  kvl_rng_seed(&r, 2);
  mark_open(&t, &r);
  for (enum mark_op op = 0; op < MARK_OPS; op++) {
    mark_fill(&t);
    assert_int_equal(mark_call(op, device->ops_now, t.bad, t.index, t.count),
                     KVL_ENUMERIC);
    assert_int_equal(mark_call(op, device->ops_now, t.good, t.index, t.count),
                     KVL_OK);
    float keep = t.host[9];
    t.host[9] = NAN;
    if (op != MARK_CHUNKS) /* which would leave a chunk of them */
      assert_int_equal(mark_call(op, device->ops, t.host, t.index, t.count),
                       KVL_ENUMERIC);
    t.host[9] = keep;
    mark_fill(&t);
    if (op != MARK_NONE_WANTED)
      assert_int_equal(mark_call(op, device->ops, t.bad, index, count),
                       KVL_ENUMERIC);
    assert_int_equal(mark_call(op, device->ops, t.host, index, count), KVL_OK);
    assert_int_equal(marked(), -1);
  }
  mark_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_marks),
      cmocka_unit_test(test_told),
  };
  struct kvl_err err;
  if (kvl_device_open("cuda", &device, &err) != KVL_OK) {
    fprintf(stderr, "%s\n", err.msg);
    return 1;
  }
  return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}

#else

int main(void) { return 77; /* left out */ }

#endif
