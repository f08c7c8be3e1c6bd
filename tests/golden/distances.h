/* distances.h - attention of a run at other than the original positions, worked out from keys before RoPE
 * and the distances that a method claims.
 */
#ifndef KVL_TESTS_DISTANCES_H
#define KVL_TESTS_DISTANCES_H

#include "golden/reads.h"

#include "engine_impl.h"

enum { N_CTX = 50, N_STEPS = 20, N_TOK = N_CTX + N_STEPS, HEAD = 16 };

/* ---- attention at any distances ---------------------------------------------------------------------- */

/* Weights and output of one query head in the last step, whose keys stand at distance[i]. */
static inline void naive_attention(const struct rig *r, const struct rig_session *rs, int32_t layer,
                                   int32_t head, const float *q_raw, const double *distance,
                                   const int32_t *pos, int32_t n, double *out)
{
    const struct kvl_shape *sh = rig_shape(r);
    const double *freq = r->engine->model->w.rope[0].inv_freq;
    int32_t kv_head = head / (sh->n_heads / sh->n_kv_heads);
    double weight[N_TOK], top = -HUGE_VAL, sum = 0;
    float v[HEAD], k[HEAD];
    struct kvl_err err = { 0 };
    memset(out, 0, HEAD * sizeof *out);
    for (int32_t i = 0; i < n; i++) {
        int32_t slot;
        assert_int_equal(kvl_seq_find(kvl_session_seq(rs->s), layer, kv_head, &pos[i], 1, &slot),
                         1);
        RIG_OK(&err, kvl_seq_read(kvl_session_seq(rs->s), layer, kv_head, KVL_PART_K_RAW, slot, 1,
                                  k, &err));
        weight[i] = 0;
        for (int32_t c = 0; c < HEAD; c += 2) { /* the query turned ahead of the key */
            double a = distance[i] * freq[c / 2], x = (double)q_raw[c], y = (double)q_raw[c + 1];
            weight[i] += (x * cos(a) - y * sin(a)) * (double)k[c];
            weight[i] += (x * sin(a) + y * cos(a)) * (double)k[c + 1];
        }
        weight[i] /= sqrt((double)HEAD);
        top = fmax(top, weight[i]);
    }
    for (int32_t i = 0; i < n; i++) sum += weight[i] = exp(weight[i] - top);
    for (int32_t i = 0; i < n; i++) {
        int32_t slot;
        kvl_seq_find(kvl_session_seq(rs->s), layer, kv_head, &pos[i], 1, &slot);
        RIG_OK(&err,
               kvl_seq_read(kvl_session_seq(rs->s), layer, kv_head, KVL_PART_V, slot, 1, v, &err));
        for (int32_t c = 0; c < HEAD; c++) out[c] += weight[i] / sum * (double)v[c];
    }
}

/* The query of the last step before RoPE: the tap's, turned back. */
static inline void unrotated(const struct rig *r, const float *q, int32_t pos, float *out)
{
    const double *freq = r->engine->model->w.rope[0].inv_freq;
    for (int32_t c = 0; c < HEAD; c += 2) {
        double a = -(double)pos * freq[c / 2], x = (double)q[c], y = (double)q[c + 1];
        out[c] = (float)(x * cos(a) - y * sin(a));
        out[c + 1] = (float)(x * sin(a) + y * cos(a));
    }
}

/* Distance of query i to key j, from the definition. */
typedef double (*distance_function)(int32_t i, int32_t rank, int32_t n_live, int32_t j);

static struct {
    struct rig *r;
    struct rig_session rs;
    distance_function distance;
    int n_checked;
} world;

static inline int check_attention(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    const struct kvl_shape *sh = rig_shape(world.r);
    (void)user;
    (void)err;
    for (int32_t h = 0; h < sh->n_heads; h++) {
        double distance[N_TOK], want[HEAD];
        float q[HEAD];
        for (int32_t i = 0; i < t->n_read[h]; i++)
            distance[i] = world.distance(t->pos, i, t->n_read[h], t->read[h][i]);
        unrotated(world.r, t->q + h * HEAD, t->pos, q);
        naive_attention(world.r, &world.rs, t->layer, h, q, distance, t->read[h], t->n_read[h],
                        want);
        for (int32_t c = 0; c < HEAD; c++) {
            double got = (double)t->out[h * HEAD + c];
            if (!(fabs(got - want[c]) < 2e-4))
                fail_msg("position %d layer %d head %d channel %d: %g, want %g", t->pos, t->layer,
                         h, c, got, want[c]);
        }
        world.n_checked++;
    }
    return KVL_OK;
}

static inline void expect_distances(const struct kvl_policy *policy, const char *options,
                                    int32_t budget, bool own, distance_function distance)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .seed = 23 } };
    struct rig r;
    int32_t id[N_TOK];
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 2);
    struct rig_run run = {
        .policy = policy, .options = options, .budget = budget, .id = id, .n_ctx = N_CTX
    };
    world.r = &r;
    world.distance = distance;
    world.n_checked = 0;
    struct kvl_tap tap = { .read = check_attention };
    if (own) {
        RIG_OK(&r.err, kvl_planned_create_own(policy, rig_shape(&r), options, budget, N_CTX,
                                              &world.rs.planned, &r.err));
        RIG_OK(&r.err, kvl_session_create(r.engine, &world.rs.s, &r.err));
        RIG_OK(&r.err, kvl_session_attach(world.rs.s, world.rs.planned, 1, KVL_EXEC_REAL, &r.err));
        kvl_session_tap(world.rs.s, &tap);
        RIG_OK(&r.err, kvl_session_extend(world.rs.s, id, N_CTX, &r.err));
    } else {
        world.rs = rig_start(&r, &run);
        kvl_session_tap(world.rs.s, &tap);
    }
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &world.rs, id + N_CTX, N_STEPS, logits);
    assert_int_equal(world.n_checked, 2 * 4 * (N_STEPS + (own ? N_CTX : 0)));
    kvl_free(logits);
    rig_end(&world.rs);
    rig_close(&r);
}

static inline void expect_refused(const struct kvl_policy *policy, const char *options,
                                  int32_t budget, int32_t n_ctx, const char *needle)
{
    struct kvl_shape shape = { 4, 4, 2, 16, 64, 99, 4096, 2, NULL, 0.25f, 0, NULL };
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_planned_create(policy, &shape, options, budget, n_ctx, &p, &err),
                     KVL_EINVAL);
    if (!strstr(err.msg, needle)) fail_msg("%s: %s", options, err.msg);
}

#endif
