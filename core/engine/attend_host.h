/* attend_host.h - attention where blocks lie, on devices that attend on the host; core/engine alone.
 *
 * The way of a layer: request -> split, split ... -> queries -> [attention of the device's share] -> run ->
 * [merges of segments] -> probs -> clear.  What is split until clear is of the rows that one flush_attention
 * serves.  Errors: KVL_ENOMEM, KVL_EDEVICE. */
#ifndef KVL_ATTEND_HOST_H
#define KVL_ATTEND_HOST_H

#include "engine_impl.h"
#include "head_lists.h"

struct kvl_hosted;

/* For an engine whose device attends on the host; others have none. NULL: no memory. */
struct kvl_hosted *kvl_hosted_create(void);
void kvl_hosted_destroy(struct kvl_engine *e);

/* Counts what a job with a lane walks. */
void kvl_count_walked(struct kvl_session *s, const struct kvl_attn_job *job);
/* Takes the host's entries of a list out of its job, whose results are then made of both; *device says whether
 * there is a job left.  Where the host has none of the list, the job is as it was. */
int kvl_hosted_split(const struct kvl_head *h, struct kvl_attn_job *job, bool *device);

/* Brings the queries and waits for them.  All of these do nothing where nothing was split. */
int kvl_hosted_queries(struct kvl_engine *e);
/* Attention on the host, and what it gives beside that of the device: the results of the lists. */
int kvl_hosted_run(struct kvl_engine *e, const struct kvl_rope *rope);
/* Whether weights are wanted of a list that was split. */
bool kvl_hosted_has_probs(const struct kvl_engine *e);
/* Puts them in the order of their lists, once the merges are done. */
void kvl_hosted_probs(const struct kvl_engine *e);
void kvl_hosted_clear(struct kvl_engine *e);

#endif
