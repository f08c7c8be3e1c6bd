/* kvl/opt.h - option tables: one table gives parsing, help, sweep axes and the log.
 *
 * A module declares a struct and a constant table over it:
 *
 *     struct quest_opts { int32_t page; int32_t dense_layers; int32_t reduce; };
 *     static const struct kvl_opt quest_options[] = {
 *         KVL_ROW_INT(quest_opts, page, "16", 1, 4096, "tokens per page (paper: 16)"),
 *         { 0 } };
 *
 * Values are text: what the user typed is checked against the row and stored at `off`.  Numbers are
 * parsed independently of the locale.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_OPT_H
#define KVL_OPT_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum kvl_opt_type {
    KVL_OPT_INT = 1, /* int32_t */
    KVL_OPT_FLOAT,   /* double */
    KVL_OPT_BOOL,    /* bool */
    KVL_OPT_ENUM,    /* int32_t, an index into `choices` */
    KVL_OPT_STR,     /* char[KVL_OPT_STR_SIZE] */
    KVL_OPT_PATH,    /* char[KVL_OPT_PATH_SIZE]: a file or folder, known in keys by its contents */
};

#define KVL_OPT_STR_SIZE  128
#define KVL_OPT_PATH_SIZE 1024
/* The value of an INT option whose text is "auto": to be derived (from the budget, the model). */
#define KVL_AUTO (-1)
/* The value of such an option; `otherwise` where it is KVL_AUTO. */
static inline int32_t kvl_opt_given(int32_t value, int32_t otherwise)
{
    return value == KVL_AUTO ? otherwise : value;
}

struct kvl_opt {
    const char *name; /* NULL ends the table */
    enum kvl_opt_type type;
    size_t off;                 /* offsetof(options struct, member) */
    const char *def;            /* default, as text; "auto" allows KVL_AUTO for INT */
    double min, max;            /* INT and FLOAT; both 0 = no limit */
    const char *const *choices; /* ENUM: names, NULL-terminated */
    const char *help;           /* meaning, unit, the paper's value */
    const char *alias;          /* another name that is understood (an older one), or NULL */
    /* What a policy's tables hold of a context does not depend on it: KVL_CAP_SHARES_META */
    bool not_in_tables;
};

/* One row of a table for a member of struct `tag`, whose name is the option's; a member of another type does not
 * compile.  What comes behind the help is more of the row: .not_in_tables = true, .alias = "x". */
#define KVL_ROW_INT(tag, member, text, least, most, ...)                                           \
    {                                                                                              \
        .name = #member, .type = KVL_OPT_INT,                                                      \
        .off = _Generic(&((struct tag *)0)->member, int32_t *                                      \
                        : offsetof(struct tag, member)),                                           \
        .def = (text), .min = (least), .max = (most), .help = __VA_ARGS__                          \
    }
#define KVL_ROW_FLOAT(tag, member, text, least, most, ...)                                             \
    {                                                                                                  \
        .name = #member,                                                                             \
      .type = KVL_OPT_FLOAT,                                                                       \
      .off = _Generic(&((struct tag *)0)->member, double *: offsetof(struct tag, member)),         \
      .def = (text),                                                                               \
      .min = (least),                                                                              \
      .max = (most),                                                                               \
      .help = __VA_ARGS__ \
    }
#define KVL_ROW_BOOL(tag, member, text, ...)                                                           \
    {                                                                                                  \
        .name = #member,                                                                             \
      .type = KVL_OPT_BOOL,                                                                        \
      .off = _Generic(&((struct tag *)0)->member, bool *: offsetof(struct tag, member)),           \
      .def = (text),                                                                               \
      .help = __VA_ARGS__ \
    }
#define KVL_ROW_ENUM(tag, member, text, names, ...)                                                \
    {                                                                                              \
        .name = #member, .type = KVL_OPT_ENUM,                                                     \
        .off = _Generic(&((struct tag *)0)->member, int32_t *                                      \
                        : offsetof(struct tag, member)),                                           \
        .def = (text), .choices = (names), .help = __VA_ARGS__                                     \
    }
#define KVL_ROW_STR(tag, member, text, ...)                                                        \
    {                                                                                              \
        .name = #member, .type = KVL_OPT_STR,                                                      \
        .off = _Generic(&((struct tag *)0)->member, char(*)[KVL_OPT_STR_SIZE]                      \
                        : offsetof(struct tag, member)),                                           \
        .def = (text), .help = __VA_ARGS__                                                         \
    }
#define KVL_ROW_PATH(tag, member, text, ...)                                                       \
    {                                                                                              \
        .name = #member, .type = KVL_OPT_PATH,                                                     \
        .off = _Generic(&((struct tag *)0)->member, char(*)[KVL_OPT_PATH_SIZE]                     \
                        : offsetof(struct tag, member)),                                           \
        .def = (text), .help = __VA_ARGS__                                                         \
    }

/* Every option lies inside its struct of `opts_size` bytes; else KVL_EINVAL. */
int kvl_opt_check(const struct kvl_opt *table, size_t opts_size, struct kvl_err *err);
/* Sets every option to its default.  KVL_EINTERNAL when the table itself is wrong. */
int kvl_opt_defaults(const struct kvl_opt *table, void *opts, struct kvl_err *err);
/* Sets one option from text.  KVL_EINVAL names the option, the value and what is allowed; an
 * unknown name gets the nearest valid one. */
int kvl_opt_set(const struct kvl_opt *table, void *opts, const char *name, const char *value,
                struct kvl_err *err);
/* Sets options from "a=1,b=x"; an empty string is fine, a repeated name is an error. */
int kvl_opt_parse(const struct kvl_opt *table, void *opts, const char *text, struct kvl_err *err);
/* Appends the canonical text of one option's value / of all as "a=1,b=x" in table order. */
int kvl_opt_value(const struct kvl_opt *o, const void *opts, struct kvl_buf *out);
int kvl_opt_print(const struct kvl_opt *table, const void *opts, struct kvl_buf *out);
/* By name or alias; NULL when there is none. */
const struct kvl_opt *kvl_opt_find(const struct kvl_opt *table, const char *name);

/* Numbers from text, whole string, locale-independent; for options of type STR too. */
KVL_API int kvl_parse_i64(const char *s, int64_t *out);
KVL_API int kvl_parse_f64(const char *s, double *out);

#ifdef __cplusplus
}
#endif

#endif
