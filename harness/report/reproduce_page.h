/* reproduce_page.h - published numbers beside ours: a page for a browser, and a table for a terminal. */
#ifndef KVL_REPRODUCE_PAGE_H
#define KVL_REPRODUCE_PAGE_H

#include "published.h"

#include <stdio.h>

/* A recipe that was run; its figures are pictures `<id>/<figure>.svg` beside the page. */
struct kvl_reproduced {
    const struct kvl_published *published;
    const struct kvl_results *results;
    enum kvl_scale scale;
};

/* Per series and x: theirs, ours, interval, difference. */
int kvl_reproduced_print(const struct kvl_reproduced *r, FILE *out, struct kvl_err *err);

/* The head of the page, a section per recipe, the end.  KVL_EIO: plots/report.css is missing. */
int kvl_reproduced_page(const struct kvl_reproduced *r, size_t n, FILE *out, struct kvl_err *err);

#endif
