/* The file of tables beside a model. */
#include "kvl/model_tables.h"

#include "kvl/opt.h"
#include "kvl/policy.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { TABLES_WORD = 64 };

void kvl_table_sum(const void *data, size_t n, char sum[KVL_TABLES_SUM])
{
    snprintf(sum, KVL_TABLES_SUM, "%016llx", (unsigned long long)XXH3_64bits(data, n));
}

int kvl_table_sum_check(const char sum[KVL_TABLES_SUM], char *option, const char *what,
                        struct kvl_err *err)
{
    if (option[0] && strcmp(option, sum) != 0)
        return kvl_fail(err, KVL_EINVAL,
                        "%s: the checksum is %s, table_sum=%s is another table; want that file, or "
                        "no table_sum",
                        what, sum, option);
    memcpy(option, sum, KVL_TABLES_SUM);
    return KVL_OK;
}

char *kvl_tables_path(const char *model_path)
{
    size_t len = strlen(model_path);
    char *path = kvl_alloc(len + sizeof ".tables", 1);
    if (!path) return NULL;
    if (len > 5 && strcmp(model_path + len - 5, ".gguf") == 0) len -= 5;
    memcpy(path, model_path, len);
    memcpy(path + len, ".tables", sizeof ".tables");
    return path;
}

void kvl_tables_free(struct kvl_tables *t)
{
    if (!t) return;
    kvl_free(t->kept);
    kvl_free(t->gate);
    kvl_free(t);
}

/* ---- words of a text ---------------------------------------------------------------------------- */

struct tables_text {
    const char *at, *end; /* of what was not read */
    int32_t line;
    struct kvl_err *err;
    /* of the tables */
    int32_t n_kept, n_gates; /* lines that came */
    bool dense;
};

/* The next word of the line; false: there is none. */
static bool tables_word(struct tables_text *x, char word[TABLES_WORD])
{
    size_t n = 0;
    while (x->at < x->end && strchr(" \t\r", *x->at) && *x->at) x->at++;
    if (x->at < x->end && *x->at == '#')
        while (x->at < x->end && *x->at != '\n') x->at++;
    for (; x->at < x->end && !strchr(" \t\r\n#", *x->at); x->at++)
        if (n < TABLES_WORD - 1) word[n++] = *x->at;
    word[n] = '\0';
    return n > 0;
}

/* Goes to the first word of the next line that has one; false: the text ends. */
static bool tables_line(struct tables_text *x, char word[TABLES_WORD])
{
    while (x->at < x->end) {
        x->line++;
        if (tables_word(x, word)) return true;
        if (x->at < x->end && *x->at == '\n')
            x->at++;
        else if (x->at < x->end) /* a NUL: no text */
            return kvl_fail(x->err, KVL_EINVAL, "line %d: not a text", x->line), false;
    }
    return false;
}

static int tables_line_end(struct tables_text *x)
{
    char word[TABLES_WORD];
    if (tables_word(x, word))
        return kvl_fail(x->err, KVL_EINVAL, "line %d: \"%s\" is too much", x->line, word);
    if (x->at < x->end && *x->at == '\n') x->at++;
    return KVL_OK;
}

static int tables_number(struct tables_text *x, const char *what, double min, double max,
                         double *out)
{
    char word[TABLES_WORD];
    bool there = tables_word(x, word);
    if (there && kvl_parse_f64(word, out) == KVL_OK && *out >= min && *out <= max) return KVL_OK;
    return kvl_fail(x->err, KVL_EINVAL, "line %d: %s \"%s\", want a number from %g to %g", x->line,
                    what, word, min, max);
}

static int tables_integer(struct tables_text *x, const char *what, int32_t min, int32_t max,
                          int32_t *out)
{
    char word[TABLES_WORD];
    int64_t v = 0;
    bool there = tables_word(x, word);
    if (!there || kvl_parse_i64(word, &v) != KVL_OK || v < min || v > max)
        return kvl_fail(x->err, KVL_EINVAL, "line %d: %s \"%s\", want a whole number from %d to %d",
                        x->line, what, word, min, max);
    *out = (int32_t)v;
    return KVL_OK;
}

/* ---- lines -------------------------------------------------------------------------------------- */

/* The file begins with its version and the model's hash. */
static int tables_head(struct tables_text *x, const char *hash)
{
    char word[TABLES_WORD] = "";
    int32_t version = 0;
    if (!tables_line(x, word) || strcmp(word, "kvlab-tables") != 0)
        return kvl_fail(x->err, KVL_EINVAL, "line %d: \"%s\", want kvlab-tables %d", x->line, word,
                        KVL_TABLES_VERSION);
    KVL_TRY(tables_integer(x, "version", 0, INT32_MAX, &version));
    if (version != KVL_TABLES_VERSION)
        return kvl_fail(x->err, KVL_EMODEL, "tables of version %d, want %d; make them again",
                        version, KVL_TABLES_VERSION);
    KVL_TRY(tables_line_end(x));
    if (!tables_line(x, word) || strcmp(word, "model") != 0 || !tables_word(x, word))
        return kvl_fail(x->err, KVL_EINVAL, "line %d: \"%s\", want model HASH", x->line, word);
    if (strcmp(word, hash) != 0)
        return kvl_fail(x->err, KVL_EMODEL, "tables of model %s, not of this one (%s)", word, hash);
    return tables_line_end(x);
}

static int tables_kept(struct tables_text *x, struct kvl_tables *t)
{
    int32_t layer = 0;
    if (x->n_kept == t->n_layers)
        return kvl_fail(x->err, KVL_EINVAL,
                        "line %d: a `kept` line more than the model's %d layers", x->line,
                        t->n_layers);
    KVL_TRY(tables_integer(x, "layer", x->n_kept, x->n_kept, &layer));
    for (int32_t m = layer; m < t->n_layers; m++)
        KVL_TRY(tables_number(x, "share", 0.0, 1e6,
                              &t->kept[(size_t)layer * (size_t)t->n_layers + (size_t)m]));
    x->n_kept++;
    return KVL_OK;
}

static int tables_gates(struct tables_text *x, struct kvl_tables *t)
{
    int32_t layer = 0;
    if (x->n_gates == t->n_layers)
        return kvl_fail(x->err, KVL_EINVAL,
                        "line %d: a `gates` line more than the model's %d layers", x->line,
                        t->n_layers);
    KVL_TRY(tables_integer(x, "layer", x->n_gates, x->n_gates, &layer));
    for (int32_t h = 0; h < t->n_kv_heads; h++) {
        double gate = 0.0;
        KVL_TRY(tables_number(x, "gate", -1e6, 1e6, &gate));
        t->gate[(size_t)layer * (size_t)t->n_kv_heads + (size_t)h] = (float)gate;
    }
    x->n_gates++;
    return KVL_OK;
}

static int tables_lines(struct tables_text *x, struct kvl_tables *t)
{
    char word[TABLES_WORD];
    while (tables_line(x, word)) {
        if (strcmp(word, "dense") == 0 && !x->dense) {
            KVL_TRY(tables_integer(x, "dense", 1, KVL_MAX(1, t->n_layers - 1), &t->dense));
            x->dense = true;
        } else if (strcmp(word, "kept") == 0) {
            KVL_TRY(tables_kept(x, t));
        } else if (strcmp(word, "gates") == 0) {
            KVL_TRY(tables_gates(x, t));
        } else {
            return kvl_fail(x->err, KVL_EINVAL, "line %d: \"%s\", want dense (once), kept or gates",
                            x->line, word);
        }
        KVL_TRY(tables_line_end(x));
    }
    if (x->err && x->err->code != KVL_OK) return x->err->code;
    if (!x->dense || x->n_kept != t->n_layers || (x->n_gates && x->n_gates != t->n_layers))
        return kvl_fail(x->err, KVL_EINVAL,
                        "%d lines of kept, %d of gates, dense %s; the model has %d layers, want a "
                        "line each (of gates none, too) and dense",
                        x->n_kept, x->n_gates, x->dense ? "there" : "missing", t->n_layers);
    return KVL_OK;
}

int kvl_tables_parse(const char *text, size_t len, const char *hash, const struct kvl_shape *shape,
                     struct kvl_tables **out, struct kvl_err *err)
{
    struct kvl_err own = { 0 }; /* lines are checked against it */
    struct tables_text x = { .at = text, .end = text + len, .err = err ? err : &own };
    size_t n = (size_t)shape->n_layers;
    KVL_TRY(tables_head(&x, hash));
    struct kvl_tables *t = kvl_alloc(1, sizeof *t);
    if (!t) return kvl_fail(err, KVL_ENOMEM, "out of memory for tables");
    t->n_layers = shape->n_layers;
    t->n_kv_heads = shape->n_kv_heads;
    t->kept = kvl_alloc(n * n, sizeof *t->kept);
    t->gate = kvl_alloc(n * (size_t)shape->n_kv_heads, sizeof *t->gate);
    int rc = t->kept && t->gate ? tables_lines(&x, t)
                                : kvl_fail(err, KVL_ENOMEM, "out of memory for tables");
    if (rc != KVL_OK) {
        kvl_tables_free(t);
        return rc;
    }
    if (x.n_gates == 0) {
        kvl_free(t->gate);
        t->gate = NULL;
    }
    kvl_table_sum(text, len, t->sum);
    *out = t;
    return KVL_OK;
}
