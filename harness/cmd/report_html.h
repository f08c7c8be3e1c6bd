/* report_html.h - pages of results: one file, or a site of several logs. */
#ifndef KVL_REPORT_HTML_H
#define KVL_REPORT_HTML_H

#include "results.h"

/* `r` holds the logs behind `words`.  `path` is the page, or, where it ends in / or is a folder, the folder of a page per
 * log and of index.html.  The names of what was written go to standard output.  KVL_EIO. */
int kvl_report_html(const struct kvl_results *r, char *const *words, size_t n_words,
                    const char *path, struct kvl_err *err);

#endif
