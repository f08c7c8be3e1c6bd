/* The table of a sweep. */
#include "report.h"

#include "results_amount.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- headlines ----------------------------------------------------------------------------- */

/* ---- rows ---------------------------------------------------------------------------------- */

enum { REPORT_OFFICIAL = 4 }; /* its column */

static const struct kvl_column report_columns[] = {
    { "policy", true },     { "budget", false },    { "attended", false }, { "dense", false },
    { "official %", true }, { "strict %", true },   { "recall", false },   { "best layer", false },
    { "KL", false },        { "top-1 %", false },   { "tok/s", false },    { "waits/tok", false },
    { "read/tok", false },  { "index/tok", false }, { "host/tok", false }, { "at host", false },
    { "KV held", false },

    { "n/ctx", false },     { "failed", false },
};

/* "92.0 86-95": a share in percent and its interval. */
static void add_share(struct kvl_table *t, const struct kvl_interval *v)
{
    if (isnan(v->mean))
        kvl_table_add(t, "-");
    else if (isnan(v->lo) || isnan(v->hi))
        kvl_table_add(t, "%5.1f", 100 * v->mean);
    else
        kvl_table_add(t, "%5.1f %s", 100 * v->mean, kvl_percent_span(v->lo, v->hi, 2, "-").s);
}

void kvl_report_compared(struct kvl_table *t, const struct kvl_result *x)
{
    if (isnan(x->kl.mean))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%.2g", x->kl.mean);
    kvl_table_number(t, 100 * x->top1.mean, 1);
}

static void add_row(struct kvl_table *t, const struct kvl_result *x, const struct kvl_result *full,
                    bool strict)
{
    kvl_report_name(t, x);
    kvl_report_budget(t, x);
    kvl_table_number(t, x->attended_tok, 0);
    kvl_table_number(t, x->dense_tok, 0);
    add_share(t, &x->official);
    if (strict)
        add_share(t, &x->strict);
    else
        kvl_table_add(t, "-");
    kvl_table_number(t, x->recall, 2);
    kvl_table_number(t, x->recall_best.mean, 2);
    kvl_report_compared(t, x);
    kvl_table_number(t, x->decode.mean, x->decode.mean < 100 ? 1 : 0);
    kvl_table_number(t, x->waits, 1);
    kvl_table_bytes(t, x->kv_read);
    kvl_report_index(t, x, full);
    kvl_table_bytes(t, x->h2d > 0 ? x->h2d : KVL_NAN);
    kvl_table_bytes(t, x->host_attend > 0 ? x->host_attend : KVL_NAN);
    kvl_report_held(t, x);
    double n = isnan(x->n) ? 0 : x->n, contexts = isnan(x->n_contexts) ? 0 : x->n_contexts;
    if (!x->is_cell)
        kvl_table_add(t, "-");
    else if (isnan(x->n_planned))
        kvl_table_add(t, "%.0f/%.0f", n, contexts);
    else
        kvl_table_add(t, "%.0f/%.0f of %.0f", n, contexts, x->n_planned);
    if (x->n_errors > 0)
        kvl_table_add(t, "%.0f", x->n_errors);
    else
        kvl_table_add(t, "-");
}

/* ---- blocks -------------------------------------------------------------------------------- */

void kvl_report_chat(const struct kvl_result *x, FILE *out)
{
    if (*x->sampling) fprintf(out, "  answers drawn: %s\n", x->sampling);
    if (!*x->chat) return;
    fprintf(out, "  chat template: %s", x->chat);
    if (*x->system) fprintf(out, ", system text: \"%s\"", x->system);
    fputc('\n', out);
}

bool kvl_report_answers(const struct kvl_interval *full, double chance)
{
    double least = isnan(full->lo) ? full->mean : full->lo;
    return least > (isnan(chance) ? 0.0 : chance) + KVL_FULL_MARGIN;
}

void kvl_report_full(const struct kvl_result *x, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++)
        if (x[i].bound == KVL_BOUND_FULL && x[i].is_cell && !isnan(x[i].official.mean) &&
            !kvl_report_answers(&x[i].official, x[i].chance)) {
            fprintf(out,
                    "  ! full is right in %.1f %%: not 10 points above chance; nothing can be "
                    "concluded about methods here\n",
                    100 * x[i].official.mean);
            return;
        }
}

/* Whether some row of a block has a strict score that is not the official one. */
static bool block_strict(const struct kvl_result *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isnan(x[i].strict.mean) && x[i].strict.mean != x[i].official.mean) return true;
    return false;
}

static int print_block(const struct kvl_results *r, const struct kvl_result *x, size_t n, FILE *out,
                       struct kvl_err *err)
{
    bool strict = block_strict(x, n);
    struct kvl_column column[sizeof report_columns / sizeof report_columns[0]];
    struct kvl_table t = { .column = column,
                           .n_columns = sizeof report_columns / sizeof report_columns[0] };
    memcpy(column, report_columns, sizeof report_columns);
    if (kvl_report_unofficial(x)) column[REPORT_OFFICIAL].name = "not official %";
    kvl_report_block(x, 0, KVL_TABLE_TEXT, out);
    for (size_t i = 0; i < n; i++) add_row(&t, &x[i], kvl_report_dense(x, n), strict);
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    kvl_report_missing(x, n, out);
    kvl_report_more(x, n, out);
    kvl_report_files(r, x, n, out);
    kvl_report_chat(x, out);
    kvl_report_full(x, n, out);
    if (x->chance > 0) fprintf(out, "  without the context: %.2g %% right\n", 100 * x->chance);
    fputc('\n', out);
    return rc;
}

int kvl_report_print(const struct kvl_results *r, FILE *out, struct kvl_err *err)
{
    bool alike = false;
    for (size_t i = 0, end; i < r->n; i = end) {
        for (end = i + 1; end < r->n; end++)
            if (kvl_result_block_cmp(&r->result[i], &r->result[end], 0)) break;
        alike |= !isnan(r->result[i].strict.mean) && !block_strict(&r->result[i], end - i);
        const struct kvl_result *x = &r->result[i];
        KVL_TRY(x->is_text ? kvl_report_texts(x, end - i, KVL_TABLE_TEXT, out, err)
                           : print_block(r, x, end - i, out, err));
    }
    const char *id;
    json_t *analysis;
    json_object_foreach(r->analyses, id, analysis) KVL_TRY(kvl_report_analysis(analysis, out, err));
    if (alike) fputs("A table without strict %: it is official % in every row.\n", out);
    return kvl_report_notes(r, KVL_TABLE_TEXT, out, err);
}

/* ---- notes --------------------------------------------------------------------------------- */

void kvl_report_damage(const struct kvl_log_health *h, FILE *out)
{
    for (size_t i = 0; i < h->n_damage; i++) {
        const struct kvl_log_damage *d = &h->damage[i];
        fprintf(out, "%s: offset %llu, %llu bytes: %s", d->path, (unsigned long long)d->offset,
                (unsigned long long)d->bytes, d->tail ? "no complete group at the end" : d->what);
        if (d->sequence >= 0) fprintf(out, ", sequence %lld", (long long)d->sequence);
        if (d->n_groups >= 0) fprintf(out, ", groups lost: %lld", (long long)d->n_groups);
        if (d->n_records >= 0) fprintf(out, ", records lost: %lld", (long long)d->n_records);
        fputc('\n', out);
    }
    if (h->n_bad_lines)
        fprintf(out, "%llu lines are no JSON objects\n", (unsigned long long)h->n_bad_lines);
}

enum { MAX_SHOWN = 8 };

static void report_failures(json_t *failures, FILE *out)
{
    size_t shown = 0, more = 0;
    const char *message;
    json_t *n;
    json_object_foreach(failures, message, n)
    {
        if (json_integer_value(n) == 0) continue; /* answered later */
        if (shown++ < MAX_SHOWN)
            fprintf(out, "  %" JSON_INTEGER_FORMAT " x %s\n", json_integer_value(n), message);
        else
            more++;
    }
    if (more) fprintf(out, "  and %zu more message%s\n", more, more == 1 ? "" : "s");
}

static bool error_same(const json_t *x, const json_t *y)
{
    static const char *const fields[] = { "policy", "status", "message" };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strcmp(kvl_json_text(x, fields[i]), kvl_json_text(y, fields[i])) != 0) return false;
    return true;
}

const char *kvl_error_policy(const json_t *error)
{
    const char *policy = kvl_json_text(error, "policy");
    const char *message = kvl_json_text(error, "message");
    size_t len = strlen(policy);
    bool named = strncmp(message, policy, len) == 0 && message[len] != '_' &&
                 !isalnum((unsigned char)message[len]);
    return named ? "" : policy;
}

size_t kvl_errors_same(const json_t *errors, size_t i)
{
    const json_t *e = json_array_get(errors, i);
    size_t same = 0;
    for (size_t j = 0; j < json_array_size(errors); j++) {
        bool equal = error_same(e, json_array_get(errors, j));
        if (equal && j < i) return 0;
        same += equal;
    }
    return same;
}

static void report_cells(const json_t *errors, FILE *out)
{
    size_t n = json_array_size(errors), shown = 0, more = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(errors, i);
        size_t same = kvl_errors_same(errors, i);
        if (same && shown++ < 2 * MAX_SHOWN)
            fprintf(out, "  %zu x %s: %s%s%s\n", same, kvl_json_text(e, "status"),
                    kvl_error_policy(e), *kvl_error_policy(e) ? ": " : "",
                    kvl_json_text(e, "message"));
        else if (same)
            more++;
    }
    if (more) fprintf(out, "  and %zu more message%s\n", more, more == 1 ? "" : "s");
}

void kvl_report_errors(const struct kvl_results *r, FILE *out)
{
    size_t n = json_array_size(r->errors), failed = r->n_failed_samples;
    if (n) fprintf(out, "%zu error%s:\n", n, n == 1 ? "" : "s");
    report_cells(r->errors, out);
    if (!failed) return;
    fprintf(out,
            "%zu of %zu samples failed; they count neither as right nor as wrong, sweep --retry "
            "asks them again:\n",
            failed, r->n_samples);
    report_failures(r->failures, out);
}

static void notes_bounds(const struct kvl_results *r, FILE *out)
{
    bool there[KVL_BOUND_ORACLE + 1] = { false };
    for (size_t i = 0; i < r->n; i++) there[r->result[i].bound] = true;
    if (there[KVL_BOUND_FULL] || there[KVL_BOUND_RANDOM] || there[KVL_BOUND_ORACLE])
        fputs("Bounds, not methods: full reads everything, random reads a random set of the "
              "budget's size,\noracle reads the tokens of the largest attention weights.\n",
              out);
}

static void notes_recall(const struct kvl_results *r, FILE *out)
{
    bool known = false, best = false;
    for (size_t i = 0; i < r->n; i++) {
        known |= !isnan(r->result[i].recall);
        best |= !isnan(r->result[i].recall_best.mean);
    }
    if (known)
        fputs(
            "recall: share of the evidence attended, mean over the layers and heads that retrieve "
            "it: in which oracle,\nat its smallest budget, attends half of it or more. best layer: "
            "share "
            "of answer steps at which one layer attended it.\n",
            out);
    else if (best)
        fputs("best layer: share of answer steps at which the best layer attended the evidence. "
              "recall, over "
              "the heads that\nretrieve, wants samples and the policy oracle in the log.\n",
              out);
}

static void notes_print(const struct kvl_results *r, FILE *out)
{
    if (r->n == 0 && json_object_size(r->analyses) == 0)
        fputs("No result yet: the log has no cell and no speed record.\n", out);
    notes_bounds(r, out);
    if (r->n)
        fputs("Intervals: 95 %, questions clustered in contexts. KV held: live slots / whole "
              "blocks of "
              "one sequence.\n",
              out);
    notes_recall(r, out);
    kvl_report_stale(r, KVL_TABLE_TEXT, out);
    if (kvl_report_has(r, KVL_DETAIL_STAGES))
        fputs("Stages of answers: kvlab report --stages.\n", out);
    if (kvl_report_has(r, KVL_DETAIL_QUALITY))
        fputs("Quality of the choice: kvlab report --quality.\n", out);
    if (kvl_report_has(r, KVL_DETAIL_METHOD))
        fputs("What methods count themselves: kvlab report --method.\n", out);
    kvl_report_method_notes(r, out);
    if (r->n_partial)
        fprintf(out,
                "Not finished: %zu cell%s, of which the table shows what there is so far, n of how "
                "many; the sweep goes on with %s.\n",
                r->n_partial, r->n_partial == 1 ? "" : "s", r->n_partial == 1 ? "it" : "them");
    if (r->n_unfinished)
        fprintf(out, "Cut off and not in the table: %zu cell%s; the sweep goes on with %s.\n",
                r->n_unfinished, r->n_unfinished == 1 ? "" : "s",
                r->n_unfinished == 1 ? "it" : "them");
    if (r->n_stopped)
        fprintf(
            out,
            "Stopped by an error and not in the table: %zu cell%s; sweep --retry tries again.\n",
            r->n_stopped, r->n_stopped == 1 ? "" : "s");
    if (r->n_all > r->n)
        fprintf(out,
                "%zu cell%s not in the tables: another cell of the same point has more contexts or "
                "questions, or is newer.\n",
                r->n_all - r->n, r->n_all - r->n == 1 ? " is" : "s are");
    if (r->n_setups > 1)
        fputs("Speed was measured on several machines or with several numbers of threads; compare "
              "within one only.\nCells show that of their own run where there is any.\n",
              out);
    kvl_report_errors(r, out);
    if (r->health.n_damage || r->health.n_bad_lines) fputs("The log is not whole:\n", out);
    kvl_report_damage(&r->health, out);
}

int kvl_report_notes(const struct kvl_results *r, enum kvl_table_form form, FILE *out,
                     struct kvl_err *err)
{
    char *text = NULL;
    size_t len;
    FILE *notes = open_memstream(&text, &len);
    int rc = notes ? kvl_results_partial(r, "The log is ", notes, err) : KVL_OK;
    if (notes) notes_print(r, notes);
    bool failed = !notes || fclose(notes) != 0;
    if (!failed) kvl_report_lines(text, form, out);
    free(text);
    KVL_TRY(rc);
    return failed ? kvl_fail(err, KVL_ENOMEM, "no memory for the notes of a table") : KVL_OK;
}
