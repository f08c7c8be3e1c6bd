/* The reference pass. */
#include "quality.h"

#include "stats.h"

#include <math.h>
#include <string.h>

/* ---- measures ---------------------------------------------------------------------------------- */

/* Whether a stands behind b in the order of weights: smaller, or equal and later. */
static bool top_behind(const float *probs, int32_t a, int32_t b)
{
    return probs[a] < probs[b] || (!(probs[a] > probs[b]) && a > b);
}

/* A heap whose root is the last of those kept: what comes in must stand before it. */
static void top_sift(const float *probs, int32_t *heap, int32_t n, int32_t at)
{
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && top_behind(probs, heap[child + 1], heap[child])) child++;
        if (!top_behind(probs, heap[child], heap[at])) return;
        int32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

/* The k <= n first in the order of weights, in that order. */
static void top_sorted(const float *probs, int32_t n, int32_t k, int32_t *heap)
{
    for (int32_t i = 0; i < k; i++) heap[i] = i;
    for (int32_t i = k / 2; i-- > 0;) top_sift(probs, heap, k, i);
    for (int32_t i = k; i < n; i++) {
        if (!top_behind(probs, heap[0], i)) continue;
        heap[0] = i;
        top_sift(probs, heap, k, 0);
    }
    for (int32_t left = k; left > 1;) { /* the last of the rest goes to its end */
        int32_t last = heap[0];
        heap[0] = heap[--left];
        heap[left] = last;
        top_sift(probs, heap, left, 0);
    }
}

static bool read_has(const int32_t *read, int32_t n_read, int32_t pos)
{
    int32_t lo = 0, hi = n_read;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (read[mid] < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n_read && read[lo] == pos;
}

void kvl_quality_recall(const float *probs, int32_t n, const int32_t *read, int32_t n_read,
                        const int32_t *top, int32_t n_top, int32_t *heap, double *recall)
{
    int32_t most = 0;
    for (int32_t t = 0; t < n_top; t++) most = KVL_MAX(most, KVL_MIN(top[t], n));
    top_sorted(probs, n, most, heap);
    for (int32_t t = 0; t < n_top; t++) {
        int32_t k = KVL_MIN(top[t], n), found = 0;
        for (int32_t i = 0; i < k; i++) found += read_has(read, n_read, heap[i]);
        recall[t] = (double)found / k;
    }
}

double kvl_quality_mass(const float *probs, const int32_t *read, int32_t n_read)
{
    double mass = 0.0;
    for (int32_t i = 0; i < n_read; i++) mass += (double)probs[read[i]];
    return mass;
}

double kvl_quality_error(const float *out, const float *full, int32_t n)
{
    double diff = 0.0, norm = 0.0;
    for (int32_t i = 0; i < n; i++) {
        double d = (double)out[i] - (double)full[i];
        diff += d * d;
        norm += (double)full[i] * (double)full[i];
    }
    return diff > 0.0 ? sqrt(diff / norm) : 0.0;
}

double kvl_quality_kl(const float *p, const float *q, int32_t n)
{
    double p_sum = kvl_log_sum_exp(p, n), q_sum = kvl_log_sum_exp(q, n), kl = 0.0;
    for (int32_t i = 0; i < n; i++) {
        double log_p = (double)p[i] - p_sum;
        kl += exp(log_p) * (log_p - ((double)q[i] - q_sum));
    }
    return KVL_MAX(kl, 0.0); /* equal up to rounding */
}

/* ---- results ----------------------------------------------------------------------------------- */

int kvl_quality_create(const struct kvl_quality *want, const struct kvl_shape *shape,
                       struct kvl_quality_result *out, struct kvl_err *err)
{
    size_t steps = (size_t)want->steps, layers = (size_t)shape->n_layers;
    size_t cells = steps * layers * (size_t)shape->n_heads;
    struct kvl_quality_result r = {
        .n_top = want->top.n,
        .n_layers = shape->n_layers,
        .n_heads = shape->n_heads,
        .max_steps = want->steps,
        .pos = kvl_alloc(steps, sizeof *r.pos),
        .dense = kvl_alloc(steps, layers),
        .recall = kvl_alloc((size_t)want->top.n * cells, sizeof *r.recall),
        .mass = kvl_alloc(cells, sizeof *r.mass),
        .error = kvl_alloc(cells, sizeof *r.error),
        .kl = kvl_alloc(steps, sizeof *r.kl),
        .same = kvl_alloc(steps, sizeof *r.same),
    };
    if (!r.pos || !r.dense || !r.recall || !r.mass || !r.error || !r.kl || !r.same) {
        kvl_quality_free(&r);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for the quality of %d steps", want->steps);
    }
    *out = r;
    return KVL_OK;
}

void kvl_quality_free(struct kvl_quality_result *r)
{
    kvl_free(r->pos);
    kvl_free(r->dense);
    kvl_free(r->recall);
    kvl_free(r->mass);
    kvl_free(r->error);
    kvl_free(r->kl);
    kvl_free(r->same);
    *r = (struct kvl_quality_result){ 0 };
}

/* ---- the pass ---------------------------------------------------------------------------------- */

/* What a tap works with. */
struct quality {
    const struct kvl_quality_run *run;
    struct kvl_quality_result *out;
    int32_t max_pos;
    float *probs; /* [n_heads][pos + 1] */
    float *full;  /* [n_heads][head_dim] */
    int32_t *heap;
};

static void quality_head(struct quality *m, const struct kvl_tap_read *t, int32_t head)
{
    const struct kvl_quality *want = m->run->want;
    struct kvl_quality_result *r = m->out;
    int32_t n = t->pos + 1, hd = m->run->shape->head_dim;
    size_t layer = (size_t)r->n_steps * (size_t)r->n_layers + (size_t)t->layer;
    size_t at = layer * (size_t)r->n_heads + (size_t)head;
    size_t plane = (size_t)r->max_steps * (size_t)r->n_layers * (size_t)r->n_heads;
    const float *probs = m->probs + (size_t)head * (size_t)n;
    double recall[KVL_QUALITY_TOPS];
    kvl_quality_recall(probs, n, t->read[head], t->n_read[head], want->top.v, want->top.n, m->heap,
                       recall);
    for (int32_t i = 0; i < want->top.n; i++) r->recall[(size_t)i * plane + at] = (float)recall[i];
    r->mass[at] = (float)kvl_quality_mass(probs, t->read[head], t->n_read[head]);
    r->error[at] = (float)kvl_quality_error(t->out + (size_t)head * (size_t)hd,
                                            m->full + (size_t)head * (size_t)hd, hd);
    r->dense[layer] = t->dense;
}

static int quality_read(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    struct quality *m = user;
    if (t->pos >= m->max_pos)
        return kvl_fail(err, KVL_EINTERNAL, "a tap at position %d, want less than %d", t->pos,
                        m->max_pos);
    KVL_TRY(kvl_session_full_attention(m->run->dense, t->layer, t->q, t->pos + 1, m->probs, m->full,
                                       err));
    for (int32_t h = 0; h < m->out->n_heads; h++) quality_head(m, t, h);
    return KVL_OK;
}

/* The dense session goes first: it must hold the step's keys when the policy's queries come. */
static int quality_step(struct quality *m, int32_t id, int32_t *next, struct kvl_err *err)
{
    const struct kvl_quality_run *run = m->run;
    struct kvl_quality_result *r = m->out;
    struct kvl_session *dense = run->dense, *policy = run->policy;
    int32_t n_vocab = run->shape->n_vocab;
    float *policy_logits = run->logits, *dense_logits = run->logits + n_vocab;
    r->pos[r->n_steps] = kvl_session_len(policy);
    KVL_TRY(kvl_session_decode(&dense, 1, &id, dense_logits, err));
    KVL_TRY(kvl_session_decode(&policy, 1, &id, policy_logits, err));
    *next = kvl_argmax(policy_logits, n_vocab);
    r->kl[r->n_steps] = kvl_quality_kl(dense_logits, policy_logits, n_vocab);
    r->same[r->n_steps] = *next == kvl_argmax(dense_logits, n_vocab);
    r->n_steps++;
    return KVL_OK;
}

static int quality_steps(struct quality *m, struct kvl_err *err)
{
    const struct kvl_quality_run *run = m->run;
    struct kvl_session *policy = run->policy;
    int32_t steps = KVL_MIN(run->want->steps, run->max_new), id = run->feed[run->n_feed - 1];
    for (int32_t i = 0; i < run->n_feed - 1; i++)
        KVL_TRY(kvl_session_decode(&policy, 1, &run->feed[i], run->logits, err));
    kvl_session_tap(policy, &(struct kvl_tap){ .user = m, .read = quality_read });
    int rc = KVL_OK;
    for (int32_t i = 0; i < steps && rc == KVL_OK; i++) {
        rc = quality_step(m, id, &id, err);
        if (rc == KVL_OK && kvl_prompt_ends(run->prompt, id)) break;
    }
    kvl_session_tap(policy, NULL);
    return rc;
}

int kvl_quality_measure(const struct kvl_quality_run *run, struct kvl_quality_result *out,
                        struct kvl_err *err)
{
    const struct kvl_shape *sh = run->shape;
    struct quality m = {
        .run = run,
        .out = out,
        .max_pos = kvl_session_len(run->policy) + run->n_feed + run->want->steps,
    };
    int32_t top = 1;
    for (int32_t i = 0; i < run->want->top.n; i++) top = KVL_MAX(top, run->want->top.v[i]);
    size_t heads = (size_t)sh->n_heads;
    m.probs = kvl_alloc(heads * (size_t)m.max_pos, sizeof *m.probs);
    m.full = kvl_alloc(heads * (size_t)sh->head_dim, sizeof *m.full);
    m.heap = kvl_alloc((size_t)top, sizeof *m.heap);
    out->n_steps = 0;
    int rc = m.probs && m.full && m.heap
                 ? quality_steps(&m, err)
                 : kvl_fail(err, KVL_ENOMEM, "out of memory for full attention over %d tokens",
                            m.max_pos);
    kvl_free(m.probs);
    kvl_free(m.full);
    kvl_free(m.heap);
    return rc;
}
