/* Folders of linear maps: model.safetensors and config.json, as KVzapModel saves them. */
#include "tables_maps.h"

#include "build.h"
#include "crash_line.h"
#include "outfile.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAPS_BUDGET = 2, MAPS_HELD_OUT = 4 };

int kvl_tables_maps_check(const struct kvl_tables_made *t)
{
    const char *options = t->spec.options.data ? t->spec.options.data : "";
    if (!t->want->out)
        return kvl_fail(t->err, KVL_EINVAL, "kvzap: want -o FOLDER, for networks and their sizes");
    if (t->want->budget)
        return kvl_fail(t->err, KVL_EINVAL, "--budget: networks have none, leave it out");
    if (strstr(options, "weights="))
        return kvl_fail(t->err, KVL_EINVAL,
                        "kvzap:%s: networks are fitted to what kvzap says without any; leave "
                        "weights out",
                        options);
    return KVL_OK;
}

int kvl_tables_maps_text(struct kvl_tables_made *t, const struct kvl_table_text *text)
{
    struct kvl_planned *planned;
    bool held_out = t->n_measured % MAPS_HELD_OUT == MAPS_HELD_OUT - 1;
    if (!t->fit) KVL_TRY(kvl_input_fit_create(t->engine, &t->fit, t->err));
    KVL_TRY(kvl_planned_create(t->spec.policy, kvl_model_shape(t->model), t->spec.options.data,
                               MAPS_BUDGET, text->n, &planned, t->err));
    kvl_guard_policy(t->spec.policy->name);
    int rc = kvl_input_fit_text(t->fit, planned, text->id, text->n, held_out, t->err);
    kvl_guard_policy(NULL);
    kvl_planned_destroy(planned);
    t->n_measured++;
    return rc;
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

static int maps_put(const struct kvl_tables_made *t, const char *name, const void *data, size_t n)
{
    struct kvl_buf path = { 0 };
    struct kvl_outfile o;
    int rc = kvl_buf_printf(&path, "%s/%s", t->want->out, name);
    if (rc != KVL_OK) return kvl_fail(t->err, rc, "out of memory for a path");
    rc = kvl_outfile_open(&o, path.data, t->err);
    if (rc == KVL_OK) {
        fwrite(data, 1, n, o.f);
        rc = kvl_outfile_close(&o, KVL_OK, t->err);
    }
    kvl_buf_free(&path);
    return rc;
}

/* A tensor of the header, behind the *at bytes of those before it. */
static int maps_tensor(json_t *header, int32_t layer, const char *what, json_t *shape, size_t n,
                       size_t *at)
{
    char name[48];
    size_t end = *at + n * sizeof(float);
    snprintf(name, sizeof name, "layers.%d.%s", layer, what);
    json_t *v = json_pack("{ss so s[II]}", "dtype", "F32", "shape", shape, "data_offsets",
                          (json_int_t)*at, (json_int_t)end);
    *at = end;
    return json_object_set_new(header, name, v) == 0 ? KVL_OK : KVL_ENOMEM;
}

static json_t *maps_header(const struct kvl_tables_made *t, const char *source)
{
    const struct kvl_shape *sh = kvl_model_shape(t->model);
    json_int_t heads = sh->n_kv_heads, embd = sh->n_embd;
    size_t at = 0;
    json_t *h = json_pack("{s{ss ss ss ss ss}}", "__metadata__", "format", "pt", "made_by",
                          kvl_build.version, "model", kvl_model_name(t->model), "model_hash",
                          kvl_model_hash(t->model), "fitted_to", source);
    for (int32_t l = 0; h && l < sh->n_layers; l++) {
        int rc = maps_tensor(h, l, "weight", json_pack("[II]", heads, embd), (size_t)(heads * embd),
                             &at);
        if (rc == KVL_OK)
            rc = maps_tensor(h, l, "bias", json_pack("[I]", heads), (size_t)heads, &at);
        if (rc == KVL_OK) continue;
        json_decref(h);
        return NULL;
    }
    return h;
}

/* Length, header, data. */
static int maps_bytes(const struct kvl_tables_made *t, const char *source, struct kvl_buf *out)
{
    const struct kvl_shape *sh = kvl_model_shape(t->model);
    size_t floats = (size_t)sh->n_kv_heads * ((size_t)sh->n_embd + 1);
    json_t *h = maps_header(t, source);
    char *text = h ? json_dumps(h, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(h);
    if (!text) return KVL_ENOMEM;
    size_t len = strlen(text);
    uint64_t n = (len + 7) / 8 * 8; /* data begins at a multiple of 8 */
    int rc = kvl_buf_add(out, &n, sizeof n);
    if (rc == KVL_OK) rc = kvl_buf_add(out, text, len);
    if (rc == KVL_OK) rc = kvl_buf_add(out, "       ", (size_t)n - len);
    free(text);
    for (int32_t l = 0; l < sh->n_layers && rc == KVL_OK; l++)
        rc = kvl_buf_add(out, kvl_input_fit_map(t->fit, l), floats * sizeof(float));
    return rc;
}

static int maps_config(const struct kvl_tables_made *t)
{
    const struct kvl_shape *sh = kvl_model_shape(t->model);
    json_t *c = json_pack("{s[s] ss ss si si sn si}", "architectures", "KVzapModel", "model_type",
                          "kvzap", "dtype", "float32", "input_dim", sh->n_embd, "output_dim",
                          sh->n_kv_heads, "hidden_dim", "n_modules", sh->n_layers);
    char *text = c ? json_dumps(c, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(c);
    if (!text) return kvl_fail(t->err, KVL_ENOMEM, "out of memory for config.json");
    int rc = maps_put(t, "config.json", text, strlen(text));
    free(text);
    return rc;
}

static int maps_folder(const struct kvl_tables_made *t, const char *source)
{
    struct kvl_buf b = { 0 };
    if (mkdir(t->want->out, 0777) != 0)
        return kvl_fail(t->err, KVL_EINVAL, "%s: cannot be made (%s), want a new folder",
                        t->want->out, strerror(errno));
    int rc = maps_bytes(t, source, &b);
    if (rc != KVL_OK) kvl_fail(t->err, rc, "out of memory for networks");
    if (rc == KVL_OK) rc = maps_put(t, "model.safetensors", b.data, b.len);
    if (rc == KVL_OK) rc = maps_config(t);
    kvl_buf_free(&b);
    return rc;
}

static void maps_say(const struct kvl_tables_made *t)
{
    int32_t n = kvl_model_shape(t->model)->n_layers, worst = 0, best = 0;
    double sum = 0;
    for (int32_t l = 0; l < n; l++) {
        double e = kvl_input_fit_explains(t->fit, l);
        sum += e / n;
        if (e < kvl_input_fit_explains(t->fit, worst)) worst = l;
        if (e > kvl_input_fit_explains(t->fit, best)) best = l;
    }
    if (isnan(sum))
        fprintf(stderr,
                "kvlab: %s: no text was held out; with %d texts or more it is said what the "
                "networks explain\n",
                t->want->out, MAPS_HELD_OUT);
    else
        fprintf(stderr,
                "kvlab: %s: of texts held out the networks explain %.3f of the variance of log "
                "KVzip+, mean over %d layers (%.3f in layer %d, %.3f in layer %d)\n",
                t->want->out, sum, n, kvl_input_fit_explains(t->fit, worst), worst,
                kvl_input_fit_explains(t->fit, best), best);
}

int kvl_tables_maps_write(const struct kvl_tables_made *t, const char *source)
{
    KVL_TRY(kvl_input_fit_solve(t->fit, t->err));
    KVL_TRY(maps_folder(t, source));
    maps_say(t);
    return KVL_OK;
}
