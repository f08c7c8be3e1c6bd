/* data_score.h - kvlab data score: predictions of any system in the form of a benchmark's scripts. */
#ifndef KVL_DATA_SCORE_H
#define KVL_DATA_SCORE_H

#include "kvl/base.h"

/* What --as may be; NULL at the end. */
extern const char *const kvl_score_forms[];

struct kvl_score_ask {
    const char *as;         /* a form, or NULL with `scorer` and `gold` */
    const char *name;       /* task of the benchmark; NULL: from the file's name */
    const char *prediction; /* field; NULL: the form's */
    const char *gold, *scorer;
};
/* Prints a line for the file: rows, official and strict means; with `head` the names of the columns before it. */
int kvl_score_file(const struct kvl_score_ask *ask, const char *path, bool head,
                   struct kvl_err *err);

#endif
