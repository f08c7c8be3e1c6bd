/* One table for a whole sweep: a row per policy and budget, lengths and depths pooled. */
#include "report.h"

#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SUMMARY_COLUMNS = 6 }; /* accuracy columns that fit a terminal */

#define SUMMARY_SKIP (KVL_BLOCK_LENGTH | KVL_BLOCK_DEPTH)
#define SUMMARY_ALL  (SUMMARY_SKIP | KVL_BLOCK_TASK | KVL_BLOCK_PROTOCOL)

/* What the cells of one row and column add up to. */
struct pool {
    double n, n_eff, right, recall, n_recall;
};

int kvl_report_row_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    bool share_a = strchr(a->budget, '%') != NULL, share_b = strchr(b->budget, '%') != NULL;
    int c = (int)a->bound - (int)b->bound;
    if (!c) c = strcmp(a->label, b->label);
    if (!c) c = (int)share_a - (int)share_b;
    if (c || !share_a) return c ? c : kvl_result_row_cmp(a, b);
    double x = strtod(a->budget, NULL), y = strtod(b->budget, NULL);
    return x != y ? (x > y) - (x < y) : strcmp(a->budget, b->budget);
}

/* Models and devices, then rows. */
static int summary_order(const void *a, const void *b)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    int c = kvl_result_block_cmp(x, y, SUMMARY_ALL);
    return c ? c : kvl_report_row_cmp(x, y);
}

struct summary {
    const struct kvl_result **row; /* [n], one model and device */
    size_t n;
    const struct kvl_result *column[SUMMARY_COLUMNS]; /* one cell of each task and protocol */
    size_t n_columns, n_left_out;
    double
        length_tok; /* the longest (of cells, if there are any): speed and bytes are told for it */
};

static double summary_length(const struct summary *s, bool of_cells)
{
    double longest = KVL_NAN;
    for (size_t i = 0; i < s->n; i++)
        if ((s->row[i]->is_cell || !of_cells) && !(s->row[i]->length_tok <= longest))
            longest = s->row[i]->length_tok;
    return longest;
}

static void summary_columns(struct summary *s)
{
    s->length_tok = summary_length(s, true);
    if (isnan(s->length_tok)) s->length_tok = summary_length(s, false);
    for (size_t i = 0; i < s->n; i++) {
        const struct kvl_result *x = s->row[i];
        size_t c = 0;
        if (!x->is_cell) continue;
        while (c < s->n_columns && kvl_result_block_cmp(x, s->column[c], SUMMARY_SKIP)) c++;
        if (c < s->n_columns) continue;
        if (s->n_columns < SUMMARY_COLUMNS)
            s->column[s->n_columns++] = x;
        else
            s->n_left_out++;
    }
}

static void pool_add(struct pool *p, const struct kvl_result *x)
{
    if (!(x->n > 0) || isnan(x->official.mean)) return;
    p->n += x->n;
    p->n_eff += isnan(x->n_eff) ? x->n : x->n_eff;
    p->right += x->n * x->official.mean;
    if (isnan(x->recall.mean)) return;
    p->recall += x->n * x->recall.mean;
    p->n_recall += x->n;
}

static void add_pool(struct kvl_table *t, const struct pool *p)
{
    if (p->n == 0) {
        kvl_table_add(t, "-");
        return;
    }
    struct kvl_interval w = kvl_wilson(p->right / p->n, p->n_eff);
    kvl_table_add(t, "%5.1f %2.0f-%.0f", 100 * w.mean, 100 * w.lo, 100 * w.hi);
}

/* The result of a row that speed and bytes are told for: of the length that all rows are told for,
 * a cell if there is one, timed if any is; NULL when there is none. */
static const struct kvl_result *summary_speaker(const struct summary *s, size_t first, size_t end)
{
    const struct kvl_result *best = NULL;
    for (size_t i = first; i < end; i++) {
        const struct kvl_result *x = s->row[i];
        if (x->length_tok != s->length_tok) continue;
        bool timed = best && best->is_cell == x->is_cell && isnan(best->decode.mean) &&
                     !isnan(x->decode.mean);
        if (!best || timed || (!best->is_cell && x->is_cell)) best = x;
    }
    return best;
}

/* Speed, bytes read and bytes held of `x`; NULL: not known. */
static void summary_cost(struct kvl_table *t, const struct kvl_result *x)
{
    kvl_table_number(t, x ? x->decode.mean : KVL_NAN, x && x->decode.mean < 100 ? 1 : 0);
    kvl_table_bytes(t, x ? x->kv_read + (x->index_read > 0 ? x->index_read : 0) : KVL_NAN);
    kvl_table_bytes(t, x ? x->kv_physical : KVL_NAN);
}

static bool summary_stale(const struct summary *s, size_t first, size_t end)
{
    bool stale = false;
    for (size_t i = first; i < end; i++) stale |= s->row[i]->stale;
    return stale;
}

static void summary_row(const struct summary *s, struct kvl_table *t, size_t first, size_t end)
{
    struct pool all = { 0 };
    const struct kvl_result *x = s->row[first];
    kvl_table_add(t, "%s%s", x->label, summary_stale(s, first, end) ? " *" : "");
    kvl_table_add(t, "%s", x->budget[0] ? x->budget : "-");
    for (size_t c = 0; c < s->n_columns; c++) {
        struct pool p = { 0 };
        for (size_t i = first; i < end; i++) {
            if (!s->row[i]->is_cell || kvl_result_block_cmp(s->row[i], s->column[c], SUMMARY_SKIP))
                continue;
            pool_add(&p, s->row[i]);
            pool_add(&all, s->row[i]);
        }
        add_pool(t, &p);
    }
    kvl_table_number(t, all.n_recall > 0 ? all.recall / all.n_recall : KVL_NAN, 2);
    summary_cost(t, summary_speaker(s, first, end));
    kvl_table_number(t, all.n, 0);
}

/* The lengths that a column pools: columns of different lengths do not compare. */
static void summary_lengths(const struct summary *s, const struct kvl_result *column, FILE *out)
{
    double min = column->length_tok, max = min;
    for (size_t i = 0; i < s->n; i++) {
        const struct kvl_result *x = s->row[i];
        if (!x->is_cell || kvl_result_block_cmp(x, column, SUMMARY_SKIP)) continue;
        min = fmin(min, x->length_tok);
        max = fmax(max, x->length_tok);
    }
    if (min < max)
        fprintf(out, "%.0f to %.0f tokens\n", min, max);
    else
        fprintf(out, "%.0f tokens\n", min);
}

/* Columns whose task full attention itself fails, all their lengths together. */
static void summary_full(const struct summary *s, const char *const *letters, FILE *out)
{
    size_t n = 0;
    for (size_t c = 0; c < s->n_columns; c++) {
        struct pool p = { 0 };
        for (size_t i = 0; i < s->n; i++)
            if (s->row[i]->bound == KVL_BOUND_FULL && s->row[i]->is_cell &&
                kvl_result_block_cmp(s->row[i], s->column[c], SUMMARY_SKIP) == 0)
                pool_add(&p, s->row[i]);
        if (p.n == 0) continue;
        struct kvl_interval w = kvl_wilson(p.right / p.n, p.n_eff);
        if (kvl_report_answers(&w, s->column[c]->chance)) continue;
        fprintf(out, "%s%c", n++ ? ", " : "  ! ", letters[c][0]);
    }
    if (n)
        fputs(
            ": full is not 10 points above chance; nothing can be concluded about methods there\n",
            out);
}

static int summary_print(const struct summary *s, FILE *out, struct kvl_err *err)
{
    static const char *const letters[SUMMARY_COLUMNS] = {
        "A %", "B %", "C %", "D %", "E %", "F %"
    };
    struct kvl_column column[SUMMARY_COLUMNS + 7] = { { "policy", true }, { "budget", false } };
    struct kvl_table t = { .column = column, .n_columns = s->n_columns + 7 };
    for (size_t c = 0; c < s->n_columns; c++)
        column[c + 2] = (struct kvl_column){ letters[c], true };
    static const char *const tail[] = { "recall", "tok/s", "read/tok", "KV held", "n" };
    for (size_t c = 0; c < 5; c++)
        column[s->n_columns + 2 + c] = (struct kvl_column){ tail[c], false };
    kvl_report_block(s->row[0], SUMMARY_ALL, out);
    for (size_t i = 0, end; i < s->n; i = end) {
        for (end = i + 1; end < s->n && kvl_report_row_cmp(s->row[i], s->row[end]) == 0;) end++;
        summary_row(s, &t, i, end);
    }
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    for (size_t c = 0; c < s->n_columns; c++) {
        const struct kvl_result *x = s->column[c];
        fprintf(out, "  %c  %s, %s, %s%s%s", letters[c][0], x->task_label, x->protocol, x->chat,
                *x->chat ? ", " : "", *x->sampling ? "drawn, " : "");
        summary_lengths(s, x, out);
    }
    summary_full(s, letters, out);
    if (s->n_left_out) fputs("  more tasks or protocols than columns: see kvlab report\n", out);
    if (!isnan(s->length_tok))
        fprintf(out,
                "  Accuracy: official scorer, all lengths and depths together. tok/s, read/tok "
                "(choosing included), KV held: %.0f tokens.\n\n",
                s->length_tok);
    return rc;
}

int kvl_report_summary(const struct kvl_results *r, FILE *out, struct kvl_err *err)
{
    const struct kvl_result **row = kvl_alloc(r->n + 1, sizeof *row);
    if (!row) return kvl_fail(err, KVL_ENOMEM, "no memory for a table of results");
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        if (!r->result[i].is_text) row[n++] = &r->result[i];
    qsort(row, n, sizeof *row, summary_order);
    int rc = KVL_OK;
    for (size_t i = 0, end; i < n && rc == KVL_OK; i = end) {
        for (end = i + 1; end < n; end++)
            if (kvl_result_block_cmp(row[i], row[end], SUMMARY_ALL)) break;
        struct summary s = { .row = row + i, .n = end - i };
        summary_columns(&s);
        rc = summary_print(&s, out, err);
    }
    kvl_free(row);
    for (size_t i = 0, end; i < r->n && rc == KVL_OK; i = end) {
        for (end = i + 1; end < r->n; end++)
            if (kvl_result_block_cmp(&r->result[i], &r->result[end], 0)) break;
        if (r->result[i].is_text) rc = kvl_report_texts(&r->result[i], end - i, out, err);
    }
    if (rc == KVL_OK) kvl_report_notes(r, out);
    return rc;
}

size_t kvl_report_blocks(const struct kvl_results *r)
{
    size_t n = r->n > 0;
    for (size_t i = 1; i < r->n; i++)
        n += kvl_result_block_cmp(&r->result[i - 1], &r->result[i], 0) != 0;
    return n;
}
