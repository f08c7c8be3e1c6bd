/* clusters.h - what a session read in its last step and what came of it, as its tap told, its stored
 * keys, and k-means written out: for the tests of methods that work on clusters or on low ranks.
 */
#ifndef KVL_TESTS_CLUSTERS_H
#define KVL_TESTS_CLUSTERS_H

#include "golden/record.h"

enum { SEEN_LAYERS = 3, SEEN_HEADS = 8, SEEN_TOK = 320, SEEN_DIM = 16, SEEN_ROWS = 320 };

static struct {
    uint8_t read[SEEN_LAYERS][SEEN_HEADS][SEEN_TOK]; /* per query head */
    float q[SEEN_LAYERS][SEEN_HEADS * SEEN_DIM], out[SEEN_LAYERS][SEEN_HEADS * SEEN_DIM];
    int32_t pos;
} seen;

static int seen_take(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    const struct kvl_shape *sh = user;
    size_t bytes = (size_t)(sh->n_heads * sh->head_dim) * sizeof *r->q;
    (void)err;
    assert_true(r->layer < SEEN_LAYERS && sh->n_heads <= SEEN_HEADS && r->pos < SEEN_TOK);
    assert_int_equal(sh->head_dim, SEEN_DIM);
    memset(seen.read[r->layer], 0, sizeof seen.read[r->layer]);
    for (int32_t h = 0; h < sh->n_heads; h++)
        for (int32_t i = 0; i < r->n_read[h]; i++) seen.read[r->layer][h][r->read[h][i]] = 1;
    memcpy(seen.q[r->layer], r->q, bytes);
    memcpy(seen.out[r->layer], r->out, bytes);
    seen.pos = r->pos;
    return KVL_OK;
}

/* Decodes n tokens; what is seen is the last of them. */
static inline void seen_decode(struct rig *r, const struct rig_session *rs, const int32_t *id,
                               int32_t n)
{
    struct kvl_tap tap = { .user = (void *)(uintptr_t)rig_shape(r), .read = seen_take };
    float *logits = rig_logits(r, n);
    kvl_session_tap(rs->s, &tap);
    rig_decode(r, rs, id, n, logits);
    kvl_free(logits);
}

static inline void stored_rows(struct rig *r, const struct rig_session *rs, int32_t layer,
                               int32_t kv_head, enum kvl_kv_part part, int32_t n,
                               float x[][SEEN_DIM])
{
    RIG_OK(&r->err,
           kvl_seq_read(kvl_session_seq(rs->s), layer, kv_head, part, 0, n, x[0], &r->err));
}

static inline void expect_read(int32_t layer, int32_t q_head, const uint8_t *want, const char *what)
{
    for (int32_t i = 0; i <= seen.pos; i++)
        if (seen.read[layer][q_head][i] != want[i])
            fail_msg("%s: layer %d, head %d, step at %d: position %d is %sread", what, layer,
                     q_head, seen.pos, i, want[i] ? "not " : "");
}

static inline double scaled_dot(const float *q, const double *k)
{
    double sum = 0;
    for (int32_t c = 0; c < SEEN_DIM; c++) sum += (double)q[c] * k[c];
    return sum / sqrt((double)SEEN_DIM);
}

static inline void softmax_of(double *x, int32_t n)
{
    double top = -HUGE_VAL, sum = 0;
    for (int32_t i = 0; i < n; i++) top = fmax(top, x[i]);
    for (int32_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - top);
    for (int32_t i = 0; i < n; i++) x[i] /= sum;
}

/* ---- k-means, written out ------------------------------------------------------------------------ */

struct lloyd {
    int32_t n, dim, k;
    double x[SEEN_ROWS][SEEN_DIM], mean[SEEN_ROWS][SEEN_DIM];
    int32_t of[SEEN_ROWS];
};

static inline double lloyd_fit(const struct lloyd *l, const double *x, int32_t j, bool cosine)
{
    double dot = 0, norm = 0;
    for (int32_t c = 0; c < l->dim; c++) {
        dot += x[c] * l->mean[j][c];
        norm += l->mean[j][c] * l->mean[j][c];
    }
    return cosine ? (norm > 0 ? dot / sqrt(norm) : 0) : 2 * dot - norm;
}

static inline int32_t lloyd_nearest(const struct lloyd *l, const double *x, bool cosine)
{
    int32_t best = 0;
    for (int32_t j = 1; j < l->k; j++)
        if (lloyd_fit(l, x, j, cosine) > lloyd_fit(l, x, best, cosine)) best = j;
    return best;
}

static inline void lloyd_means(struct lloyd *l)
{
    for (int32_t j = 0; j < l->k; j++) {
        int32_t n = 0;
        for (int32_t c = 0; c < l->dim; c++) l->mean[j][c] = 0;
        for (int32_t i = 0; i < l->n; i++) n += l->of[i] == j;
        for (int32_t i = 0; i < l->n; i++)
            for (int32_t c = 0; l->of[i] == j && c < l->dim; c++) l->mean[j][c] += l->x[i][c] / n;
    }
}

/* An empty cluster gets the row that fits worst where it is. */
static inline void lloyd_fill(struct lloyd *l, bool cosine)
{
    double miss[SEEN_ROWS];
    int32_t size[SEEN_ROWS] = { 0 };
    for (int32_t i = 0; i < l->n; i++) {
        double norm = 0;
        for (int32_t c = 0; c < l->dim; c++) norm += l->x[i][c] * l->x[i][c];
        miss[i] = (cosine ? sqrt(norm) : norm) - lloyd_fit(l, l->x[i], l->of[i], cosine);
        size[l->of[i]]++;
    }
    for (int32_t j = 0; j < l->k; j++) {
        int32_t worst = -1;
        for (int32_t i = 0; size[j] == 0 && i < l->n; i++)
            if (size[l->of[i]] > 1 && (worst < 0 || miss[i] > miss[worst])) worst = i;
        if (worst < 0) continue;
        size[l->of[worst]]--;
        size[j]++;
        l->of[worst] = j;
    }
}

static inline void lloyd_run(struct lloyd *l, int32_t rounds, bool cosine)
{
    for (int32_t j = 0; j < l->k; j++) memcpy(l->mean[j], l->x[j * l->n / l->k], sizeof l->mean[j]);
    for (int32_t t = 0; t < rounds; t++) {
        for (int32_t i = 0; i < l->n; i++) l->of[i] = lloyd_nearest(l, l->x[i], cosine);
        lloyd_fill(l, cosine);
        lloyd_means(l);
    }
}

#endif
