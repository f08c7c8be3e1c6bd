/* Cells of the page's tables: texts, numbers, shares. */
#include "page_parts.h"
#include "show.h"
#include "text_table.h"

#include <string.h>

void kvl_page_text(FILE *out, const char *s)
{
    kvl_show(out, KVL_SHOW_HTML, s);
}

void kvl_page_number(FILE *out, double value, int decimals)
{
    if (isnan(value))
        fputs("<td class=none>–</td>", out);
    else
        fprintf(out, "<td data-v=\"%.9g\">%.*f</td>", value, decimals, value);
}

void kvl_page_bytes(FILE *out, double bytes)
{
    if (isnan(bytes))
        fputs("<td class=none>–</td>", out);
    else
        fprintf(out, "<td data-v=\"%.9g\">%s</td>", bytes, kvl_bytes_text(bytes).s);
}

void kvl_page_share(FILE *out, const struct kvl_interval *v, const char *link)
{
    if (isnan(v->mean)) {
        fputs("<td class=none>–</td>", out);
        return;
    }
    fprintf(out, "<td class=share style=\"--p:%.3f\" data-v=\"%.9g\">", v->mean, v->mean);
    if (*link) fprintf(out, "<a href=\"#%s\">", link);
    fprintf(out, "%.1f", 100 * v->mean);
    if (*link) fputs("</a>", out);
    if (!isnan(v->lo) && !isnan(v->hi))
        fprintf(out, " <small>%s</small>", kvl_percent_span(v->lo, v->hi, 0, "–").s);
    fputs("</td>", out);
}

struct kvl_page_anchor kvl_page_anchor(size_t group, size_t column)
{
    struct kvl_page_anchor a = { "" };
    if (group == KVL_PAGE_NO_GROUP) return a;
    snprintf(a.s, sizeof a.s, "m%zu-t%zu", group + 1, column + 1);
    return a;
}

bool kvl_page_same_block(const struct kvl_result *a, const struct kvl_result *b)
{
    return kvl_result_block_cmp(a, b, 0) == 0;
}

const struct kvl_result *kvl_page_dense(const struct kvl_summary *s, const struct kvl_result *x)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->cell[i]->bound == KVL_BOUND_FULL && s->cell[i]->is_cell &&
            kvl_page_same_block(s->cell[i], x))
            return s->cell[i];
    return NULL;
}

static double read_bytes(const struct kvl_result *x)
{
    return x->kv_read + (x->index_read > 0 ? x->index_read : 0);
}

double kvl_page_read_share(const struct kvl_summary *s, const struct kvl_summary_row *row)
{
    double own = 0, full = 0;
    for (size_t i = 0; i < row->n; i++) {
        const struct kvl_result *x = row->cell[i];
        const struct kvl_result *dense = x->is_cell && x->n > 0 ? kvl_page_dense(s, x) : NULL;
        if (!dense || isnan(x->kv_read) || isnan(dense->kv_read)) continue;
        own += x->n * read_bytes(x);
        full += x->n * read_bytes(dense);
    }
    return full > 0 ? own / full : KVL_NAN;
}
