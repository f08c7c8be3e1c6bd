/* YAML against tables of keys. */
#include "yamldoc.h"

#include "kvl/opt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { YAML_MAX_KEYS = 64, YAML_MAX_RANGE = 1000, YAML_MAX_DEPTH = 32 };

/* ---- messages -------------------------------------------------------------------------------- */

static void yaml_where(const struct kvl_yaml *y, const yaml_node_t *node, const char *key,
                       char *out, size_t size)
{
    char line[32] = "";
    if (node && y->lines) snprintf(line, sizeof line, ":%zu", node->start_mark.line + 1);
    bool named = y->lines && key && key[0];
    snprintf(out, size, "%s%s%s%s", y->name, line, named ? ": " : "", named ? key : "");
}

int kvl_yaml_fail(const struct kvl_yaml *y, const yaml_node_t *node, const char *key,
                  const char *fmt, ...)
{
    char where[256], text[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    yaml_where(y, node, key, where, sizeof where);
    return kvl_fail(y->err, KVL_EINVAL, "%s: %s", where, text);
}

int kvl_yaml_fail_at(const struct kvl_yaml *y, const yaml_node_t *node, const char *key)
{
    char where[256];
    yaml_where(y, node, key, where, sizeof where);
    return kvl_fail_at(y->err, KVL_EINVAL, "%s", where);
}

/* ---- the document ---------------------------------------------------------------------------- */

static int yaml_fail_syntax(const struct kvl_yaml *y, const yaml_parser_t *p)
{
    const char *what = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return kvl_fail(y->err, KVL_ENOMEM, "%s: no memory to read it", y->name);
    bool tab = strstr(what, "tab character") || (p->buffer.pointer && *p->buffer.pointer == '\t');
    const char *hint = tab ? " (indent with spaces, not tabs)" : "";
    if (!y->lines) return kvl_fail(y->err, KVL_EINVAL, "%s: %s", y->name, what);
    /* A bad encoding is found by offset, everything else by line. */
    if (p->error == YAML_READER_ERROR)
        return kvl_fail(y->err, KVL_EINVAL, "%s: is no YAML file: byte %zu: %s", y->name,
                        p->problem_offset, what);
    return kvl_fail(y->err, KVL_EINVAL, "%s:%zu: %s%s", y->name, p->problem_mark.line + 1, what,
                    hint);
}

/* Looked at before the document is made: what is nested takes libyaml as many steps as the square of its depth, and
 * nothing here is nested deeper than a few.  What is no YAML is told when the document is made. */
static int yaml_check_depth(const struct kvl_yaml *y, const char *text, size_t len)
{
    yaml_parser_t p;
    yaml_event_t e;
    int depth = 0, rc = KVL_OK;
    if (!yaml_parser_initialize(&p))
        return kvl_fail(y->err, KVL_ENOMEM, "%s: out of memory", y->name);
    yaml_parser_set_input_string(&p, (const unsigned char *)text, len);
    for (bool more = true; more && rc == KVL_OK;) {
        if (!yaml_parser_parse(&p, &e)) break;
        more = e.type != YAML_STREAM_END_EVENT;
        depth += e.type == YAML_SEQUENCE_START_EVENT || e.type == YAML_MAPPING_START_EVENT;
        depth -= e.type == YAML_SEQUENCE_END_EVENT || e.type == YAML_MAPPING_END_EVENT;
        if (depth > YAML_MAX_DEPTH)
            rc = kvl_fail(y->err, KVL_EINVAL,
                          "%s:%zu: lists and mappings nested in more than %d others", y->name,
                          e.start_mark.line + 1, YAML_MAX_DEPTH);
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&p);
    return rc;
}

/* A second document would be ignored silently. */
static int yaml_check_end(const struct kvl_yaml *y, yaml_parser_t *p)
{
    yaml_document_t next;
    if (!yaml_parser_load(p, &next)) return yaml_fail_syntax(y, p);
    yaml_node_t *root = yaml_document_get_root_node(&next);
    size_t line = root ? root->start_mark.line + 1 : 0;
    yaml_document_delete(&next);
    if (line == 0) return KVL_OK;
    return kvl_fail(y->err, KVL_EINVAL, "%s:%zu: a second document begins, want one", y->name,
                    line);
}

int kvl_yaml_load(struct kvl_yaml *y, const char *name, bool lines, const char *text, size_t len,
                  struct kvl_err *err)
{
    yaml_parser_t parser;
    *y = (struct kvl_yaml){ .name = name, .lines = lines, .err = err };
    KVL_TRY(yaml_check_depth(y, text, len));
    if (!yaml_parser_initialize(&parser))
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int rc = KVL_OK;
    if (yaml_parser_load(&parser, &y->doc)) {
        y->loaded = true;
        rc = yaml_check_end(y, &parser);
    } else {
        rc = yaml_fail_syntax(y, &parser);
    }
    yaml_parser_delete(&parser);
    if (rc != KVL_OK) kvl_yaml_free(y);
    return rc;
}

void kvl_yaml_free(struct kvl_yaml *y)
{
    if (y->loaded) yaml_document_delete(&y->doc);
    y->loaded = false;
}

yaml_node_t *kvl_yaml_root(struct kvl_yaml *y)
{
    return y->loaded ? yaml_document_get_root_node(&y->doc) : NULL;
}

size_t kvl_yaml_len(const yaml_node_t *node)
{
    if (node->type != YAML_SEQUENCE_NODE) return 1;
    return (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
}

yaml_node_t *kvl_yaml_at(struct kvl_yaml *y, yaml_node_t *node, size_t i)
{
    if (node->type != YAML_SEQUENCE_NODE) return node;
    return yaml_document_get_node(&y->doc, node->data.sequence.items.start[i]);
}

size_t kvl_yaml_n_pairs(const yaml_node_t *node)
{
    return (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
}

int kvl_yaml_pair(struct kvl_yaml *y, yaml_node_t *node, size_t i, const char **key,
                  yaml_node_t **value)
{
    const yaml_node_pair_t *pair = node->data.mapping.pairs.start + i;
    yaml_node_t *name = yaml_document_get_node(&y->doc, pair->key);
    *value = yaml_document_get_node(&y->doc, pair->value);
    return kvl_yaml_text(y, name, "", key);
}

/* ---- single values --------------------------------------------------------------------------- */

int kvl_yaml_text(const struct kvl_yaml *y, const yaml_node_t *node, const char *key,
                  const char **out)
{
    if (node->type != YAML_SCALAR_NODE)
        return kvl_yaml_fail(y, node, key, "is a %s, want a single value",
                             node->type == YAML_SEQUENCE_NODE ? "list" : "mapping");
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length)
        return kvl_yaml_fail(y, node, key, "has a zero byte, want text");
    *out = text;
    return KVL_OK;
}

int kvl_yaml_i64(const struct kvl_yaml *y, const yaml_node_t *node, const char *key, int64_t min,
                 int64_t max, int64_t *out)
{
    const char *text;
    int64_t v;
    KVL_TRY(kvl_yaml_text(y, node, key, &text));
    if (kvl_parse_i64(text, &v) != KVL_OK || v < min || v > max)
        return kvl_yaml_fail(y, node, key, "\"%s\" is out of range, want %lld to %lld", text,
                             (long long)min, (long long)max);
    *out = v;
    return KVL_OK;
}

/* ---- lists and ranges ------------------------------------------------------------------------ */

/* "first..last*factor" or "first..last+step". */
struct yaml_range {
    int64_t first, last, step;
    char op;
};

int kvl_yaml_count(const char *text, int64_t *out)
{
    static const struct {
        const char *letters;
        int64_t times;
    } unit[] = { { "kK", 1024 }, { "mM", 1024 * 1024 } };
    char digits[32];
    size_t len = strlen(text);
    if (len < 2 || len >= sizeof digits) return kvl_parse_i64(text, out);
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++) {
        int64_t v;
        if (!strchr(unit[i].letters, text[len - 1])) continue;
        memcpy(digits, text, len - 1);
        digits[len - 1] = '\0';
        KVL_TRY(kvl_parse_i64(digits, &v));
        if (v < 0 || v > INT64_MAX / unit[i].times) return KVL_EINVAL;
        *out = v * unit[i].times;
        return KVL_OK;
    }
    return kvl_parse_i64(text, out);
}

static int yaml_range_parse(const char *text, struct yaml_range *out)
{
    char copy[64];
    const char *dots = strstr(text, "..");
    size_t len = strlen(text);
    if (len >= sizeof copy) return KVL_EINVAL;
    memcpy(copy, text, len + 1);
    char *last = copy + (dots - text) + 2, *op = strpbrk(last, "*+");
    if (!op) return KVL_EINVAL;
    out->op = *op;
    *op = '\0';
    copy[dots - text] = '\0';
    KVL_TRY(kvl_yaml_count(copy, &out->first));
    KVL_TRY(kvl_yaml_count(last, &out->last));
    KVL_TRY(kvl_yaml_count(op + 1, &out->step));
    bool grows = out->op == '+' ? out->step >= 1 : out->step >= 2;
    bool good = out->first >= 1 && out->last >= out->first && out->last <= INT32_MAX && grows &&
                out->step <= INT32_MAX;
    return good ? KVL_OK : KVL_EINVAL;
}

typedef int (*yaml_each_fn)(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                            const char *text, void *user);

static int yaml_each_range(struct kvl_yaml *y, const yaml_node_t *at, const char *key,
                           const char *text, yaml_each_fn each, void *user)
{
    struct yaml_range r;
    if (yaml_range_parse(text, &r) != KVL_OK)
        return kvl_yaml_fail(y, at, key,
                             "\"%s\" is no range, want first..last*factor or "
                             "first..last+step",
                             text);
    int32_t n = 0;
    for (int64_t v = r.first; v <= r.last; v = r.op == '+' ? v + r.step : v * r.step) {
        char number[32];
        if (++n > YAML_MAX_RANGE)
            return kvl_yaml_fail(y, at, key, "range \"%s\" has more than %d values", text,
                                 YAML_MAX_RANGE);
        snprintf(number, sizeof number, "%lld", (long long)v);
        KVL_TRY(each(y, at, key, number, user));
    }
    return KVL_OK;
}

int kvl_yaml_each(struct kvl_yaml *y, yaml_node_t *node, const char *key, yaml_each_fn each,
                  void *user)
{
    if (node->type == YAML_SEQUENCE_NODE && kvl_yaml_len(node) == 0)
        return kvl_yaml_fail(y, node, key, "is an empty list, want at least one value");
    for (size_t i = 0; i < kvl_yaml_len(node); i++) {
        const yaml_node_t *at = kvl_yaml_at(y, node, i);
        const char *text;
        KVL_TRY(kvl_yaml_text(y, at, key, &text));
        if (strstr(text, ".."))
            KVL_TRY(yaml_each_range(y, at, key, text, each, user));
        else
            KVL_TRY(each(y, at, key, text, user));
    }
    return KVL_OK;
}

/* ---- mappings -------------------------------------------------------------------------------- */

static int yaml_find_key(const struct kvl_yaml *y, const yaml_node_t *at, const char *where,
                         const char *name, const struct kvl_yaml_key *keys, size_t n_keys,
                         size_t *out)
{
    const char *names[YAML_MAX_KEYS];
    for (size_t i = 0; i < n_keys; i++) {
        names[i] = keys[i].name;
        if (strcmp(names[i], name) != 0) continue;
        *out = i;
        return KVL_OK;
    }
    const char *near = kvl_nearest(name, names, n_keys);
    if (near)
        return kvl_yaml_fail(y, at, "", "no key \"%s%s\", did you mean \"%s%s\"?", where, name,
                             where, near);
    struct kvl_buf list = { 0 };
    for (size_t i = 0; i < n_keys; i++) kvl_buf_printf(&list, "%s%s", i ? ", " : "", names[i]);
    int rc = kvl_yaml_fail(y, at, "", "no key \"%s%s\", want one of %s", where, name,
                           list.data ? list.data : "");
    kvl_buf_free(&list);
    return rc;
}

static void yaml_full_key(char *out, size_t size, const char *where, const char *name)
{
    snprintf(out, size, "%s%s", where, name);
}

/* The last override of exactly this key, or NULL. */
static struct kvl_yaml_override *yaml_override(struct kvl_yaml *y, const char *full)
{
    struct kvl_yaml_override *found = NULL;
    for (size_t i = 0; i < y->n_overrides; i++)
        if (strcmp(y->override[i].path, full) == 0) found = &y->override[i];
    return found;
}

static int yaml_walk_pairs(struct kvl_yaml *y, yaml_node_t *node, const char *where,
                           const struct kvl_yaml_key *keys, size_t n_keys, size_t *line, void *user)
{
    for (size_t i = 0; i < kvl_yaml_n_pairs(node); i++) {
        const char *name;
        char full[128];
        yaml_node_t *value;
        size_t k;
        KVL_TRY(kvl_yaml_pair(y, node, i, &name, &value));
        const yaml_node_t *at =
            yaml_document_get_node(&y->doc, node->data.mapping.pairs.start[i].key);
        KVL_TRY(yaml_find_key(y, at, where, name, keys, n_keys, &k));
        yaml_full_key(full, sizeof full, where, name);
        if (line[k]) return kvl_yaml_fail(y, at, full, "stands twice, first in line %zu", line[k]);
        line[k] = at->start_mark.line + 1;
        if (!yaml_override(y, full)) KVL_TRY(keys[k].read(y, value, full, user));
    }
    return KVL_OK;
}

/* One override below `where`. */
static int yaml_walk_override(struct kvl_yaml *y, struct kvl_yaml_override *o, const char *where,
                              const struct kvl_yaml_key *keys, size_t n_keys, size_t *line,
                              void *user)
{
    char name[64];
    size_t k;
    const char *rest = o->path + strlen(where), *dot = strchr(rest, '.');
    snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - rest) : (int)strlen(rest), rest);
    KVL_TRY(yaml_find_key(&o->yaml, NULL, where, name, keys, n_keys, &k));
    if (!dot) {
        yaml_node_t *root = kvl_yaml_root(&o->yaml);
        if (!root) return kvl_fail(y->err, KVL_EINVAL, "%s: no value", o->flag);
        return yaml_override(y, o->path) == o ? keys[k].read(&o->yaml, root, o->path, user)
                                              : KVL_OK;
    }
    if (!keys[k].mapping)
        return kvl_fail(y->err, KVL_EINVAL, "%s: \"%s\" has no keys of its own", o->flag, name);
    if (line[k]) return KVL_OK; /* met when the file's mapping was walked */
    line[k] = 1;
    return keys[k].read(y, NULL, name, user);
}

int kvl_yaml_walk(struct kvl_yaml *y, yaml_node_t *node, const char *where,
                  const struct kvl_yaml_key *keys, size_t n_keys, void *user)
{
    size_t line[YAML_MAX_KEYS] = { 0 };
    if (node && node->type != YAML_MAPPING_NODE) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(where, "."), where);
        return kvl_yaml_fail(y, node, key, "want keys with values (\"name: value\")");
    }
    if (node) KVL_TRY(yaml_walk_pairs(y, node, where, keys, n_keys, line, user));
    for (size_t i = 0; i < y->n_overrides; i++) {
        struct kvl_yaml_override *o = &y->override[i];
        if (strncmp(o->path, where, strlen(where)) == 0)
            KVL_TRY(yaml_walk_override(y, o, where, keys, n_keys, line, user));
    }
    return KVL_OK;
}
