/* Values of a sweep file's keys: single ones, and those of lists. */
#include "config_values.h"

#include "config_point.h"
#include "policy_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_TOK = 1 << 24 };

static const char *const protocol_names[KVL_N_PROTOCOLS + 1] = {
    [KVL_QUESTION_IN_PREFILL] = "question_in_prefill",
    [KVL_QUESTION_AFTER_COMPRESS] = "question_after_compress",
    [KVL_QUESTION_AS_DECODE] = "question_as_decode",
    [KVL_MULTI_TURN] = "multi_turn",
    [KVL_TEACHER_FORCED] = "teacher_forced",
};

const char *kvl_protocol_name(enum kvl_protocol p)
{
    return protocol_names[p];
}

int kvl_config_memory(const struct kvl_yaml *y, const char *key)
{
    return kvl_fail(y->err, KVL_ENOMEM, "%s: %s: out of memory", y->name, key);
}

/* ---- values of lists ------------------------------------------------------------------------- */

int kvl_config_add_length(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                          const char *text, void *user)
{
    int64_t v;
    if (kvl_yaml_count(text, &v) != KVL_OK || v < 1 || v > CONFIG_MAX_TOK)
        return kvl_yaml_fail(y, at, key, "\"%s\" is no length, want 1 to %d tokens", text,
                             CONFIG_MAX_TOK);
    return kvl_ints_add(user, (int32_t)v) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

int kvl_config_add_depth(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                         const char *text, void *user)
{
    double v = KVL_DEPTH_SPREAD;
    if (strcmp(text, "spread") != 0 && (kvl_parse_f64(text, &v) != KVL_OK || v < 0.0 || v > 1.0))
        return kvl_yaml_fail(y, at, key, "\"%s\" is no depth, want \"spread\" or 0 to 1", text);
    return kvl_doubles_add(user, v) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

static int value_protocol(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                          const char *text, int32_t *out)
{
    /* SCBench's name: the cache is decided once and asked again. */
    if (strcmp(text, "multi_request") == 0) text = protocol_names[KVL_QUESTION_AFTER_COMPRESS];
    for (int32_t i = 0; i < KVL_N_PROTOCOLS; i++) {
        if (strcmp(protocol_names[i], text) != 0) continue;
        *out = i;
        return KVL_OK;
    }
    const char *near = kvl_nearest(text, protocol_names, KVL_N_PROTOCOLS);
    if (near)
        return kvl_yaml_fail(y, at, key, "no protocol \"%s\", did you mean \"%s\"?", text, near);
    return kvl_yaml_fail(y, at, key, "no protocol \"%s\", want one of %s, %s, %s, %s", text,
                         protocol_names[0], protocol_names[1], protocol_names[2],
                         protocol_names[3]);
}

int kvl_config_add_protocol(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                            const char *text, void *user)
{
    int32_t p;
    KVL_TRY(value_protocol(y, at, key, text, &p));
    return kvl_ints_add(user, p) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

int kvl_config_add_budget(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                          const char *text, void *user)
{
    int32_t tok;
    int64_t n;
    char digits[32];
    if (kvl_yaml_count(text, &n) == KVL_OK) { /* 1k is 1024, also in the log */
        snprintf(digits, sizeof digits, "%lld", (long long)n);
        text = digits;
    }
    if (kvl_budget_parse(text, 1000, &tok, y->err) != KVL_OK) return kvl_yaml_fail_at(y, at, key);
    return kvl_texts_add(user, text) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

int kvl_config_add_name(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                        const char *text, void *user)
{
    (void)at;
    return kvl_texts_add(user, text) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

/* ---- single values --------------------------------------------------------------------------- */

int kvl_config_i32(struct kvl_yaml *y, const yaml_node_t *v, const char *key, int32_t min,
                   int32_t max, int32_t *out)
{
    int64_t wide;
    KVL_TRY(kvl_yaml_i64(y, v, key, min, max, &wide));
    *out = (int32_t)wide;
    return KVL_OK;
}

int kvl_config_string(struct kvl_yaml *y, const yaml_node_t *v, const char *key, char **out)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (!text[0]) return kvl_yaml_fail(y, v, key, "is empty");
    free(*out);
    *out = strdup(text);
    return *out ? KVL_OK : kvl_config_memory(y, key);
}
