/* Tables of the page. */
#include "lane_recall.h"
#include "page_parts.h"
#include "report.h"
#include "show.h"
#include "text_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- cells of a table ------------------------------------------------------------------------ */

static void page_kl(FILE *out, double v)
{
    if (isnan(v))
        fputs("<td class=none>–</td>", out);
    else
        fprintf(out, "<td data-v=\"%.9g\">%.2g</td>", v, v);
}

/* Bytes read to choose, marked where the row reads more than full attention. */
static void page_index(FILE *out, const struct kvl_result *x, const struct kvl_result *full)
{
    if (!(x->index_read > 0))
        fputs("<td class=none>–</td>", out);
    else
        fprintf(out, "<td data-v=\"%.9g\"%s>%s%s</td>", x->index_read,
                kvl_report_reads_more(x, full)
                    ? " class=more title=\"reads more a token than full attention\""
                    : "",
                kvl_bytes_text(x->index_read).s, kvl_report_reads_more(x, full) ? " !" : "");
}

static void table_name(FILE *out, const struct kvl_result *x, bool stale)
{
    static const char *const kind[] = { [KVL_BOUND_FULL] = "bound",
                                        [KVL_BOUND_NONE] = "",
                                        [KVL_BOUND_RANDOM] = "bound",
                                        [KVL_BOUND_ORACLE] = "bound" };
    fprintf(out, "<th scope=row class=\"name %s\"><a href=\"#method-", kind[x->bound]);
    kvl_page_text(out, x->policy);
    fputs("\">", out);
    kvl_page_text(out, x->label);
    fprintf(out, "</a>%s</th>", stale ? " *" : "");
}

/* Sorted by tokens, those of shares by what they came to. */
static void table_budget(FILE *out, const struct kvl_result *x)
{
    double tokens = isnan(x->budget_tok) ? HUGE_VAL : x->budget_tok;
    fprintf(out, "<td data-v=\"%.9g\">", tokens < HUGE_VAL ? tokens : 1e12);
    kvl_page_text(out, x->budget[0] && strcmp(x->budget, "-") != 0 ? x->budget : "–");
    fputs("</td>", out);
}

/* A name that may be broken behind each underscore and before its options. */
static void head_name(FILE *out, const char *name)
{
    for (; *name; name++) {
        char one[2] = { *name, '\0' };
        if (*name == '(') fputs("<wbr>", out);
        kvl_page_text(out, one);
        if (*name == '_') fputs("<wbr>", out);
    }
}

/* `detail` stands below the name, in small; NULL: nothing does. */
static void table_head_of(FILE *out, const char *name, const char *detail, const char *help)
{
    fputs("<th scope=col", out);
    if (help) {
        fputs(" title=\"", out);
        kvl_page_text(out, help);
        fputs("\"", out);
    }
    fputs("><button type=button>", out);
    head_name(out, name);
    if (detail) {
        fputs("<br><small>", out);
        head_name(out, detail);
        fputs("</small>", out);
    }
    fputs("</button></th>", out);
}

static void table_head(FILE *out, const char *name, const char *help)
{
    table_head_of(out, name, NULL, help);
}

/* ---- the table of all methods ---------------------------------------------------------------- */

/* How many times as fast as the dense row that speed is told for; NaN: there is none, or it was timed elsewhere. */
static double times_dense(const struct kvl_summary *s, const struct kvl_result *told)
{
    for (size_t i = 0; told && i < s->n_rows; i++) {
        const struct kvl_result *dense = s->row[i].speaker;
        if (s->row[i].cell[0]->bound != KVL_BOUND_FULL || !dense) continue;
        return kvl_result_same_setup(told, dense) ? told->decode.mean / dense->decode.mean
                                                  : KVL_NAN;
    }
    return KVL_NAN;
}

static bool has_speed(const struct kvl_summary *s)
{
    for (size_t i = 0; i < s->n_rows; i++)
        if (s->row[i].speaker && !isnan(s->row[i].speaker->decode.mean)) return true;
    return false;
}

static bool has_waits(const struct kvl_summary *s)
{
    for (size_t i = 0; i < s->n_rows; i++)
        if (s->row[i].speaker && !isnan(s->row[i].speaker->waits)) return true;
    return false;
}

/* Whether any row has it: the others of a column that none has are dashes alone. */
static bool has_recall(const struct kvl_summary *s, double (*of)(const struct kvl_pool *))
{
    for (size_t i = 0; i < s->n_rows; i++)
        if (!isnan(of(&s->row[i].all))) return true;
    return false;
}

/* The protocol, and how the prompt was made and answered where that is not the plain way. */
static const char *column_detail(const struct kvl_result *x, char out[160])
{
    snprintf(out, 160, "%s%s%s%s", x->protocol, *x->chat ? ", " : "", x->chat,
             *x->sampling ? ", drawn" : "");
    return out;
}

static void headline_head(const struct kvl_summary *s, bool speed, FILE *out)
{
    char detail[160];
    fputs("<thead><tr>", out);
    table_head(out, "method", NULL);
    table_head(out, "budget", "tokens per lane that the method may leave readable, as asked for");
    if (s->n_columns > 1) table_head(out, "all", "all questions of the row together");
    table_head(out, "read, % of full", "bytes of keys and values per token, choosing included");
    if (has_recall(s, kvl_pool_recall))
        table_head(out, "recall",
                   "share of the evidence attended, mean over the layers and heads that retrieve "
                   "it: in which "
                   "oracle, at its smallest budget, attends half of it or more");
    if (has_recall(s, kvl_pool_recall_best))
        table_head(out, "best layer",
                   "share of answer steps at which some layer attended the evidence needed");
    if (speed) table_head(out, "tok/s", "decoding, at the longest length");
    if (speed) table_head(out, "x full", "the same against full attention");
    if (has_waits(s)) table_head(out, "waits/tok", "how often the host waited for the GPU");
    table_head(out, "KV held", "of one sequence, whole blocks");
    table_head(out, "n", "questions");
    for (size_t c = 0; c < s->n_columns; c++)
        table_head_of(out, s->column[c]->task_label, column_detail(s->column[c], detail),
                      "official accuracy, %, with its 95 % interval");
    fputs("</tr></thead>\n", out);
}

static void headline_row(const struct kvl_summary *s, size_t group,
                         const struct kvl_summary_row *row, bool speed, FILE *out)
{
    const struct kvl_result *x = row->cell[0], *told = row->speaker;
    double tok_s = told ? told->decode.mean : KVL_NAN;
    fputs("<tr>", out);
    table_name(out, x, row->stale);
    table_budget(out, x);
    struct kvl_interval all = kvl_pool_accuracy(&row->all);
    if (s->n_columns > 1) kvl_page_share(out, &all, "");
    kvl_page_number(out, 100 * kvl_page_read_share(s, row), 1);
    if (has_recall(s, kvl_pool_recall)) kvl_page_number(out, kvl_pool_recall(&row->all), 2);
    if (has_recall(s, kvl_pool_recall_best))
        kvl_page_number(out, kvl_pool_recall_best(&row->all), 2);
    if (speed) kvl_page_number(out, tok_s, tok_s < 100 ? 1 : 0);
    if (speed) kvl_page_number(out, times_dense(s, told), 2);
    if (has_waits(s)) kvl_page_number(out, told ? told->waits : KVL_NAN, 1);
    kvl_page_bytes(out, told ? told->kv_physical : KVL_NAN);
    kvl_page_number(out, row->all.n, 0);
    for (size_t c = 0; c < s->n_columns; c++) {
        struct kvl_interval v = kvl_pool_accuracy(&row->column[c]);
        kvl_page_share(out, &v, kvl_page_anchor(group, c).s);
    }
    fputs("</tr>\n", out);
}

/* Tasks that full attention itself fails. */
static void headline_fails(const struct kvl_summary *s, FILE *out)
{
    for (size_t c = 0; c < s->n_columns; c++) {
        if (!kvl_summary_fails(s, c)) continue;
        fputs("<p><b>", out);
        kvl_page_text(out, s->column[c]->task_label);
        fputs("</b>: full is not 10 points above chance; nothing can be concluded about methods "
              "there.</p>\n",
              out);
    }
}

void kvl_page_headline(const struct kvl_results *r, const struct kvl_summary *s, size_t group,
                       FILE *out)
{
    bool speed = has_speed(s);
    fputs("<div class=wide><table class=sort>", out);
    headline_head(s, speed, out);
    fputs("<tbody>\n", out);
    for (size_t i = 0; i < s->n_rows; i++) headline_row(s, group, &s->row[i], speed, out);
    fputs("</tbody></table></div>\n", out);
    if (!has_recall(s, kvl_pool_recall))
        fprintf(out, "<p class=note>No recall: %s.</p>\n", kvl_lanes_lack(r, s->cell, s->n));
    headline_fails(s, out);
}

/* ---- a task ---------------------------------------------------------------------------------- */

enum { MAX_LENGTHS = 256, MAX_PROTOCOLS = 8 };

/* The lengths of a task, ascending. */
static size_t task_lengths(const struct kvl_summary *s, size_t column, double *length)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        size_t at = 0;
        double x = s->cell[i]->length_tok;
        if (!kvl_summary_has(s, column, s->cell[i]) || isnan(x)) continue;
        while (at < n && length[at] < x) at++;
        if ((at < n && length[at] <= x) || n == MAX_LENGTHS) continue;
        memmove(length + at + 1, length + at, (n++ - at) * sizeof *length);
        length[at] = x;
    }
    return n;
}

/* Depths pooled. */
static struct kvl_interval task_at(const struct kvl_summary *s, size_t column,
                                   const struct kvl_summary_row *row, double length)
{
    struct kvl_pool pool = { 0 };
    for (size_t i = 0; i < row->n; i++) {
        const struct kvl_result *x = row->cell[i];
        bool here = x->length_tok >= length && x->length_tok <= length;
        if (here && kvl_summary_has(s, column, x)) kvl_pool_add(&pool, x);
    }
    return kvl_pool_accuracy(&pool);
}

/* The columns of a summary that are one task: its protocols. */
struct task {
    const struct kvl_summary *s;
    size_t column[MAX_PROTOCOLS], n;
};

static bool task_same(const struct kvl_summary *s, size_t a, size_t b)
{
    return kvl_result_block_cmp(s->column[a], s->column[b],
                                KVL_SUMMARY_POOLED | KVL_BLOCK_PROTOCOL) == 0;
}

static bool task_has(const struct task *t, const struct kvl_result *x)
{
    bool has = false;
    for (size_t k = 0; k < t->n; k++) has |= kvl_summary_has(t->s, t->column[k], x);
    return has;
}

static bool task_row(const struct task *t, const struct kvl_summary_row *row)
{
    bool has = false;
    for (size_t k = 0; k < t->n; k++) has |= row->column[t->column[k]].n > 0;
    return has;
}

/* A column per protocol and length.  `cells` names what stands below: the numbers link to it. */
static void task_matrix(const struct task *t, const char *cells, FILE *out)
{
    const struct kvl_summary *s = t->s;
    double length[MAX_PROTOCOLS][MAX_LENGTHS + 1];
    size_t n[MAX_PROTOCOLS];
    fputs("<div class=wide><table class=sort><thead><tr>", out);
    table_head(out, "method", NULL);
    table_head(out, "budget", NULL);
    for (size_t p = 0; p < t->n; p++) {
        n[p] = task_lengths(s, t->column[p], length[p]);
        for (size_t k = 0; k < n[p]; k++) {
            char name[32];
            snprintf(name, sizeof name, "%.0f tokens", length[p][k]);
            table_head_of(out, name, s->column[t->column[p]]->protocol,
                          "official accuracy, %, with its 95 % interval");
        }
    }
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < s->n_rows; i++) {
        if (!task_row(t, &s->row[i])) continue;
        fputs("<tr>", out);
        table_name(out, s->row[i].cell[0], s->row[i].stale);
        table_budget(out, s->row[i].cell[0]);
        for (size_t p = 0; p < t->n; p++)
            for (size_t k = 0; k < n[p]; k++) {
                struct kvl_interval v = task_at(s, t->column[p], &s->row[i], length[p][k]);
                kvl_page_share(out, &v, cells);
            }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

static void cell_row(const struct kvl_result *x, const struct kvl_result *full, FILE *out)
{
    fputs("<tr>", out);
    table_name(out, x, x->stale);
    table_budget(out, x);
    fputs("<td>", out);
    kvl_page_text(out, x->protocol);
    fputs("</td>", out);
    kvl_page_number(out, x->length_tok, 0);
    kvl_page_number(out, x->depth, 2);
    kvl_page_share(out, &x->official, "");
    kvl_page_share(out, &x->strict, "");
    kvl_page_number(out, x->recall, 2);
    kvl_page_number(out, x->recall_best.mean, 2);
    kvl_page_number(out, x->attended_tok, 0);
    kvl_page_number(out, x->dense_tok, 0);
    page_kl(out, x->kl.mean);
    kvl_page_number(out, 100 * x->top1.mean, 1);
    kvl_page_bytes(out, x->kv_read);
    page_index(out, x, full);
    if (isnan(x->n_planned))
        kvl_page_number(out, x->n, 0);
    else
        fprintf(out, "<td data-v=\"%.0f\">%.0f of %.0f</td>", x->n, x->n, x->n_planned);
    kvl_page_number(out, x->n_contexts, 0);
    kvl_page_number(out, x->n_errors, 0);
    fputs("<td><code>", out);
    kvl_page_text(out, x->id);
    fputs("</code></td></tr>\n", out);
}

static void task_cells(const struct task *t, const char *id, FILE *out)
{
    static const char *const head[] = { "method",     "budget",     "protocol",  "length",
                                        "depth",      "official %", "strict %",  "recall",
                                        "best layer", "attended",   "dense",     "KL",
                                        "top-1 %",    "read/tok",   "index/tok", "n",
                                        "contexts",   "failed",     "cell" };
    fprintf(out,
            "<details id=\"%s\"><summary>All cells</summary><div class=wide><table class=sort>"
            "<thead><tr>",
            id);
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) table_head(out, head[i], NULL);
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < t->s->n; i++)
        if (task_has(t, t->s->cell[i]))
            cell_row(t->s->cell[i], kvl_page_dense(t->s, t->s->cell[i]), out);
    fputs("</tbody></table></div></details>\n", out);
}

/* Of benchmark files: whose score it is, what the cut took, what is right without the context. */
static void task_files(const struct kvl_results *r, const struct kvl_summary *s, size_t column,
                       FILE *out)
{
    double lost = 0;
    const struct kvl_result *control = NULL;
    for (size_t i = 0; i < s->n; i++) {
        if (!kvl_summary_has(s, column, s->cell[i])) continue;
        lost = fmax(lost, kvl_report_lost(s->cell[i], 1));
        if (!control) control = kvl_report_no_context(r, s->cell[i]);
    }
    const char *unofficial = kvl_report_unofficial(s->column[column]);
    if (unofficial) {
        fputs("<p><b>not official</b>, a score of kvlab's: ", out);
        kvl_page_text(out, unofficial);
        fputs(".</p>\n", out);
    }
    if (lost > 0)
        fprintf(out,
                "<p><b>evidence lost</b>: of %.0f questions it was cut off before any policy read "
                "it.</p>\n",
                lost);
    if (control)
        fprintf(out,
                "<p><b>no context</b>: asked without it, whatever the policy, %.1f %% are right "
                "(%s, %.0f tokens).</p>\n",
                100 * control->official.mean,
                kvl_percent_span(control->official.lo, control->official.hi, 0, "–").s,
                control->length_tok);
}

void kvl_page_task(const struct kvl_results *r, const struct kvl_summary *s, size_t group,
                   size_t column, FILE *out)
{
    const struct kvl_result *x = s->column[column];
    struct task t = { .s = s };
    char cells[80];
    for (size_t c = 0; c < column; c++)
        if (task_same(s, c, column)) return; /* its table has this protocol, too */
    snprintf(cells, sizeof cells, "%s-cells", kvl_page_anchor(group, column).s);
    fputs("<section class=task><h3>", out);
    for (size_t c = column; c < s->n_columns && t.n < MAX_PROTOCOLS; c++) {
        if (!task_same(s, c, column)) continue;
        t.column[t.n++] = c;
        fprintf(out, "<a id=\"%s\"></a>", kvl_page_anchor(group, c).s);
    }
    kvl_page_text(out, x->task_label);
    fputs("</h3>\n", out);
    if (x->chance >= 0.0001)
        fprintf(out, "<p>Without the context %.2g %% are right.</p>\n", 100 * x->chance);
    task_files(r, s, column, out);
    task_matrix(&t, cells, out);
    for (size_t k = 0; k < t.n; k++) kvl_page_maps(s, t.column[k], out);
    task_cells(&t, cells, out);
    fputs("</section>\n", out);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void text_block(const struct kvl_result *x, size_t n, FILE *out)
{
    static const char *const head[] = { "method",    "budget",    "attended", "perplexity",
                                        "95 % from", "to",        "KL",       "top-1 %",
                                        "read/tok",  "index/tok", "texts" };
    const struct kvl_result *full = kvl_report_dense(x, n);
    fputs("<h3>", out);
    kvl_page_text(out, x->task_label);
    fprintf(out, " <small>%.0f tokens</small></h3>\n<div class=wide><table class=sort><thead><tr>",
            x->length_tok);
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) table_head(out, head[i], NULL);
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < n; i++) {
        fputs("<tr>", out);
        table_name(out, &x[i], x[i].stale);
        table_budget(out, &x[i]);
        kvl_page_number(out, x[i].attended_tok, 0);
        kvl_page_number(out, x[i].ppl.mean, 3);
        kvl_page_number(out, x[i].ppl.lo, 3);
        kvl_page_number(out, x[i].ppl.hi, 3);
        page_kl(out, x[i].kl.mean);
        kvl_page_number(out, 100 * x[i].top1.mean, 1);
        kvl_page_bytes(out, x[i].kv_read);
        page_index(out, &x[i], full);
        kvl_page_number(out, x[i].n, 0);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

void kvl_page_texts(const struct kvl_results *r, FILE *out)
{
    bool any = false;
    for (size_t i = 0, end; i < r->n; i = end) {
        for (end = i + 1; end < r->n; end++)
            if (!kvl_page_same_block(&r->result[i], &r->result[end])) break;
        if (!r->result[i].is_text) continue;
        if (!any) fputs("<section id=texts><h2>Perplexity of texts</h2>\n", out);
        any = true;
        text_block(&r->result[i], end - i, out);
    }
    if (any) fputs("</section>\n", out);
}
