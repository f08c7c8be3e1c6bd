/* Reference passes, as a sweep file asks for them. */
#include "config_quality.h"

#include "config_values.h"

enum { QUALITY_MAX_QUESTIONS = 100000, QUALITY_MAX_STEPS = 4096, QUALITY_MAX_TOK = 1 << 24 };

static int quality_questions(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_quality *q = user;
    return kvl_config_i32(y, v, key, 1, QUALITY_MAX_QUESTIONS, &q->questions);
}

static int quality_steps(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_quality *q = user;
    return kvl_config_i32(y, v, key, 1, QUALITY_MAX_STEPS, &q->steps);
}

static int quality_add_top(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                           const char *text, void *user)
{
    struct kvl_quality *q = user;
    int64_t v;
    if (kvl_parse_i64(text, &v) != KVL_OK || v < 1 || v > QUALITY_MAX_TOK)
        return kvl_yaml_fail(y, at, key, "\"%s\" is no number of tokens, want 1 to %d", text,
                             QUALITY_MAX_TOK);
    if (q->n_top > 0 && v <= q->top[q->n_top - 1])
        return kvl_yaml_fail(y, at, key, "%s after %d, want them ascending", text,
                             q->top[q->n_top - 1]);
    if (q->n_top == KVL_QUALITY_TOPS)
        return kvl_yaml_fail(y, at, key, "more than %d values", KVL_QUALITY_TOPS);
    q->top[q->n_top++] = (int32_t)v;
    return KVL_OK;
}

static int quality_top(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_quality *q = user;
    q->n_top = 0;
    return kvl_yaml_each(y, v, key, quality_add_top, q);
}

int kvl_quality_read(struct kvl_yaml *y, yaml_node_t *map, const char *key, void *quality)
{
    static const struct kvl_yaml_key keys[] = {
        { "questions", quality_questions, false },
        { "steps", quality_steps, false },
        { "top", quality_top, false },
    };
    (void)key;
    *(struct kvl_quality *)quality =
        (struct kvl_quality){ .questions = 1, .steps = 8, .top = { 10, 64, 256 }, .n_top = 3 };
    return kvl_yaml_walk(y, map, "quality.", keys, sizeof keys / sizeof keys[0], quality);
}
