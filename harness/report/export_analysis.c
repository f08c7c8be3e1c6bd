/* Analyses as a flat table: one number per row. */
#include "export_parts.h"

#include <string.h>

static const struct kvl_export_column analysis_columns[] = {
    { "cell", "cell" },
    { "run", "run" },
    { "model", "@model" },
    { "what", "what" },
    { "task", "task" },
    { "task_options", "task_options" },
    { "length_tok", "length_tok" },
    { "depth", "depth" },
    { "n_contexts", "n_contexts" },
    { "n_answers", "n_answers" },
    { "n_steps", "n_steps" },
    { "number", "@number" },
    { "layer", "@layer" },
    { "layer2", "@layer2" },
    { "head", "@head" },
    { "mass", "@mass" },
    { "m", "@m" },
    { "reduce", "@reduce" },
    { "lag", "@lag" },
    { "next", "@next" },
    { "value", "@value" },
    { 0 },
};

struct analysis_export {
    const json_t *record;
    const char *model;
    enum kvl_export_format format;
    FILE *out;
    int rc;
};

/* A row: what all rows of `of` share, and the members `more` (stolen) of its own. */
static void analysis_row(struct analysis_export *e, const json_t *of, const char *number,
                         json_t *value, json_t *more)
{
    static const char *const shared[] = { "layer", "head", "mass", "m", "reduce", "lag" };
    json_t *extra = more ? more : json_object();
    for (size_t i = 0; i < sizeof shared / sizeof shared[0] && extra; i++)
        if (json_object_get(of, shared[i]))
            json_object_set(extra, shared[i], json_object_get(of, shared[i]));
    if (!extra || json_object_set_new(extra, "model", json_string(e->model)) != 0 ||
        json_object_set_new(extra, "number", json_string(number)) != 0 ||
        json_object_set(extra, "value", value) != 0)
        e->rc = KVL_ENOMEM;
    if (e->rc == KVL_OK)
        e->rc = kvl_export_row(analysis_columns, e->record, extra, e->format, e->out);
    json_decref(extra);
}

/* A list over layers. */
static void analysis_layers(struct analysis_export *e, const json_t *of, const char *number,
                            const json_t *list, const char *key, json_t *key_value)
{
    for (size_t l = 0; l < json_array_size(list) && e->rc == KVL_OK; l++) {
        json_t *more = json_pack("{sI}", "layer", (json_int_t)l);
        if (key && more) json_object_set(more, key, key_value);
        analysis_row(e, of, number, json_array_get(list, l), more);
    }
}

static void analysis_mass(struct analysis_export *e, const json_t *row)
{
    static const char *const numbers[] = { "tok_mean", "tok_p50", "tok_p95", "share" };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && e->rc == KVL_OK; i++)
        analysis_row(e, row, numbers[i], json_object_get(row, numbers[i]), NULL);
}

static void analysis_similarity(struct analysis_export *e, const json_t *row)
{
    const json_t *capture = json_object_get(row, "capture"),
                 *curves = json_object_get(row, "curve");
    const json_t *filters = json_object_get(row, "filters");
    for (size_t i = 0; i < json_array_size(capture) && e->rc == KVL_OK; i++)
        for (size_t j = i; j < json_array_size(capture) && e->rc == KVL_OK; j++)
            analysis_row(e, row, "capture", json_array_get(json_array_get(capture, i), j),
                         json_pack("{sI sI}", "layer", (json_int_t)i, "layer2", (json_int_t)j));
    for (size_t i = 0; i < json_array_size(curves); i++) {
        const json_t *curve = json_array_get(curves, i);
        analysis_layers(e, row, "curve", json_object_get(curve, "value"), "next",
                        json_object_get(curve, "next"));
    }
    analysis_layers(e, row, "hit", json_object_get(row, "hit"), NULL, NULL);
    for (size_t i = 0; i < json_array_size(filters) && e->rc == KVL_OK; i++)
        analysis_row(e, row, "filter", json_array_get(filters, i), NULL);
    if (e->rc == KVL_OK) analysis_row(e, row, "captured", json_object_get(row, "captured"), NULL);
    if (e->rc == KVL_OK) analysis_row(e, row, "own", json_object_get(row, "own"), NULL);
}

static void analysis_drift(struct analysis_export *e, const json_t *row)
{
    analysis_layers(e, row, "kept", json_object_get(row, "kept"), NULL, NULL);
    analysis_layers(e, row, "jaccard", json_object_get(row, "jaccard"), NULL, NULL);
}

int kvl_export_analyses(const struct kvl_results *r, enum kvl_export_format format, FILE *out,
                        struct kvl_err *err)
{
    struct analysis_export e = { .format = format, .out = out };
    const char *id;
    json_t *record, *row;
    size_t i;
    kvl_export_head(analysis_columns, format, out);
    json_object_foreach(r->analyses, id, record)
    {
        e.record = record;
        e.model = kvl_result_model(r, kvl_json_text(record, "run"));
        json_array_foreach(json_object_get(record, "mass"), i, row) analysis_mass(&e, row);
        json_array_foreach(json_object_get(record, "similarity"), i, row)
            analysis_similarity(&e, row);
        json_array_foreach(json_object_get(record, "drift"), i, row) analysis_drift(&e, row);
    }
    return e.rc == KVL_OK ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory to export analyses");
}
