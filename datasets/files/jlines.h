/* jlines.h - the rows of a file of JSON: the elements of one array, or a value a line.
 *
 * Lines end as Python's text files do: with \n, \r or both.  A line has one value and nothing behind it.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_JLINES_H
#define KVL_JLINES_H

#include "jtext.h"

struct kvl_jlines {
    /* A row; `line` counts from 1, elements of an array likewise. */
    int (*take)(void *user, struct kvl_jtext row, int32_t line);
    /* What is no row, said in *err: KVL_OK goes on without it.  NULL: it ends the file. */
    int (*odd)(void *user, int rc);
    void *user;
    struct kvl_err *err;
};
int kvl_jlines_each(const char *data, size_t len, const struct kvl_jlines *how);

#endif
