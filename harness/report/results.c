/* Logs as results: reads records, keeps the latest of each id, joins accuracy with speed. */
#include "results_parts.h"

#include "code.h"
#include "lane_recall.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields of records --------------------------------------------------------------------- */

/* The name of a record's point: results of it by different code are one result, the latest. */
struct point_name {
    char s[128];
};
static struct point_name point_name(const json_t *record)
{
    struct point_name name;
    const char *id = kvl_json_text(record, "cell");
    snprintf(name.s, sizeof name.s, "%.*s", (int)kvl_point_len(id), id);
    return name;
}

static uint64_t point_key(const json_t *record)
{
    return kvl_result_key(point_name(record).s);
}

enum kvl_bound kvl_bound_of(const char *policy)
{
    if (strcmp(policy, "full") == 0) return KVL_BOUND_FULL;
    if (strcmp(policy, "random") == 0) return KVL_BOUND_RANDOM;
    if (strcmp(policy, "oracle") == 0) return KVL_BOUND_ORACLE;
    return KVL_BOUND_NONE;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct loader {
    struct kvl_results *r;
    json_t *cells, *speeds; /* objects: id -> record, the latest */
    json_t *resolved;       /* object: point -> how many errors stood before its latest record */
    json_t *settled;        /* object: point -> how many samples did */
    size_t n_samples_cap;
    struct kvl_lanes lanes;
    kvl_results_keep_fn keep; /* NULL: all */
    const void *keep_user;
};

/* The message as a key that stays, counted later; NULL: no memory. */
static const char *load_message(json_t *failures, const char *message)
{
    if (!json_object_get(failures, message) &&
        json_object_set_new(failures, message, json_integer(0)) != 0)
        return NULL;
    return json_object_iter_key(json_object_iter_at(failures, message));
}

static int load_sample(struct loader *l, const json_t *record, struct kvl_err *err)
{
    struct kvl_results *r = l->r;
    if (r->n_samples == l->n_samples_cap) {
        size_t cap = l->n_samples_cap ? 2 * l->n_samples_cap : 1024;
        struct kvl_result_sample *grown = realloc(r->sample, cap * sizeof *grown);
        if (!grown) return kvl_results_memory(err);
        r->sample = grown;
        l->n_samples_cap = cap;
    }
    const char *error = json_string_value(json_object_get(record, "error"));
    bool failed = error != NULL;
    const char *text = json_object_get(record, "text") ? "text" : "context"; /* older logs */
    if (failed && !(error = load_message(r->failures, error))) return kvl_results_memory(err);
    r->sample[r->n_samples] = (struct kvl_result_sample){
        .cell = kvl_result_key(kvl_json_text(record, "cell")),
        .point = point_key(record),
        .run = kvl_result_key(kvl_json_text(record, "run")),
        .context = json_integer_value(json_object_get(record, "context")),
        .question = json_integer_value(json_object_get(record, "question")),
        .text = json_integer_value(json_object_get(record, text)),
        .official = failed ? KVL_NAN : kvl_json_number(record, "official"),
        .strict = failed ? KVL_NAN : kvl_json_number(record, "strict"),
        .nll = failed ? KVL_NAN : kvl_json_number(record, "nll_mean"),
        .recall = failed ? KVL_NAN : kvl_json_number(record, "recall"),
        .depth = kvl_json_number(record, "depth"),
        .retrieved = KVL_NAN,
        .prompt = strtoull(kvl_json_text(record, "prompt_hash"), NULL, 16),
        .error = error,
        .order = r->n_samples,
    };
    r->n_samples++;
    return failed || kvl_lanes_add(&l->lanes, record) == KVL_OK ? KVL_OK : kvl_results_memory(err);
}

/* A result: the errors of its cell that were written before it are history. */
static int load_result(struct loader *l, json_t *latest, json_t *record)
{
    struct point_name point = point_name(record);
    json_t *n = json_integer((json_int_t)json_array_size(l->r->errors));
    int failed = json_object_set_new(l->resolved, point.s, n);
    if (latest == l->cells)
        failed |=
            json_object_set_new(l->settled, point.s, json_integer((json_int_t)l->r->n_samples));
    return failed ? -1 : json_object_set(latest, point.s, record);
}

/* A model, or a type of its keys and values, that runs is no failure any more. */
static int load_run(struct kvl_results *r, json_t *record)
{
    const char *file = kvl_json_text(record, "model.file");
    for (size_t i = 0; i < json_array_size(r->errors); i++) {
        json_t *e = json_array_get(r->errors, i);
        const char *type = kvl_json_text(e, "kv_type");
        if (*type && strcmp(type, kvl_json_text(record, "store.kv_type")) != 0) continue;
        if (strcmp(kvl_json_text(e, "model"), file) == 0)
            json_object_set_new(e, "over", json_true());
    }
    return json_array_append(r->runs, record);
}

/* What there is of a cell that is not finished; nothing new where the same cell is. */
static int load_partial(struct loader *l, json_t *record)
{
    json_t *so_far = json_object_get(record, "so_far");
    json_t *have = json_object_get(l->cells, point_name(record).s);
    bool finished = have && !json_object_get(have, "n_planned") &&
                    strcmp(kvl_json_text(have, "cell"), kvl_json_text(record, "cell")) == 0;
    if (!json_is_object(so_far) || finished) return 0;
    if (json_object_set(so_far, "n_planned", json_object_get(record, "n_planned")) != 0) return -1;
    return load_result(l, l->cells, so_far);
}

static int load_record(json_t *record, void *user, struct kvl_err *err)
{
    struct loader *l = user;
    const char *kind = kvl_json_text(record, "kind");
    int failed = 0;
    if (l->keep && strcmp(kind, "run") != 0 &&
        !l->keep(kvl_json_text(record, "cell"), l->keep_user))
        return KVL_OK;
    if (strcmp(kind, "sample") == 0 || strcmp(kind, "nll") == 0) return load_sample(l, record, err);
    if (strcmp(kind, "cell") == 0 || strcmp(kind, "perplexity") == 0)
        failed = load_result(l, l->cells, record);
    else if (strcmp(kind, "partial") == 0)
        failed = load_partial(l, record);
    else if (strcmp(kind, "speed") == 0)
        failed = load_result(l, l->speeds, record);
    else if (strcmp(kind, "run") == 0)
        failed = load_run(l->r, record);
    else if (strcmp(kind, "error") == 0)
        failed = json_array_append(l->r->errors, record);
    else if (strcmp(kind, "analysis") == 0)
        failed = json_object_set(l->r->analyses, point_name(record).s, record);
    return failed ? kvl_results_memory(err) : KVL_OK;
}

/* ---- samples ------------------------------------------------------------------------------- */

static int sample_order(const void *a, const void *b)
{
    const struct kvl_result_sample *x = a, *y = b;
    if (x->cell != y->cell) return x->cell < y->cell ? -1 : 1;
    if (x->context != y->context) return x->context < y->context ? -1 : 1;
    if (x->question != y->question) return x->question < y->question ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static void failure_count(json_t *failures, const char *message)
{
    json_t *n = json_object_get(failures, message);
    json_integer_set(n, json_integer_value(n) + 1);
}

/* A result and how many samples stood before it. */
struct settled {
    uint64_t point, cell;
    size_t n_before;
};

static int settled_order(const void *a, const void *b)
{
    const struct settled *x = a, *y = b;
    return (x->point > y->point) - (x->point < y->point);
}

/* Takes out samples by other code than that of their point's result, where they stand before it: that
 * code answered the point anew. */
static int samples_settle(struct loader *l, struct kvl_err *err)
{
    struct kvl_results *r = l->r;
    size_t n = 0, used = 0;
    struct settled *all = kvl_alloc(json_object_size(l->cells) + 1, sizeof *all);
    if (!all) return kvl_results_memory(err);
    const char *point;
    json_t *record;
    json_object_foreach(l->cells, point, record) all[n++] =
        (struct settled){ .point = kvl_result_key(point),
                          .cell = kvl_result_key(kvl_json_text(record, "cell")),
                          .n_before =
                              (size_t)json_integer_value(json_object_get(l->settled, point)) };
    qsort(all, n, sizeof *all, settled_order);
    for (size_t i = 0; i < r->n_samples; i++) {
        struct settled key = { .point = r->sample[i].point };
        const struct settled *s = bsearch(&key, all, n, sizeof *all, settled_order);
        bool history = s && s->cell != r->sample[i].cell && r->sample[i].order < s->n_before;
        if (!history) r->sample[used++] = r->sample[i];
    }
    r->n_samples = used;
    kvl_free(all);
    return KVL_OK;
}

static void samples_finish(struct kvl_results *r)
{
    if (r->n_samples) qsort(r->sample, r->n_samples, sizeof *r->sample, sample_order);
    size_t used = 0;
    for (size_t i = 0; i < r->n_samples; i++) {
        const struct kvl_result_sample *s = &r->sample[i], *next = s + 1;
        bool latest = i + 1 == r->n_samples || next->cell != s->cell ||
                      next->context != s->context || next->question != s->question;
        if (!latest) continue;
        r->n_failed_samples += isnan(s->official) && isnan(s->nll);
        if (s->error) failure_count(r->failures, s->error);
        r->sample[used++] = *s;
    }
    r->n_samples = used;
}

bool kvl_result_sample_kept(const struct kvl_results *r, const struct kvl_result_sample *s)
{
    return r->n_samples && bsearch(s, r->sample, r->n_samples, sizeof *s, sample_order);
}

static int key_order(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* ---- errors -------------------------------------------------------------------------------- */

/* point -> its last error. */
static json_t *errors_last(const struct kvl_results *r)
{
    json_t *last = json_object(), *e;
    size_t i;
    int failed = last ? 0 : -1;
    json_array_foreach(r->errors, i, e)
    {
        struct point_name point = point_name(e);
        if (point.s[0]) failed |= json_object_set(last, point.s, e);
    }
    if (!failed) return last;
    json_decref(last);
    return NULL;
}

/* Leaves the errors that neither a later result of their point nor a later error of it made history: in merged logs
 * the same one stands more than once. */
static int errors_finish(struct kvl_results *r, const json_t *resolved, json_t *stopped,
                         struct kvl_err *err)
{
    json_t *left = json_array(), *last = errors_last(r), *e;
    size_t i;
    int failed = left && last ? 0 : -1;
    json_array_foreach(r->errors, i, e)
    {
        const char *id = kvl_json_text(e, "cell");
        struct point_name point = point_name(e);
        if (json_object_get(e, "over")) continue;
        if ((json_int_t)i < json_integer_value(json_object_get(resolved, point.s))) continue;
        const json_t *latest = json_object_get(last, point.s);
        if (latest && latest != e) continue;
        failed |= json_array_append(left, e);
        if (id[0]) failed |= json_object_set_new(stopped, id, json_true());
    }
    json_decref(last);
    json_decref(r->errors);
    r->errors = left;
    r->n_stopped = json_object_size(stopped);
    return failed ? kvl_results_memory(err) : KVL_OK;
}

/* Samples whose cell was cut off before its record, or one of its error, was written. */
static int samples_unfinished(struct kvl_results *r, json_t *cells, json_t *stopped,
                              struct kvl_err *err)
{
    size_t n = 0;
    uint64_t *keys = kvl_alloc(json_object_size(cells) + json_object_size(stopped), sizeof *keys);
    if (!keys) return kvl_results_memory(err);
    const char *id;
    json_t *record;
    json_object_foreach(cells, id, record) keys[n++] =
        kvl_result_key(kvl_json_text(record, "cell"));
    json_object_foreach(stopped, id, record) keys[n++] = kvl_result_key(id);
    qsort(keys, n, sizeof *keys, key_order);
    for (size_t i = 0; i < r->n_samples; i++) {
        bool first = i == 0 || r->sample[i - 1].cell != r->sample[i].cell;
        if (first && !bsearch(&r->sample[i].cell, keys, n, sizeof *keys, key_order))
            r->n_unfinished++;
    }
    kvl_free(keys);
    return KVL_OK;
}

static int results_left(struct loader *l, struct kvl_err *err)
{
    json_t *stopped = json_object();
    int rc = stopped ? errors_finish(l->r, l->resolved, stopped, err) : kvl_results_memory(err);
    if (rc == KVL_OK) rc = samples_unfinished(l->r, l->cells, stopped, err);
    json_decref(stopped);
    return rc;
}

/* ---- results ------------------------------------------------------------------------------- */

/* The seed of the contexts, of the canonical text of a point; NaN when it says none. */
static double seed_of(const json_t *record)
{
    const char *seed = strstr(kvl_json_text(record, "key"), ";seed=");
    return seed ? strtod(seed + strlen(";seed="), NULL) : KVL_NAN;
}

struct kvl_interval kvl_interval_of(const json_t *o, const char *mean)
{
    struct kvl_interval v = { kvl_json_number(o, mean), kvl_json_number(o, "lo"),
                              kvl_json_number(o, "hi") };
    if (!(v.hi > v.lo)) v.lo = v.hi = KVL_NAN;
    return v;
}

static struct kvl_interval interval_of(const json_t *record, const char *field, const char *mean)
{
    return kvl_interval_of(json_object_get(record, field), mean);
}

/* Of texts in the record itself, of questions in that of their reference passes. */
static struct kvl_interval compared_of(const json_t *record, const char *field)
{
    const json_t *quality = json_object_get(record, "quality");
    return interval_of(json_is_object(quality) ? quality : record, field, "mean");
}

/* NaN in records of cells, and where a part was not timed. */
static double attention_of(const json_t *record)
{
    static const char *const parts[] = { "meta_ns", "select_ns", "attend_ns", "evict_ns",
                                         "fetch_ns" };
    double sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        sum += kvl_json_number(record, parts[i]);
    return sum;
}

/* Of the timed steps; NaN in records of cells, and of the CPU. */
static double waits_of(const json_t *record)
{
    size_t steps = json_array_size(json_object_get(record, "step_ns"));
    return steps > 0 ? kvl_json_number(record, "gpu.syncs") / (double)steps : KVL_NAN;
}

/* Bytes of the keys and values of one token in one lane times the lanes; NaN: the run does not tell. */
static double token_bytes(const json_t *run)
{
    double dim = kvl_json_number(run, "model.head_dim");
    enum kvl_kv_type type;
    if (!kvl_kv_find(kvl_json_text(run, "store.kv_type"), &type) || !(dim >= 1 && dim <= 8192))
        return KVL_NAN;
    return (double)kvl_kv_slot_bytes(type, (int32_t)dim, false) *
           kvl_json_number(run, "model.n_kv_heads") * kvl_json_number(run, "model.n_layers");
}

/* An empty text is not none: it takes the place of the one that the template has of its own. */
static const char *result_system(const json_t *record)
{
    const char *text = kvl_json_text(record, "system");
    return *text || !json_is_string(json_object_get(record, "system")) ? text : "(empty)";
}

/* The fields that cells and speed records share. */
static struct kvl_result result_of(const struct kvl_results *r, json_t *record)
{
    struct kvl_result x = {
        .record = record,
        .id = kvl_json_text(record, "cell"),
        .task = kvl_json_text(record, "task"),
        .task_options = kvl_json_text(record, "task_options"),
        .protocol = kvl_json_text(record, "protocol"),
        .policy = kvl_json_text(record, "policy"),
        .options = kvl_json_text(record, "options"),
        .asked = kvl_json_text(record, kvl_json_value(record, "options_asked") ? "options_asked"
                                                                               : "options"),
        .budget = kvl_json_text(record, "budget"),
        .exec = kvl_json_text(record, "exec"),
        .prefill = kvl_json_text(record, "prefill"),
        .device = kvl_json_text(record, "device"),
        .chat = kvl_json_text(record, "chat"),
        .system = result_system(record),
        .sampling = kvl_json_text(record, "sampling"),
        .version = json_integer_value(json_object_get(record, "policy_version")),
        .code = kvl_json_text(record, "code"),
        .run = kvl_json_text(record, "run"),
        .length_tok = kvl_json_number(record, "length_tok"),
        .depth = kvl_json_number(record, "depth"),
        .budget_tok = kvl_json_number(record, "budget_tok"),
        .official = interval_of(record, "official", "p"),
        .strict = interval_of(record, "strict", "p"),
        .recall = KVL_NAN,
        .recall_best = interval_of(record, "recall", "mean"),
        .is_text = strcmp(kvl_json_text(record, "kind"), "perplexity") == 0,
        .nll = interval_of(record, "nll", "mean"),
        .ppl = interval_of(record, "ppl", "value"),
        .kl = compared_of(record, "kl_nats"),
        .top1 = compared_of(record, "top1"),
        .over_blocks = strcmp(kvl_json_text(record, "nll.over"), "blocks") == 0,
        .n_tok = kvl_json_number(record, "n_tok"),
        .n = kvl_json_number(record, "n"),
        .n_planned = kvl_json_number(record, "n_planned"),
        .n_eff = kvl_json_number(record, "official.n_eff"),
        .icc = KVL_NAN,
        .n_contexts = kvl_json_number(record, "n_contexts"),
        .n_errors = kvl_json_number(record, "n_errors"),
#define OBSERVED(member, name, ...) .member = kvl_json_number(record, #name),
#define TIER(member, name, ...)     .member = kvl_json_number(record, "tiers." #name),
#include "fields.def"
        .chance = kvl_json_number(record, "chance"),
        .prefill_tok_per_s = kvl_json_number(record, "prefill_tok_per_s"),
        .decode = { kvl_json_number(record, "decode_tok_per_s"), KVL_NAN, KVL_NAN },
        .attention_ns = attention_of(record),
        .waits = waits_of(record),
    };
    if (strcmp(x.chat, "none") == 0) x.chat = "";
    const json_t *run = kvl_result_run(r, x.run);
    x.model = kvl_json_text(run, "model.name");
    x.model_hash = kvl_json_text(run, "model.hash");
    x.kv_type = kvl_json_text(run, "store.kv_type");
    x.read_tok = x.kv_read / token_bytes(run);
    if (isnan(x.read_tok)) x.read_tok = x.attended_tok;
    x.prefill_type = kvl_json_text(run, "store.prefill_type");
    if (!*x.prefill_type) x.prefill_type = "f32"; /* older logs do not say */
    x.decode_act = kvl_json_text(run, "store.decode_act");
    if (!*x.decode_act) x.decode_act = "q16";
    x.prefill_kv = kvl_json_text(run, "store.prefill_kv");
    if (strcmp(x.prefill_kv, "host") != 0) x.prefill_kv = "device";
    x.seed = seed_of(record);
    bool timed = json_object_get(record, "threads") != NULL;
    x.host = timed ? kvl_json_text(record, "host") : kvl_json_text(run, "machine.host");
    x.threads = kvl_json_number(timed ? record : run, timed ? "threads" : "machine.threads");
    x.gpu = kvl_json_text(run, "gpu.name");
    x.driver = kvl_json_text(run, "gpu.driver");
    x.bound = kvl_bound_of(x.policy);
    x.stale = kvl_record_stale(r, record);
    return x;
}

static int results_build(struct kvl_results *r, json_t *cells, json_t *speeds, struct kvl_err *err)
{
    size_t n_speed = json_object_size(speeds), n = json_object_size(cells);
    struct kvl_result *speed = kvl_alloc(n_speed, sizeof *speed);
    bool *used = kvl_alloc(n_speed, sizeof *used);
    double *v = kvl_alloc(n_speed, sizeof *v);
    r->result = kvl_alloc(n + n_speed, sizeof *r->result);
    bool memory = speed && used && v && r->result;
    const char *id;
    json_t *record;
    size_t i = 0;
    if (memory) {
        json_object_foreach(cells, id, record)
        {
            r->result[r->n_all] = result_of(r, json_incref(record));
            r->result[r->n_all++].is_cell = true;
        }
        json_object_foreach(speeds, id, record) speed[i++] = result_of(r, record);
        kvl_results_join(r, speed, n_speed, used, v);
    }
    kvl_free(speed);
    kvl_free(used);
    kvl_free(v);
    return memory ? KVL_OK : kvl_results_memory(err);
}

/* All speed records as a list, and the number of machines and thread counts behind them. */
static int results_speeds(struct kvl_results *r, json_t *speeds, struct kvl_err *err)
{
    json_t *setups = json_object();
    const char *id;
    json_t *record;
    int failed = setups ? 0 : -1;
    json_object_foreach(speeds, id, record)
    {
        failed |= json_array_append(r->speeds, record);
        char setup[640];
        const json_t *run = kvl_result_run(r, kvl_json_text(record, "run"));
        snprintf(setup, sizeof setup, "%.0f %.200s\n%.200s\n%.200s",
                 kvl_json_number(record, "threads"), kvl_json_text(record, "host"),
                 kvl_json_text(run, "gpu.name"), kvl_json_text(run, "gpu.driver"));
        failed |= json_object_set_new(setups, setup, json_true());
    }
    r->n_speed = json_array_size(r->speeds);
    r->n_setups = json_object_size(setups);
    json_decref(setups);
    return failed ? kvl_results_memory(err) : KVL_OK;
}

static int results_read(struct loader *l, char *const *words, size_t n_words, struct kvl_err *err)
{
    struct kvl_results *r = l->r;
    struct kvl_log_paths paths = { 0 };
    if (!l->cells || !l->speeds || !l->resolved || !l->settled || !r->code || !r->runs ||
        !r->errors || !r->speeds || !r->analyses || !r->failures)
        return kvl_results_memory(err);
    KVL_TRY(kvl_log_paths(words, n_words, &paths, err));
    int rc =
        kvl_log_each((const char *const *)paths.path, paths.n, load_record, l, &r->health, err);
    kvl_log_paths_free(&paths);
    KVL_TRY(rc);
    KVL_TRY(kvl_results_runs(r, err));
    KVL_TRY(samples_settle(l, err));
    samples_finish(r);
    KVL_TRY(results_left(l, err));
    KVL_TRY(results_speeds(r, l->speeds, err));
    KVL_TRY(results_build(r, l->cells, l->speeds, err));
    KVL_TRY(kvl_results_intervals(r, err));
    KVL_TRY(kvl_results_label(r, err));
    kvl_lanes_recall(&l->lanes, r);
    for (size_t i = 0; i < r->n; i++)
        if (!isnan(r->result[i].n_planned)) r->n_partial++;
    for (size_t i = 0; i < r->n; i++)
        r->has_no_context |= strstr(r->result[i].task_label, KVL_CONTROL_NO_CONTEXT) != NULL;
    return KVL_OK;
}

/* `ask`: what of a loader its caller chooses. */
static int results_load(char *const *words, size_t n_words, const struct loader *ask,
                        struct kvl_results *out, struct kvl_err *err)
{
    struct kvl_results r = { .code = json_object(),
                             .runs = json_array(),
                             .errors = json_array(),
                             .speeds = json_array(),
                             .analyses = json_object(),
                             .failures = json_object() };
    struct loader l = { .r = &r,
                        .cells = json_object(),
                        .speeds = json_object(),
                        .resolved = json_object(),
                        .settled = json_object() };
    l.keep = ask->keep;
    l.keep_user = ask->keep_user;
    l.lanes.keep = ask->lanes.keep;
    r.some = ask->keep != NULL;
    int rc = results_read(&l, words, n_words, err);
    json_decref(l.cells);
    json_decref(l.speeds);
    json_decref(l.resolved);
    json_decref(l.settled);
    kvl_lanes_free(&l.lanes);
    if (rc == KVL_OK)
        *out = r;
    else
        kvl_results_free(&r);
    return rc;
}

int kvl_results_load(char *const *words, size_t n_words, struct kvl_results *out,
                     struct kvl_err *err)
{
    return results_load(words, n_words, &(struct loader){ 0 }, out, err);
}

int kvl_results_load_lanes(char *const *words, size_t n_words, struct kvl_results *out,
                           struct kvl_err *err)
{
    return results_load(words, n_words, &(struct loader){ .lanes.keep = true }, out, err);
}

int kvl_results_load_some(char *const *words, size_t n_words, kvl_results_keep_fn keep,
                          const void *user, struct kvl_results *out, struct kvl_err *err)
{
    const struct loader ask = { .keep = keep, .keep_user = user };
    return results_load(words, n_words, &ask, out, err);
}

void kvl_results_free(struct kvl_results *r)
{
    for (size_t i = 0; i < r->n_all; i++) {
        free(r->result[i].label);
        free(r->result[i].shown);
        free(r->result[i].task_label);
        free(r->result[i].set);
        json_decref(r->result[i].record);
    }
    kvl_free(r->result);
    free(r->sample);
    json_decref(r->code);
    json_decref(r->runs);
    json_decref(r->errors);
    json_decref(r->speeds);
    json_decref(r->analyses);
    json_decref(r->failures);
    kvl_log_health_free(&r->health);
    *r = (struct kvl_results){ 0 };
}
