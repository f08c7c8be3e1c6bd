/* One table for a whole sweep: a row per policy and budget, lengths and depths pooled. */
#include "report.h"

#include "summary.h"
#include "text_table.h"

#include <math.h>
#include <string.h>

enum { SUMMARY_COLUMNS = 6 }; /* accuracy columns that fit a terminal */

static void add_pool(struct kvl_table *t, const struct kvl_pool *p)
{
    struct kvl_interval w = kvl_pool_accuracy(p);
    if (isnan(w.mean))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%5.1f %s", 100 * w.mean, kvl_percent_span(w.lo, w.hi, 2, "-").s);
}

/* Of full attention, with the same type of keys and values; NULL: it has not run. */
static const struct kvl_result *summary_dense(const struct kvl_summary *s,
                                              const struct kvl_result *x)
{
    for (size_t i = 0; x && i < s->n_rows; i++) {
        const struct kvl_result *full = s->row[i].speaker;
        if (full && full->bound == KVL_BOUND_FULL && strcmp(full->kv_type, x->kv_type) == 0)
            return full;
    }
    return NULL;
}

/* Speed, bytes read and bytes held of `x`; NULL: not known. */
static void summary_cost(struct kvl_table *t, const struct kvl_result *x,
                         const struct kvl_result *full)
{
    double read = x ? x->kv_read + (x->index_read > 0 ? x->index_read : 0) : KVL_NAN;
    kvl_table_number(t, x ? x->decode.mean : KVL_NAN, x && x->decode.mean < 100 ? 1 : 0);
    kvl_table_number(t, x ? x->waits : KVL_NAN, 1);
    if (x && kvl_report_reads_more(x, full))
        kvl_table_add(t, "%s !!", kvl_bytes_text(read).s);
    else
        kvl_table_bytes(t, read);
    kvl_table_bytes(t, x ? x->kv_physical : KVL_NAN);
}

static void summary_row(const struct kvl_summary *s, const struct kvl_summary_row *row,
                        size_t n_columns, struct kvl_table *t)
{
    const struct kvl_result *x = row->cell[0];
    kvl_table_add(t, "%s%s", x->label, row->stale ? " *" : "");
    kvl_table_add(t, "%s", x->budget[0] ? x->budget : "-");
    for (size_t c = 0; c < n_columns; c++) add_pool(t, &row->column[c]);
    kvl_table_number(t, kvl_pool_recall(&row->all), 2);
    kvl_table_number(t, kvl_pool_recall_best(&row->all), 2);
    summary_cost(t, row->speaker, summary_dense(s, row->speaker));
    kvl_table_number(t, row->all.n, 0);
}

/* The lengths that a column pools: columns of different lengths do not compare. */
static void summary_lengths(const struct kvl_summary *s, const struct kvl_result *column, FILE *out)
{
    double min = column->length_tok, max = min;
    for (size_t i = 0; i < s->n; i++) {
        const struct kvl_result *x = s->cell[i];
        if (!x->is_cell || kvl_result_block_cmp(x, column, KVL_SUMMARY_POOLED)) continue;
        min = fmin(min, x->length_tok);
        max = fmax(max, x->length_tok);
    }
    if (min < max)
        fprintf(out, "%.0f to %.0f tokens\n", min, max);
    else
        fprintf(out, "%.0f tokens\n", min);
}

/* Of a column whose cells are not finished. */
static void summary_unfinished(const struct kvl_summary *s, size_t column, const char *mark,
                               FILE *out)
{
    double n = 0, planned = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct kvl_result *x = s->cell[i];
        if (!kvl_summary_has(s, column, x)) continue;
        n += x->n;
        planned += isnan(x->n_planned) ? x->n : x->n_planned;
    }
    if (n < planned) fprintf(out, "%s     not finished: %.0f of %.0f answers\n", mark, n, planned);
}

/* Columns whose task full attention itself fails, all their lengths together. */
static void summary_full(const struct kvl_summary *s, size_t n_columns, const char *const *letters,
                         FILE *out)
{
    size_t n = 0;
    for (size_t c = 0; c < n_columns; c++)
        if (kvl_summary_fails(s, c)) fprintf(out, "%s%c", n++ ? ", " : "  ! ", letters[c][0]);
    if (n)
        fputs(
            ": full is not 10 points above chance; nothing can be concluded about methods there\n",
            out);
}

/* Where a row has the mark. */
static void summary_more(const struct kvl_summary *s, FILE *out)
{
    for (size_t i = 0; i < s->n_rows; i++) {
        const struct kvl_result *x = s->row[i].speaker, *full = summary_dense(s, x);
        if (!x || !kvl_report_reads_more(x, full)) continue;
        fputs("  !!: reads more a token than full attention\n", out);
        return;
    }
}

static bool summary_unofficial(const struct kvl_summary *s, size_t n)
{
    for (size_t c = 0; c < n; c++)
        if (kvl_report_unofficial(s->column[c])) return true;
    return false;
}

static int summary_print(const struct kvl_summary *s, enum kvl_table_form form, FILE *out,
                         struct kvl_err *err)
{
    static const char *const letters[SUMMARY_COLUMNS] = {
        "A %", "B %", "C %", "D %", "E %", "F %"
    };
    struct kvl_column column[SUMMARY_COLUMNS + 9] = { { "policy", true }, { "budget", false } };
    size_t n = KVL_MIN(s->n_columns, (size_t)SUMMARY_COLUMNS);
    struct kvl_table t = { .form = form, .column = column, .n_columns = n + 9 };
    for (size_t c = 0; c < n; c++) column[c + 2] = (struct kvl_column){ letters[c], true };
    static const char *const tail[] = { "recall",   "best layer", "tok/s", "waits/tok",
                                        "read/tok", "KV held",    "n" };
    for (size_t c = 0; c < 7; c++) column[n + 2 + c] = (struct kvl_column){ tail[c], false };
    const char *mark = form == KVL_TABLE_LATEX ? "%" : ""; /* what is no table is a comment there */
    kvl_report_block(s->cell[0], KVL_SUMMARY_BLOCK, form, out);
    for (size_t i = 0; i < s->n_rows; i++) summary_row(s, &s->row[i], n, &t);
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    for (size_t c = 0; c < n; c++) {
        const struct kvl_result *x = s->column[c];
        const char *const said[] = { x->task_label, x->protocol, x->chat };
        fprintf(out, "%s  %c  ", mark, letters[c][0]);
        for (size_t i = 0; i < 3; i++) {
            kvl_show(out, kvl_table_medium(form), said[i]);
            fputs(*said[i] ? ", " : "", out);
        }
        fputs(*x->sampling ? "drawn, " : "", out);
        summary_lengths(s, x, out);
        summary_unfinished(s, c, mark, out);
    }
    if (form != KVL_TABLE_LATEX) summary_full(s, n, letters, out);
    if (form != KVL_TABLE_LATEX) summary_more(s, out);
    if (s->n_columns > n && form != KVL_TABLE_LATEX)
        fputs("  more tasks or protocols than columns: see kvlab report\n", out);
    if (!isnan(s->length_tok))
        fprintf(out,
                "%s  Accuracy: official scorer%s, all lengths and depths together. tok/s, read/tok "
                "(choosing included), KV held: %.0f tokens.\n\n",
                mark, summary_unofficial(s, n) ? " but for tasks marked [not official]" : "",
                s->length_tok);
    return rc;
}

int kvl_report_summary(const struct kvl_results *r, enum kvl_table_form form, FILE *out,
                       struct kvl_err *err)
{
    struct kvl_summary *s;
    size_t n;
    KVL_TRY(kvl_summaries(r, &s, &n, err));
    int rc = KVL_OK;
    for (size_t i = 0; i < n && rc == KVL_OK; i++) rc = summary_print(&s[i], form, out, err);
    kvl_summaries_free(s, n);
    for (size_t i = 0, end; i < r->n && rc == KVL_OK; i = end) {
        for (end = i + 1; end < r->n; end++)
            if (kvl_result_block_cmp(&r->result[i], &r->result[end], 0)) break;
        if (r->result[i].is_text) rc = kvl_report_texts(&r->result[i], end - i, form, out, err);
    }
    return rc == KVL_OK ? kvl_report_notes(r, form, out, err) : rc;
}

size_t kvl_report_blocks(const struct kvl_results *r)
{
    size_t n = r->n > 0;
    for (size_t i = 1; i < r->n; i++)
        n += kvl_result_block_cmp(&r->result[i - 1], &r->result[i], 0) != 0;
    return n;
}
