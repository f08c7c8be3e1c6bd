/* Every list is cut in spans of KVL_SPAN_SLOTS entries, computed by any thread in any order and
 * merged in list order (Flash-Decoding, Dao et al. 2023).
 *
 * Limit: the bytes of K and V; for f16 and groups of 4 query heads also 4 multiply-adds per element,
 * 29 GB/s of K and V on a 3.66 GHz core with 16 lanes.  Reached in cache: 22 GB/s, the rest is sums
 * across vectors and exp.
 *
 * K stays in rows inside a block.  Transposed there, scores need no sums across vectors, but a list
 * of tokens reads all keys of every block that it touches.  Scores of 4 heads, head_dim 128, from
 * memory: full scan 3.6 ms in rows and 3.9 transposed, one token of every 16 0.28 ms and 3.2. */
#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* Scratch, in this order: spans, [n_spans][head_floats] partial results, one area per thread. */
struct attend {
    const struct kvl_attn_decode_args *a;
    const struct kvl_kern *kern;
    bool values;
    int threads;
    int32_t n_spans;
    struct kvl_span *spans;
    const struct kvl_rope_table *rope;
    size_t thread_floats, result_floats;
    float *results, *scratch;
};

static int32_t attend_job_spans(const struct kvl_attn_job *job)
{
    return (job->n_slots + KVL_SPAN_SLOTS - 1) / KVL_SPAN_SLOTS;
}

/* Floats of one span's result: max, sum, and the weighted values, by head. */
static size_t attend_result(const struct attend *t, const struct kvl_attn_job *job)
{
    size_t n_heads = (size_t)kvl_span_heads(job->n_heads), pad = kvl_span_pad(t->a->head_dim);
    return t->values ? (n_heads * (2 + pad) + 15) / 16 * 16 : 0;
}

size_t kvl_span_scratch(int32_t n_heads, int32_t head_dim)
{
    size_t heads = (size_t)kvl_span_heads(n_heads), pad = kvl_span_pad(head_dim);
    size_t logits = 4 * (size_t)KVL_SPAN_TILE;
    return (heads + 1 + KVL_SPAN_TILE) * pad + logits;
}

/* Moves (run, off) on by n entries. */
static void attend_skip(const struct kvl_attn_job *job, int32_t *run, int32_t *off, int32_t n)
{
    while (n > 0) {
        int32_t len = kvl_span_run(job, *run).n, step = KVL_MIN(n, len - *off);
        n -= step;
        *off += step;
        if (*off == len && n > 0) {
            (*run)++;
            *off = 0;
        }
    }
}

static void attend_cut(struct attend *t)
{
    struct kvl_span *s = t->spans;
    float *result = t->results;
    for (int32_t j = 0; j < t->a->n_jobs; j++) {
        const struct kvl_attn_job *job = &t->a->jobs[j];
        int32_t run = 0, off = 0;
        for (int32_t i = 0; i < job->n_slots; i += KVL_SPAN_SLOTS, s++) {
            int32_t n = KVL_MIN(KVL_SPAN_SLOTS, job->n_slots - i);
            *s = (struct kvl_span){ .a = t->a,
                                    .job = job,
                                    .i0 = i,
                                    .n = n,
                                    .run = run,
                                    .run_off = off,
                                    .rope = t->rope,
                                    .next = s + 1 < t->spans + t->n_spans ? s + 1 : NULL };
            if (t->values) {
                s->max = result;
                s->sum = result + kvl_span_heads(job->n_heads);
                s->acc = result + 2 * (size_t)kvl_span_heads(job->n_heads);
            }
            result += attend_result(t, job);
            attend_skip(job, &run, &off, n);
        }
    }
}

/* Merges the spans of one head. */
static float attend_merge_head(const struct attend *t, const struct kvl_span *s, int32_t n,
                               int32_t h, float *out)
{
    float max = -INFINITY, sum = 0;
    size_t pad = kvl_span_pad(t->a->head_dim);
    for (int32_t i = 0; i < n; i++) max = KVL_MAX(max, s[i].max[h]);
    for (int32_t c = 0; c < t->a->head_dim; c++) out[c] = 0;
    if (max == -INFINITY) return max;
    for (int32_t i = 0; i < n; i++) {
        const float w = expf(s[i].max[h] - max);
        const float *acc = s[i].acc + (size_t)h * pad;
        sum += w * s[i].sum[h];
        for (int32_t c = 0; c < t->a->head_dim; c++) out[c] += w * acc[c];
    }
    for (int32_t c = 0; c < t->a->head_dim; c++) out[c] /= sum;
    return max + logf(sum);
}

static void attend_merge_job(const struct attend *t, const struct kvl_attn_job *job,
                             const struct kvl_span *s)
{
    for (int32_t h = 0; h < job->n_heads; h++) {
        float *out = job->out + (size_t)h * (size_t)t->a->head_dim;
        float lse = attend_merge_head(t, s, attend_job_spans(job), h, out);
        if (job->lse) job->lse[h] = lse;
        if (job->probs) /* logits so far */
            t->kern->exp_shift(job->probs + (size_t)h * (size_t)job->n_slots,
                               lse == -INFINITY ? 0 : lse, (size_t)job->n_slots);
    }
}

/* Without values: weights of one head, made of its logits once all of them are there, and its log-sum-exp: the largest
 * weight is one over the sum of exponentials. */
static void attend_weigh(const struct attend *t, const struct kvl_attn_job *job, int32_t h)
{
    float *x = job->probs + (size_t)h * (size_t)job->n_slots;
    float max = t->kern->row_max(x, job->n_slots); /* leaves NaN out */
    bool none = max == -INFINITY && (job->n_slots == 0 || x[0] == -INFINITY);
    if (none)
        memset(x, 0, (size_t)job->n_slots * sizeof *x);
    else
        t->kern->softmax_row(x, job->n_slots);
    if (!job->lse) return;
    job->lse[h] = none ? max : max - logf(t->kern->row_max(x, job->n_slots));
}

/* Of all jobs, which have the same number of heads. */
static void attend_weights(const struct attend *t)
{
    int32_t group = t->a->jobs->n_heads, n = t->a->n_jobs * group;
#pragma omp parallel for schedule(static) num_threads(t->threads) if (t->threads > 1)
    for (int32_t i = 0; i < n; i++) attend_weigh(t, &t->a->jobs[i / group], i % group);
}

/* Counts spans and memory; fills the table of angles. */
static int attend_plan(struct attend *t, size_t *n_floats, double *ns)
{
    const struct kvl_attn_decode_args *a = t->a;
    for (int32_t j = 0; j < a->n_jobs; j++) {
        const struct kvl_attn_job *job = &a->jobs[j];
        int32_t n_spans = attend_job_spans(job);
        t->n_spans += n_spans;
        *n_floats += (size_t)n_spans * attend_result(t, job);
        t->thread_floats = KVL_MAX(t->thread_floats, kvl_span_scratch(job->n_heads, a->head_dim));
        *ns += (double)job->n_slots * a->head_dim * job->n_heads * 0.08;
        if (!job->pos) continue;
        assert(job->lane->layout->part_off[KVL_PART_K_RAW] != SIZE_MAX);
        t->rope = kvl_rope_prepare(a->rope, job->pos, job->n_slots);
        if (t->rope) t->rope = kvl_rope_prepare(a->rope, &job->q_pos, 1);
        if (!t->rope) return KVL_ENOMEM;
    }
    return KVL_OK;
}

int kvl_cpu_attend(const struct kvl_attn_decode_args *a, bool values)
{
    struct attend t = { .a = a, .kern = kvl_kern(), .values = values };
    size_t n_floats = 0;
    double ns = 0;
    KVL_TRY(attend_plan(&t, &n_floats, &ns));
    t.threads = kvl_team(ns);
    size_t span_bytes = ((size_t)t.n_spans * sizeof *t.spans + 63) / 64 * 64;
    t.spans = kvl_cpu_scratch(span_bytes +
                              (n_floats + t.thread_floats * (size_t)t.threads) * sizeof(float));
    if (!t.spans) return KVL_ENOMEM;
    t.results = (float *)(void *)((uint8_t *)t.spans + span_bytes);
    t.scratch = t.results + n_floats;
    attend_cut(&t);
    /* guided: a thread gets neighbouring spans, and prefetches from one into the next. */
#pragma omp parallel for schedule(guided) num_threads(t.threads) if (t.threads > 1)
    for (int32_t i = 0; i < t.n_spans; i++) {
        t.spans[i].scratch = t.scratch + (size_t)omp_get_thread_num() * t.thread_floats;
        t.kern->span(&t.spans[i]);
    }
    const struct kvl_span *s = t.spans;
    if (!values) attend_weights(&t);
    for (int32_t j = 0; values && j < a->n_jobs; s += attend_job_spans(&a->jobs[j]), j++)
        attend_merge_job(&t, &a->jobs[j], s);
    return KVL_OK;
}

int kvl_cpu_attn_decode(const struct kvl_attn_decode_args *a)
{
    return kvl_cpu_attend(a, true);
}
