/* hide.h - digits hidden in filler: what passkey, number_string, needle and things share.
 *
 * A fact is an item that tells the value of a label (a name, a city; no label when there is one fact
 * and the wording has none).  Its value is a string of digits, the only ones in the context:
 *
 *     intro \n sentence ... item ... sentence \n | question -> " 84699"
 *
 * Thread-safe: yes.
 */
#ifndef KVL_HIDE_H
#define KVL_HIDE_H

#include "fit.h"

enum { KVL_HIDE_FACTS = 32, KVL_HIDE_DIGITS = 32 };

struct kvl_hide {
    const char *task;                    /* for messages */
    const char *option;                  /* that says how many facts there are; NULL = always one */
    const char *many;                    /* what they are called */
    const struct kvl_text *text;         /* the language */
    const char *prose;                   /* its filler: kvl_fit */
    const char *intro, *item, *question; /* wording */
    const char *label;        /* the field of the wording and class of its words; NULL = none */
    const char *const *words; /* [KVL_HIDE_FACTS] labels of the task's own; NULL = the class's */
    int32_t n_facts;          /* 1..KVL_HIDE_FACTS */
    int32_t most_facts;       /* that the option allows */
    int32_t n_digits;         /* 1..KVL_HIDE_DIGITS */
    enum kvl_evidence_kind evidence; /* of the digit runs of an item */
    /* Writes n_digits digits and a NUL. */
    void (*draw)(struct kvl_rng *rng, int32_t n_digits, char *value);
};

/* Independent digits, leading zeros included. */
KVL_API void kvl_hide_draw_digits(struct kvl_rng *rng, int32_t n_digits, char *value);

/* Question i asks for fact i.  With a depth, fact 0 lies there. */
KVL_API int kvl_hide_generate(const struct kvl_hide *hide, const struct kvl_task_request *req,
                              struct kvl_sample *out, struct kvl_err *err);

/* The first run of digits equals the value as text ("0123" is not "123", "71,432" is not "71432"). */
KVL_API bool kvl_hide_first_run(const char *gold, const char *prediction);
/* The value comes first, after blanks, and no digit follows it. */
KVL_API bool kvl_hide_strict(const char *gold, const char *prediction);

#endif
