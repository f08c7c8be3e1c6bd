/* method_tables.h - what the cards of methods say, as tables in Markdown.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_METHOD_TABLES_H
#define KVL_METHOD_TABLES_H

#include <stdio.h>

struct kvl_registry;

/* Four tables, each between a line "<!-- made by: kvlab describe --markdown, NAME -->" and a line
 * "<!-- end -->": kinds (paper, what it does, kind), follows, deviations, cost.  Methods are in the order of their
 * kinds, and of their names within one kind. */
void kvl_method_tables(const struct kvl_registry *r, FILE *out);

#endif
