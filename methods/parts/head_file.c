/* Files of what is known of every head: words and numbers of a line, one after the other. */
#include "head_file.h"

#include "kvl/policy.h"

#include <stdio.h>
#include <string.h>

enum { HEAD_FILE_LIMIT = 16 << 20 };

int kvl_head_file_open(const char *path, char *sum, struct kvl_err *err, struct kvl_head_file *out)
{
    char text[KVL_TABLES_SUM];
    *out = (struct kvl_head_file){ .path = path, .err = err };
    int rc = kvl_read_file(path, HEAD_FILE_LIMIT, &out->text, err);
    if (rc != KVL_OK) return kvl_fail_at(err, KVL_EINVAL, "table");
    out->next = out->text.data ? out->text.data : "";
    kvl_table_sum(out->next, out->text.len, text);
    rc = kvl_table_sum_check(text, sum, path, err);
    if (rc != KVL_OK) kvl_head_file_close(out);
    return rc;
}

void kvl_head_file_close(struct kvl_head_file *f)
{
    kvl_buf_free(&f->text);
}

static const char *head_file_skip(const char *p)
{
    p += strspn(p, " \t\r,");
    return *p == '#' ? p + strcspn(p, "\n") : p;
}

bool kvl_head_file_line(struct kvl_head_file *f)
{
    while (*f->next) {
        f->line = head_file_skip(f->next);
        f->next += strcspn(f->next, "\n");
        f->next += *f->next == '\n';
        f->number++;
        if (*f->line && *f->line != '\n') return true;
    }
    f->line = NULL;
    return false;
}

bool kvl_head_file_more(const struct kvl_head_file *f)
{
    return f->line && *f->line && *f->line != '\n';
}

/* The next word of the line, "" behind the last. */
static void head_file_word(struct kvl_head_file *f, char word[KVL_HEAD_FILE_WORD])
{
    size_t n = kvl_head_file_more(f) ? strcspn(f->line, " \t\r\n,#") : 0;
    size_t keep = KVL_MIN(n, (size_t)KVL_HEAD_FILE_WORD - 1);
    memcpy(word, f->line ? f->line : "", keep);
    word[keep] = '\0';
    if (f->line) f->line = head_file_skip(f->line + n);
}

int kvl_head_file_number(struct kvl_head_file *f, const char *what, double min, double max,
                         double *out)
{
    char word[KVL_HEAD_FILE_WORD];
    head_file_word(f, word);
    if (kvl_parse_f64(word, out) == KVL_OK && *out >= min && *out <= max) return KVL_OK;
    return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: %s \"%s\", want a number from %g to %g",
                    f->path, f->number, what, word, min, max);
}

int kvl_head_file_integer(struct kvl_head_file *f, const char *what, int32_t min, int32_t max,
                          int32_t *out)
{
    double v = 0;
    KVL_TRY(kvl_head_file_number(f, what, min, max, &v));
    *out = (int32_t)v;
    if ((double)*out >= v && (double)*out <= v) return KVL_OK;
    return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: %s %g, want a whole number", f->path,
                    f->number, what, v);
}

int kvl_head_file_choice(struct kvl_head_file *f, const char *what, const char *const *names,
                         int32_t *out)
{
    char word[KVL_HEAD_FILE_WORD];
    struct kvl_buf list = { 0 };
    head_file_word(f, word);
    for (*out = 0; names[*out]; ++*out)
        if (strcmp(word, names[*out]) == 0) return KVL_OK;
    for (int32_t i = 0; names[i]; i++)
        kvl_buf_printf(&list, "%s%s", i == 0 ? "" : names[i + 1] ? ", " : " or ", names[i]);
    int rc = kvl_fail(f->err, KVL_EINVAL, "%s, line %d: %s \"%s\", want %s", f->path, f->number,
                      what, word, list.data ? list.data : "another");
    kvl_buf_free(&list);
    return rc;
}

static int head_file_gates(struct kvl_head_file *f, const struct kvl_shape *sh, float *gate)
{
    int32_t layer = 0;
    for (; kvl_head_file_line(f); layer++) {
        if (layer == sh->n_layers)
            return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: more than the model's %d layers",
                            f->path, f->number, sh->n_layers);
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            double v = 0;
            KVL_TRY(kvl_head_file_number(f, "gate", -1e6, 1e6, &v));
            if (gate) *gate++ = (float)v;
        }
        if (kvl_head_file_more(f))
            return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: more than the model's %d kv heads",
                            f->path, f->number, sh->n_kv_heads);
    }
    if (layer == sh->n_layers) return KVL_OK;
    return kvl_fail(f->err, KVL_EINVAL,
                    "%s: %d lines of gates; the model has %d layers, want a line each", f->path,
                    layer, sh->n_layers);
}

int kvl_head_gates(const char *path, const struct kvl_shape *sh, char *sum, struct kvl_err *err,
                   float *gate)
{
    struct kvl_head_file f;
    if (!path[0]) {
        if (gate)
            memcpy(gate, sh->tables->gate,
                   (size_t)sh->n_layers * (size_t)sh->n_kv_heads * sizeof *gate);
        return kvl_table_sum_check(sh->tables->sum, sum, "the model's tables", err);
    }
    KVL_TRY(kvl_head_file_open(path, sum, err, &f));
    int rc = head_file_gates(&f, sh, gate);
    kvl_head_file_close(&f);
    return rc;
}

/* Of the file's heads; sizes of 0 mark those that were not named. */
struct head_patterns {
    const struct kvl_shape *sh;
    const char *const *kinds;
    const int32_t *n_sizes;
    struct kvl_head_pattern *pattern;
};

static int head_file_pattern(struct kvl_head_file *f, const struct head_patterns *p)
{
    int32_t layer = 0, h = 0;
    KVL_TRY(kvl_head_file_integer(f, "layer", 0, p->sh->n_layers - 1, &layer));
    KVL_TRY(kvl_head_file_integer(f, "query head", 0, p->sh->n_heads - 1, &h));
    struct kvl_head_pattern *to = &p->pattern[(size_t)layer * (size_t)p->sh->n_heads + (size_t)h];
    if (to->size[0] > 0)
        return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: layer %d head %d stands twice", f->path,
                        f->number, layer, h);
    KVL_TRY(kvl_head_file_choice(f, "kind", p->kinds, &to->kind));
    KVL_TRY(kvl_head_file_integer(f, "size", 1, 1 << 30, &to->size[0]));
    if (p->n_sizes[to->kind] > 1)
        KVL_TRY(kvl_head_file_integer(f, "second size", 1, 1 << 30, &to->size[1]));
    if (kvl_head_file_more(f))
        return kvl_fail(f->err, KVL_EINVAL, "%s, line %d: more behind the sizes of a %s", f->path,
                        f->number, p->kinds[to->kind]);
    return KVL_OK;
}

static int head_file_patterns(struct kvl_head_file *f, const struct head_patterns *p)
{
    size_t heads = (size_t)p->sh->n_heads, n = (size_t)p->sh->n_layers * heads;
    memset(p->pattern, 0, n * sizeof *p->pattern);
    while (kvl_head_file_line(f)) KVL_TRY(head_file_pattern(f, p));
    for (size_t i = 0; i < n; i++)
        if (p->pattern[i].size[0] == 0)
            return kvl_fail(
                f->err, KVL_EINVAL,
                "%s: layer %zu head %zu is missing; want a line for each of %d layers of %d heads",
                f->path, i / heads, i % heads, p->sh->n_layers, p->sh->n_heads);
    return KVL_OK;
}

int kvl_head_patterns(const char *path, const struct kvl_shape *sh, const char *const *kinds,
                      const int32_t *n_sizes, char *sum, struct kvl_err *err,
                      struct kvl_head_pattern *pattern)
{
    size_t n = (size_t)sh->n_layers * (size_t)sh->n_heads;
    struct head_patterns p = { .sh = sh, .kinds = kinds, .n_sizes = n_sizes };
    struct kvl_head_file f;
    KVL_TRY(kvl_head_file_open(path, sum, err, &f));
    p.pattern = kvl_alloc(n, sizeof *p.pattern);
    int rc = p.pattern ? head_file_patterns(&f, &p)
                       : kvl_fail(err, KVL_ENOMEM, "no memory for a table of %zu heads", n);
    if (rc == KVL_OK && pattern) memcpy(pattern, p.pattern, n * sizeof *pattern);
    kvl_free(p.pattern);
    kvl_head_file_close(&f);
    return rc;
}

/* ---- vectors ------------------------------------------------------------------------------------------- */

/* "layer head number ...": those that are due. */
static int vectors_line(struct kvl_head_file *f, int32_t layer, int32_t head, int32_t width,
                        float *vector)
{
    int32_t l, h;
    double x;
    if (!kvl_head_file_line(f))
        return kvl_fail(f->err, KVL_EINVAL, "%s ends before layer %d, head %d", f->path, layer,
                        head);
    KVL_TRY(kvl_head_file_integer(f, "layer", layer, layer, &l));
    KVL_TRY(kvl_head_file_integer(f, "head", head, head, &h));
    for (int32_t i = 0; i < width; i++) {
        KVL_TRY(kvl_head_file_number(f, "channel", -1e9, 1e9, &x));
        if (vector) vector[i] = (float)x;
    }
    if (!kvl_head_file_more(f)) return KVL_OK;
    return kvl_fail(f->err, KVL_EINVAL, "%s, line %d has more than %d numbers", f->path, f->number,
                    width);
}

int kvl_head_vectors(const char *path, const struct kvl_shape *shape, int32_t n_heads,
                     int32_t width, char *sum, struct kvl_err *err, float *vector)
{
    struct kvl_head_file f;
    KVL_TRY(kvl_head_file_open(path, sum, err, &f));
    int rc = KVL_OK;
    for (int32_t i = 0; i < shape->n_layers * n_heads && rc == KVL_OK; i++) {
        float *to = vector ? vector + (size_t)i * (size_t)width : NULL;
        rc = vectors_line(&f, i / n_heads, i % n_heads, width, to);
    }
    if (rc == KVL_OK && kvl_head_file_line(&f))
        rc = kvl_fail(err, KVL_EINVAL, "%s, line %d: want no more than %d layers of %d heads", path,
                      f.number, shape->n_layers, n_heads);
    kvl_head_file_close(&f);
    return rc;
}

int kvl_report_vectors(struct kvl_report *report, int32_t layer, int32_t n_heads, int32_t width,
                       const float *vector)
{
    char name[48];
    for (int32_t i = 0; i < n_heads * width; i++) {
        snprintf(name, sizeof name, "vector.%d.%d.%d", layer, i / width, i % width);
        KVL_TRY(kvl_report_num(report, name, (double)vector[i]));
    }
    return KVL_OK;
}
