/* Results as flat tables. */
#include "export.h"

#include "export_parts.h"
#include "fields.h"
#include "report.h"
#include "show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A field under its own name.  Rows of fields.def that have no column leave one without a path. */
#define COLUMN_IF(is_column, name) { #name, (is_column) ? #name : NULL },

static const struct kvl_export_column cell_columns[] = {
    { "cell", "cell" },
    { "run", "run" },
    { "model", "@model" },
    { "kv_type", "@kv_type" },
    { "task", "task" },
    { "task_options", "task_options" },
    { "task_version", "task_version" },
    { "length_tok", "length_tok" },
    { "depth", "depth" },
    { "protocol", "protocol" },
    { "not_official", "@not_official" },
    { "chat", "chat" },
    { "policy", "policy" },
    { "label", "@label" },
    { "policy_version", "policy_version" },
    { "options", "options" },
    { "budget", "budget" },
    { "budget_tok", "budget_tok" },
    { "exec", "exec" },
    { "prefill", "prefill" },
    { "device", "device" },
    { "code", "code" },
    { "stale", "@stale" },
    { "n", "n" },
    { "n_contexts", "n_contexts" },
    { "n_errors", "n_errors" },
    { "official", "official.p" },
    { "official_lo", "@official_lo" },
    { "official_hi", "@official_hi" },
    { "strict", "strict.p" },
    { "strict_lo", "@strict_lo" },
    { "strict_hi", "@strict_hi" },
    { "n_eff", "@n_eff" },
    { "icc", "@icc" },
    { "recall", "@recall" },
    { "recall_best_layer", "recall.mean" },
    { "recall_best_layer_lo", "recall.lo" },
    { "recall_best_layer_hi", "recall.hi" },
    { "n_tok", "n_tok" },
    { "nll", "nll.mean" },
    { "nll_lo", "nll.lo" },
    { "nll_hi", "nll.hi" },
    { "ppl", "ppl.value" },
    { "ppl_lo", "ppl.lo" },
    { "ppl_hi", "ppl.hi" },
    { "sub", "@sub" },
    { "attended_right", "evidence.attended_right" },
    { "attended_wrong", "evidence.attended_wrong" },
    { "missed_right", "evidence.missed_right" },
    { "missed_wrong", "evidence.missed_wrong" },
    { "evidence_unknown", "evidence.unknown" },
    { "evidence_lost", "evidence.lost" },
    { "evidence_weak", "evidence.weak" },
    { "quality_n", "quality.n" },
    { "quality_top", "@quality_top" },
    { "quality_recall", "@quality_recall" },
    { "quality_mass", "quality.select.mass.mean" },
    { "quality_out_error", "quality.select.out_error.mean" },
    { "quality_dense_mass", "quality.dense.mass.mean" },
    { "quality_dense_out_error", "quality.dense.out_error.mean" },
    { "kl_nats", "@kl" },
    { "kl_nats_lo", "@kl_lo" },
    { "kl_nats_hi", "@kl_hi" },
    { "top1", "@top1" },
    { "top1_lo", "@top1_lo" },
    { "top1_hi", "@top1_hi" },
    { "n_planned", "@n_planned" },
    { "quality_kl_nats", "quality.kl_nats.mean" },
    { "quality_top1", "quality.top1.mean" },
#define OBSERVED(member, name, type, records, ...) COLUMN_IF((records)&KVL_OF_CELL, name)
#define TIER(member, name, ...)                    { #name, "tiers." #name },
#include "fields.def"
    { "method", "method" },
    { "notes", "notes" },
#define CELL(name, type, column, ...) COLUMN_IF(column, name)
#include "fields.def"
    { "no_context", "@no_context" },
    { "prefill_tok_per_s", "prefill_tok_per_s" },
    { "decode_tok_per_s", "@decode" },
    { "decode_tok_per_s_least", "@decode_lo" },
    { "decode_tok_per_s_most", "@decode_hi" },
    { "waits_per_tok", "@waits" },
    { "n_speed", "@n_speed" },
    { "wall_s", "wall_s" },
    { "t_end", "t_end" },
    { 0 },
};

static const struct kvl_export_column speed_columns[] = {
    { "cell", "cell" },
    { "run", "run" },
    { "model", "@model" },
    { "kv_type", "@kv_type" },
    { "task", "task" },
    { "task_options", "task_options" },
    { "length_tok", "length_tok" },
    { "policy", "policy" },
    { "policy_version", "policy_version" },
    { "options", "options" },
    { "budget", "budget" },
    { "budget_tok", "budget_tok" },
    { "exec", "exec" },
    { "prefill", "prefill" },
    { "device", "device" },
    { "code", "code" },
    { "stale", "@stale" },
    { "host", "host" },
    { "threads", "threads" },
    { "repeat", "repeat" },
    { "warmup_steps", "warmup_steps" },
    { "n_steps", "@n_steps" },
    { "step_p50_ns", "@p50" },
    { "step_p95_ns", "@p95" },
    { "step_p99_ns", "@p99" },
    { "decode_tok_per_s", "decode_tok_per_s" },
    { "waits_per_tok", "@waits" },
    { "prefill_tok_per_s", "prefill_tok_per_s" },
#define SPEED(name, type, column, ...) COLUMN_IF(column, name)
#include "fields.def"
#define OBSERVED(member, name, type, records, ...) COLUMN_IF((records)&KVL_OF_SPEED, name)
#define TIER(member, name, ...)                    { #name, "tiers." #name },
#include "fields.def"
    { "method", "method" },
    { "weight_bytes_per_tok", "weight_bytes_per_tok" },
    { "rss_peak_bytes", "rss_peak_bytes" },
    { 0 },
};

/* The running mean of a cell of texts: a row per mark. */
static const struct kvl_export_column curve_columns[] = {
    { "cell", "cell" },
    { "run", "run" },
    { "model", "@model" },
    { "kv_type", "@kv_type" },
    { "task", "task" },
    { "task_options", "task_options" },
    { "length_tok", "length_tok" },
    { "policy", "policy" },
    { "label", "@label" },
    { "options", "options" },
    { "budget", "budget" },
    { "budget_tok", "budget_tok" },
    { "prefill", "prefill" },
    { "stale", "@stale" },
    { "n_contexts", "n_contexts" },
    { "tokens", "@tokens" },
    { "nll", "@nll" },
    { "ppl", "@ppl" },
    { 0 },
};

static const struct kvl_export_column sample_columns[] = {
    { "cell", "cell" },
    { "run", "run" },
    { "model", "@model" },
    { "kv_type", "@kv_type" },
    { "task", "@task" },
    { "task_options", "@task_options" },
    { "length_tok", "@length_tok" },
    { "protocol", "@protocol" },
    { "policy", "@policy" },
    { "options", "@options" },
    { "label", "@label" },
    { "budget", "@budget" },
    { "budget_tok", "@budget_tok" },
    { "stale", "@stale" },
    { "context", "context" },
    { "question", "question" },
    { "seed", "seed" },
    { "context_tok", "context_tok" },
    { "question_tok", "question_tok" },
    { "depth", "depth" },
    { "gold", "gold" },
    { "prediction", "prediction" },
    { "stop", "stop" },
    { "official", "official" },
    { "not_official", "@not_official" },
    { "strict", "strict" },
    { "recall_best_layer", "recall" },
    { "evidence_lost", "evidence_lost" },
    { "evidence_weak", "evidence_weak" },
#define OBSERVED(member, name, type, records, ...) COLUMN_IF((records)&KVL_OF_SAMPLE_ROW, name)
#include "fields.def"
#define SAMPLE(name, type, column, ...) COLUMN_IF(column, name)
#include "fields.def"
    { "method", "method" },
    { "error", "error" },
    { 0 },
};

/* ---- rows ---------------------------------------------------------------------------------- */

static void put_text(const char *s, enum kvl_export_format format, FILE *out)
{
    kvl_show(out, format == KVL_EXPORT_CSV ? KVL_SHOW_CSV : KVL_SHOW_TSV, s);
}

/* A map of numbers: "cache_hits=12 blocks=40"; of lines: "a note=12". */
static void put_map(const json_t *v, enum kvl_export_format format, FILE *out)
{
    struct kvl_buf b = { 0 };
    const char *name;
    json_t *n;
    json_object_foreach((json_t *)(uintptr_t)v, name, n)
        kvl_buf_printf(&b, "%s%s=%.12g", b.len ? " " : "", name, json_number_value(n));
    if (b.data) put_text(b.data, format, out);
    kvl_buf_free(&b);
}

static void put_value(const json_t *v, enum kvl_export_format format, FILE *out)
{
    if (json_is_string(v))
        put_text(json_string_value(v), format, out);
    else if (json_is_integer(v))
        fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        fprintf(out, "%.12g", json_real_value(v));
    else if (json_is_boolean(v))
        fputc(json_is_true(v) ? '1' : '0', out);
    else if (json_is_object(v))
        put_map(v, format, out);
}

void kvl_export_head(const struct kvl_export_column *columns, enum kvl_export_format format,
                     FILE *out)
{
    if (format == KVL_EXPORT_JSONL) return;
    for (const struct kvl_export_column *c = columns; c->name; c++)
        if (c->path)
            fprintf(out, "%s%s",
                    c == columns               ? ""
                    : format == KVL_EXPORT_CSV ? ","
                                               : "\t",
                    c->name);
    fputs(format == KVL_EXPORT_CSV ? "\r\n" : "\n", out);
}

int kvl_export_row(const struct kvl_export_column *columns, const json_t *record,
                   const json_t *extra, enum kvl_export_format format, FILE *out)
{
    json_t *row = format == KVL_EXPORT_JSONL ? json_object() : NULL;
    if (format == KVL_EXPORT_JSONL && !row) return KVL_ENOMEM;
    int failed = 0;
    for (const struct kvl_export_column *c = columns; c->name; c++) {
        if (!c->path) continue;
        json_t *v =
            *c->path == '@' ? json_object_get(extra, c->path + 1) : kvl_json_value(record, c->path);
        if (row) {
            failed |= v ? json_object_set(row, c->name, v)
                        : json_object_set_new(row, c->name, json_null());
        } else {
            if (c != columns) fputc(format == KVL_EXPORT_CSV ? ',' : '\t', out);
            put_value(v, format, out);
        }
    }
    /* What does not arrive is told at the end, by main. */
    if (row && !failed)
        failed = json_dumpf(row, out, JSON_COMPACT | JSON_REAL_PRECISION(15)) && !ferror(out);
    json_decref(row);
    fputs(format == KVL_EXPORT_CSV ? "\r\n" : "\n", out);
    return failed ? KVL_ENOMEM : KVL_OK;
}

/* A number for `extra`, null for NaN. */
static void extra_number(json_t *extra, const char *name, double value)
{
    json_object_set_new(extra, name, isnan(value) ? json_null() : json_real(value));
}

static int export_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "no memory to export results");
}

/* ---- cells --------------------------------------------------------------------------------- */

/* Lists as texts: "sum=0.5 color=0.25", "10 64 256". */
static int extra_lists(json_t *extra, const json_t *record)
{
    struct kvl_buf sub = { 0 }, top = { 0 }, recall = { 0 };
    const char *name;
    json_t *v;
    size_t i;
    int rc = KVL_OK;
    json_object_foreach(kvl_json_value(record, "sub"), name, v) rc |=
        kvl_buf_printf(&sub, "%s%s=%.12g", sub.len ? " " : "", name, kvl_json_number(v, "p"));
    json_array_foreach(kvl_json_value(record, "quality.top"), i, v) rc |=
        kvl_buf_printf(&top, "%s%.0f", i ? " " : "", json_number_value(v));
    json_array_foreach(kvl_json_value(record, "quality.select.recall"), i, v) rc |=
        kvl_buf_printf(&recall, "%s%.12g", i ? " " : "", kvl_json_number(v, "mean"));
    if (sub.data) rc |= json_object_set_new(extra, "sub", json_string(sub.data));
    if (top.data) rc |= json_object_set_new(extra, "quality_top", json_string(top.data));
    if (recall.data) rc |= json_object_set_new(extra, "quality_recall", json_string(recall.data));
    kvl_buf_free(&sub);
    kvl_buf_free(&top);
    kvl_buf_free(&recall);
    return rc;
}

static json_t *cell_extra(const struct kvl_results *r, const struct kvl_result *x)
{
    json_t *e = json_pack("{ss ss ss sb sI ss?}", "model", x->model, "kv_type", x->kv_type, "label",
                          x->label, "stale", x->stale, "n_speed", (json_int_t)x->n_speed,
                          "not_official", kvl_report_unofficial(x));
    if (!e) return NULL;
    if (extra_lists(e, x->record) != 0) {
        json_decref(e);
        return NULL;
    }
    extra_number(e, "official_lo", x->official.lo);
    extra_number(e, "official_hi", x->official.hi);
    extra_number(e, "strict_lo", x->strict.lo);
    extra_number(e, "strict_hi", x->strict.hi);
    extra_number(e, "recall", x->recall);
    extra_number(e, "n_eff", x->n_eff);
    extra_number(e, "n_planned", x->n_planned);
    extra_number(e, "kl", x->kl.mean);
    extra_number(e, "kl_lo", x->kl.lo);
    extra_number(e, "kl_hi", x->kl.hi);
    extra_number(e, "top1", x->top1.mean);
    extra_number(e, "top1_lo", x->top1.lo);
    extra_number(e, "top1_hi", x->top1.hi);
    extra_number(e, "icc", x->icc);
    const struct kvl_result *control = kvl_report_no_context(r, x);
    extra_number(e, "no_context", control ? control->official.mean : KVL_NAN);
    extra_number(e, "decode", x->decode.mean);
    extra_number(e, "decode_lo", x->decode.lo);
    extra_number(e, "decode_hi", x->decode.hi);
    extra_number(e, "waits", x->waits);
    return e;
}

int kvl_export_cells(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                     struct kvl_err *err)
{
    kvl_export_head(cell_columns, format, out);
    for (size_t i = 0; i < r->n_all; i++) {
        const struct kvl_result *x = &r->result[i];
        if (!x->is_cell) continue;
        json_t *extra = cell_extra(r, x);
        int rc = extra ? kvl_export_row(cell_columns, x->record, extra, format, out) : KVL_ENOMEM;
        json_decref(extra);
        if (rc != KVL_OK) return export_memory(err);
    }
    return KVL_OK;
}

/* ---- running means of texts ---------------------------------------------------------------- */

static int curve_rows(const struct kvl_results *r, const struct kvl_result *x,
                      enum kvl_export_format format, FILE *out)
{
    const json_t *curve = json_object_get(x->record, "curve");
    json_t *extra = cell_extra(r, x); /* of every point but for what the loop sets */
    int rc = extra ? KVL_OK : KVL_ENOMEM;
    for (size_t i = 0; i < json_array_size(curve) && rc == KVL_OK; i++) {
        const json_t *point = json_array_get(curve, i);
        json_object_set(extra, "tokens", json_array_get(point, 0));
        json_object_set(extra, "nll", json_array_get(point, 1));
        extra_number(extra, "ppl", exp(json_number_value(json_array_get(point, 1))));
        rc = kvl_export_row(curve_columns, x->record, extra, format, out);
    }
    json_decref(extra);
    return rc;
}

int kvl_export_curves(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                      struct kvl_err *err)
{
    kvl_export_head(curve_columns, format, out);
    for (size_t i = 0; i < r->n_all; i++)
        if (r->result[i].is_text && curve_rows(r, &r->result[i], format, out) != KVL_OK)
            return export_memory(err);
    return KVL_OK;
}

/* ---- speed --------------------------------------------------------------------------------- */

static int double_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Smallest value that at least `share` of the n > 0 sorted ones do not exceed. */
static double quantile(const double *sorted, size_t n, double share)
{
    size_t rank = (size_t)ceil(share * (double)n);
    return sorted[rank ? rank - 1 : 0];
}

static json_t *speed_extra(const struct kvl_results *r, const json_t *record)
{
    const json_t *steps = json_object_get(record, "step_ns");
    size_t n = json_array_size(steps);
    double *v = kvl_alloc(n, sizeof *v);
    const char *run = kvl_json_text(record, "run");
    json_t *e = json_pack("{ss ss sb sI}", "model", kvl_result_model(r, run), "kv_type",
                          kvl_result_kv_type(r, run), "stale", kvl_record_stale(r, record),
                          "n_steps", (json_int_t)n);
    if (v && e && n) {
        for (size_t i = 0; i < n; i++) v[i] = json_number_value(json_array_get(steps, i));
        qsort(v, n, sizeof *v, double_order);
        extra_number(e, "p50", quantile(v, n, 0.50));
        extra_number(e, "p95", quantile(v, n, 0.95));
        extra_number(e, "p99", quantile(v, n, 0.99));
        extra_number(e, "waits", kvl_json_number(record, "gpu.syncs") / (double)n);
    }
    bool memory = v != NULL;
    kvl_free(v);
    if (memory) return e;
    json_decref(e);
    return NULL;
}

int kvl_export_speeds(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                      struct kvl_err *err)
{
    kvl_export_head(speed_columns, format, out);
    for (size_t i = 0; i < json_array_size(r->speeds); i++) {
        const json_t *record = json_array_get(r->speeds, i);
        json_t *extra = speed_extra(r, record);
        int rc = extra ? kvl_export_row(speed_columns, record, extra, format, out) : KVL_ENOMEM;
        json_decref(extra);
        if (rc != KVL_OK) return export_memory(err);
    }
    return KVL_OK;
}

/* ---- samples ------------------------------------------------------------------------------- */

struct sample_export {
    const struct kvl_results *r;
    json_t *extra; /* cell id -> its columns */
    enum kvl_export_format format;
    FILE *out;
    size_t n_seen;
};

static int sample_row(json_t *record, void *user, struct kvl_err *err)
{
    struct sample_export *e = user;
    const char *kind = kvl_json_text(record, "kind");
    bool is_text = strcmp(kind, "nll") == 0;
    if (!is_text && strcmp(kind, "sample") != 0) return KVL_OK;
    size_t order = e->n_seen++; /* those of texts count as well, as when the results were read */
    if (is_text) return KVL_OK;
    const char *id = kvl_json_text(record, "cell");
    struct kvl_result_sample s = {
        .cell = kvl_result_key(id),
        .context = json_integer_value(json_object_get(record, "context")),
        .question = json_integer_value(json_object_get(record, "question")),
        .order = order,
    };
    if (!kvl_result_sample_kept(e->r, &s)) return KVL_OK;
    json_t *extra = json_object_get(e->extra, id);
    if (kvl_export_row(sample_columns, record, extra, e->format, e->out) == KVL_OK) return KVL_OK;
    return export_memory(err);
}

int kvl_export_cell_extras(const struct kvl_results *r, json_t *all)
{
    for (size_t i = 0; i < r->n_all && all; i++) {
        const struct kvl_result *x = &r->result[i];
        if (!x->is_cell) continue;
        json_t *e = json_pack(
            "{ss? ss ss ss ss ss ss ss ss ss ss sb}", "not_official", kvl_report_unofficial(x),
            "model", x->model, "kv_type", x->kv_type, "task", x->task, "protocol", x->protocol,
            "policy", x->policy, "label", x->label, "budget", x->budget, "chat", x->chat, "system",
            x->system, "sampling", x->sampling, "stale", kvl_record_stale(r, x->record));
        if (!e) return -1;
        json_object_set(e, "task_options", json_object_get(x->record, "task_options"));
        json_object_set(e, "options", json_object_get(x->record, "options"));
        json_object_set(e, "budget_tok", json_object_get(x->record, "budget_tok"));
        json_object_set(e, "length_tok", json_object_get(x->record, "length_tok"));
        if (json_object_set_new(all, x->id, e) != 0) return -1;
    }
    return all ? 0 : -1;
}

int kvl_export_samples(const struct kvl_results *r, char *const *words, size_t n_words,
                       enum kvl_export_format format, FILE *out, struct kvl_err *err)
{
    struct kvl_log_paths paths = { 0 };
    for (size_t i = 0; i < n_words; i++)
        if (strcmp(words[i], "-") == 0)
            return kvl_fail(err, KVL_EINVAL,
                            "--kind sample reads the log twice, want a file instead of -");
    KVL_TRY(kvl_log_paths(words, n_words, &paths, err));
    struct sample_export e = { .r = r, .extra = json_object(), .format = format, .out = out };
    int rc = kvl_export_cell_extras(r, e.extra) == 0 ? KVL_OK : export_memory(err);
    if (rc == KVL_OK) {
        kvl_export_head(sample_columns, format, out);
        rc = kvl_log_each((const char *const *)paths.path, paths.n, sample_row, &e, NULL, err);
    }
    json_decref(e.extra);
    kvl_log_paths_free(&paths);
    return rc;
}
