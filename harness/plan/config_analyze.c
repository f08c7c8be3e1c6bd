/* What kvlab analyze looks at, as a sweep file says it. */
#include "config_analyze.h"

#include "config_values.h"

#include <string.h>

enum { ANALYZE_MAX_TOK = 1 << 24, ANALYZE_MAX_LAYERS = 4096 };

const struct kvl_analyze kvl_analyze_defaults = {
    .what = KVL_ANALYZE_ALL,
    .tokens = { { 64, 256 }, 2 },
    .next = { { 2, 4 }, 2 },
    .lag = 8,
    .wait_layers = -1,
};

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    unsigned what;
} analyze_names[] = {
    { "mass", KVL_ANALYZE_MASS },
    { "similarity", KVL_ANALYZE_SIMILARITY },
    { "drift", KVL_ANALYZE_DRIFT },
    { "all", KVL_ANALYZE_ALL },
};
enum { ANALYZE_NAMES = sizeof analyze_names / sizeof analyze_names[0] };

unsigned kvl_analyze_find(const char *name, const char **near)
{
    const char *names[ANALYZE_NAMES];
    for (size_t i = 0; i < ANALYZE_NAMES; i++) {
        names[i] = analyze_names[i].name;
        if (strcmp(name, names[i]) == 0) return analyze_names[i].what;
    }
    *near = kvl_nearest(name, names, ANALYZE_NAMES);
    return 0;
}

const char *kvl_analyze_name(unsigned what)
{
    size_t i = 0;
    while (i + 1 < ANALYZE_NAMES && analyze_names[i].what != what) i++;
    return analyze_names[i].name;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int analyze_add_what(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                            const char *text, void *user)
{
    const char *near;
    unsigned what = kvl_analyze_find(text, &near);
    ((struct kvl_analyze *)user)->what |= what;
    if (what) return KVL_OK;
    if (near)
        return kvl_yaml_fail(y, at, key, "no analysis \"%s\", did you mean \"%s\"?", text, near);
    return kvl_yaml_fail(y, at, key, "no analysis \"%s\", want mass, similarity, drift or all",
                         text);
}

static int analyze_what(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    ((struct kvl_analyze *)user)->what = 0;
    return kvl_yaml_each(y, v, key, analyze_add_what, user);
}

static int analyze_add_number(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                              const char *text, void *user)
{
    struct kvl_analyze_numbers *n = user;
    int64_t v;
    if (kvl_parse_i64(text, &v) != KVL_OK || v < 1 || v > ANALYZE_MAX_TOK)
        return kvl_yaml_fail(y, at, key, "\"%s\", want 1 to %d", text, ANALYZE_MAX_TOK);
    if (n->n > 0 && v <= n->v[n->n - 1])
        return kvl_yaml_fail(y, at, key, "%s after %d, want ascending numbers", text,
                             n->v[n->n - 1]);
    if (n->n == KVL_ANALYZE_NUMBERS)
        return kvl_yaml_fail(y, at, key, "more than %d numbers", KVL_ANALYZE_NUMBERS);
    n->v[n->n++] = (int32_t)v;
    return KVL_OK;
}

static int analyze_numbers(struct kvl_yaml *y, yaml_node_t *v, const char *key,
                           struct kvl_analyze_numbers *out)
{
    out->n = 0;
    return kvl_yaml_each(y, v, key, analyze_add_number, out);
}

static int analyze_tokens(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return analyze_numbers(y, v, key, &((struct kvl_analyze *)user)->tokens);
}

static int analyze_next(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return analyze_numbers(y, v, key, &((struct kvl_analyze *)user)->next);
}

static int analyze_lag(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, KVL_ANALYSIS_LAG, &((struct kvl_analyze *)user)->lag);
}

static int analyze_dense(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, ANALYZE_MAX_LAYERS,
                          &((struct kvl_analyze *)user)->dense_layers);
}

static int analyze_wait(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 0, ANALYZE_MAX_LAYERS,
                          &((struct kvl_analyze *)user)->wait_layers);
}

int kvl_analyze_read(struct kvl_yaml *y, yaml_node_t *map, const char *key, void *analyze)
{
    static const struct kvl_yaml_key keys[] = {
        { "what", analyze_what, false },          { "tokens", analyze_tokens, false },
        { "next", analyze_next, false },          { "lag", analyze_lag, false },
        { "dense_layers", analyze_dense, false }, { "wait_layers", analyze_wait, false },
    };
    struct kvl_analyze *a = analyze;
    (void)key;
    a->on = true;
    return kvl_yaml_walk(y, map, "analyze.", keys, sizeof keys / sizeof keys[0], a);
}

/* ---- text ------------------------------------------------------------------------------------ */

static int print_numbers(struct kvl_buf *b, const char *key, const struct kvl_analyze_numbers *n)
{
    KVL_TRY(kvl_buf_printf(b, "  %s: [", key));
    for (int32_t i = 0; i < n->n; i++) KVL_TRY(kvl_buf_printf(b, "%s%d", i ? ", " : "", n->v[i]));
    return kvl_buf_adds(b, "]\n");
}

int kvl_analyze_print(struct kvl_buf *b, const struct kvl_analyze *a)
{
    const char *sep = "";
    if (!a->on) return KVL_OK;
    KVL_TRY(kvl_buf_adds(b, "analyze:\n  what: ["));
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1) {
        if (!(a->what & bit)) continue;
        KVL_TRY(kvl_buf_printf(b, "%s%s", sep, kvl_analyze_name(bit)));
        sep = ", ";
    }
    KVL_TRY(kvl_buf_adds(b, "]\n"));
    KVL_TRY(print_numbers(b, "tokens", &a->tokens));
    KVL_TRY(print_numbers(b, "next", &a->next));
    KVL_TRY(kvl_buf_printf(b, "  lag: %d\n", a->lag));
    if (a->dense_layers) KVL_TRY(kvl_buf_printf(b, "  dense_layers: %d\n", a->dense_layers));
    if (a->wait_layers < 0) return KVL_OK;
    return kvl_buf_printf(b, "  wait_layers: %d\n", a->wait_layers);
}
