/* Cells of two sides, their measures, their verdicts. */
#include "compare.h"

#include "pairs.h"
#include "report.h"

#include <math.h>
#include <string.h>

const char *const kvl_compare_names[] = { "accuracy", "ppl", "recall", "bytes", "speed", NULL };

enum verdict {
    COMPARE_SAME, /* no difference shown; of speed: none that is larger than the threshold */
    COMPARE_BETTER,
    COMPARE_WORSE,
    COMPARE_UNCLEAR, /* of speed: repeats differ too much to tell */
    COMPARE_NOT,
    COMPARE_VERDICTS
};

/* One row: `diff` is B less A in the unit of its threshold; reason: why there is no verdict. */
struct compare_row {
    enum kvl_compare_measure measure;
    double a, b;
    struct kvl_interval diff;
    size_t n;
    bool few; /* contexts for a verdict */
    enum verdict verdict;
    char reason[160];
};

struct compare {
    const struct kvl_compare *want;
    struct kvl_table table;
    size_t n[COMPARE_VERDICTS], n_rows;
    size_t n_few; /* rows of too few contexts for a verdict */
    double
        noise; /* largest difference of two repeats of one cell, percent (A/A); NaN: none was repeated */
    size_t n_pairs, n_alone; /* cells of B with a partner in A, and without */
    char worst[256],
        reason[160]; /* the first row that is worse; the first that is not comparable */
    struct kvl_err *err;
};

/* ---- pairs of cells -------------------------------------------------------------------------- */

static bool is_called(const struct kvl_result *x, const char *name)
{
    return strcmp(x->label, name) == 0 || strcmp(x->policy, name) == 0;
}

static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) < 1e-9;
}

static bool same_place(const struct kvl_result *a, const struct kvl_result *b)
{
    return a->is_cell == b->is_cell && a->is_text == b->is_text && strcmp(a->task, b->task) == 0 &&
           strcmp(a->protocol, b->protocol) == 0 && same_number(a->length_tok, b->length_tok) &&
           same_number(a->depth, b->depth);
}

static bool same_method(const struct kvl_compare *c, const struct kvl_result *a,
                        const struct kvl_result *b)
{
    bool budget = strcmp(a->budget, b->budget) == 0;
    if (c->a.policy) return is_called(a, c->a.policy) && (budget || isnan(a->budget_tok));
    return budget && strcmp(a->policy, b->policy) == 0 && strcmp(a->asked, b->asked) == 0 &&
           strcmp(a->prefill, b->prefill) == 0 && strcmp(a->exec, b->exec) == 0;
}

/* What must be the same for a verdict. */
static const struct {
    const char *name, *path;
    size_t text; /* of a result; 0: `path` of the record */
} must[] = {
    { "model file", NULL, offsetof(struct kvl_result, model_hash) },
    { "task options", NULL, offsetof(struct kvl_result, task_options) },
    { "chat template", NULL, offsetof(struct kvl_result, chat) },
    { "system text", NULL, offsetof(struct kvl_result, system) },
    { "sampling", NULL, offsetof(struct kvl_result, sampling) },
    { "task version", "task_version", 0 },
};

static const char *must_text(const struct kvl_result *x, size_t i, char *room, size_t size)
{
    const char *text = "";
    if (must[i].text)
        memcpy(&text, (const char *)x + must[i].text, sizeof text);
    else
        snprintf(room, size, "%.0f", kvl_json_number(x->record, must[i].path));
    return must[i].text ? text : room;
}

/* How many of them differ; `why` gets the first. */
static int must_differ(const struct kvl_result *a, const struct kvl_result *b, char *why,
                       size_t size)
{
    int n = 0;
    for (size_t i = 0; i < sizeof must / sizeof must[0]; i++) {
        char of_a[24], of_b[24];
        const char *x = must_text(a, i, of_a, sizeof of_a), *y = must_text(b, i, of_b, sizeof of_b);
        if (strcmp(x, y) == 0 || n++ > 0) continue;
        snprintf(why, size, "%s %.40s / %.40s", must[i].name, *x ? x : "none", *y ? y : "none");
    }
    if (!same_number(a->seed, b->seed) && n++ == 0)
        snprintf(why, size, "seed %.0f / %.0f", a->seed, b->seed);
    return n;
}

/* Of what may differ: as little as there is. */
static int may_differ(const struct kvl_result *a, const struct kvl_result *b)
{
    return (strcmp(a->device, b->device) != 0) + (strcmp(a->kv_type, b->kv_type) != 0) +
           (strcmp(a->options, b->options) != 0) + (strcmp(a->prefill_type, b->prefill_type) != 0) +
           (strcmp(a->decode_act, b->decode_act) != 0) +
           (strcmp(a->prefill_kv, b->prefill_kv) != 0) + (strcmp(a->budget, b->budget) != 0) +
           (a->version != b->version);
}

/* Whether a log has the cell x with other keys and values, too. */
static bool has_types(const struct kvl_compare *c, const struct kvl_results *r,
                      const struct kvl_result *x)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct kvl_result *z = &r->result[i];
        if (strcmp(x->kv_type, z->kv_type) != 0 && same_place(x, z) && same_method(c, x, z))
            return true;
    }
    return false;
}

/* Where types of keys and values are an axis of a log, each has its own partner; a log of one type is compared with one of
 * another. */
static bool other_type(const struct kvl_compare *c, const struct kvl_result *a,
                       const struct kvl_result *b)
{
    if (strcmp(a->kv_type, b->kv_type) == 0 || c->a.policy) return false;
    return has_types(c, c->a.r, a) || has_types(c, c->b.r, b);
}

/* The cell of A that is nearest to x; NULL: none.  `why` is "" where both are comparable. */
static const struct kvl_result *compare_partner(const struct kvl_compare *c,
                                                const struct kvl_result *x, char *why, size_t size)
{
    const struct kvl_result *best = NULL;
    int least = 0;
    for (size_t i = 0; i < c->a.r->n; i++) {
        const struct kvl_result *y = &c->a.r->result[i];
        char reason[160] = "";
        if (y == x || !same_place(y, x) || !same_method(c, y, x)) continue;
        if (other_type(c, y, x)) continue;
        int d = 100 * must_differ(y, x, reason, sizeof reason) + may_differ(y, x);
        if (best && d >= least) continue;
        best = y;
        least = d;
        snprintf(why, size, "%s", reason);
    }
    return best;
}

/* ---- measures -------------------------------------------------------------------------------- */

static void row_not(struct compare_row *row, const char *reason)
{
    row->verdict = COMPARE_NOT;
    snprintf(row->reason, sizeof row->reason, "%s", reason);
}

/* By the interval of `diff`, of which more is better or worse. */
static void row_judge(struct compare_row *row, double threshold, bool more_is_better)
{
    double lo = more_is_better ? row->diff.lo : -row->diff.hi;
    double hi = more_is_better ? row->diff.hi : -row->diff.lo;
    row->verdict = hi < -threshold ? COMPARE_WORSE : lo > threshold ? COMPARE_BETTER : COMPARE_SAME;
}

static struct kvl_interval scaled(struct kvl_interval v, double by)
{
    return (struct kvl_interval){ by * v.mean, by * v.lo, by * v.hi };
}

static struct kvl_interval ratio_percent(struct kvl_interval log_ratio)
{
    return (struct kvl_interval){ 100 * expm1(log_ratio.mean), 100 * expm1(log_ratio.lo),
                                  100 * expm1(log_ratio.hi) };
}

/* accuracy, ppl, recall: what answers tell.  False: neither side has any of it. */
static bool row_of_pairs(struct compare_row *row, const struct kvl_pairs *p, double threshold)
{
    row->a = p->b;
    row->b = p->a;
    row->n = p->test.n;
    row->diff = p->test.diff;
    if (row->measure == KVL_COMPARE_ACCURACY) {
        row->a *= 100;
        row->b *= 100;
        row->diff = scaled(p->test.diff, 100);
    } else if (row->measure == KVL_COMPARE_PPL) {
        row->a = exp(p->b);
        row->b = exp(p->a);
        row->diff = ratio_percent(p->test.diff);
    }
    if (p->test.n == 0 && row->measure == KVL_COMPARE_RECALL) return false;
    if (p->without_samples)
        row_not(row, "a log has no samples (none that is published has): run its sweep for them");
    else if (p->n_common == 0)
        row_not(row, "no question in both logs");
    else if (p->test.n == 0)
        row_not(row, "no question answered in both");
    else if (p->test.n_contexts < 2)
        row_not(row, "one context gives no interval");
    else
        row_judge(row, threshold, row->measure != KVL_COMPARE_PPL);
    row->few = row->verdict != COMPARE_NOT && p->test.n_contexts < KVL_VERDICT_CONTEXTS;
    bool judged = row->verdict == COMPARE_WORSE || row->verdict == COMPARE_BETTER;
    if (judged && !(p->test.p_value < KVL_VERDICT_P)) row->verdict = COMPARE_SAME;
    return true;
}

static double bytes_of(const struct kvl_result *x)
{
    return x->kv_read + (x->index_read > 0 ? x->index_read : 0);
}

static bool row_of_bytes(struct compare_row *row, const struct kvl_result *a,
                         const struct kvl_result *b, double threshold)
{
    row->a = bytes_of(a);
    row->b = bytes_of(b);
    row->n = b->n > 0 ? (size_t)b->n : 0;
    if (isnan(row->a) && isnan(row->b)) return false;
    double diff = 100 * (row->b / row->a - 1);
    row->diff = (struct kvl_interval){ diff, diff, diff };
    if (!same_number(a->n, b->n))
        row_not(row, "another number of questions");
    else if (isnan(diff))
        row_not(row, "not counted on both sides");
    else
        row_judge(row, threshold, false);
    row->diff.lo = row->diff.hi = KVL_NAN; /* counted */
    return true;
}

/* By how much the repeats of one cell differ: nothing was changed between them. */
static double speed_noise(const struct kvl_result *x)
{
    return x->n_speed > 1 ? 100 * (x->decode.hi / x->decode.lo - 1) : KVL_NAN;
}

/* An interval that is not beyond the threshold is one of the same speed only where it does not reach beyond it. */
static void speed_judge(struct compare_row *row, double threshold)
{
    row_judge(row, threshold, true);
    bool within = row->diff.lo >= -threshold && row->diff.hi <= threshold;
    if (row->verdict == COMPARE_SAME && !within) row->verdict = COMPARE_UNCLEAR;
}

static bool row_of_speed(struct compare_row *row, const struct kvl_result *a,
                         const struct kvl_result *b, double threshold)
{
    row->a = a->decode.mean;
    row->b = b->decode.mean;
    row->n = KVL_MIN(a->n_speed, b->n_speed);
    if (a->n_speed == 0 && b->n_speed == 0) return false;
    row->diff =
        (struct kvl_interval){ 100 * (row->b / row->a - 1), 100 * (b->decode.lo / a->decode.hi - 1),
                               100 * (b->decode.hi / a->decode.lo - 1) };
    if (row->n == 0)
        row_not(row, "not timed on both sides");
    else if (!kvl_result_same_setup(a, b))
        row_not(row, "timed on another machine, device, driver or number of threads");
    else if (row->n < 2)
        row_not(row, "one repeat tells no spread");
    else
        speed_judge(row, threshold);
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const struct kvl_column compare_columns[] = {
    { "task", true },   { "protocol", true }, { "tokens", false },     { "depth", false },
    { "policy", true }, { "budget", false },  { "measure", true },     { "n", false },
    { "A", false },     { "B", false },       { "difference", false }, { "95 % from", false },
    { "to", false },    { "verdict", true },
};

static const char *verdict_text(const struct compare_row *row, char *room, size_t size)
{
    static const char *const names[][2] = { [COMPARE_SAME] = { "no difference shown", "same" },
                                            [COMPARE_BETTER] = { "better", "faster" },
                                            [COMPARE_WORSE] = { "worse", "slower" },
                                            [COMPARE_UNCLEAR] = { "unclear", "unclear" } };
    if (row->verdict != COMPARE_NOT) return names[row->verdict][row->measure == KVL_COMPARE_SPEED];
    snprintf(room, size, "not comparable: %s", row->reason);
    return room;
}

static void row_value(struct kvl_table *t, enum kvl_compare_measure measure, double v)
{
    static const int decimals[] = { 1, 3, 2, 0, 1 };
    if (measure == KVL_COMPARE_BYTES)
        kvl_table_bytes(t, v);
    else
        kvl_table_number(t, v, decimals[measure]);
}

static void row_print(struct compare *c, const struct kvl_result *x, const struct compare_row *row)
{
    static const char *const unit[] = { "", " %", "", " %", " %" };
    struct kvl_table *t = &c->table;
    int decimals = row->measure == KVL_COMPARE_RECALL ? 3 : 1;
    char verdict[200];
    kvl_table_add(t, "%s", x->task_label);
    kvl_table_add(t, "%s", x->protocol);
    kvl_table_number(t, x->length_tok, 0);
    kvl_table_number(t, x->depth, 2);
    kvl_report_name(t, x);
    kvl_table_add(t, "%s", x->budget[0] ? x->budget : "-");
    kvl_table_add(t, "%s", kvl_compare_names[row->measure]);
    kvl_table_add(t, "%zu", row->n);
    row_value(t, row->measure, row->a);
    row_value(t, row->measure, row->b);
    if (isnan(row->diff.mean))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%+.*f%s", decimals, row->diff.mean, unit[row->measure]);
    decimals = kvl_span_decimals(row->diff.lo, row->diff.hi, decimals);
    kvl_table_number(t, row->diff.lo, decimals);
    kvl_table_number(t, row->diff.hi, decimals);
    kvl_table_add(t, "%s", verdict_text(row, verdict, sizeof verdict));
}

static void row_count(struct compare *c, const struct kvl_result *x, const struct compare_row *row)
{
    c->n[row->verdict]++;
    c->n_rows++;
    c->n_few += row->few;
    if (row->verdict == COMPARE_NOT && !*c->reason)
        snprintf(c->reason, sizeof c->reason, "%s", row->reason);
    if (row->verdict != COMPARE_WORSE || *c->worst) return;
    char span[64] = "";
    if (!isnan(row->diff.lo))
        snprintf(span, sizeof span, " (%+.2f to %+.2f)", row->diff.lo, row->diff.hi);
    snprintf(c->worst, sizeof c->worst, "%s of %s%s%s on %s, %.0f tokens: %+.2f%s",
             kvl_compare_names[row->measure], x->label, isnan(x->budget_tok) ? "" : " ",
             isnan(x->budget_tok) ? "" : x->budget, x->task_label, x->length_tok, row->diff.mean,
             span);
}

/* One measure of a pair of cells; `why` is "" or what makes them differ. */
static int compare_measure(struct compare *c, const struct kvl_result *a,
                           const struct kvl_result *b, enum kvl_compare_measure measure,
                           const char *why)
{
    const struct kvl_compare *want = c->want;
    double threshold = want->threshold[measure];
    struct compare_row row = { .measure = measure };
    bool any = measure == KVL_COMPARE_BYTES   ? row_of_bytes(&row, a, b, threshold)
               : measure == KVL_COMPARE_SPEED ? row_of_speed(&row, a, b, threshold)
                                              : false;
    if (measure < KVL_COMPARE_BYTES) {
        enum kvl_pair_what what = measure == KVL_COMPARE_RECALL ? KVL_PAIR_RECALL : KVL_PAIR_SCORE;
        char prompts[64];
        struct kvl_pairs p;
        KVL_TRY(kvl_pairs(want->b.r, b, want->a.r, a, what, &p, c->err));
        any = row_of_pairs(&row, &p, threshold);
        snprintf(prompts, sizeof prompts, "prompts of %zu of %zu questions differ",
                 p.n_other_prompt, p.n_common);
        if (any && p.n_other_prompt) row_not(&row, prompts);
    }
    if (!any) return KVL_OK;
    if (measure == KVL_COMPARE_SPEED)
        c->noise = fmax(c->noise, fmax(speed_noise(a), speed_noise(b)));
    if (*why) row_not(&row, why);
    row_print(c, b, &row);
    row_count(c, b, &row);
    return KVL_OK;
}

static int compare_cell(struct compare *c, const struct kvl_result *x)
{
    char why[160] = "";
    const struct kvl_result *a = compare_partner(c->want, x, why, sizeof why);
    c->n_pairs += a != NULL;
    c->n_alone += a == NULL;
    for (int m = 0; a && m < KVL_COMPARE_MEASURES; m++) {
        bool of_texts = m == KVL_COMPARE_PPL, of_questions = m == KVL_COMPARE_ACCURACY;
        bool fits = m == KVL_COMPARE_SPEED ||
                    (x->is_cell && !(of_texts && !x->is_text) && !(of_questions && x->is_text));
        if (c->want->want[m] && fits)
            KVL_TRY(compare_measure(c, a, x, (enum kvl_compare_measure)m, why));
    }
    return KVL_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int compare_known(const struct kvl_compare_side *side, struct kvl_err *err)
{
    for (size_t i = 0; side->policy && i < side->r->n; i++)
        if (is_called(&side->r->result[i], side->policy)) return KVL_OK;
    return side->policy ? kvl_report_unknown(side->r, side->policy, err) : KVL_OK;
}

static void compare_end(const struct compare *c, FILE *out)
{
    const struct kvl_compare *w = c->want;
    fprintf(out,
            "%sA: %s, B: %s. %zu rows: %zu worse, %zu better, %zu without a difference shown, "
            "%zu not comparable.\n",
            w->form == KVL_TABLE_LATEX ? "% " : "", w->a.name, w->b.name, c->n_rows,
            c->n[COMPARE_WORSE], c->n[COMPARE_BETTER], c->n[COMPARE_SAME] + c->n[COMPARE_UNCLEAR],
            c->n[COMPARE_NOT]);
    if (!isnan(c->noise) && w->form == KVL_TABLE_TEXT)
        fprintf(
            out,
            "Speed: repeats of one cell, of which nothing differs, are up to %.1f %% apart; %zu "
            "row%s unclear for that.\n",
            c->noise, c->n[COMPARE_UNCLEAR], c->n[COMPARE_UNCLEAR] == 1 ? " is" : "s are");
    if (c->n_alone && w->form == KVL_TABLE_TEXT)
        fprintf(out, "%zu cell%s of B ha%s no partner in A.\n", c->n_alone,
                c->n_alone == 1 ? "" : "s", c->n_alone == 1 ? "s" : "ve");
    if (c->n_few && w->form == KVL_TABLE_TEXT)
        fprintf(out, "%zu row%s of fewer than %d contexts: too few for a verdict.\n", c->n_few,
                c->n_few == 1 ? "" : "s", KVL_VERDICT_CONTEXTS);
    if (c->n_rows > 20 && w->form == KVL_TABLE_TEXT)
        fprintf(out,
                "Of %zu rows without any difference about %.0f would fall outside their interval "
                "by chance.\n",
                c->n_rows, 0.05 * (double)c->n_rows);
}

static int compare_result(const struct compare *c)
{
    size_t n = c->n[COMPARE_WORSE];
    if (c->n_rows == 0)
        return kvl_fail(c->err, KVL_EINVAL,
                        "nothing to compare: %s; want cells of the same task, protocol, length, "
                        "depth%s and budget in both",
                        c->n_pairs ? "what was asked for was not measured" : "no cell of B is in A",
                        c->want->a.policy ? "" : ", policy");
    if (c->n[COMPARE_NOT] == c->n_rows)
        return kvl_fail(c->err, KVL_EINVAL, "nothing is comparable: %s", c->reason);
    if (n == 0) return KVL_OK;
    return kvl_fail(c->err, KVL_COMPARE_WORSE, "%zu of %zu rows %s worse: %s", n, c->n_rows,
                    n == 1 ? "is" : "are", c->worst);
}

int kvl_compare(const struct kvl_compare *want, FILE *out, struct kvl_err *err)
{
    struct compare c = { .want = want,
                         .noise = KVL_NAN,
                         .table = { .form = want->form,
                                    .column = compare_columns,
                                    .n_columns =
                                        sizeof compare_columns / sizeof compare_columns[0] },
                         .err = err };
    KVL_TRY(compare_known(&want->a, err));
    KVL_TRY(compare_known(&want->b, err));
    int rc = KVL_OK;
    for (size_t i = 0; i < want->b.r->n && rc == KVL_OK; i++) {
        const struct kvl_result *x = &want->b.r->result[i];
        if (!want->b.policy || is_called(x, want->b.policy)) rc = compare_cell(&c, x);
    }
    if (rc == KVL_OK && c.n_rows) rc = kvl_table_print(&c.table, 0, out, err);
    kvl_table_free(&c.table);
    if (rc == KVL_OK && want->form != KVL_TABLE_CSV) compare_end(&c, out);
    return rc == KVL_OK ? compare_result(&c) : rc;
}
