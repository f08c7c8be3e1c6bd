/* Draws of tokens.  The best ones come off a heap: of a vocabulary few are needed. */
#include "sampler.h"

#include "kvl/rng.h"

#include <math.h>

int kvl_sampler_create(int32_t n_vocab, struct kvl_sampler *out, struct kvl_err *err)
{
    out->item = kvl_alloc((size_t)n_vocab, sizeof *out->item);
    return out->item ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for draws");
}

void kvl_sampler_free(struct kvl_sampler *s)
{
    kvl_free(s->item);
    s->item = NULL;
}

uint64_t kvl_sampler_stream(const struct kvl_sampling *how, uint64_t context_seed, int32_t question,
                            int32_t answer)
{
    uint64_t seed = kvl_seed_mix(kvl_seed_str(how->seed, "answers"), context_seed);
    return kvl_seed_mix(kvl_seed_mix(seed, (uint64_t)question), (uint64_t)answer);
}

/* Uniform in [0, 1). */
static double sampler_draw(uint64_t stream, int32_t step)
{
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_mix(stream, (uint64_t)step));
    return kvl_rng_f64(&rng);
}

/* ---- the best first -------------------------------------------------------------------------- */

static bool item_before(const struct kvl_sampler_item *a, const struct kvl_sampler_item *b)
{
    return a->p > b->p || (!(a->p < b->p) && a->id < b->id);
}

static void heap_sink(struct kvl_sampler_item *v, int32_t n, int32_t i)
{
    struct kvl_sampler_item x = v[i];
    for (int32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && item_before(&v[c + 1], &v[c])) c++;
        if (!item_before(&v[c], &x)) break;
        v[i] = v[c];
    }
    v[i] = x;
}

/* Puts the best of v[n] behind the others: from v[n - 1] down, in order. */
static void heap_pop(struct kvl_sampler_item *v, int32_t n)
{
    struct kvl_sampler_item best = v[0];
    v[0] = v[n - 1];
    heap_sink(v, n - 1, 0);
    v[n - 1] = best;
}

/* ---- the draw -------------------------------------------------------------------------------- */

/* Probabilities by the best one's, which is 1; their sum. */
static double sampler_weigh(struct kvl_sampler *s, double temperature, const float *logits,
                            int32_t n)
{
    double best = (double)logits[kvl_argmax(logits, n)], total = 0.0;
    for (int32_t i = 0; i < n; i++) {
        s->item[i] = (struct kvl_sampler_item){ exp(((double)logits[i] - best) / temperature), i };
        total += s->item[i].p;
    }
    return total;
}

/* What the filters leave stands behind, the best at n - 1; how many. */
static int32_t sampler_filter(struct kvl_sampler *s, const struct kvl_sampling *how, double total,
                              int32_t n)
{
    struct kvl_sampler_item *v = s->item;
    int32_t most = how->top_k > 0 ? KVL_MIN(how->top_k, n) : n, popped = 0, kept = 0;
    double sum = 0.0;
    for (int32_t i = n / 2; i-- > 0;) heap_sink(v, n, i);
    if (how->top_k > 0) {
        for (total = 0.0; popped < most; popped++) {
            heap_pop(v, n - popped);
            total += v[n - 1 - popped].p;
        }
    }
    for (; kept < most && (kept == 0 || sum < how->top_p * total); kept++) {
        if (kept == popped) heap_pop(v, n - popped++);
        if (kept > 0 && v[n - 1 - kept].p < how->min_p) break;
        sum += v[n - 1 - kept].p;
    }
    return kept;
}

int32_t kvl_sampler_token(struct kvl_sampler *s, const struct kvl_sampling *how, uint64_t stream,
                          int32_t step, const float *logits, int32_t n_vocab)
{
    if (!how || !(how->temperature > 0.0)) return kvl_argmax(logits, n_vocab);
    double total = sampler_weigh(s, how->temperature, logits, n_vocab);
    bool all = how->top_k == 0 && how->top_p >= 1.0 && !(how->min_p > 0.0);
    int32_t kept = all ? n_vocab : sampler_filter(s, how, total, n_vocab);
    struct kvl_sampler_item *v = s->item;
    double sum = 0.0;
    if (!all) {
        total = 0.0;
        for (int32_t i = 0; i < kept; i++) total += v[n_vocab - 1 - i].p;
    }
    double at = sampler_draw(stream, step) * total;
    for (int32_t i = 0; i < kept; i++) {
        const struct kvl_sampler_item *x = &v[all ? i : n_vocab - 1 - i];
        sum += x->p;
        if (sum > at) return x->id;
    }
    return v[all ? kvl_argmax(logits, n_vocab) : n_vocab - 1].id; /* rounding: the best one */
}
