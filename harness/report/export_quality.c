/* Quality records as rows: long, so that every column is a number. */
#include "export.h"

#include "export_parts.h"

#include <string.h>

static const struct kvl_export_column quality_columns[] = {
    { "cell", "cell" },
    { "run", "run" },
    { "model", "@model" },
    { "kv_type", "@kv_type" },
    { "task", "@task" },
    { "length_tok", "@length_tok" },
    { "protocol", "@protocol" },
    { "policy", "@policy" },
    { "label", "@label" },
    { "budget", "@budget" },
    { "stale", "@stale" },
    { "context", "context" },
    { "question", "question" },
    { "step", "@step" },
    { "pos", "@pos" },
    { "kl_nats", "@kl_nats" },
    { "top1", "@top1" },
    { "layer", "@layer" },
    { "dense", "@dense" },
    { "head", "@head" },
    { "mass", "@mass" },
    { "out_error", "@out_error" },
    { "top", "@top" },
    { "recall", "@recall" },
    { 0 },
};

struct quality_export {
    const struct kvl_results *r;
    json_t *record; /* "cell/context/question" -> the latest record */
    json_t *cell;   /* cell id -> its columns */
    enum kvl_export_format format;
    FILE *out;
};

static int quality_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "no memory to export results");
}

static int quality_collect(json_t *record, void *user, struct kvl_err *err)
{
    struct quality_export *e = user;
    char key[128];
    if (strcmp(kvl_json_text(record, "kind"), "quality") != 0) return KVL_OK;
    snprintf(key, sizeof key, "%.32s/%.0f/%.0f", kvl_json_text(record, "cell"),
             kvl_json_number(record, "context"), kvl_json_number(record, "question"));
    return json_object_set(e->record, key, record) == 0 ? KVL_OK : quality_memory(err);
}

/* [a][b][c] of a list of lists. */
static json_t *quality_at(const json_t *list, size_t a, size_t b, size_t c)
{
    return json_array_get(json_array_get(json_array_get(list, a), b), c);
}

/* The rows of one head: one per number of top tokens. */
static int quality_head(const struct quality_export *e, const json_t *record, json_t *row, size_t s,
                        size_t l, size_t h)
{
    const json_t *tops = json_object_get(record, "top"),
                 *recall = json_object_get(record, "recall");
    int failed = json_object_set_new(row, "head", json_integer((json_int_t)h));
    failed |= json_object_set(row, "mass", quality_at(json_object_get(record, "mass"), s, l, h));
    failed |= json_object_set(row, "out_error",
                              quality_at(json_object_get(record, "out_error"), s, l, h));
    for (size_t t = 0; t < json_array_size(tops) && !failed; t++) {
        failed |= json_object_set(row, "top", json_array_get(tops, t));
        failed |= json_object_set(row, "recall", quality_at(json_array_get(recall, t), s, l, h));
        if (!failed) failed = kvl_export_row(quality_columns, record, row, e->format, e->out);
    }
    return failed ? KVL_ENOMEM : KVL_OK;
}

static int quality_step(const struct quality_export *e, const json_t *record, json_t *row, size_t s)
{
    const json_t *layers = json_array_get(json_object_get(record, "mass"), s), *heads;
    size_t l;
    int failed = json_object_set_new(row, "step", json_integer((json_int_t)s));
    static const char *const of_step[] = { "pos", "kl_nats", "top1" };
    for (size_t i = 0; i < sizeof of_step / sizeof of_step[0]; i++)
        failed |= json_object_set(row, of_step[i],
                                  json_array_get(json_object_get(record, of_step[i]), s));
    json_array_foreach(layers, l, heads)
    {
        const json_t *dense = json_array_get(json_object_get(record, "dense"), s);
        failed |= json_object_set_new(row, "layer", json_integer((json_int_t)l));
        failed |= json_object_set(row, "dense", json_array_get(dense, l));
        for (size_t h = 0; h < json_array_size(heads) && !failed; h++)
            failed = quality_head(e, record, row, s, l, h);
    }
    return failed ? KVL_ENOMEM : KVL_OK;
}

static int quality_rows(const struct quality_export *e, struct kvl_err *err)
{
    const char *key;
    json_t *record;
    int rc = KVL_OK;
    kvl_export_head(quality_columns, e->format, e->out);
    json_object_foreach(e->record, key, record)
    {
        json_t *cell = json_object_get(e->cell, kvl_json_text(record, "cell"));
        json_t *row = cell ? json_copy(cell) : json_object();
        size_t n = json_array_size(json_object_get(record, "pos"));
        if (!row) rc = KVL_ENOMEM;
        for (size_t s = 0; s < n && rc == KVL_OK; s++) rc = quality_step(e, record, row, s);
        json_decref(row);
    }
    return rc == KVL_OK ? rc : quality_memory(err);
}

int kvl_export_quality(const struct kvl_results *r, char *const *words, size_t n_words,
                       enum kvl_export_format format, FILE *out, struct kvl_err *err)
{
    struct kvl_log_paths paths = { 0 };
    for (size_t i = 0; i < n_words; i++)
        if (strcmp(words[i], "-") == 0)
            return kvl_fail(err, KVL_EINVAL,
                            "--kind quality reads the log twice, want a file instead of -");
    KVL_TRY(kvl_log_paths(words, n_words, &paths, err));
    struct quality_export e = {
        .r = r, .record = json_object(), .cell = json_object(), .format = format, .out = out
    };
    int rc = e.record && kvl_export_cell_extras(r, e.cell) == 0 ? KVL_OK : quality_memory(err);
    if (rc == KVL_OK)
        rc = kvl_log_each((const char *const *)paths.path, paths.n, quality_collect, &e, NULL, err);
    if (rc == KVL_OK) rc = quality_rows(&e, err);
    json_decref(e.record);
    json_decref(e.cell);
    kvl_log_paths_free(&paths);
    return rc;
}
