/* rig.h - a random model, an engine and sessions under a policy: what the tests of policies share.
 *
 * A `run` is a context, a policy and tokens that are fed whatever the model says, so that two runs
 * can be compared token by token.  Every failure ends the test with the engine's message.
 */
#ifndef KVL_TESTS_RIG_H
#define KVL_TESTS_RIG_H

#include "gguf_writer.h"
#include "kvl/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static inline void rig_ok_at(int rc, const struct kvl_err *err, const char *what, const char *file,
                             int line)
{
    if (rc == KVL_OK) return;
    print_error("%s: %s: %s\n", what, kvl_status_name(rc), err->msg);
    _fail(file, line);
}
#define RIG_OK(err, expr) rig_ok_at((expr), (err), #expr, __FILE__, __LINE__)

/* A policy `id` of a test; the fields that make it one follow. */
#define RIG_POLICY(id, ...)                                                                        \
    static const struct kvl_policy id = { .abi = KVL_POLICY_ABI,                                   \
                                          .size = sizeof(struct kvl_policy),                       \
                                          .name = #id,                                             \
                                          .title = "test",                                         \
                                          .paper = "none",                                         \
                                          .help = "test",                                          \
                                          .version = 1,                                            \
                                          __VA_ARGS__ }

/* ---- model and engine ------------------------------------------------------------------------ */

struct rig {
    struct kvl_model *model;
    bool shared; /* somebody else closes it */
    struct kvl_engine *engine;
    struct kvl_err err;
};

struct rig_desc {
    bool prefill_kv_host;
    size_t kv_limit_bytes;
    struct gw_llama llama;
    const char *path; /* a file instead of a random model */
    enum kvl_kv_type kv_type;
    int32_t chunk_tok, max_tok;
    bool no_raw_keys, bf16, wait_hooks;
    const char *device; /* NULL: what KVL_TEST_DEVICE says, else cpu (cuda with KVL_TEST_CUDA) */
};

static inline const struct kvl_device *rig_device(const struct rig_desc *d, struct kvl_err *err)
{
    const struct kvl_device *device = NULL;
    const char *name = d->device ? d->device : getenv("KVL_TEST_DEVICE");
#ifdef KVL_TEST_CUDA
    if (!name) name = "cuda";
#endif
    if (name) RIG_OK(err, kvl_device_open(name, &device, err));
    return device;
}

static inline void rig_open_model(struct rig *r, const struct rig_desc *d)
{
    if (d->path) {
        RIG_OK(&r->err, kvl_model_open(d->path, &r->model, &r->err));
    } else {
        char path[] = "/tmp/kvl-rig-XXXXXX";
        struct kvl_buf file = { 0 };
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        gw_llama(&d->llama, &file);
        assert_true(gw_save(&file, path));
        kvl_buf_free(&file);
        int rc = kvl_model_open(path, &r->model, &r->err);
        unlink(path); /* stays mapped */
        RIG_OK(&r->err, rc);
    }
}

static inline void rig_open_engine(struct rig *r, const struct rig_desc *d)
{
    struct kvl_engine_desc desc = {
        .model = r->model,
        .prefill_kv_host = d->prefill_kv_host,
        .kv_limit_bytes = d->kv_limit_bytes,
        .device = rig_device(d, &r->err),
        .kv_type = d->kv_type,
        .raw_keys = !d->no_raw_keys,
        .observers = { .window = 64 },
        .chunk_tok = d->chunk_tok,
        .max_tok = d->max_tok,
        .prefill_type = d->bf16 ? KVL_PREFILL_BF16 : KVL_PREFILL_F32,
        .wait_hooks = d->wait_hooks,
    };
    RIG_OK(&r->err, kvl_engine_create(&desc, &r->engine, &r->err));
}

static inline void rig_open(struct rig *r, const struct rig_desc *d)
{
    *r = (struct rig){ 0 };
    rig_open_model(r, d);
    rig_open_engine(r, d);
}

static inline void rig_close(struct rig *r)
{
    kvl_engine_destroy(r->engine);
    if (!r->shared) kvl_model_close(r->model);
}

static inline const struct kvl_shape *rig_shape(const struct rig *r)
{
    return kvl_model_shape(r->model);
}

/* Tokens that any of our models has; the first is BOS. */
static inline void rig_tokens(int32_t *id, int32_t n, uint64_t seed)
{
    struct kvl_rng rng;
    kvl_rng_seed(&rng, seed);
    for (int32_t i = 0; i < n; i++) id[i] = GW_BYTE0 + (int32_t)kvl_rng_below(&rng, 250);
    if (n > 0) id[0] = GW_BOS;
}

/* ---- sessions ---------------------------------------------------------------------------------- */

struct rig_run {
    const struct kvl_policy *policy;
    const char *options;
    int32_t budget;
    const int32_t *id; /* [n_ctx + n_steps] */
    int32_t n_ctx, n_steps;
    int32_t n_planned; /* context that the plan is told of; 0 = n_ctx */
    uint64_t seed;
    enum kvl_exec exec;
};

struct rig_session {
    struct kvl_planned *planned; /* NULL in forks: their parent's */
    struct kvl_session *s;
};

/* Sessions created from now on keep what this policy observes. */
static inline void rig_observe(struct rig *r, const struct kvl_planned *planned)
{
    struct kvl_observer_set set = { .window = 64 };
    RIG_OK(&r->err, kvl_observer_set_merge(&set, kvl_planned_observers(planned), &r->err));
    RIG_OK(&r->err, kvl_engine_observe(r->engine, &set, &r->err));
}

/* The context of a run, in an empty session: prefilled densely and then put under the policy, or read by
 * the policy itself. */
static inline void rig_context(struct rig *r, const struct rig_run *run,
                               const struct kvl_planned *planned, struct kvl_session *s)
{
    bool own = kvl_planned_own_prefill(planned);
    if (!own) RIG_OK(&r->err, kvl_session_prefill(s, run->id, run->n_ctx, NULL, true, &r->err));
    RIG_OK(&r->err, kvl_session_attach(s, planned, run->seed, run->exec, &r->err));
    if (own) RIG_OK(&r->err, kvl_session_prefill(s, run->id, run->n_ctx, NULL, true, &r->err));
}

static inline struct rig_session rig_start(struct rig *r, const struct rig_run *run)
{
    struct rig_session rs = { 0 };
    RIG_OK(&r->err,
           kvl_planned_create(run->policy, rig_shape(r), run->options, run->budget,
                              run->n_planned ? run->n_planned : run->n_ctx, &rs.planned, &r->err));
    rig_observe(r, rs.planned);
    RIG_OK(&r->err, kvl_session_create(r->engine, &rs.s, &r->err));
    rig_context(r, run, rs.planned, rs.s);
    return rs;
}

static inline struct rig_session rig_fork(struct rig *r, const struct rig_session *parent)
{
    struct rig_session rs = { 0 };
    RIG_OK(&r->err, kvl_session_fork(parent->s, &rs.s, &r->err));
    return rs;
}

static inline void rig_end(struct rig_session *rs)
{
    kvl_session_destroy(rs->s);
    kvl_planned_destroy(rs->planned);
    *rs = (struct rig_session){ 0 };
}

static inline float *rig_floats(size_t n)
{
    float *p = kvl_alloc(n ? n : 1, sizeof *p);
    assert_non_null(p);
    return p;
}

static inline float *rig_logits(const struct rig *r, int32_t n)
{
    return rig_floats((size_t)n * (size_t)rig_shape(r)->n_vocab);
}

/* Feeds n tokens; logits [n][n_vocab]. */
static inline void rig_decode(struct rig *r, const struct rig_session *rs, const int32_t *id,
                              int32_t n, float *logits)
{
    size_t n_vocab = (size_t)rig_shape(r)->n_vocab;
    for (int32_t i = 0; i < n; i++)
        RIG_OK(&r->err,
               kvl_session_decode(&rs->s, 1, &id[i], logits + (size_t)i * n_vocab, &r->err));
}

/* Logits of every step, [n_steps][n_vocab]; kvl_free. */
static inline float *rig_run(struct rig *r, const struct rig_run *run)
{
    struct rig_session rs = rig_start(r, run);
    float *logits = rig_logits(r, run->n_steps);
    rig_decode(r, &rs, run->id + run->n_ctx, run->n_steps, logits);
    rig_end(&rs);
    return logits;
}

static inline void rig_expect_same(const struct rig *r, const float *a, const float *b, int32_t n,
                                   const char *what)
{
    size_t count = (size_t)n * (size_t)rig_shape(r)->n_vocab;
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s: logit %zu of step %zu is %.9g and %.9g", what,
                     i % (size_t)rig_shape(r)->n_vocab, i / (size_t)rig_shape(r)->n_vocab,
                     (double)a[i], (double)b[i]);
}

static inline double rig_distance(const struct rig *r, const float *a, const float *b, int32_t n)
{
    size_t count = (size_t)n * (size_t)rig_shape(r)->n_vocab;
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d; /* a NaN stays */
    }
    return worst;
}

static inline void rig_expect_near(const struct rig *r, const float *a, const float *b, int32_t n,
                                   double tolerance, const char *what)
{
    double d = rig_distance(r, a, b, n);
    if (!(d <= tolerance)) fail_msg("%s: logits differ by %g, want at most %g", what, d, tolerance);
}

/* ---- what a session holds and reads ------------------------------------------------------------ */

static inline int rig_compare_int(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Positions of a lane, ascending: pos [kvl_seq_len].  Returns how many. */
static inline int32_t rig_kept(const struct rig_session *rs, int32_t layer, int32_t kv_head,
                               int32_t *pos)
{
    const struct kvl_seq *seq = kvl_session_seq(rs->s);
    int32_t n = kvl_seq_len(seq, layer, kv_head);
    kvl_seq_positions(seq, layer, kv_head, pos);
    qsort(pos, (size_t)n, sizeof *pos, rig_compare_int);
    return n;
}

static inline void rig_expect_kept(const struct rig_session *rs, int32_t layer, int32_t kv_head,
                                   const int32_t *want, int32_t n_want)
{
    int32_t pos[4096];
    int32_t n = rig_kept(rs, layer, kv_head, pos);
    if (n != n_want) fail_msg("lane %d.%d keeps %d, want %d", layer, kv_head, n, n_want);
    for (int32_t i = 0; i < n; i++)
        if (pos[i] != want[i])
            fail_msg("lane %d.%d keeps %d as its number %d, want %d", layer, kv_head, pos[i], i,
                     want[i]);
}

/* Feeds one token and says what was read: hit [n_layers][n_kv_heads][pos + 1], borrowed until the
 * next decode. */
static inline const uint8_t *rig_decode_probed(struct rig *r, const struct rig_session *rs,
                                               int32_t id, float *logits)
{
    int32_t pos[4096], n = kvl_session_len(rs->s) + 1;
    const uint8_t *hit, *dense;
    assert_true(n <= 4096);
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    RIG_OK(&r->err, kvl_session_probe(rs->s, pos, n, &r->err));
    rig_decode(r, rs, &id, 1, logits);
    kvl_session_probe_hits(rs->s, &hit, &dense);
    return hit;
}

#endif
