/* Results of earlier runs, read back from their JSON lines: parts that were run apart (a peer takes
 * half an hour) make one table of goals. */
#include "bench_goals.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *from_text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static double from_number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static int32_t from_whole(const json_t *o, const char *key, int32_t none)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? (int32_t)json_integer_value(v) : none;
}

static struct bench_spread from_spread(const json_t *o, const char *name)
{
    char lo[64], hi[64];
    snprintf(lo, sizeof lo, "%s_lo", name);
    snprintf(hi, sizeof hi, "%s_hi", name);
    return (struct bench_spread){ from_number(o, name), from_number(o, lo), from_number(o, hi) };
}

/* The first line says what all are results of. */
static void from_origin(struct bench *b, const json_t *o)
{
    struct bench_origin *g = &b->origin;
    snprintf(g->machine.cpu, sizeof g->machine.cpu, "%s", from_text(o, "cpu"));
    snprintf(g->machine.isa, sizeof g->machine.isa, "%s", from_text(o, "isa"));
    g->machine.cores = from_whole(o, "cores", 0);
    g->model = from_text(o, "model");
    g->weights = from_text(o, "weights");
    g->version = from_text(o, "version");
    g->git = from_text(o, "git");
    g->compiler = from_text(o, "compiler");
    b->config.budget_tok = from_whole(o, "budget_tok", 0);
    if (from_text(o, "gpu") && from_text(o, "driver") && from_text(o, "date")) {
        snprintf(g->device.name, sizeof g->device.name, "%s", from_text(o, "gpu"));
        snprintf(g->device.driver, sizeof g->device.driver, "%s", from_text(o, "driver"));
        snprintf(g->date, sizeof g->date, "%s", from_text(o, "date"));
    }
    (void)kvl_kv_find(from_text(o, "kv_type"), &b->config.kv_type); /* another kvlab's: as it was */
}

static int from_same(struct bench *b, const json_t *first, const json_t *o, const char *path)
{
    static const char *const keys[] = { "cpu",     "cores",      "isa", "model",
                                        "weights", "kv_type",    "git", "compiler",
                                        "version", "budget_tok", "gpu", "driver" };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *was = json_object_get(first, keys[i]), *is = json_object_get(o, keys[i]);
        if (was == is || (was && is && json_equal(was, is))) continue;
        return kvl_fail(b->err, KVL_EINVAL,
                        "--from: %s: another %s than the lines before; want runs of one machine, "
                        "build, model and setting",
                        path, keys[i]);
    }
    return KVL_OK;
}

static bool from_is_line(const json_t *o)
{
    static const char *const texts[] = { "kind",     "part", "what",    "unit", "model",  "cpu",
                                         "compiler", "isa",  "version", "git",  "kv_type" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!from_text(o, texts[i])) return false;
    return strcmp(from_text(o, "kind"), "bench") == 0 && from_whole(o, "rounds", 0) > 0;
}

static void from_threads(struct bench_list *list, int32_t n)
{
    int32_t at = 0;
    while (at < list->n && list->v[at] < n) at++;
    if ((at < list->n && list->v[at] == n) || list->n == BENCH_MAX_LIST) return;
    memmove(&list->v[at + 1], &list->v[at], (size_t)(list->n - at) * sizeof list->v[0]);
    list->v[at] = n;
    list->n++;
}

/* Everything that is a number and no member of every line. */
static void from_extras(struct bench_line *line, json_t *o)
{
    static const char *const known[] = { "value",    "value_lo", "value_hi",  "ratio",
                                         "ratio_lo", "ratio_hi", "threads",   "depth_tok",
                                         "rounds",   "cores",    "budget_tok" };
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v)
    {
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && strcmp(known[i], key) != 0) i++;
        if (i == n && json_is_number(v)) bench_extra(line, key, json_number_value(v));
    }
}

static int from_line(struct bench *b, json_t *o)
{
    struct bench_line line = { .part = from_text(o, "part"),
                               .what = from_text(o, "what"),
                               .unit = from_text(o, "unit"),
                               .policy = from_text(o, "policy"),
                               .against = from_text(o, "against"),
                               .threads = from_whole(o, "threads", 0),
                               .depth = from_whole(o, "depth_tok", -1),
                               .value = from_spread(o, "value") };
    if (line.against) line.ratio = from_spread(o, "ratio");
    from_extras(&line, o);
    if (line.threads > 0) from_threads(&b->config.threads, line.threads);
    b->config.rounds = KVL_MAX(b->config.rounds, from_whole(o, "rounds", 0));
    return bench_emit(b, &line);
}

static int from_text_line(struct bench_goals *g, const char *path, const char *text, int32_t number)
{
    struct bench *b = &g->bench;
    json_error_t why;
    json_t *o = json_loads(text, 0, &why);
    if (!o || !from_is_line(o)) {
        json_decref(o);
        return kvl_fail(b->err, KVL_EINVAL,
                        "--from: %s:%d: no line of kvlab bench --json, want one on each line", path,
                        number);
    }
    bool first = json_array_size(g->from) == 0;
    if (json_array_append_new(g->from, o) != 0)
        return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
    if (first) from_origin(b, o);
    KVL_TRY(from_same(b, json_array_get(g->from, 0), o, path));
    return from_line(b, o);
}

int bench_from(struct bench_goals *g, const char *path)
{
    struct bench *b = &g->bench;
    if (!g->from) g->from = json_array();
    if (!g->from) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
    FILE *f = fopen(path, "re");
    if (!f) return kvl_fail(b->err, KVL_EIO, "--from: %s: cannot open: %s", path, strerror(errno));
    char *text = NULL;
    size_t cap = 0;
    int32_t number = 0;
    int rc = KVL_OK;
    while (rc == KVL_OK && getline(&text, &cap, f) > 0)
        rc = from_text_line(g, path, text, ++number);
    if (rc == KVL_OK && number == 0 && !b->config.device)
        rc = kvl_fail(b->err, KVL_EINVAL, "--from: %s: empty, want lines of kvlab bench --json",
                      path);
    free(text);
    fclose(f);
    return rc;
}
