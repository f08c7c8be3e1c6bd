/* jinja.h - the part of Jinja that chat templates are written in.
 *
 * A template is parsed once and run with values.  What it does not know is refused with its name and line, so that
 * what is rendered is what Jinja renders (trim_blocks and lstrip_blocks on, as transformers sets them).  Every byte
 * of a text carries a mark: 0 where the template wrote it, else what its value was marked with.  Marks stay with
 * their bytes through concatenation, slices, strip, replace and the like.
 *
 *   kvl_jinja_parse -> kvl_jinja, which is constant
 *   kvl_jinja_open -> kvl_jinja_run, in whose memory values are made -> kvl_jinja_render -> kvl_jinja_close
 *
 * Time and memory of a run are bounded: a template comes with a stranger's model.
 * Thread-safe: a template may be run by several threads, each with a run of its own.
 */
#ifndef KVL_JINJA_H
#define KVL_JINJA_H

#include "kvl/base.h"

struct kvl_jinja;     /* a template */
struct kvl_jinja_run; /* one rendering of it */

enum jin_type {
    JIN_UNDEFINED = 0,
    JIN_NONE,
    JIN_BOOL,
    JIN_INT,
    JIN_FLOAT,
    JIN_STR,
    JIN_LIST,
    JIN_DICT,
    JIN_CALL /* a macro, a method of a value or a function */
};

struct jin_str {
    const char *s;
    const uint8_t *mark; /* [len]; NULL: all 0 */
    size_t len;
};

struct jin_val {
    enum jin_type type;
    union {
        bool b;
        int64_t i;
        double f;
        const struct jin_str *s;
        struct jin_list *l;
        struct jin_dict *d;
        const struct jin_call *c;
        const char *name; /* of an undefined one, for messages; may be NULL */
    };
};

int kvl_jinja_parse(const char *text, size_t len, struct kvl_jinja **out, struct kvl_err *err);
void kvl_jinja_free(struct kvl_jinja *t);

/* `bytes`: of the values that will be made, for the bound on memory. */
int kvl_jinja_open(const struct kvl_jinja *t, size_t bytes, struct kvl_jinja_run **out,
                   struct kvl_err *err);
void kvl_jinja_close(struct kvl_jinja_run *r);

/* Values of a run; an error of memory shows when it is rendered. */
struct jin_val jin_text(struct kvl_jinja_run *r, const char *s, size_t len,
                        uint8_t mark); /* a copy */
struct jin_val jin_list(struct kvl_jinja_run *r);
struct jin_val jin_dict(struct kvl_jinja_run *r);
void jin_push(struct kvl_jinja_run *r, struct jin_val list, struct jin_val v);
void jin_put(struct kvl_jinja_run *r, struct jin_val dict, const char *key, struct jin_val v);
/* A variable of the template. */
void jin_set(struct kvl_jinja_run *r, const char *name, struct jin_val v);

/* Appends the text to `out` and its marks to `mark`, byte by byte. */
int kvl_jinja_render(struct kvl_jinja_run *r, struct kvl_buf *out, struct kvl_buf *mark);

#endif
