/* Observations of dense attention. */
#include "analysis.h"

#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One step while it runs, and the lists of those before it in its answer. */
struct kvl_analysis_step {
    struct kvl_session *session;
    int32_t max_tok, n_pos;
    float *probs, *sorted; /* [n_heads][max_tok] of one layer; [max_tok] */
    float *weight;         /* [r][l][max_tok] reduced */
    /* Lists of the last lag + 1 steps, [age slot][r][m][l][m's size], positions ascending. */
    int32_t *list;
    size_t slot, offset[KVL_ANALYSIS_REDUCES][KVL_ANALYSIS_M]; /* in int32_t */
    int32_t n_list[KVL_ANALYSIS_LAG + 1][KVL_ANALYSIS_M];
    int32_t n_seen; /* steps of this answer */
};

/* ---- memory ---------------------------------------------------------------------------------- */

static bool analysis_lists(struct kvl_analysis *a)
{
    struct kvl_analysis_step *s = a->step;
    for (int r = 0; r < KVL_ANALYSIS_REDUCES; r++)
        for (int32_t m = 0; m < a->want.n_m; m++) {
            s->offset[r][m] = s->slot;
            s->slot += (size_t)a->n_layers * (size_t)a->want.m[m];
        }
    s->list = kvl_alloc(s->slot * (size_t)(a->want.lag + 1), sizeof *s->list);
    return s->list != NULL;
}

static bool analysis_memory(struct kvl_analysis *a, int32_t max_tok)
{
    size_t layers = (size_t)a->n_layers, heads = (size_t)a->n_heads, tok = (size_t)max_tok;
    size_t lists = (size_t)KVL_ANALYSIS_REDUCES * (size_t)a->want.n_m;
    struct kvl_analysis_step *s = kvl_alloc(1, sizeof *s);
    if (!(a->step = s)) return false;
    s->max_tok = max_tok;
    s->probs = kvl_alloc(heads * tok, sizeof *s->probs);
    s->sorted = kvl_alloc(tok, sizeof *s->sorted);
    s->weight = kvl_alloc(KVL_ANALYSIS_REDUCES * layers * tok, sizeof *s->weight);
    a->share = kvl_alloc(layers * heads * KVL_ANALYSIS_P, sizeof *a->share);
    a->capture = kvl_alloc(lists * layers * layers, sizeof *a->capture);
    a->hit = kvl_alloc(lists * layers, sizeof *a->hit);
    a->jaccard = kvl_alloc(lists * (size_t)a->want.lag * layers, sizeof *a->jaccard);
    a->kept = kvl_alloc(lists * (size_t)a->want.lag * layers, sizeof *a->kept);
    a->n_pairs = kvl_alloc((size_t)a->want.lag, sizeof *a->n_pairs);
    return analysis_lists(a) && s->probs && s->sorted && s->weight && a->share && a->capture &&
           a->hit && a->jaccard && a->kept && a->n_pairs;
}

int kvl_analysis_create(const struct kvl_analysis_want *want, const struct kvl_shape *shape,
                        int32_t max_tok, struct kvl_analysis **out, struct kvl_err *err)
{
    struct kvl_analysis *a = kvl_alloc(1, sizeof *a);
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory for an analysis");
    a->want = *want;
    a->n_layers = shape->n_layers;
    a->n_heads = shape->n_heads;
    if (!analysis_memory(a, max_tok)) {
        kvl_analysis_destroy(a);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for an analysis of %d tokens", max_tok);
    }
    *out = a;
    return KVL_OK;
}

void kvl_analysis_destroy(struct kvl_analysis *a)
{
    if (!a) return;
    if (a->step) {
        kvl_free(a->step->probs);
        kvl_free(a->step->sorted);
        kvl_free(a->step->weight);
        kvl_free(a->step->list);
    }
    kvl_free(a->step);
    kvl_buf_free(&a->counts);
    kvl_free(a->share);
    kvl_free(a->capture);
    kvl_free(a->hit);
    kvl_free(a->jaccard);
    kvl_free(a->kept);
    kvl_free(a->n_pairs);
    kvl_free(a);
}

/* ---- mass ------------------------------------------------------------------------------------ */

static int float_descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Weights that cannot be needed stay out: those below a thousandth of the average hold less than a
 * thousandth together. */
static int32_t mass_sort(const float *probs, int32_t n, float *sorted)
{
    int32_t kept = 0;
    float least = 0.001f / (float)n;
    for (int32_t i = 0; i < n; i++)
        if (probs[i] >= least) sorted[kept++] = probs[i];
    qsort(sorted, (size_t)kept, sizeof *sorted, float_descending);
    return kept;
}

/* The counts of a head for this step; *share gets the sums. */
static int mass_head(struct kvl_analysis *a, const float *probs, int32_t n, double *share)
{
    int32_t count[KVL_ANALYSIS_P], p = 0, kept = mass_sort(probs, n, a->step->sorted);
    double total = 0.0, sum = 0.0;
    for (int32_t i = 0; i < n; i++) total += (double)probs[i];
    for (int32_t i = 0; i < kept && p < KVL_ANALYSIS_P; i++) {
        sum += (double)a->step->sorted[i];
        for (; p < KVL_ANALYSIS_P && sum >= kvl_analysis_mass[p] * total; p++) count[p] = i + 1;
    }
    for (; p < KVL_ANALYSIS_P; p++) count[p] = n; /* rounding only */
    for (p = 0; p < KVL_ANALYSIS_P; p++) share[p] += (double)count[p] / n;
    return kvl_buf_add(&a->counts, count, sizeof count);
}

/* ---- one layer ------------------------------------------------------------------------------- */

static void step_reduce(const struct kvl_analysis *a, int32_t layer, int32_t n)
{
    const struct kvl_analysis_step *s = a->step;
    size_t tok = (size_t)s->max_tok, layers = (size_t)a->n_layers;
    float *most = s->weight + (size_t)layer * tok, *mean = most + layers * tok;
    for (int32_t i = 0; i < n; i++) {
        float largest = 0.0f;
        double sum = 0.0;
        for (int32_t h = 0; h < a->n_heads; h++) {
            float w = s->probs[(size_t)h * (size_t)n + (size_t)i];
            largest = fmaxf(largest, w);
            sum += (double)w;
        }
        most[i] = largest;
        mean[i] = (float)(sum / a->n_heads);
    }
}

static int step_tap(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    struct kvl_analysis *a = user;
    struct kvl_analysis_step *s = a->step;
    int32_t n = r->pos + 1;
    s->n_pos = n;
    KVL_TRY(kvl_session_full_attention(s->session, r->layer, r->q, n, s->probs, NULL, err));
    if (a->want.similarity || a->want.drift) step_reduce(a, r->layer, n);
    for (int32_t h = 0; a->want.mass && h < a->n_heads; h++) {
        size_t at = ((size_t)r->layer * (size_t)a->n_heads + (size_t)h) * KVL_ANALYSIS_P;
        if (mass_head(a, s->probs + (size_t)h * (size_t)n, n, a->share + at) != KVL_OK)
            return kvl_fail(err, KVL_ENOMEM, "out of memory for an analysis");
    }
    return KVL_OK;
}

/* ---- important tokens ------------------------------------------------------------------------ */

/* The list of a layer: *n positions, of the step `age` steps ago. */
static int32_t *step_list(const struct kvl_analysis *a, int32_t age, int r, int32_t m,
                          int32_t layer, int32_t *n)
{
    const struct kvl_analysis_step *s = a->step;
    int32_t slot = (s->n_seen - age) % (a->want.lag + 1);
    *n = s->n_list[slot][m];
    return s->list + (size_t)slot * s->slot + s->offset[r][m] +
           (size_t)layer * (size_t)a->want.m[m];
}

/* Fills the lists of this step.  The operator wants lists without gaps between them. */
static int step_choose(struct kvl_analysis *a, struct kvl_err *err)
{
    struct kvl_analysis_step *s = a->step;
    int32_t n = s->n_pos - 1, unused, slot = s->n_seen % (a->want.lag + 1);
    for (int32_t m = 0; m < a->want.n_m; m++) s->n_list[slot][m] = KVL_MIN(a->want.m[m], n);
    for (int r = 0; r < KVL_ANALYSIS_REDUCES; r++)
        for (int32_t m = 0; m < a->want.n_m; m++)
            for (int32_t l = 0; l < a->n_layers; l++) {
                size_t row = (size_t)r * (size_t)a->n_layers + (size_t)l;
                int rc = kvl_ops_cpu.topk(
                    &(struct kvl_topk_args){ .index = step_list(a, 0, r, m, l, &unused),
                                             .x = s->weight + row * (size_t)s->max_tok,
                                             .x_stride = (size_t)s->max_tok,
                                             .n_rows = 1,
                                             .n = n,
                                             .k = s->n_list[slot][m] });
                if (rc != KVL_OK)
                    return kvl_fail(err, rc, "the important tokens of layer %d: %s", l,
                                    kvl_status_name(rc));
            }
    return KVL_OK;
}

/* Of two ascending lists. */
static int32_t list_common(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b)
{
    int32_t n = 0;
    for (int32_t i = 0, j = 0; i < n_a && j < n_b;) {
        n += a[i] == b[j];
        int32_t order = (a[i] > b[j]) - (a[i] < b[j]);
        i += order <= 0;
        j += order >= 0;
    }
    return n;
}

/* ---- similarity ------------------------------------------------------------------------------ */

static void similarity_add(struct kvl_analysis *a, int r, int32_t m)
{
    const struct kvl_analysis_step *s = a->step;
    size_t layers = (size_t)a->n_layers, tok = (size_t)s->max_tok;
    double *capture = a->capture + ((size_t)r * (size_t)a->want.n_m + (size_t)m) * layers * layers;
    const float *mean = s->weight + layers * tok; /* the mass of a layer, whatever made the list */
    for (int32_t l1 = 0; l1 < a->n_layers; l1++) {
        int32_t n;
        const int32_t *list = step_list(a, 0, r, m, l1, &n);
        for (int32_t l2 = l1; l2 < a->n_layers; l2++) {
            const float *w = mean + (size_t)l2 * tok;
            double sum = (double)w[s->n_pos - 1];
            for (int32_t i = 0; i < n; i++) sum += (double)w[list[i]];
            capture[(size_t)l1 * layers + (size_t)l2] += sum;
        }
    }
}

/* Share of what the step needs that is in the list; of one span (ANY) the best. */
static double hit_share(const struct kvl_watch *w, int32_t step, const int32_t *list, int32_t n)
{
    double best = 0.0;
    int32_t all = 0, in = 0;
    for (int32_t i = 0; i < w->n_spans; i++) {
        const int32_t *need = w->pos + w->first[i];
        int32_t from = w->from[step * w->n_spans + i], to = w->to[step * w->n_spans + i];
        if (from >= to) continue;
        int32_t got = list_common(need + from, to - from, list, n);
        best = fmax(best, (double)got / (to - from));
        all += to - from;
        in += got;
    }
    bool any = kvl_watch_stage_at(w, step)->kind == KVL_EVIDENCE_ANY;
    return any ? best : (double)in / all;
}

static bool hit_needs(const struct kvl_watch *w, int32_t step)
{
    if (!w || step >= w->n_steps) return false;
    for (int32_t i = 0; i < w->n_spans; i++)
        if (w->from[step * w->n_spans + i] < w->to[step * w->n_spans + i]) return true;
    return false;
}

static void hits_add(struct kvl_analysis *a, const struct kvl_watch *w, int32_t step)
{
    if (!hit_needs(w, step)) return;
    a->n_hits++;
    for (int r = 0; r < KVL_ANALYSIS_REDUCES; r++)
        for (int32_t m = 0; m < a->want.n_m; m++)
            for (int32_t l = 0; l < a->n_layers; l++) {
                int32_t n;
                const int32_t *list = step_list(a, 0, r, m, l, &n);
                size_t at = ((size_t)r * (size_t)a->want.n_m + (size_t)m) * (size_t)a->n_layers;
                a->hit[at + (size_t)l] += hit_share(w, step, list, n);
            }
}

/* ---- drift ----------------------------------------------------------------------------------- */

static void drift_add(struct kvl_analysis *a, int r, int32_t m, int32_t lag)
{
    size_t row = ((size_t)r * (size_t)a->want.n_m + (size_t)m) * (size_t)a->want.lag;
    row = (row + (size_t)lag - 1) * (size_t)a->n_layers;
    for (int32_t l = 0; l < a->n_layers; l++) {
        int32_t n_new, n_old;
        const int32_t *now = step_list(a, 0, r, m, l, &n_new);
        const int32_t *old = step_list(a, lag, r, m, l, &n_old);
        int32_t both = list_common(now, n_new, old, n_old);
        a->jaccard[row + (size_t)l] += (double)both / (n_new + n_old - both);
        a->kept[row + (size_t)l] += (double)both / n_old;
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

void kvl_analysis_answer(struct kvl_analysis *a)
{
    a->step->n_seen = 0;
}

static void step_add(struct kvl_analysis *a, const struct kvl_watch *watch, int32_t step)
{
    int32_t lags = a->want.drift ? KVL_MIN(a->want.lag, a->step->n_seen) : 0;
    for (int r = 0; r < KVL_ANALYSIS_REDUCES; r++)
        for (int32_t m = 0; m < a->want.n_m; m++) {
            if (a->want.similarity) similarity_add(a, r, m);
            for (int32_t lag = 1; lag <= lags; lag++) drift_add(a, r, m, lag);
        }
    for (int32_t lag = 1; lag <= lags; lag++) a->n_pairs[lag - 1]++;
    if (a->want.similarity) hits_add(a, watch, step);
}

int kvl_analysis_decode(struct kvl_analysis *a, struct kvl_session *s, int32_t id,
                        const struct kvl_watch *watch, int32_t step, float *logits,
                        struct kvl_err *err)
{
    if (kvl_session_len(s) + 1 > a->step->max_tok || kvl_session_len(s) < 1)
        return kvl_fail(err, KVL_EINTERNAL, "a step at position %d, want 1 to %d",
                        kvl_session_len(s), a->step->max_tok - 1);
    a->step->session = s;
    kvl_session_tap(s, &(struct kvl_tap){ .user = a, .read = step_tap });
    int rc = kvl_session_decode(&s, 1, &id, logits, err);
    kvl_session_tap(s, NULL);
    KVL_TRY(rc);
    if (a->want.similarity || a->want.drift) {
        KVL_TRY(step_choose(a, err));
        step_add(a, watch, step);
    }
    a->step->n_seen++;
    a->n_steps++;
    return KVL_OK;
}
