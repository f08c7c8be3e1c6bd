/* setting_kinds.h - how values of a sweep file are read and printed; settings*.c and config.c only. */
#ifndef KVL_SETTING_KINDS_H
#define KVL_SETTING_KINDS_H

#include "config.h"
#include "kvl/opt.h"

/* What is being filled in. */
struct kvl_setting_for {
    struct kvl_sweep *s;
    struct kvl_exclude *rule; /* of keys exclude.* */
    const struct kvl_registry *registry;
    const char *model_dir; /* models are relative to it; NULL: as they are */
};

/* Parameters of a kind's functions. */
#define KVL_SETTING_READ                                                                           \
    struct kvl_yaml *y, yaml_node_t *v, const char *key, const struct kvl_setting *row,            \
        struct kvl_setting_for *to, void *at
#define KVL_SETTING_VALUE const struct kvl_setting *row, const void *at, struct kvl_buf *b

struct kvl_setting;
struct kvl_setting_kind {
    /* Reads a node into the member at `at`.  KVL_EINVAL names the place, the key and the value. */
    int (*read)(KVL_SETTING_READ);
    /* Appends the value as YAML; nothing where there is none.  NULL: printed by who knows it. */
    int (*value)(KVL_SETTING_VALUE);
    bool map; /* has keys of its own; its node may be NULL */
};

/* Where a setting counts in a cell's key. */
enum kvl_in_key { KVL_KEY_NONE, KVL_KEY_ALWAYS, KVL_KEY_GIVEN, KVL_KEY_SPEED };

struct kvl_setting {
    const char *name; /* "speed.steps" */
    const struct kvl_setting_kind *kind;
    struct kvl_opt
        opt; /* off: of struct kvl_sweep or kvl_exclude; default, limits, names; help: what it is */
    bool shown;
    enum kvl_in_key in_key;
    const char *key; /* its name there; NULL: its own */
};

extern const struct kvl_setting_kind kvl_kind_int, kvl_kind_number, kvl_kind_choice, kvl_kind_seed,
    kvl_kind_text, kvl_kind_any_text, kvl_kind_name, kvl_kind_path, kvl_kind_paths, kvl_kind_chat,
    kvl_kind_device, kvl_kind_kv_type, kvl_kind_kv_types, kvl_kind_tasks, kvl_kind_task,
    kvl_kind_policies, kvl_kind_lengths, kvl_kind_depths, kvl_kind_protocols, kvl_kind_budgets,
    kvl_kind_numbers, kvl_kind_what, kvl_kind_rule_policy, kvl_kind_rule_task,
    kvl_kind_rule_protocol;

/* Fails with KVL_ENOMEM, naming the key. */
int kvl_config_memory(const struct kvl_yaml *y, const char *key);
/* Appends a double-quoted YAML scalar: paths may hold anything. */
int kvl_text_quote(struct kvl_buf *b, const char *s);

#endif
