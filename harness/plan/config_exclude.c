/* Rules of `exclude`: which cells a sweep leaves out. */
#include "config_exclude.h"

#include "config_point.h"
#include "config_values.h"

#include <stdlib.h>
#include <string.h>

/* Names are checked, so that a rule cannot miss by a slip of the pen. */
struct rule {
    struct kvl_exclude *rule;
    const struct kvl_registry *registry;
};

static int rule_policy(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct rule *r = user;
    const struct kvl_policy *policy;
    struct kvl_texts *names = &r->rule->policies;
    KVL_TRY(kvl_yaml_each(y, v, key, kvl_config_add_name, names));
    for (size_t i = 0; i < names->n; i++) {
        if (kvl_registry_find_policy(r->registry, names->v[i], &policy, y->err) != KVL_OK)
            return kvl_yaml_fail_at(y, v, key);
        char *name = strdup(policy->name); /* written out, "adakv(snapkv)" */
        if (!name) return KVL_ENOMEM;
        free(names->v[i]);
        names->v[i] = name;
    }
    return KVL_OK;
}

static int rule_task(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct rule *r = user;
    const struct kvl_task *task;
    struct kvl_texts *names = &r->rule->tasks;
    KVL_TRY(kvl_yaml_each(y, v, key, kvl_config_add_name, names));
    for (size_t i = 0; i < names->n; i++)
        if (kvl_registry_find_task(r->registry, names->v[i], &task, y->err) != KVL_OK)
            return kvl_yaml_fail_at(y, v, key);
    return KVL_OK;
}

static int rule_protocol(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_ints found = { 0 };
    struct kvl_texts *names = &((struct rule *)user)->rule->protocols;
    int rc = kvl_yaml_each(y, v, key, kvl_config_add_protocol, &found);
    for (size_t i = 0; rc == KVL_OK && i < found.n; i++)
        rc = kvl_texts_add(names, kvl_protocol_name((enum kvl_protocol)found.v[i]));
    free(found.v);
    return rc;
}

static int rule_length(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_length, &((struct rule *)user)->rule->lengths);
}

static int rule_depth(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_depth, &((struct rule *)user)->rule->depths);
}

static int rule_budget(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_each(y, v, key, kvl_config_add_budget, &((struct rule *)user)->rule->budgets);
}

int kvl_exclude_read(struct kvl_yaml *y, yaml_node_t *v, const char *key,
                     const struct kvl_registry *registry, struct kvl_sweep *s)
{
    static const struct kvl_yaml_key keys[] = {
        { "policy", rule_policy, false },     { "task", rule_task, false },
        { "protocol", rule_protocol, false }, { "length", rule_length, false },
        { "depth", rule_depth, false },       { "budget", rule_budget, false },
    };
    size_t n = kvl_yaml_len(v);
    s->exclude = kvl_alloc(n + 1, sizeof *s->exclude);
    if (!s->exclude) return kvl_config_memory(y, key);
    for (size_t i = 0; i < n; i++) {
        struct rule rule = { &s->exclude[s->n_exclude++], registry };
        yaml_node_t *item = kvl_yaml_at(y, v, i);
        KVL_TRY(kvl_yaml_walk(y, item, "exclude.", keys, sizeof keys / sizeof keys[0], &rule));
        if (kvl_yaml_n_pairs(item) == 0)
            return kvl_yaml_fail(y, item, key, "an empty rule would leave out every cell");
    }
    return KVL_OK;
}
