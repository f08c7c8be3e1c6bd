/* Pools the cells of a model by policy, budget, task and protocol. */
#include "summary.h"

#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int kvl_report_row_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    bool share_a = strchr(a->budget, '%') != NULL, share_b = strchr(b->budget, '%') != NULL;
    int c = (int)a->bound - (int)b->bound;
    if (!c) c = strcmp(a->policy, b->policy);
    if (!c) c = kvl_result_kv_cmp(a, b);
    if (!c) c = strcmp(a->label, b->label);
    if (!c) c = (int)share_a - (int)share_b;
    if (c || !share_a) return c ? c : kvl_result_row_cmp(a, b);
    double x = strtod(a->budget, NULL), y = strtod(b->budget, NULL);
    return x != y ? (x > y) - (x < y) : strcmp(a->budget, b->budget);
}

/* Models and devices, then rows, of each the cells over the same contexts together. */
static int summary_order(const void *a, const void *b)
{
    const struct kvl_result *x = *(const struct kvl_result *const *)a;
    const struct kvl_result *y = *(const struct kvl_result *const *)b;
    int c = kvl_result_block_cmp(x, y, KVL_SUMMARY_BLOCK);
    if (!c) c = kvl_report_row_cmp(x, y);
    return c ? c : kvl_result_contexts_cmp(x, y);
}

static double summary_length(const struct kvl_summary *s, bool of_cells)
{
    double longest = KVL_NAN;
    for (size_t i = 0; i < s->n; i++)
        if ((s->cell[i]->is_cell || !of_cells) && !(s->cell[i]->length_tok <= longest))
            longest = s->cell[i]->length_tok;
    return longest;
}

static int summary_columns(struct kvl_summary *s)
{
    s->column = kvl_alloc(s->n, sizeof *s->column);
    if (!s->column) return KVL_ENOMEM;
    for (size_t i = 0; i < s->n; i++) {
        const struct kvl_result *x = s->cell[i];
        size_t c = 0;
        if (!x->is_cell) continue;
        while (c < s->n_columns && kvl_result_block_cmp(x, s->column[c], KVL_SUMMARY_POOLED)) c++;
        if (c == s->n_columns) s->column[s->n_columns++] = x;
    }
    return KVL_OK;
}

static void pool_group(struct kvl_pool *p, const struct kvl_result *x)
{
    double n_eff = x->n_eff > 0 ? x->n_eff : x->n_contexts > 0 ? x->n_contexts : x->n;
    double rate = fmin(1, fmax(0, x->official.mean));
    if (p->group && kvl_result_contexts_cmp(p->group, x)) {
        p->parts2 += p->parts * p->parts;
        p->errors2 += p->errors * p->errors;
        p->parts = p->errors = 0;
    }
    p->group = x;
    p->parts += x->n / sqrt(n_eff);
    p->errors += x->n * sqrt(rate * (1 - rate) / n_eff);
}

void kvl_pool_add(struct kvl_pool *p, const struct kvl_result *x)
{
    if (!(x->n > 0) || isnan(x->official.mean)) return;
    p->n += x->n;
    pool_group(p, x);
    p->right += x->n * x->official.mean;
    if (!isnan(x->recall)) {
        p->recall += x->n * x->recall;
        p->n_recall += x->n;
    }
    if (isnan(x->recall_best.mean)) return;
    p->best += x->n * x->recall_best.mean;
    p->n_best += x->n;
}

bool kvl_summary_has(const struct kvl_summary *s, size_t column, const struct kvl_result *x)
{
    return x->is_cell && kvl_result_block_cmp(x, s->column[column], KVL_SUMMARY_POOLED) == 0;
}

bool kvl_summary_fails(const struct kvl_summary *s, size_t column)
{
    for (size_t i = 0; i < s->n_rows; i++) {
        struct kvl_interval w = kvl_pool_accuracy(&s->row[i].column[column]);
        if (s->row[i].cell[0]->bound != KVL_BOUND_FULL || isnan(w.mean)) continue;
        if (!kvl_report_answers(&w, s->column[column]->chance)) return true;
    }
    return false;
}

struct kvl_interval kvl_pool_accuracy(const struct kvl_pool *p)
{
    if (!(p->n > 0)) return (struct kvl_interval){ KVL_NAN, KVL_NAN, KVL_NAN };
    double rate = p->right / p->n, parts = p->parts2 + p->parts * p->parts;
    double errors = p->errors2 + p->errors * p->errors, n_eff = p->n * p->n / parts;
    if (errors > 0) n_eff = fmin(n_eff, rate * (1 - rate) * p->n * p->n / errors);
    return kvl_wilson(rate, n_eff);
}

double kvl_pool_recall_best(const struct kvl_pool *p)
{
    return p->n_best > 0 ? p->best / p->n_best : KVL_NAN;
}

double kvl_pool_recall(const struct kvl_pool *p)
{
    return p->n_recall > 0 ? p->recall / p->n_recall : KVL_NAN;
}

/* Of the length that all rows are told for, a cell if there is one, timed if any is. */
static const struct kvl_result *row_speaker(const struct kvl_summary *s,
                                            const struct kvl_summary_row *row)
{
    const struct kvl_result *best = NULL;
    for (size_t i = 0; i < row->n; i++) {
        const struct kvl_result *x = row->cell[i];
        if (x->length_tok < s->length_tok || x->length_tok > s->length_tok) continue;
        bool timed = best && best->is_cell == x->is_cell && isnan(best->decode.mean) &&
                     !isnan(x->decode.mean);
        if (!best || timed || (!best->is_cell && x->is_cell)) best = x;
    }
    return best;
}

static int row_fill(const struct kvl_summary *s, struct kvl_summary_row *row)
{
    row->column = kvl_alloc(s->n_columns + 1, sizeof *row->column);
    if (!row->column) return KVL_ENOMEM;
    for (size_t i = 0; i < row->n; i++) {
        const struct kvl_result *x = row->cell[i];
        row->stale |= x->stale;
        for (size_t c = 0; c < s->n_columns; c++) {
            if (!kvl_summary_has(s, c, x)) continue;
            kvl_pool_add(&row->column[c], x);
            kvl_pool_add(&row->all, x);
        }
    }
    row->speaker = row_speaker(s, row);
    return KVL_OK;
}

static int summary_fill(struct kvl_summary *s)
{
    KVL_TRY(summary_columns(s));
    s->length_tok = summary_length(s, true);
    if (isnan(s->length_tok)) s->length_tok = summary_length(s, false);
    s->row = kvl_alloc(s->n, sizeof *s->row);
    if (!s->row) return KVL_ENOMEM;
    for (size_t i = 0, end; i < s->n; i = end) {
        struct kvl_summary_row *row = &s->row[s->n_rows++];
        for (end = i + 1; end < s->n && !kvl_report_row_cmp(s->cell[i], s->cell[end]);) end++;
        row->cell = s->cell + i;
        row->n = end - i;
        KVL_TRY(row_fill(s, row));
    }
    return KVL_OK;
}

static int summaries_fill(const struct kvl_result **cell, size_t n_cells, struct kvl_summary *s,
                          size_t *n)
{
    for (size_t i = 0, end; i < n_cells; i = end) {
        struct kvl_summary *now = &s[(*n)++];
        for (end = i + 1; end < n_cells; end++)
            if (kvl_result_block_cmp(cell[i], cell[end], KVL_SUMMARY_BLOCK)) break;
        now->n = end - i;
        now->cell = kvl_alloc(now->n, sizeof *now->cell);
        if (!now->cell) return KVL_ENOMEM;
        memcpy(now->cell, cell + i, now->n * sizeof *now->cell);
        KVL_TRY(summary_fill(now));
    }
    return KVL_OK;
}

int kvl_summaries(const struct kvl_results *r, struct kvl_summary **out, size_t *n,
                  struct kvl_err *err)
{
    const struct kvl_result **cell = kvl_alloc(r->n + 1, sizeof *cell);
    struct kvl_summary *s = kvl_alloc(r->n + 1, sizeof *s);
    size_t n_cells = 0, n_s = 0;
    int rc = cell && s ? KVL_OK : KVL_ENOMEM;
    for (size_t i = 0; rc == KVL_OK && i < r->n; i++)
        if (!r->result[i].is_text) cell[n_cells++] = &r->result[i];
    if (rc == KVL_OK && n_cells) qsort(cell, n_cells, sizeof *cell, summary_order);
    if (rc == KVL_OK) rc = summaries_fill(cell, n_cells, s, &n_s);
    kvl_free(cell);
    if (rc != KVL_OK) {
        kvl_summaries_free(s, n_s);
        return kvl_fail(err, rc, "no memory for a table of results");
    }
    *out = s;
    *n = n_s;
    return KVL_OK;
}

void kvl_summaries_free(struct kvl_summary *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < s[i].n_rows; k++) kvl_free(s[i].row[k].column);
        kvl_free(s[i].row);
        kvl_free(s[i].column);
        kvl_free(s[i].cell);
    }
    kvl_free(s);
}
