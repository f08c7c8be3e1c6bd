/* Prompts, as a sweep file asks for them. */
#include "config_prompt.h"

#include "args.h"
#include "config_values.h"
#include "kvl/chat.h"
#include "kvl/opt.h"
#include "prompt.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT_MOST_NAMES = 64 };

static int chat_unknown(struct kvl_yaml *y, const yaml_node_t *v, const char *key, const char *text)
{
    const char *name[PROMPT_MOST_NAMES] = { "auto", "none" };
    size_t n = 2;
    for (size_t i = 0; kvl_chat_at(i) && n < PROMPT_MOST_NAMES; i++) name[n++] = kvl_chat_at(i);
    const char *near = kvl_nearest(text, name, n);
    struct kvl_buf names = { 0 };
    if (near)
        return kvl_yaml_fail(y, v, key, "no chat template \"%s\", did you mean \"%s\"?", text,
                             near);
    int rc = kvl_prompt_names(&names);
    if (rc == KVL_OK)
        rc = kvl_yaml_fail(y, v, key, "no chat template \"%s\", want auto, none, %s", text,
                           names.data);
    kvl_buf_free(&names);
    return rc;
}

static bool chat_known(const char *text)
{
    for (size_t i = 0; kvl_chat_at(i); i++)
        if (strcmp(kvl_chat_at(i), text) == 0) return true;
    return false;
}

int kvl_chat_read(struct kvl_yaml *y, const yaml_node_t *v, const char *key, char **out)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0 && !chat_known(text))
        return chat_unknown(y, v, key, text);
    free(*out);
    *out = strdup(text);
    return *out ? KVL_OK : kvl_fail(y->err, KVL_ENOMEM, "%s: %s: out of memory", y->name, key);
}

/* ---- sampling -------------------------------------------------------------------------------- */

enum { SAMPLING_MAX_K = 1 << 24 };

const struct kvl_sampling kvl_greedy = { .top_p = 1.0, .n = 1, .seed = 1 };

static int sampling_number(struct kvl_yaml *y, const yaml_node_t *v, const char *key, double max,
                           double *out)
{
    const char *text;
    double x;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_parse_f64(text, &x) != KVL_OK || !(x >= 0.0 && x <= max))
        return kvl_yaml_fail(y, v, key, "\"%s\" is out of range, want 0 to %g", text, max);
    *out = x;
    return KVL_OK;
}

static int sampling_temperature(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return sampling_number(y, v, key, 100.0, &((struct kvl_sampling *)user)->temperature);
}

static int sampling_top_p(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return sampling_number(y, v, key, 1.0, &((struct kvl_sampling *)user)->top_p);
}

static int sampling_min_p(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return sampling_number(y, v, key, 1.0, &((struct kvl_sampling *)user)->min_p);
}

static int sampling_top_k(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 0, SAMPLING_MAX_K, &((struct kvl_sampling *)user)->top_k);
}

static int sampling_n(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_config_i32(y, v, key, 1, KVL_ASK_MAX, &((struct kvl_sampling *)user)->n);
}

static int sampling_seed(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    int64_t seed;
    KVL_TRY(kvl_yaml_i64(y, v, key, 0, INT64_MAX, &seed));
    ((struct kvl_sampling *)user)->seed = (uint64_t)seed;
    return KVL_OK;
}

int kvl_sampling_read(struct kvl_yaml *y, yaml_node_t *map, const char *key, void *sampling)
{
    static const struct kvl_yaml_key keys[] = {
        { "temperature", sampling_temperature, false },
        { "top_p", sampling_top_p, false },
        { "top_k", sampling_top_k, false },
        { "min_p", sampling_min_p, false },
        { "n", sampling_n, false },
        { "seed", sampling_seed, false },
    };
    struct kvl_sampling *s = sampling;
    (void)key;
    *s = kvl_greedy;
    KVL_TRY(kvl_yaml_walk(y, map, "sampling.", keys, sizeof keys / sizeof keys[0], s));
    if (s->n > 1 && !(s->temperature > 0.0))
        return kvl_yaml_fail(y, map, "sampling.n",
                             "%d answers without a temperature are all the same", s->n);
    return KVL_OK;
}

int kvl_sampling_print(const struct kvl_sampling *s, struct kvl_buf *out)
{
    if (!(s->temperature > 0.0)) return KVL_OK;
    return kvl_buf_printf(out, "temperature=%.15g,top_p=%.15g,top_k=%d,min_p=%.15g,n=%d,seed=%llu",
                          s->temperature, s->top_p, s->top_k, s->min_p, s->n,
                          (unsigned long long)s->seed);
}
