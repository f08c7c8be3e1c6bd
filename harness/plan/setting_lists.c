/* Values of a sweep file's keys that are lists. */
#include "setting_kinds.h"

#include "config_point.h"
#include "policy_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX_TOK = 1 << 24 };

/* ---- items ----------------------------------------------------------------------------------- */

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

static int add_length(struct kvl_yaml *y, const yaml_node_t *at, const char *key, const char *text,
                      void *user)
{
    int64_t v;
    if (kvl_yaml_count(text, &v) != KVL_OK || v < 1 || v > LIST_MAX_TOK)
        return kvl_yaml_fail(y, at, key, "\"%s\" is no length, want 1 to %d tokens", text,
                             LIST_MAX_TOK);
    return kvl_ints_add(user, (int32_t)v) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

static int add_depth(struct kvl_yaml *y, const yaml_node_t *at, const char *key, const char *text,
                     void *user)
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

static int add_protocol(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                        const char *text, void *user)
{
    int32_t p;
    KVL_TRY(value_protocol(y, at, key, text, &p));
    return kvl_ints_add(user, p) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

static int add_budget(struct kvl_yaml *y, const yaml_node_t *at, const char *key, const char *text,
                      void *user)
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

static int add_name(struct kvl_yaml *y, const yaml_node_t *at, const char *key, const char *text,
                    void *user)
{
    (void)at;
    return kvl_texts_add(user, text) == KVL_OK ? KVL_OK : kvl_config_memory(y, key);
}

static int add_number(struct kvl_yaml *y, const yaml_node_t *at, const char *key, const char *text,
                      void *user)
{
    struct kvl_numbers *n = user;
    int64_t v;
    if (kvl_parse_i64(text, &v) != KVL_OK || v < 1 || v > LIST_MAX_TOK)
        return kvl_yaml_fail(y, at, key, "\"%s\" is no number, want 1 to %d", text, LIST_MAX_TOK);
    if (n->n > 0 && v <= n->v[n->n - 1])
        return kvl_yaml_fail(y, at, key, "%s after %d, want them ascending", text, n->v[n->n - 1]);
    if (n->n == KVL_NUMBERS) return kvl_yaml_fail(y, at, key, "more than %d values", KVL_NUMBERS);
    n->v[n->n++] = (int32_t)v;
    return KVL_OK;
}

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

static int add_what(struct kvl_yaml *y, const yaml_node_t *at, const char *key, const char *text,
                    void *user)
{
    const char *near;
    unsigned what = kvl_analyze_find(text, &near);
    *(unsigned *)user |= what;
    if (what) return KVL_OK;
    if (near)
        return kvl_yaml_fail(y, at, key, "no analysis \"%s\", did you mean \"%s\"?", text, near);
    return kvl_yaml_fail(y, at, key, "no analysis \"%s\", want mass, similarity, drift or all",
                         text);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int lengths_read(KVL_SETTING_READ)
{
    (void)row, (void)to;
    return kvl_yaml_each(y, v, key, add_length, at);
}

static int depths_read(KVL_SETTING_READ)
{
    (void)row, (void)to;
    return kvl_yaml_each(y, v, key, add_depth, at);
}

static int protocols_read(KVL_SETTING_READ)
{
    (void)row, (void)to;
    return kvl_yaml_each(y, v, key, add_protocol, at);
}

static int budgets_read(KVL_SETTING_READ)
{
    (void)row, (void)to;
    return kvl_yaml_each(y, v, key, add_budget, at);
}

static int numbers_read(KVL_SETTING_READ)
{
    (void)row, (void)to;
    ((struct kvl_numbers *)at)->n = 0;
    return kvl_yaml_each(y, v, key, add_number, at);
}

static int what_read(KVL_SETTING_READ)
{
    (void)row, (void)to;
    *(unsigned *)at = 0;
    return kvl_yaml_each(y, v, key, add_what, at);
}

/* "[", ", " ... and "]" behind the last of n. */
static const char *list_before(size_t i)
{
    return i ? ", " : "[";
}

static int list_end(size_t n, struct kvl_buf *b)
{
    return n ? kvl_buf_adds(b, "]") : KVL_OK;
}

static int lengths_value(KVL_SETTING_VALUE)
{
    const struct kvl_ints *p = at;
    (void)row;
    for (size_t i = 0; i < p->n; i++) KVL_TRY(kvl_buf_printf(b, "%s%d", list_before(i), p->v[i]));
    return list_end(p->n, b);
}

static int depths_value(KVL_SETTING_VALUE)
{
    const struct kvl_doubles *p = at;
    (void)row;
    for (size_t i = 0; i < p->n; i++)
        if (p->v[i] < 0.0)
            KVL_TRY(kvl_buf_printf(b, "%sspread", list_before(i)));
        else
            KVL_TRY(kvl_buf_printf(b, "%s%.15g", list_before(i), p->v[i]));
    return list_end(p->n, b);
}

static int protocols_value(KVL_SETTING_VALUE)
{
    const struct kvl_ints *p = at;
    (void)row;
    for (size_t i = 0; i < p->n; i++)
        KVL_TRY(kvl_buf_printf(b, "%s%s", list_before(i),
                               kvl_protocol_name((enum kvl_protocol)p->v[i])));
    return list_end(p->n, b);
}

static int words_value(KVL_SETTING_VALUE)
{
    const struct kvl_texts *p = at;
    (void)row;
    for (size_t i = 0; i < p->n; i++) KVL_TRY(kvl_buf_printf(b, "%s%s", list_before(i), p->v[i]));
    return list_end(p->n, b);
}

static int numbers_value(KVL_SETTING_VALUE)
{
    const struct kvl_numbers *p = at;
    (void)row;
    for (size_t i = 0; i < (size_t)p->n; i++)
        KVL_TRY(kvl_buf_printf(b, "%s%d", list_before(i), p->v[i]));
    return list_end((size_t)p->n, b);
}

static int what_value(KVL_SETTING_VALUE)
{
    size_t n = 0;
    (void)row;
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1)
        if (*(const unsigned *)at & bit)
            KVL_TRY(kvl_buf_printf(b, "%s%s", list_before(n++), kvl_analyze_name(bit)));
    return list_end(n, b);
}

const struct kvl_setting_kind kvl_kind_lengths = { lengths_read, lengths_value, false };
const struct kvl_setting_kind kvl_kind_depths = { depths_read, depths_value, false };
const struct kvl_setting_kind kvl_kind_protocols = { protocols_read, protocols_value, false };
const struct kvl_setting_kind kvl_kind_budgets = { budgets_read, words_value, false };
const struct kvl_setting_kind kvl_kind_numbers = { numbers_read, numbers_value, false };
const struct kvl_setting_kind kvl_kind_what = { what_read, what_value, false };

/* ---- tasks and policies ---------------------------------------------------------------------- */

static int tasks_read(KVL_SETTING_READ)
{
    (void)row;
    return kvl_points_read(y, v, key, KVL_POINT_TASK, to->registry, at);
}

static int task_read(KVL_SETTING_READ)
{
    const struct kvl_points *task = at;
    KVL_TRY(tasks_read(y, v, key, row, to, at));
    return task->n == 1 ? KVL_OK : kvl_yaml_fail(y, v, key, "names %zu tasks, want one", task->n);
}

static int policies_read(KVL_SETTING_READ)
{
    (void)row;
    return kvl_points_read(y, v, key, KVL_POINT_POLICY, to->registry, at);
}

/* Options may have quotes and line feeds. */
static int point_value(const struct kvl_point *v, struct kvl_buf *b)
{
    const char *own = v->own ? ":prefill=own" : "";
    struct kvl_buf text = { 0 };
    int rc = kvl_buf_printf(&text, "%s%s%s%s", v->task ? v->task->name : v->policy->name, own,
                            v->options[0] ? (*own ? "," : ":") : "", v->options);
    if (rc == KVL_OK) rc = kvl_text_quote(b, text.data);
    kvl_buf_free(&text);
    return rc;
}

static int points_value(KVL_SETTING_VALUE)
{
    const struct kvl_points *p = at;
    (void)row;
    for (size_t i = 0; i < p->n; i++) {
        KVL_TRY(kvl_buf_adds(b, list_before(i)));
        KVL_TRY(point_value(&p->v[i], b));
    }
    return list_end(p->n, b);
}

const struct kvl_setting_kind kvl_kind_tasks = { tasks_read, points_value, false };
const struct kvl_setting_kind kvl_kind_task = { task_read, points_value, false };
const struct kvl_setting_kind kvl_kind_policies = { policies_read, points_value, false };

/* ---- rules: names are checked, so that none misses by a slip of the pen ------------------------- */

static int rule_policy(KVL_SETTING_READ)
{
    const struct kvl_policy *policy;
    struct kvl_texts *names = at;
    (void)row;
    KVL_TRY(kvl_yaml_each(y, v, key, add_name, names));
    for (size_t i = 0; i < names->n; i++) {
        if (kvl_registry_find_policy(to->registry, names->v[i], &policy, y->err) != KVL_OK)
            return kvl_yaml_fail_at(y, v, key);
        char *name = strdup(policy->name); /* written out, "adakv(snapkv)" */
        if (!name) return KVL_ENOMEM;
        free(names->v[i]);
        names->v[i] = name;
    }
    return KVL_OK;
}

static int rule_task(KVL_SETTING_READ)
{
    const struct kvl_task *task;
    struct kvl_texts *names = at;
    (void)row;
    KVL_TRY(kvl_yaml_each(y, v, key, add_name, names));
    for (size_t i = 0; i < names->n; i++)
        if (kvl_registry_find_task(to->registry, names->v[i], &task, y->err) != KVL_OK)
            return kvl_yaml_fail_at(y, v, key);
    return KVL_OK;
}

static int rule_protocol(KVL_SETTING_READ)
{
    struct kvl_ints found = { 0 };
    struct kvl_texts *names = at;
    (void)row, (void)to;
    int rc = kvl_yaml_each(y, v, key, add_protocol, &found);
    for (size_t i = 0; rc == KVL_OK && i < found.n; i++)
        rc = kvl_texts_add(names, kvl_protocol_name((enum kvl_protocol)found.v[i]));
    free(found.v);
    return rc;
}

const struct kvl_setting_kind kvl_kind_rule_policy = { rule_policy, words_value, false };
const struct kvl_setting_kind kvl_kind_rule_task = { rule_task, words_value, false };
const struct kvl_setting_kind kvl_kind_rule_protocol = { rule_protocol, words_value, false };
