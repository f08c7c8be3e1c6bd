/* MInference: column and diagonal sums of the worked example, what is forced,
 * blocks by means, tables; and on a model what every layer chooses against a
 * softmax computed here.  The file of the method is included, so that its parts
 * can be called one by one. */
#define KVL_PLUGIN
#include "../methods/minference.c"

#include "conformance/rig.h"

/* ---- the worked example
 * ---------------------------------------------------------------------------
 */

static void test_sums(void **state) {
  static const float p[4][6] = {{.5f, .2f, .3f},
                                {.3f, .2f, .1f, .4f},
                                {.2f, .1f, .1f, .2f, .4f},
                                {.4f, .05f, .05f, .1f, .1f, .3f}};
  static const double want_v[6] = {1.4, .55, .55, .7, .5, .3};
  static const double want_s[6] = {1.4, .6, .9, .45, .25, .4};
  float vertical[6] = {0}, slash[6] = {0};
  (void)state;
  for (int32_t i = 0; i < 4; i++)
    mi_score_row(p[i], i + 3, vertical, slash);
  for (int i = 0; i < 6; i++) {
    assert_true(fabs((double)vertical[i] - want_v[i]) < 1e-6);
    assert_true(fabs((double)slash[i] - want_s[i]) < 1e-6);
  }
}

/* ---- parts without a model
 * ----------------------------------------------------------------------------
 */

static int bare_hook(struct kvl_pctx *ctx);
static struct kvl_pctx *bare_ctx;

static const struct kvl_policy bare_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "bare",
    .title = "t",
    .paper = "p",
    .help = "h",
    .caps = KVL_CAP_BOUND,
    .open = bare_hook,
};

static void check_choice(const struct kvl_pctx *ctx);

static int bare_hook(struct kvl_pctx *ctx) {
  bare_ctx = ctx;
  check_choice(ctx);
  return KVL_OK;
}

/* 200 keys: columns 150 and 99, diagonals 180 and 120 stand out. */
static void check_choice(const struct kvl_pctx *ctx) {
  enum { N = 200 };
  float vertical[N] = {0}, slash[N] = {0};
  struct mi_lines l;
  vertical[150] = 2;
  vertical[99] = 1;
  slash[180] = 2;
  slash[120] = 1;
  assert_int_equal(
      mi_choose(ctx, vertical, slash, N, &(struct mi_head){0, 31, 101}, &l),
      KVL_OK);
  assert_int_equal(l.n_vertical, 31);
  assert_int_equal(l.n_slash, 101);
  for (int i = 0; i < 30; i++)
    assert_int_equal(l.vertical[i], i);
  for (int i = 0; i < 100; i++)
    assert_int_equal(l.slash[i], i);
  assert_int_equal(l.vertical[30], 150);
  assert_int_equal(l.slash[100], 180);
  /* Sizes below what is forced are raised: 30 columns, the 50 nearest
   * diagonals. */
  assert_int_equal(
      mi_choose(ctx, vertical, slash, N, &(struct mi_head){0, 1, 1}, &l),
      KVL_OK);
  assert_int_equal(l.n_vertical, 30);
  assert_int_equal(l.n_slash, 50);
  for (int i = 0; i < 50; i++)
    assert_int_equal(l.slash[i], i);
}

static void test_forced(void **state) {
  struct kvl_planned *p;
  struct rig r;
  (void)state;
  rig_open(&r, &(struct rig_desc){
                   .llama = {.n_layers = 1, .n_kv_heads = 1, .seed = 1}});
  int32_t id[4];
  rig_tokens(id, 4, 1);
  struct kvl_session *s;
  RIG_OK(&r.err,
         kvl_planned_create(&bare_policy, rig_shape(&r), "", 0, 4, &p, &r.err));
  RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
  RIG_OK(&r.err, kvl_session_prefill(s, id, 4, NULL, true, &r.err));
  RIG_OK(&r.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err));
  assert_non_null(bare_ctx);
  kvl_session_destroy(s);
  kvl_planned_destroy(p);
  rig_close(&r);
}

/* ---- sizes and tables
 * ------------------------------------------------------------------------------------
 */

static const struct kvl_shape two_heads = {.n_layers = 1,
                                           .n_heads = 2,
                                           .n_kv_heads = 1,
                                           .head_dim = 8,
                                           .n_embd = 16,
                                           .n_vocab = 9};

static int plan_with(const char *options, int32_t budget, int32_t context,
                     struct mi_opts *o, struct kvl_err *err) {
  struct kvl_planned *p = NULL;
  *err = (struct kvl_err){0};
  int rc = kvl_planned_create(&minference, &two_heads, options, budget, context,
                              &p, err);
  if (rc == KVL_OK) {
    kvl_opt_defaults(mi_options, o, err);
    RIG_OK(err, kvl_opt_parse(mi_options, o, kvl_planned_options(p), err));
    assert_true(kvl_planned_own_prefill(p));
  }
  kvl_planned_destroy(p);
  return rc;
}

static void test_sizes(void **state) {
  struct mi_opts o;
  struct kvl_err err;
  (void)state;
  RIG_OK(&err, plan_with("", 0, 100000, &o, &err));
  assert_int_equal(o.vertical_size, 1000);
  assert_int_equal(o.slash_size, 6096);
  assert_int_equal(o.sink, 100);
  assert_int_equal(o.local, 800);
  assert_int_equal(o.block_topk, 100);
  assert_int_equal(o.chunk, 32768);
  RIG_OK(&err, plan_with("", 1024, 5000, &o, &err));
  assert_int_equal(o.vertical_size + o.slash_size, 1024);
  assert_int_equal(o.vertical_size, 1024 * 1000 / 7096);
  assert_int_equal(o.sink + o.local, 1024);
  assert_int_equal(o.block_topk, 16);
  assert_int_equal(o.chunk, 5000);
  RIG_OK(&err, plan_with("vertical_size=200", 1024, 5000, &o, &err));
  assert_int_equal(o.slash_size, 824);
  assert_int_equal(plan_with("chunk=100", 1024, 5000, &o, &err), KVL_EINVAL);
  assert_non_null(strstr(err.msg, "multiple of 64"));
  assert_int_equal(plan_with("", 79, 5000, &o, &err), KVL_EINVAL);
}

static void expect_table(const char *text, const char *why) {
  char path[] = "/tmp/kvl-table-XXXXXX", options[64];
  struct mi_opts o;
  struct kvl_err err;
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
  snprintf(options, sizeof options, "table=%s", path);
  int rc = plan_with(options, 1024, 5000, &o, &err);
  unlink(path);
  if (!why) {
    RIG_OK(&err, rc);
    assert_int_equal(strlen(o.table_sum), 16);
    return;
  }
  assert_int_equal(rc, KVL_EINVAL);
  if (!strstr(err.msg, why) || !strstr(err.msg, path))
    fail_msg("\"%s\", want %s", err.msg, why);
}

static void test_tables(void **state) {
  struct mi_opts o;
  struct kvl_err err;
  (void)state;
  expect_table(
      "# head\n0 0 vertical_slash 30 800 # 0.5\n\n0 1 block_sparse 7\n", NULL);
  expect_table("0 0 a_shape 4 8\n", "layer 0 head 1 is missing");
  expect_table("0 0 a_shape 4 8\n1 0 a_shape 4 8\n", "line 2: layer \"1\"");
  expect_table("\n0 0 a_shap 4 8\n", "line 2: kind \"a_shap\"");
  expect_table("0 0 a_shape 4\n0 1 a_shape 4 8\n", "line 1: second size \"\"");
  expect_table("0 0 a_shape 4 8 9\n0 1 a_shape 4 8\n", "line 1: more behind");
  expect_table("0 0 a_shape 4 8\n0 0 a_shape 4 8\n",
               "line 2: layer 0 head 0 stands twice");
  expect_table("0 0 a_shape 4.5 8\n", "want a whole number");
  assert_int_equal(plan_with("table=/nowhere/x.txt", 1024, 5000, &o, &err),
                   KVL_EINVAL);
  assert_non_null(strstr(err.msg, "/nowhere/x.txt"));
}

/* A head's sizes keep their proportion at another budget. */
static void test_scaled(void **state) {
  struct mi_head h = {MI_VERTICAL_SLASH, 100, 300}, w = {MI_A_SHAPE, 10, 30},
                 b = {MI_BLOCK_SPARSE, 9, 0};
  (void)state;
  mi_scale(&h, 1000);
  assert_int_equal(h.a, 250);
  assert_int_equal(h.b, 750);
  mi_scale(&w, 20);
  assert_int_equal(w.a, 5);
  assert_int_equal(w.b, 15);
  mi_scale(&b, 320);
  assert_int_equal(b.a, 5);
  mi_scale(&b, 0);
  assert_int_equal(b.a, 5);
}

/* ---- on a model
 * ----------------------------------------------------------------------------------------------
 */

enum { N_CTX = 300 };
static int n_checked;

/* Weights of query i of head h, in double, from what is stored. */
static void naive_weights(const struct kvl_pctx *ctx,
                          const struct kvl_step *step,
                          const struct kvl_query *q, int32_t i, int32_t h,
                          const float *k, double *p) {
  int32_t d = ctx->shape->head_dim, n = step->pos + i + 1;
  const float *x =
      q->q + ((size_t)i * (size_t)ctx->shape->n_heads + (size_t)h) * (size_t)d;
  double max = -HUGE_VAL, sum = 0;
  for (int32_t j = 0; j < n; j++) {
    p[j] = 0;
    for (int32_t c = 0; c < d; c++)
      p[j] += (double)x[c] * (double)k[j * d + c];
    p[j] /= sqrt(d);
    max = fmax(max, p[j]);
  }
  for (int32_t j = 0; j < n; j++)
    sum += p[j] = exp(p[j] - max);
  for (int32_t j = 0; j < n; j++)
    p[j] /= sum;
}

/* Whether `list` holds the n best of `score`, up to near ties. */
static void expect_best(const double *score, int32_t n_score,
                        const int32_t *list, int32_t n) {
  double least = HUGE_VAL;
  bool in[N_CTX] = {false};
  for (int32_t i = 0; i < n; i++) {
    in[list[i]] = true;
    least = fmin(least, score[list[i]]);
  }
  for (int32_t j = 0; j < n_score; j++)
    if (!in[j] && score[j] > least + 1e-4)
      fail_msg("%d of score %g is left out, one of %g is in", j, score[j],
               least);
}

static void check_lines(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q) {
  const struct mi_opts *o = ctx->opts;
  const struct kvl_shape *sh = ctx->shape;
  int32_t n = step->pos + step->n_tok, pos[N_CTX];
  float *vertical = rig_floats((size_t)(sh->n_heads * n)),
        *slash = rig_floats((size_t)(sh->n_heads * n));
  float *k = rig_floats((size_t)(n * sh->head_dim));
  double p[N_CTX];
  for (int32_t j = 0; j < n; j++)
    pos[j] = j;
  assert_int_equal(mi_scores(ctx, step, q, vertical, slash, n), KVL_OK);
  for (int32_t h = 0; h < sh->n_heads; h++) {
    double want_v[N_CTX] = {0}, want_s[N_CTX] = {0};
    struct mi_lines l;
    assert_int_equal(kvl_read_keys(ctx, step->layer,
                                   h / (sh->n_heads / sh->n_kv_heads), pos, n,
                                   false, k),
                     KVL_OK);
    for (int32_t i = KVL_MAX(0, step->n_tok - 64); i < step->n_tok; i++) {
      naive_weights(ctx, step, q, i, h, k, p);
      for (int32_t j = 0; j <= step->pos + i; j++) {
        want_v[j] += p[j];
        want_s[step->pos + i - j] += p[j];
      }
    }
    for (int32_t j = 0; j < 30; j++)
      want_v[j] = 1e9;
    for (int32_t j = 0; j < 100; j++)
      want_s[j] = 1e9 - j;
    struct mi_head sizes = {MI_VERTICAL_SLASH, o->vertical_size, o->slash_size};
    assert_int_equal(
        mi_choose(ctx, vertical + h * n, slash + h * n, n, &sizes, &l), KVL_OK);
    assert_int_equal(l.n_vertical, o->vertical_size);
    assert_int_equal(l.n_slash, o->slash_size);
    expect_best(want_v, n, l.vertical, l.n_vertical);
    expect_best(want_s, n, l.slash, l.n_slash);
    n_checked++;
  }
  kvl_free(vertical);
  kvl_free(slash);
  kvl_free(k);
}

/* Means of 64 in double; the k best blocks before a block of queries, and its
 * own. */
static void check_blocks(const struct kvl_pctx *ctx,
                         const struct kvl_step *step,
                         const struct kvl_query *q) {
  const struct kvl_shape *sh = ctx->shape;
  int32_t n = step->pos + step->n_tok, pos[N_CTX], d = sh->head_dim, k = 3;
  float *key = rig_floats((size_t)(n * d));
  struct mi_blocks b;
  for (int32_t j = 0; j < n; j++)
    pos[j] = j;
  assert_int_equal(mi_blocks_open(ctx, step, k, &b), KVL_OK);
  for (int32_t h = 0; h < sh->n_heads; h++) {
    int32_t kv = h / (sh->n_heads / sh->n_kv_heads);
    assert_int_equal(mi_pool_keys(ctx, step->layer, kv, n, b.key), KVL_OK);
    assert_int_equal(mi_block_lists(ctx, step, q, h, k, &b), KVL_OK);
    assert_int_equal(kvl_read_keys(ctx, step->layer, kv, pos, n, false, key),
                     KVL_OK);
    for (int32_t i = 0; i < b.n_blocks; i++) {
      double score[N_CTX] = {0};
      for (int32_t j = 0; j <= i; j++) {
        int32_t rows = KVL_MIN(64, step->n_tok - i * 64),
                cols = KVL_MIN(64, n - j * 64);
        for (int32_t c = 0; c < d; c++) {
          double mq = 0, mk = 0;
          for (int32_t r = 0; r < rows; r++)
            mq += (double)q->q[((i * 64 + r) * sh->n_heads + h) * d + c] / rows;
          for (int32_t r = 0; r < cols; r++)
            mk += (double)key[(j * 64 + r) * d + c] / cols;
          score[j] += mq * mk;
        }
      }
      score[i] = 1e9;
      assert_int_equal(b.off[i + 1] - b.off[i], KVL_MIN(k, i + 1));
      expect_best(score, i + 1, b.block + b.off[i], b.off[i + 1] - b.off[i]);
    }
  }
  kvl_free(key);
}

static int checked_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q,
                        struct kvl_prefill_mask *mask) {
  check_lines(ctx, step, q);
  check_blocks(ctx, step, q);
  return mi_prefill_mask(ctx, step, q, mask);
}

static void test_model(void **state) {
  struct kvl_policy checked = minference;
  struct rig r;
  int32_t id[N_CTX];
  (void)state;
  checked.prefill_mask = checked_mask;
  rig_open(&r, &(struct rig_desc){
                   .llama = {.n_layers = 2, .n_kv_heads = 2, .seed = 4}});
  rig_tokens(id, N_CTX, 5);
  struct rig_run run = {.policy = &checked,
                        .options = "",
                        .budget = 180,
                        .id = id,
                        .n_ctx = N_CTX};
  struct rig_session rs = rig_start(&r, &run);
  assert_int_equal(n_checked, 2 * rig_shape(&r)->n_heads);
  const struct kvl_counters *c = kvl_session_counters(rs.s);
  assert_int_equal(c->prefill_dense_pairs,
                   2 * rig_shape(&r)->n_heads * N_CTX * (N_CTX + 1) / 2);
  assert_true(c->prefill_pairs < c->prefill_dense_pairs);
  rig_end(&rs);
  rig_close(&r);
}

/* What a query reads is at most the budget: with all keys alike the sizes sum
 * up. */
static void test_budget(void **state) {
  struct rig r;
  int32_t id[N_CTX];
  (void)state;
  rig_open(&r, &(struct rig_desc){
                   .llama = {.n_layers = 1, .n_kv_heads = 1, .seed = 4}});
  rig_tokens(id, N_CTX, 5);
  static const char *const kinds[] = {
      "pattern=vertical_slash", "pattern=a_shape", "pattern=block_sparse"};
  for (int k = 0; k < 3; k++) {
    struct rig_run run = {.policy = &minference,
                          .options = kinds[k],
                          .budget = 130,
                          .id = id,
                          .n_ctx = N_CTX};
    struct rig_session rs = rig_start(&r, &run);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    int64_t most = 0;
    for (int32_t i = 0; i < N_CTX; i++)
      most += KVL_MIN(i + 1, 130) * rig_shape(&r)->n_heads;
    assert_true(c->prefill_pairs <= most);
    assert_true(c->prefill_pairs > most / 2);
    rig_end(&rs);
  }
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums),   cmocka_unit_test(test_forced),
      cmocka_unit_test(test_sizes),  cmocka_unit_test(test_tables),
      cmocka_unit_test(test_scaled), cmocka_unit_test(test_model),
      cmocka_unit_test(test_budget),
  };
  return cmocka_run_group_tests_name("minference", tests, NULL, NULL);
}
