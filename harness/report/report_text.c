/* Tables of texts: perplexity per policy and budget. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kvl_column text_columns[] = {
    { "policy", true },    { "budget", false },    { "attended", false }, { "dense", false },
    { "ppl", false },      { "95 % from", false }, { "to", false },       { "nll", false },
    { "KL", false },       { "from", false },      { "to", false },       { "top-1 %", false },
    { "tok/s", false },    { "waits/tok", false }, { "read/tok", false }, { "index/tok", false },
    { "host/tok", false }, { "at host", false },   { "KV held", false },  { "failed", false },
};

/* KL in two digits: it spans decades. */
static void text_kl(struct kvl_table *t, double v)
{
    if (isnan(v))
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%.2g", v);
}

static void text_row(struct kvl_table *t, const struct kvl_result *x, const struct kvl_result *full)
{
    kvl_report_name(t, x);
    kvl_report_budget(t, x);
    kvl_table_number(t, x->attended_tok, 0);
    kvl_table_number(t, x->dense_tok, 0);
    kvl_table_number(t, x->ppl.mean, 3);
    kvl_table_number(t, x->ppl.lo, 3);
    kvl_table_number(t, x->ppl.hi, 3);
    kvl_table_number(t, x->nll.mean, 4);
    text_kl(t, x->kl.mean);
    text_kl(t, x->kl.lo);
    text_kl(t, x->kl.hi);
    kvl_table_number(t, 100 * x->top1.mean, 1);
    kvl_table_number(t, x->decode.mean, x->decode.mean < 100 ? 1 : 0);
    kvl_table_number(t, x->waits, 1);
    kvl_table_bytes(t, x->kv_read);
    kvl_report_index(t, x, full);
    kvl_table_bytes(t, x->h2d > 0 ? x->h2d : KVL_NAN);
    kvl_table_bytes(t, x->host_attend > 0 ? x->host_attend : KVL_NAN);
    kvl_report_held(t, x);
    if (x->n_errors > 0)
        kvl_table_add(t, "%.0f", x->n_errors);
    else
        kvl_table_add(t, "-");
}

/* How the text was read, as far as the options tell. */
static const char *text_mode(const struct kvl_result *x)
{
    if (strstr(x->task_options, "mode=decode")) return "read token by token from the first one on";
    if (strstr(x->task_options, "mode=chunk"))
        return "read in chunks under the policy (what a chunk evicts is evicted at its end)";
    return "prefilled densely, then decoded under the policy with the text's own tokens";
}

static void text_notes(const struct kvl_result *x, FILE *out)
{
    fprintf(out, "  %.0f tokens of %.0f text%s, %s", x->n_tok, x->n, x->n == 1 ? "" : "s",
            text_mode(x));
    if (isnan(x->ppl.lo))
        fputs("\n", out);
    else if (x->over_blocks)
        fputs("; intervals: over stretches of the one text\n", out);
    else
        fputs("; intervals: over texts\n", out);
    if (!isnan(x->kl.mean))
        fputs(
            "  KL: nats between the next token of full attention and that of the policy, mean over "
            "the tokens; top-1: tokens of which both have the same best\n",
            out);
}

/* What stands under the table. */
static int text_below(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                      struct kvl_err *err)
{
    char *text = NULL;
    size_t len;
    FILE *below = open_memstream(&text, &len);
    if (!below) return kvl_fail(err, KVL_ENOMEM, "no memory for the notes of a table");
    kvl_report_missing(x, n, below);
    kvl_report_more(x, n, below);
    const struct kvl_result *most = x; /* a row may lack texts that failed */
    for (size_t i = 1; i < n; i++)
        if (x[i].n > most->n) most = &x[i];
    text_notes(most, below);
    bool failed = fclose(below) != 0;
    if (!failed) kvl_report_lines(text, form, out);
    free(text);
    return failed ? kvl_fail(err, KVL_ENOMEM, "no memory for the notes of a table") : KVL_OK;
}

int kvl_report_texts(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                     struct kvl_err *err)
{
    struct kvl_table t = { .form = form,
                           .column = text_columns,
                           .n_columns = sizeof text_columns / sizeof text_columns[0] };
    kvl_report_block(x, KVL_BLOCK_PROTOCOL, form, out);
    for (size_t i = 0; i < n; i++) text_row(&t, &x[i], kvl_report_dense(x, n));
    int rc = kvl_table_print(&t, 2, out, err);
    kvl_table_free(&t);
    if (rc == KVL_OK) rc = text_below(x, n, form, out, err);
    fputc('\n', out);
    return rc;
}
