/* Samples side by side. */
#include "pairs.h"

static double pairs_value(const struct kvl_result_sample *s, enum kvl_pair_what what)
{
    if (what == KVL_PAIR_RECALL) return s->retrieved;
    return isnan(s->official) ? s->nll : s->official;
}

/* Numbers of the questions that both have; columns with room for all of a. */
struct pairs_columns {
    double *a, *b;
    int64_t *context;
    size_t n;
};

static void pairs_fill(const struct kvl_result_sample *a, size_t n_a,
                       const struct kvl_result_sample *b, size_t n_b, enum kvl_pair_what what,
                       struct pairs_columns *col, struct kvl_pairs *out)
{
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        int64_t c = a[i].context - b[j].context;
        if (!c) c = a[i].question - b[j].question;
        double x = pairs_value(&a[i], what), y = pairs_value(&b[j], what);
        if (c == 0) {
            out->n_common++;
            out->n_other_prompt += a[i].prompt && b[j].prompt && a[i].prompt != b[j].prompt;
        }
        if (c == 0 && !isnan(x) && !isnan(y)) {
            col->a[col->n] = x;
            col->b[col->n] = y;
            col->context[col->n++] = a[i].text;
        }
        i += c <= 0;
        j += c >= 0;
    }
}

static double pairs_mean(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += v[i];
    return n ? sum / (double)n : KVL_NAN;
}

int kvl_pairs(const struct kvl_results *of_a, const struct kvl_result *a,
              const struct kvl_results *of_b, const struct kvl_result *b, enum kvl_pair_what what,
              struct kvl_pairs *out, struct kvl_err *err)
{
    size_t n_a, n_b;
    const struct kvl_result_sample *of = kvl_result_samples(of_a, a, &n_a);
    const struct kvl_result_sample *other = kvl_result_samples(of_b, b, &n_b);
    struct pairs_columns col = { .a = kvl_alloc(n_a + 1, sizeof *col.a),
                                 .b = kvl_alloc(n_a + 1, sizeof *col.b),
                                 .context = kvl_alloc(n_a + 1, sizeof *col.context) };
    bool shares = what == KVL_PAIR_RECALL || !a->is_text;
    struct kvl_range range = shares ? KVL_RANGE_DIFF : KVL_RANGE_ANY;
    struct kvl_pairs p = { .without_samples = n_a == 0 || n_b == 0 };
    int rc = col.a && col.b && col.context ? KVL_OK : KVL_ENOMEM;
    if (rc == KVL_OK) {
        pairs_fill(of, n_a, other, n_b, what, &col, &p);
        p.a = pairs_mean(col.a, col.n);
        p.b = pairs_mean(col.b, col.n);
        rc = kvl_paired_diff(col.a, col.b, col.context, col.n, range, 1, &p.test);
    }
    kvl_free(col.a);
    kvl_free(col.b);
    kvl_free(col.context);
    if (rc != KVL_OK) return kvl_fail(err, rc, "no memory for answers side by side");
    *out = p;
    return KVL_OK;
}
