/* Smaller tables of a sweep: accuracy across one axis, and differences to one policy. */
#include "report.h"

#include "pairs.h"
#include "summary.h"
#include "text_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ALL_KEYS (KVL_BLOCK_TASK | KVL_BLOCK_PROTOCOL | KVL_BLOCK_LENGTH | KVL_BLOCK_DEPTH)

static int compare_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "no memory for a table of results");
}

static const char *compare_budget(const struct kvl_result *x)
{
    return x->budget[0] ? x->budget : "-";
}

/* ---- across one axis ----------------------------------------------------------------------- */

static int by_row_cmp(const struct kvl_result *a, const struct kvl_result *b, unsigned key)
{
    return (key & KVL_BLOCK_LENGTH ? kvl_report_row_cmp : kvl_result_row_cmp)(a, b);
}

/* Blocks without the key, then rows, then the key. */
static int by_order(const void *a, const void *b, void *user)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    unsigned key = *(const unsigned *)user;
    int c = kvl_result_block_cmp(x, y, key);
    if (!c) c = by_row_cmp(x, y, key);
    return c ? c : kvl_result_block_cmp(x, y, ALL_KEYS & ~key);
}

static int by_key_order(const void *a, const void *b, void *user)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    return kvl_result_block_cmp(x, y, ALL_KEYS & ~*(const unsigned *)user);
}

static void by_name(const struct kvl_result *x, unsigned key, char *name, size_t room)
{
    if (key == KVL_BLOCK_TASK)
        snprintf(name, room, "%s", x->task_label);
    else if (key == KVL_BLOCK_PROTOCOL)
        snprintf(name, room, "%s", x->protocol);
    else if (key == KVL_BLOCK_LENGTH)
        snprintf(name, room, "%.0f", x->length_tok);
    else if (isnan(x->depth))
        snprintf(name, room, "spread");
    else
        snprintf(name, room, "%g", x->depth);
}

enum { BY_NAME = 64 };

static double by_value(const struct kvl_result *x)
{
    return x->is_text ? x->ppl.mean : 100 * x->official.mean;
}

/* A block: its rows are runs of row[0 .. n) that differ in the key alone. */
struct by_block {
    const struct kvl_results *results;
    const struct kvl_result **row, **column;
    size_t n, n_columns;
    unsigned key;
    enum kvl_table_form form;
};

static int by_print(struct by_block *b, char (*name)[BY_NAME], struct kvl_column *column, FILE *out,
                    struct kvl_err *err)
{
    struct kvl_table t = { .form = b->form, .column = column, .n_columns = b->n_columns + 2 };
    column[0] = (struct kvl_column){ "policy", true };
    column[1] = (struct kvl_column){ "budget", false };
    for (size_t c = 0; c < b->n_columns; c++) {
        by_name(b->column[c], b->key, name[c], BY_NAME);
        column[c + 2] = (struct kvl_column){ name[c], false };
    }
    for (size_t i = 0, end; i < b->n; i = end) {
        bool stale = false;
        for (end = i; end < b->n && by_row_cmp(b->row[i], b->row[end], b->key) == 0;)
            stale |= b->row[end++]->stale;
        kvl_table_add(&t, "%s%s", b->row[i]->label, stale ? " *" : "");
        kvl_table_add(&t, "%s", compare_budget(b->row[i]));
        for (size_t c = 0; c < b->n_columns; c++) {
            double value = KVL_NAN;
            for (size_t j = i; j < end; j++)
                if (by_key_order(&b->row[j], &b->column[c], &b->key) == 0)
                    value = by_value(b->row[j]);
            kvl_table_number(&t, value, b->row[0]->is_text ? 3 : 1);
        }
    }
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    fputc('\n', out);
    return rc;
}

enum { BY_QUARTERS = 4 };

/* Right answers in percent by the quarter of the context that their evidence lies in; NaN: none lies there. */
static bool by_quarters_of(const struct kvl_results *r, const struct kvl_result *x,
                           double right[BY_QUARTERS], double n[BY_QUARTERS])
{
    size_t count;
    const struct kvl_result_sample *s = kvl_result_samples(r, x, &count);
    bool any = false;
    for (int q = 0; q < BY_QUARTERS; q++) right[q] = n[q] = 0;
    for (size_t i = 0; i < count; i++) {
        if (!(s[i].depth >= 0) || isnan(s[i].official)) continue;
        int q = KVL_MIN((int)(s[i].depth * BY_QUARTERS), BY_QUARTERS - 1);
        right[q] += 100 * s[i].official;
        n[q]++;
        any = true;
    }
    for (int q = 0; q < BY_QUARTERS; q++) right[q] = n[q] > 0 ? right[q] / n[q] : KVL_NAN;
    return any;
}

/* Needles at random depths have no cells of their own: a column per quarter. */
static int by_quarters(const struct by_block *b, FILE *out, struct kvl_err *err)
{
    static const struct kvl_column column[] = { { "policy", true },    { "budget", false },
                                                { "0..25 %", false },  { "25..50 %", false },
                                                { "50..75 %", false }, { "75..100 %", false },
                                                { "n", true } };
    struct kvl_table t = { .form = b->form,
                           .column = column,
                           .n_columns = sizeof column / sizeof column[0] };
    for (size_t i = 0; i < b->n; i++) {
        double right[BY_QUARTERS], n[BY_QUARTERS];
        by_quarters_of(b->results, b->row[i], right, n);
        kvl_table_add(&t, "%s%s", b->row[i]->label, b->row[i]->stale ? " *" : "");
        kvl_table_add(&t, "%s", compare_budget(b->row[i]));
        for (int q = 0; q < BY_QUARTERS; q++) kvl_table_number(&t, right[q], 1);
        kvl_table_add(&t, "%.0f, %.0f, %.0f, %.0f", n[0], n[1], n[2], n[3]);
    }
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    fputc('\n', out);
    return rc;
}

static bool by_has_quarters(const struct by_block *b)
{
    double right[BY_QUARTERS], n[BY_QUARTERS];
    if (b->key != KVL_BLOCK_DEPTH || b->n_columns > 1 || !isnan(b->column[0]->depth)) return false;
    for (size_t i = 0; i < b->n; i++)
        if (by_quarters_of(b->results, b->row[i], right, n)) return true;
    return false;
}

static int by_block(struct by_block *b, FILE *out, struct kvl_err *err)
{
    b->column = kvl_alloc(b->n, sizeof *b->column);
    char(*name)[BY_NAME] = kvl_alloc(b->n, sizeof *name);
    struct kvl_column *column = kvl_alloc(b->n + 2, sizeof *column);
    int rc = b->column && name && column ? KVL_OK : compare_memory(err);
    for (size_t i = 0; i < b->n && rc == KVL_OK; i++) {
        bool known = false;
        for (size_t c = 0; c < b->n_columns && !known; c++)
            known = by_key_order(&b->row[i], &b->column[c], &b->key) == 0;
        if (!known) b->column[b->n_columns++] = b->row[i];
    }
    if (rc == KVL_OK) {
        qsort_r(b->column, b->n_columns, sizeof *b->column, by_key_order, &b->key);
        const char *mark = kvl_report_mark(b->form);
        if (b->row[0]->is_text) fprintf(out, "%sPerplexity.\n", mark);
        kvl_report_block(b->row[0], b->key, b->form, out);
        rc = by_has_quarters(b) ? by_quarters(b, out, err) : by_print(b, name, column, out, err);
    }
    kvl_free(b->column);
    kvl_free(name);
    kvl_free(column);
    return rc;
}

int kvl_report_by(const struct kvl_results *r, enum kvl_block_key key, enum kvl_table_form form,
                  FILE *out, struct kvl_err *err)
{
    const struct kvl_result **row = kvl_alloc(r->n, sizeof *row);
    unsigned mask = key;
    size_t n = 0;
    if (!row) return compare_memory(err);
    for (size_t i = 0; i < r->n; i++)
        if (r->result[i].is_cell) row[n++] = &r->result[i];
    qsort_r(row, n, sizeof *row, by_order, &mask);
    bool accuracy = false;
    for (size_t i = 0; i < n; i++) accuracy |= !row[i]->is_text;
    if (accuracy) fprintf(out, "%sOfficial accuracy in percent.\n\n", kvl_report_mark(form));
    int rc = KVL_OK;
    for (size_t i = 0, end; i < n && rc == KVL_OK; i = end) {
        for (end = i; end < n && kvl_result_block_cmp(row[i], row[end], mask) == 0;) end++;
        struct by_block b = {
            .results = r, .row = row + i, .n = end - i, .key = mask, .form = form
        };
        rc = by_block(&b, out, err);
    }
    kvl_free(row);
    return rc;
}

/* ---- differences to one policy ------------------------------------------------------------- */

static bool is_called(const struct kvl_result *x, const char *base)
{
    return x->is_cell && (strcmp(x->label, base) == 0 || strcmp(x->policy, base) == 0);
}

/* The result of `base` that x is compared with: of the same budget, or one without a budget. */
static const struct kvl_result *vs_base(const struct kvl_result *block, size_t n,
                                        const struct kvl_result *x, const char *base)
{
    const struct kvl_result *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (&block[i] == x || !is_called(&block[i], base)) continue;
        if (strcmp(block[i].budget, x->budget) == 0) return &block[i];
        if (isnan(block[i].budget_tok)) found = &block[i];
    }
    return found;
}

static const struct kvl_column vs_columns[] = {
    { "policy", true },     { "budget", false },   { "n", false },         { "difference", false },
    { "95 % from", false }, { "to", false },       { "only this", false }, { "only that", false },
    { "p", false },         { "p of all", false },
};

/* Nats per token; the ratio of two perplexities is the exponential of the difference. */
static const struct kvl_column vs_text_columns[] = {
    { "policy", true },          { "budget", false },    { "texts", false },
    { "nll difference", false }, { "95 % from", false }, { "to", false },
    { "ppl ratio", false },
};

static void vs_text_row(const struct kvl_paired *p, struct kvl_table *t)
{
    kvl_table_number(t, p->diff.mean, 4);
    int decimals = kvl_span_decimals(p->diff.lo, p->diff.hi, 4);
    kvl_table_number(t, p->diff.lo, decimals);
    kvl_table_number(t, p->diff.hi, decimals);
    kvl_table_number(t, exp(p->diff.mean), 4);
}

static void vs_p(struct kvl_table *t, double p)
{
    if (p < 0.0001)
        kvl_table_add(t, "<0.0001");
    else
        kvl_table_number(t, p, 4);
}

static void vs_question_row(const struct kvl_paired *p, struct kvl_table *t)
{
    kvl_table_number(t, 100 * p->diff.mean, 1);
    int decimals = kvl_span_decimals(100 * p->diff.lo, 100 * p->diff.hi, 1);
    kvl_table_number(t, 100 * p->diff.lo, decimals);
    kvl_table_number(t, 100 * p->diff.hi, decimals);
    kvl_table_add(t, "%zu", p->n_a_only);
    kvl_table_add(t, "%zu", p->n_b_only);
    vs_p(t, p->n ? p->p_value : KVL_NAN);
}

/* What a comparison has to tell. */
struct vs {
    const struct kvl_results *r;
    const char *base;
    enum kvl_table_form form;
    size_t n_rows, n_without; /* of these, left out: a cell whose samples are not in the log */
    struct kvl_pairs *pair;   /* [r->n] of the rows that are shown, in their order */
    double *p;                /* [r->n] of questions: what they are beside all the others */
    size_t n_shown, at;
    bool print; /* the second time; the first time pairs are made */
    FILE *out;
    struct kvl_err *err;
};

/* Whether both cells have answers to compare; published logs are without. */
static bool vs_known(struct vs *vs, const struct kvl_result *x, const struct kvl_result *base)
{
    size_t n_x, n_base;
    kvl_result_samples(vs->r, x, &n_x);
    kvl_result_samples(vs->r, base, &n_base);
    vs->n_rows += !vs->print;
    vs->n_without += !vs->print && (n_x == 0 || n_base == 0);
    return n_x > 0 && n_base > 0;
}

static int vs_pair(struct vs *vs, const struct kvl_result *x, const struct kvl_result *base)
{
    struct kvl_pairs *pair = &vs->pair[vs->n_shown];
    KVL_TRY(kvl_pairs(vs->r, x, vs->r, base, KVL_PAIR_SCORE, pair, vs->err));
    vs->p[vs->n_shown++] = x->is_text || pair->test.n == 0 ? KVL_NAN : pair->test.p_value;
    return KVL_OK;
}

static int vs_row(struct vs *vs, const struct kvl_result *x, const struct kvl_result *base,
                  struct kvl_table *t)
{
    if (!vs->print) return vs_pair(vs, x, base);
    const struct kvl_paired *test = &vs->pair[vs->at].test;
    kvl_table_add(t, "%s%s", x->label, x->stale || base->stale ? " *" : "");
    kvl_table_add(t, "%s", compare_budget(x));
    kvl_table_add(t, "%zu", test->n);
    (x->is_text ? vs_text_row : vs_question_row)(test, t);
    if (!x->is_text) vs_p(t, vs->p[vs->at]);
    vs->at++;
    return KVL_OK;
}

static int vs_block(struct vs *vs, const struct kvl_result *x, size_t n)
{
    struct kvl_table t = { .column = vs_columns,
                           .n_columns = sizeof vs_columns / sizeof vs_columns[0] };
    if (x->is_text)
        t = (struct kvl_table){ .column = vs_text_columns,
                                .n_columns = sizeof vs_text_columns / sizeof vs_text_columns[0] };
    int rc = KVL_OK;
    t.form = vs->form;
    for (size_t i = 0; i < n && rc == KVL_OK; i++) {
        const struct kvl_result *other = vs_base(x, n, &x[i], vs->base);
        if (x[i].is_cell && other && !is_called(&x[i], vs->base) && vs_known(vs, &x[i], other))
            rc = vs_row(vs, &x[i], other, &t);
    }
    if (t.n_cells) kvl_report_block(x, 0, vs->form, vs->out);
    if (rc == KVL_OK && t.n_cells) rc = kvl_table_print(&t, 2, vs->out, vs->err);
    if (t.n_cells) fputc('\n', vs->out);
    kvl_table_free(&t);
    return rc;
}

int kvl_report_unknown(const struct kvl_results *r, const char *base, struct kvl_err *err)
{
    const char **names = kvl_alloc(r->n, sizeof *names);
    if (!names) return compare_memory(err);
    for (size_t i = 0; i < r->n; i++) names[i] = r->result[i].label;
    const char *near = kvl_nearest(base, names, r->n);
    int rc = near ? kvl_fail(err, KVL_EINVAL, "%s: no cell of that policy, did you mean \"%s\"?",
                             base, near)
                  : kvl_fail(err, KVL_EINVAL, "%s: no cell of that policy in the log", base);
    kvl_free(names);
    return rc;
}

/* Whether there are cells of texts, or of questions. */
static bool vs_any(const struct kvl_results *r, bool text)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->result[i].is_cell && r->result[i].is_text == text) return true;
    return false;
}

static int vs_blocks(struct vs *vs)
{
    const struct kvl_results *r = vs->r;
    for (size_t i = 0, end; i < r->n; i = end) {
        for (end = i; end < r->n; end++)
            if (kvl_result_block_cmp(&r->result[i], &r->result[end], 0)) break;
        KVL_TRY(vs_block(vs, &r->result[i], end - i));
    }
    return KVL_OK;
}

static void vs_title(const struct kvl_results *r, const char *base, const char *mark, FILE *out)
{
    if (vs_any(r, false))
        fprintf(out,
                "%sOfficial accuracy less that of %s on the same questions, in points of 100.\n\n",
                mark, base);
    if (vs_any(r, true))
        fprintf(out,
                "%sMean nll of a text less that of %s on the same texts, in nats per token.\n\n",
                mark, base);
}

int kvl_report_vs(const struct kvl_results *r, const char *base, enum kvl_table_form form,
                  FILE *out, struct kvl_err *err)
{
    struct vs vs = { .r = r, .base = base, .form = form, .out = out, .err = err };
    bool known = false;
    for (size_t i = 0; i < r->n; i++) known |= is_called(&r->result[i], base);
    if (!known) return kvl_report_unknown(r, base, err);
    if (r->n_samples == 0)
        return kvl_fail(err, KVL_EINVAL,
                        "--vs: compares answer by answer, and the log has no samples (published "
                        "logs are without); want the log as its sweep wrote it");
    vs_title(r, base, kvl_report_mark(form), out);
    vs.pair = kvl_alloc(r->n, sizeof *vs.pair);
    vs.p = kvl_alloc(r->n, sizeof *vs.p);
    int rc = vs.pair && vs.p ? vs_blocks(&vs) : compare_memory(err);
    if (rc == KVL_OK) rc = kvl_holm(vs.p, vs.n_shown, err);
    vs.print = true;
    if (rc == KVL_OK) rc = vs_blocks(&vs);
    kvl_free(vs.pair);
    kvl_free(vs.p);
    KVL_TRY(rc);
    if (vs.n_without)
        fprintf(out, "%sLeft out: %zu of %zu rows, whose cells have no samples in the log.\n",
                kvl_report_mark(form), vs.n_without, vs.n_rows);
    if (!vs_any(r, false)) return KVL_OK;
    kvl_report_lines(
        "p: two-sided sign-flip test over whole contexts, as the interval is over whole contexts "
        "(with one\nquestion each it is McNemar's test); from fewer than six contexts it cannot "
        "get below 0.05.\n"
        "p of all: by Holm's procedure over all rows above, of which a part would be below 0.05 by "
        "chance.\n",
        form, out);
    return KVL_OK;
}
