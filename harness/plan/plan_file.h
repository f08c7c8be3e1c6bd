/* plan_file.h - what shards of one sweep agree on, in a small file beside their logs.
 *
 * The first shard writes it, by a link, which is one step on NFS too; the others compare.  Shards of two plans would
 * leave cells out and do others twice, and nobody would see it before the end.
 */
#ifndef KVL_PLAN_FILE_H
#define KVL_PLAN_FILE_H

#include "sweep_plan.h"

/* Name of the plan beside the log of all shards: "x.jsonl.zst" has "x.plan.json".  model, kv_type: of a sweep over
 * several models or types, each has a plan; NULL: there is one. */
int kvl_plan_file_name(const char *log, const char *model, const char *kv_type,
                       struct kvl_buf *out);
/* Writes the plan where there is none; KVL_EINVAL where there is another one.  `write` false: only compares. */
int kvl_plan_file_check(const char *path, const struct kvl_work *w, bool write,
                        struct kvl_err *err);

#endif
