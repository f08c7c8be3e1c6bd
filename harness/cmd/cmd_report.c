/* kvlab report: the table of a log. */
#include "args.h"
#include "cmds.h"
#include "export.h"
#include "report.h"
#include "report_html.h"
#include "results_amount.h"

#include <stdio.h>
#include <string.h>

enum {
    REPORT_BY = 0x300,
    REPORT_CSV,
    REPORT_VS,
    REPORT_SUMMARY,
    REPORT_STAGES,
    REPORT_EVIDENCE,
    REPORT_QUALITY,
    REPORT_METHOD,
    REPORT_HTML,
    REPORT_FORMAT,
    REPORT_OUT = 'o'
};

struct report_args {
    struct kvl_args base;
    char **log;
    size_t n_logs;
    unsigned by; /* an enum kvl_block_key or 0 */
    const char *vs, *html, *out;
    enum kvl_table_form form;
    bool csv, summary, detail;
    enum kvl_detail which; /* of detail */
};

static const struct argp_option report_options[] = {
    { "by", REPORT_BY, "KEY", 0,
      "official accuracy with one column per task, protocol, length or depth (of evidence at "
      "random depths: per quarter of the context)",
      0 },
    { "vs", REPORT_VS, "POLICY", 0, "differences to a policy on the same questions", 0 },
    { "summary", REPORT_SUMMARY, NULL, 0, "one row per policy and budget, lengths pooled", 0 },
    { "evidence", REPORT_EVIDENCE, NULL, 0, "evidence attended or not, against answer right or not",
      0 },
    { "quality", REPORT_QUALITY, NULL, 0,
      "what was chosen against full attention, where the sweep asked for it", 0 },
    { "method", REPORT_METHOD, NULL, 0, "what methods count themselves (cache hits, loads ...)",
      0 },
    { "stages", REPORT_STAGES, NULL, 0, "scores of the stages of answers (two_stage_retr)", 0 },
    { "csv", REPORT_CSV, NULL, 0, "all cells as CSV (the same as export --format csv)", 0 },
    { "format", REPORT_FORMAT, "FORM", 0,
      "text; csv: all cells; html: the page, with --out; markdown or latex of --summary; any but "
      "html of --by, --vs, --stages, --evidence, --quality and --method",
      0 },
    { "out", REPORT_OUT, "FILE", 0, "where --format html goes", 0 },
    { "html", REPORT_HTML, "FILE|DIR/", 0,
      "one page for a browser: tables that sort, charts, cards of the methods, settings, errors.  "
      "A "
      "folder (its name ends in /, or it is there): a page per log and an index.html, with all "
      "methods per model",
      0 },
    { 0 }
};

static int report_by_parse(struct report_args *a, const char *word)
{
    static const struct {
        const char *name;
        enum kvl_block_key key;
    } keys[] = { { "task", KVL_BLOCK_TASK },
                 { "protocol", KVL_BLOCK_PROTOCOL },
                 { "length", KVL_BLOCK_LENGTH },
                 { "depth", KVL_BLOCK_DEPTH } };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(word, keys[i].name) != 0) continue;
        a->by = keys[i].key;
        return KVL_OK;
    }
    return kvl_fail(a->base.err, KVL_EINVAL, "--by %s: want task, protocol, length or depth", word);
}

static int report_detail_parse(struct report_args *a, enum kvl_detail which)
{
    if (a->detail)
        return kvl_fail(a->base.err, KVL_EINVAL,
                        "--stages, --evidence, --quality and --method: want one at a time");
    a->detail = true;
    a->which = which;
    return KVL_OK;
}

static error_t report_parse(int key, char *arg, struct argp_state *state)
{
    struct report_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case REPORT_BY: rc = report_by_parse(a, arg); break;
    case REPORT_VS: a->vs = arg; break;
    case REPORT_CSV: a->csv = true; break;
    case REPORT_HTML: a->html = arg; break;
    case REPORT_FORMAT: rc = kvl_table_form_parse(arg, &a->form, a->base.err); break;
    case REPORT_OUT: a->out = arg; break;
    case REPORT_SUMMARY: a->summary = true; break;
    case REPORT_STAGES: rc = report_detail_parse(a, KVL_DETAIL_STAGES); break;
    case REPORT_EVIDENCE: rc = report_detail_parse(a, KVL_DETAIL_EVIDENCE); break;
    case REPORT_QUALITY: rc = report_detail_parse(a, KVL_DETAIL_QUALITY); break;
    case REPORT_METHOD: rc = report_detail_parse(a, KVL_DETAIL_METHOD); break;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->log, &a->n_logs); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp report_argp = {
    .options = report_options,
    .parser = report_parse,
    .args_doc = "LOG...",
    .doc = "The table of one or more logs (files, folders of *.zst, patterns).\v"
           "Columns: budget as asked for, attended and dense: tokens per lane that attention "
           "read, as counted; official and strict accuracy with 95 % intervals; recall: share of "
           "answer steps at which the evidence needed was attended; tok/s: decoding; waits/tok: "
           "how often the host waited for a GPU; read/tok: bytes of keys and values per token; "
           "index/tok: bytes read to choose; held: KV of one sequence; n/ctx: questions and "
           "contexts."
};

/* csv and html stand for what --csv and --html do. */
static int report_form(struct report_args *a, struct kvl_err *err)
{
    bool table = a->detail || a->by || a->vs;
    bool html = a->form == KVL_TABLE_HTML, csv = a->form == KVL_TABLE_CSV;
    if ((html && (table || a->csv || a->summary || a->html)) ||
        (csv && (a->csv || a->summary || a->html)))
        return kvl_fail(err, KVL_EINVAL,
                        "--format %s: all of the log, want it without --summary and the like",
                        html ? "html" : "csv");
    if (a->form != KVL_TABLE_TEXT && !html && !csv && !table && !a->summary)
        return kvl_fail(err, KVL_EINVAL,
                        "--format markdown and latex: want --summary, --by, --vs or a table like "
                        "--evidence with them");
    if ((a->form == KVL_TABLE_HTML) != (a->out != NULL))
        return kvl_fail(err, KVL_EINVAL, "--format html and --out FILE: want both or none");
    a->csv |= csv && !table;
    if (a->form == KVL_TABLE_HTML) a->html = a->out;
    return KVL_OK;
}

int cmd_report(int argc, char **argv, struct kvl_err *err)
{
    struct report_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&report_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (a.csv + a.summary + a.detail + (a.by != 0) + (a.vs != NULL) + (a.html != NULL) > 1)
        return kvl_fail(
            err, KVL_EINVAL,
            "--by, --vs, --summary, --stages, --evidence, --quality, --method, --csv and --html: "
            "want one of them at a time");
    KVL_TRY(report_form(&a, err));
    struct kvl_results r = { 0 };
    KVL_TRY(kvl_results_load(a.log, a.n_logs, &r, err));
    int rc;
    if (a.html)
        rc = kvl_report_html(&r, a.log, a.n_logs, a.html, err);
    else if (a.csv)
        rc = kvl_export_cells(&r, KVL_EXPORT_CSV, stdout, err);
    else if (a.summary)
        rc = kvl_report_summary(&r, a.form, stdout, err);
    else if (a.detail)
        rc = kvl_report_detail(&r, a.which, a.form, stdout, err);
    else if (a.by)
        rc = kvl_report_by(&r, (enum kvl_block_key)a.by, a.form, stdout, err);
    else if (a.vs)
        rc = kvl_report_vs(&r, a.vs, a.form, stdout, err);
    else
        rc = kvl_report_print(&r, stdout, err);
    if (rc == KVL_OK && (a.csv || a.detail))
        rc = kvl_results_partial(&r, "kvlab: the log is ", stderr, err);
    if (rc == KVL_OK && (a.by || a.vs)) rc = kvl_report_notes(&r, a.form, stdout, err);
    kvl_results_free(&r);
    return rc;
}
