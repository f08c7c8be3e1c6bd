/* Lanes of cells. */
#include "lane_recall.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kvl_lane_cell {
    uint64_t key; /* kvl_result_key of the cell's id */
    size_t n_lanes, n, cap;
    double *sum;   /* [n_lanes] over n samples */
    float *each;   /* [n][n_lanes]; NULL: not kept */
    int64_t *seen; /* [n] which samples: logs that overlap have some twice */
    int64_t last;  /* the largest of them */
};

static size_t lanes_count(const json_t *layers)
{
    size_t n = 0, l;
    json_t *heads;
    json_array_foreach(layers, l, heads) n += json_array_size(heads);
    return n;
}

/* The cell of a sample, most often that of the one before. */
static struct kvl_lane_cell *lanes_cell(struct kvl_lanes *l, uint64_t key, size_t n_lanes)
{
    for (size_t i = l->n; i-- > 0;)
        if (l->cell[i].key == key && l->cell[i].n_lanes == n_lanes) return &l->cell[i];
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct kvl_lane_cell *grown = realloc(l->cell, cap * sizeof *grown);
        if (!grown) return NULL;
        l->cell = grown;
        l->cap = cap;
    }
    struct kvl_lane_cell c = { .key = key,
                               .n_lanes = n_lanes,
                               .sum = kvl_alloc(n_lanes, sizeof *c.sum) };
    if (!c.sum) return NULL;
    l->cell[l->n] = c;
    return &l->cell[l->n++];
}

/* Whether the sample is counted already; else it is from now on.  KVL_ENOMEM. */
static int lanes_seen(struct kvl_lane_cell *c, const json_t *sample, bool keep, bool *seen)
{
    int64_t context = json_integer_value(json_object_get(sample, "context"));
    int64_t id = context << 32 | json_integer_value(json_object_get(sample, "question"));
    *seen = false;
    for (size_t i = 0; c->n && id <= c->last && i < c->n && !*seen; i++) *seen = c->seen[i] == id;
    if (*seen) return KVL_OK;
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        int64_t *grown = realloc(c->seen, cap * sizeof *grown);
        if (!grown) return KVL_ENOMEM;
        c->seen = grown;
        float *each = keep ? realloc(c->each, cap * c->n_lanes * sizeof *each) : NULL;
        if (keep && !each) return KVL_ENOMEM;
        c->each = each;
        c->cap = cap;
    }
    c->last = c->n ? KVL_MAX(c->last, id) : id;
    c->seen[c->n++] = id;
    return KVL_OK;
}

int kvl_lanes_add(struct kvl_lanes *l, const json_t *sample)
{
    const json_t *layers = json_object_get(sample, "lane_recall");
    size_t n = lanes_count(layers), at = 0, i, k;
    json_t *heads, *v;
    if (n == 0) return KVL_OK;
    struct kvl_lane_cell *c = lanes_cell(l, kvl_result_key(kvl_json_text(sample, "cell")), n);
    bool seen;
    if (!c || lanes_seen(c, sample, l->keep, &seen) != KVL_OK) return KVL_ENOMEM;
    if (seen) return KVL_OK;
    float *each = c->each ? c->each + (c->n - 1) * n : NULL;
    json_array_foreach(layers, i, heads) json_array_foreach(heads, k, v)
    {
        if (each) each[at] = (float)json_number_value(v);
        c->sum[at++] += json_number_value(v);
    }
    return KVL_OK;
}

static const struct kvl_lane_cell *lanes_of(const struct kvl_lanes *l, const struct kvl_result *x)
{
    uint64_t key = kvl_result_key(x->id);
    for (size_t i = 0; i < l->n; i++)
        if (l->cell[i].key == key) return &l->cell[i];
    return NULL;
}

/* Of the oracle of a block x [n] that has the smallest budget; NULL: none. */
static const struct kvl_lane_cell *lanes_oracle(const struct kvl_lanes *l,
                                                const struct kvl_result *x, size_t n)
{
    const struct kvl_lane_cell *found = NULL;
    double least = 0;
    for (size_t i = 0; i < n; i++) {
        if (x[i].bound != KVL_BOUND_ORACLE || isnan(x[i].budget_tok)) continue;
        const struct kvl_lane_cell *c = lanes_of(l, &x[i]);
        if (!c || (found && x[i].budget_tok >= least)) continue;
        found = c;
        least = x[i].budget_tok;
    }
    return found;
}

/* Mean over the lanes that the oracle says retrieve; NaN: none does. */
static double lanes_mean(const struct kvl_lane_cell *c, const struct kvl_lane_cell *oracle)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < c->n_lanes && c->n_lanes == oracle->n_lanes; i++) {
        if (oracle->sum[i] < KVL_LANE_RETRIEVES * (double)oracle->n) continue;
        sum += c->sum[i] / (double)c->n;
        n++;
    }
    return n ? sum / (double)n : KVL_NAN;
}

/* The same of each sample; samples of a cell are in the order of their ids. */
static void lanes_samples(const struct kvl_lane_cell *c, const struct kvl_lane_cell *oracle,
                          struct kvl_results *r, const struct kvl_result *x)
{
    size_t n;
    const struct kvl_result_sample *first = kvl_result_samples(r, x, &n);
    for (size_t i = 0; c->each && i < c->n && c->n_lanes == oracle->n_lanes; i++) {
        size_t lo = 0, hi = n;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if ((first[mid].context << 32 | first[mid].question) < c->seen[i])
                lo = mid + 1;
            else
                hi = mid;
        }
        if (lo == n || (first[lo].context << 32 | first[lo].question) != c->seen[i]) continue;
        struct kvl_result_sample *sample = &r->sample[first - r->sample + (ptrdiff_t)lo];
        double sum = 0;
        size_t lanes = 0;
        for (size_t k = 0; k < c->n_lanes; k++) {
            if (oracle->sum[k] < KVL_LANE_RETRIEVES * (double)oracle->n) continue;
            sum += (double)c->each[i * c->n_lanes + k];
            lanes++;
        }
        if (lanes) sample->retrieved = sum / (double)lanes;
    }
}

void kvl_lanes_recall(struct kvl_lanes *l, struct kvl_results *r)
{
    for (size_t i = 0, end; i < r->n; i = end) {
        struct kvl_result *x = &r->result[i];
        for (end = i + 1; end < r->n; end++)
            if (kvl_result_block_cmp(x, &r->result[end], 0)) break;
        const struct kvl_lane_cell *oracle = lanes_oracle(l, x, end - i);
        for (size_t k = i; oracle && k < end; k++) {
            const struct kvl_lane_cell *c = lanes_of(l, &r->result[k]);
            if (!c) continue;
            r->result[k].recall = lanes_mean(c, oracle);
            lanes_samples(c, oracle, r, &r->result[k]);
        }
    }
}

static bool has_oracle(const struct kvl_results *r, const struct kvl_result *x)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->result[i].bound == KVL_BOUND_ORACLE &&
            kvl_result_block_cmp(x, &r->result[i], 0) == 0)
            return true;
    return false;
}

const char *kvl_lanes_lack(const struct kvl_results *r, const struct kvl_result *const *x, size_t n)
{
    bool evidence = false, samples = false, oracle = false;
    for (size_t i = 0; i < n; i++) {
        size_t n_samples;
        if (!x[i]->is_cell) continue;
        kvl_result_samples(r, x[i], &n_samples);
        evidence |= !isnan(x[i]->recall_best.mean);
        samples |= n_samples > 0;
        oracle = oracle || has_oracle(r, x[i]);
    }
    return !evidence  ? "no question tells its evidence"
           : !samples ? "the log has no samples"
           : !oracle  ? "the policy oracle was not run"
                      : "no head is known to retrieve";
}

void kvl_lanes_free(struct kvl_lanes *l)
{
    for (size_t i = 0; i < l->n; i++) {
        kvl_free(l->cell[i].sum);
        free(l->cell[i].seen);
        free(l->cell[i].each);
    }
    free(l->cell);
    *l = (struct kvl_lanes){ 0 };
}
