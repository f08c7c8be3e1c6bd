/* commit.h - what a run adds to its log. */
#ifndef KVL_COMMIT_H
#define KVL_COMMIT_H

#include "runner.h"

/* Appends a record (stolen; NULL = out of memory), the run record before the first. */
int kvl_runner_append(struct kvl_runner *r, json_t *record, struct kvl_err *err);
/* Before anything is run: a log of older code, or of a shard without work, gets the run record all the same. */
int kvl_runner_mark(struct kvl_runner *r, struct kvl_err *err);
/* Records that a cell failed for good. */
int kvl_runner_cell_error(struct kvl_runner *r, size_t cell, int32_t context,
                          const struct kvl_err *why, struct kvl_err *err);
/* No context, no cells of it: what `err` holds becomes an error record of each that wanted it. */
int kvl_runner_group_failed(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                            struct kvl_err *err);
/* Cell records of a group whose contexts are all done, and their commit. */
int kvl_runner_finish(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err);
/* Not more often than that; and the first time. */
#define KVL_SO_FAR_NS ((uint64_t)60 * 1000000000)
/* Records of what unfinished cells of a group have so far, for readers of the log meanwhile, and their commit: from
 * time to time, or `now` (runner_so_far.c). */
int kvl_runner_so_far(struct kvl_runner *r, const struct kvl_group *g, bool now,
                      struct kvl_err *err);

#endif
