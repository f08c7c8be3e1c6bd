/* page.h - results as one page for a browser: no server, no network, nothing beside the file.
 *
 * Per model and device: the table of all methods, accuracy against what was read and against speed, and per
 * task the tables, heat maps over depth and the cells behind every number.  Then a card per method, the
 * settings and machines, and what failed.  Charts are SVG in the page; the script only sorts and highlights, and
 * everything can be read without it.
 */
#ifndef KVL_PAGE_H
#define KVL_PAGE_H

#include "registry.h"
#include "results.h"

#include <stdio.h>

/* `registry` has the cards of methods; what it does not know has none.  `up`: the index that the page links to; NULL:
 * none.  KVL_EIO: a style or a script is missing
 * in plots/; KVL_ENOMEM.  Whether everything was written is the caller's to ask of `out`. */
int kvl_page_write(const struct kvl_results *r, const struct kvl_registry *registry, const char *up,
                   FILE *out, struct kvl_err *err);

/* A page of one log, for the index of a site. */
struct kvl_site_page {
    const char *log; /* its path */
    char *file;      /* of the page, in the folder of the site */
    size_t n_results;
    char newest[11]; /* day of its newest run; "": not known */
};
/* The index: per model and device all methods of all logs, the most accurate first; the pages of the logs; cards.  `r` has
 * all of the logs.  Errors as above. */
int kvl_page_index(const struct kvl_results *r, const struct kvl_registry *registry,
                   const struct kvl_site_page *page, size_t n, FILE *out, struct kvl_err *err);

#endif
