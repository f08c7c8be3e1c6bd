/* wrap.h - texts in lines that fit a terminal.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_WRAP_H
#define KVL_WRAP_H

#include <stdio.h>

/* Prints `text`, broken at blanks into lines that end before column `width`: the first one begins where
 * the cursor is, at column `indent`, the others below it.  A word that is longer stands alone.  Ends with
 * a newline. */
void kvl_wrap(const char *text, int indent, int width, FILE *out);

#endif
