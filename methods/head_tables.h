/* head_tables.h - text files that say something of every head, for methods that have one.
 *
 * Lines of words and numbers between blanks; what stands behind # is a remark.  Whatever is wrong is told
 * with the file and the line.  The numbers of a file change answers, so its checksum belongs to the options:
 * head_table_sum writes it where they are logged, and refuses a file that is no longer the one that was
 * meant.
 */
#ifndef HEAD_TABLES_H
#define HEAD_TABLES_H

#include "kvl/policy.h"

#include <string.h>

enum { HEAD_TABLE_LIMIT = 16 << 20, HEAD_TABLE_WORD = 32 };

struct head_table {
    const char *path; /* borrowed */
    struct kvl_buf text;
    const char *next; /* what was not read yet */
    const char *line; /* what was not read of this line; NULL: none was begun */
    int32_t number;   /* of this line, from 1 */
    struct kvl_err *err;
};

/* kvl_buf_free(&out->text) after success. */
static inline int head_table_open(const char *path, struct kvl_err *err, struct head_table *out)
{
    *out = (struct head_table){ .path = path, .err = err };
    int rc = kvl_read_file(path, HEAD_TABLE_LIMIT, &out->text, err);
    out->next = out->text.data ? out->text.data : "";
    return rc == KVL_OK ? rc : kvl_fail_at(err, KVL_EINVAL, "table");
}

static inline const char *head_table_skip(const char *p)
{
    p += strspn(p, " \t\r,");
    return *p == '#' ? p + strcspn(p, "\n") : p;
}

/* Begins the next line that says something; false: there is none. */
static inline bool head_table_line(struct head_table *t)
{
    while (*t->next) {
        t->line = head_table_skip(t->next);
        t->next += strcspn(t->next, "\n");
        t->next += *t->next == '\n';
        t->number++;
        if (*t->line && *t->line != '\n') return true;
    }
    t->line = NULL;
    return false;
}

static inline bool head_table_more(const struct head_table *t)
{
    return t->line && *t->line && *t->line != '\n';
}

/* The next word of the line, "" behind the last. */
static inline void head_table_word(struct head_table *t, char word[HEAD_TABLE_WORD])
{
    size_t n = head_table_more(t) ? strcspn(t->line, " \t\r\n,#") : 0;
    size_t keep = KVL_MIN(n, (size_t)HEAD_TABLE_WORD - 1);
    memcpy(word, t->line ? t->line : "", keep);
    word[keep] = '\0';
    if (t->line) t->line = head_table_skip(t->line + n);
}

/* A number from `min` to `max`; `what` names it where it is wrong. */
static inline int head_table_number(struct head_table *t, const char *what, double min, double max,
                                    double *out)
{
    char word[HEAD_TABLE_WORD];
    head_table_word(t, word);
    if (kvl_parse_f64(word, out) == KVL_OK && *out >= min && *out <= max) return KVL_OK;
    return kvl_fail(t->err, KVL_EINVAL, "%s, line %d: %s \"%s\", want a number from %g to %g",
                    t->path, t->number, what, word, min, max);
}

static inline int head_table_integer(struct head_table *t, const char *what, int32_t min,
                                     int32_t max, int32_t *out)
{
    double v = 0;
    KVL_TRY(head_table_number(t, what, min, max, &v));
    *out = (int32_t)v;
    if ((double)*out >= v && (double)*out <= v) return KVL_OK;
    return kvl_fail(t->err, KVL_EINVAL, "%s, line %d: %s %g, want a whole number", t->path,
                    t->number, what, v);
}

/* The checksum of the text into the option `sum`; one that is given must be that of the file. */
static inline int head_table_sum(const struct head_table *t, char sum[KVL_OPT_STR_SIZE])
{
    char text[KVL_TABLES_SUM];
    kvl_table_sum(t->text.data ? t->text.data : "", t->text.len, text);
    return kvl_table_sum_check(text, sum, t->path, t->err);
}

#endif
