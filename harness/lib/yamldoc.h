/* yamldoc.h - a YAML document walked against tables of keys, with messages that name file, line and key.
 *
 * libyaml reads; this checks: unknown keys (with the nearest valid one), keys that stand twice,
 * values of the wrong type or out of range.  All failures are KVL_EINVAL.
 */
#ifndef KVL_YAMLDOC_H
#define KVL_YAMLDOC_H

#include "kvl/base.h"

#include <yaml.h>

enum { KVL_YAML_MAX_OVERRIDES = 64, KVL_YAML_LIMIT = 1 << 20 };

struct kvl_yaml {
    yaml_document_t doc;
    bool loaded;
    const char *name; /* of the file, or of the flag that the text came from */
    bool lines;       /* messages name lines */
    struct kvl_err *err;
    struct kvl_yaml_override *override; /* [n_overrides], borrowed */
    size_t n_overrides;
};

/* "speed.steps" = "16": a value from the command line that replaces what the file says. */
struct kvl_yaml_override {
    const char *path;
    const char *text; /* YAML of the value */
    const char *flag; /* for messages: "--set speed.steps" */
    struct kvl_yaml yaml;
};

struct kvl_yaml_key {
    const char *name;
    /* Reads the value; `key` is its full name. */
    int (*read)(struct kvl_yaml *y, yaml_node_t *value, const char *key, void *user);
    bool mapping; /* the value is a mapping; its reader accepts NULL (only overrides) */
};

/* Exactly one document.  `name` is borrowed. */
int kvl_yaml_load(struct kvl_yaml *y, const char *name, bool lines, const char *text, size_t len,
                  struct kvl_err *err);
void kvl_yaml_free(struct kvl_yaml *y);

/* "name:line: key: message"; node NULL = no line. */
int kvl_yaml_fail(const struct kvl_yaml *y, const yaml_node_t *node, const char *key,
                  const char *fmt, ...) KVL_PRINTF(4, 5);
/* The same around a message that is in `y->err`. */
int kvl_yaml_fail_at(const struct kvl_yaml *y, const yaml_node_t *node, const char *key);

/* Walks a mapping (NULL = an empty one) with the keys' readers; `where` is the prefix of its keys
 * ("" or "speed.").  Values that an override gives are read from there. */
int kvl_yaml_walk(struct kvl_yaml *y, yaml_node_t *node, const char *where,
                  const struct kvl_yaml_key *keys, size_t n_keys, void *user);

/* The document's first node; NULL when it is empty. */
yaml_node_t *kvl_yaml_root(struct kvl_yaml *y);
/* A list's items; anything else is a list of itself. */
size_t kvl_yaml_len(const yaml_node_t *node);
yaml_node_t *kvl_yaml_at(struct kvl_yaml *y, yaml_node_t *node, size_t i);
/* Pairs of a mapping. */
size_t kvl_yaml_n_pairs(const yaml_node_t *node);
int kvl_yaml_pair(struct kvl_yaml *y, yaml_node_t *node, size_t i, const char **key,
                  yaml_node_t **value);

/* A single value.  *out is borrowed from the document. */
int kvl_yaml_text(const struct kvl_yaml *y, const yaml_node_t *node, const char *key,
                  const char **out);
int kvl_yaml_i64(const struct kvl_yaml *y, const yaml_node_t *node, const char *key, int64_t min,
                 int64_t max, int64_t *out);

/* "4096", and as tables print it: "4K" or "4k" (1024 each), "1M".  KVL_EINVAL: no number. */
int kvl_yaml_count(const char *text, int64_t *out);

/* Calls `each` with every value of a list; "first..last*factor" and "first..last+step" stand for
 * whole numbers, all others are given as they are. */
int kvl_yaml_each(struct kvl_yaml *y, yaml_node_t *node, const char *key,
                  int (*each)(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                              const char *text, void *user),
                  void *user);

#endif
