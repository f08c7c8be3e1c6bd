/* one_shot.h - what tests of one-shot evictions share: keys and values of a context as they are stored,
 * and what a policy kept of it against scores worked out from them.
 */
#ifndef KVL_TESTS_ONE_SHOT_H
#define KVL_TESTS_ONE_SHOT_H

#include "golden/record.h"

enum { SHOT_MAX = 512 };

/* A context that no policy has touched. */
struct shot {
    struct rig r;
    struct kvl_session *s;
    int32_t id[SHOT_MAX], n;
};

/* Up to 250 tokens are all different: equal tokens have equal keys in the first layer, but for the rounding
 * of their rotation, and scores would tie. */
static inline void shot_open(struct shot *t, const struct gw_llama *llama, int32_t n, uint64_t seed)
{
    struct rig_desc desc = { .llama = *llama };
    *t = (struct shot){ .n = n };
    rig_open(&t->r, &desc);
    rig_tokens(t->id, n, seed);
    for (int32_t i = 1; i < KVL_MIN(n, 250); i++)
        t->id[i] = GW_BYTE0 + (i * 7 + (int32_t)seed) % 250;
    RIG_OK(&t->r.err, kvl_session_create(t->r.engine, &t->s, &t->r.err));
    RIG_OK(&t->r.err, kvl_session_prefill(t->s, t->id, n, NULL, true, &t->r.err));
}

static inline void shot_close(struct shot *t)
{
    kvl_session_destroy(t->s);
    rig_close(&t->r);
}

/* Stored keys or values of a lane: [n][head_dim]; kvl_free. */
static inline float *shot_read(struct shot *t, int32_t layer, int32_t kv_head,
                               enum kvl_kv_part part)
{
    float *x = rig_floats((size_t)t->n * (size_t)rig_shape(&t->r)->head_dim);
    RIG_OK(&t->r.err,
           kvl_seq_read(kvl_session_seq(t->s), layer, kv_head, part, 0, t->n, x, &t->r.err));
    return x;
}

/* The same context under a policy. */
static inline struct rig_session shot_policy(struct shot *t, const struct kvl_policy *policy,
                                             const char *options, int32_t budget)
{
    struct rig_run run = {
        .policy = policy, .options = options, .budget = budget, .id = t->id, .n_ctx = t->n
    };
    return rig_start(&t->r, &run);
}

/* Scores of all positions of a lane, in double; -HUGE_VAL: never kept. */
typedef void (*shot_scores)(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                            double *score);

/* Every lane keeps the `keep` best (ties: the lower position). */
static inline void shot_expect_best(struct shot *t, const struct rig_session *rs, int32_t keep,
                                    shot_scores scores, const void *with)
{
    const struct kvl_shape *sh = rig_shape(&t->r);
    double score[SHOT_MAX];
    uint8_t mark[SHOT_MAX];
    int32_t want[SHOT_MAX];
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            int32_t n = 0;
            scores(t, l, h, with, score);
            record_top(score, t->n, keep, mark);
            for (int32_t i = 0; i < t->n; i++)
                if (mark[i]) want[n++] = i;
            rig_expect_kept(rs, l, h, want, n);
        }
}

#endif
