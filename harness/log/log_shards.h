/* log_shards.h - "2/64" and "3,7-9", as run records and schedulers write them. */
#ifndef KVL_LOG_SHARDS_H
#define KVL_LOG_SHARDS_H

#include "kvl/base.h"

/* `sweep.shard` of a run; false: it is none. */
bool kvl_log_shard(const char *text, int64_t *index, int64_t *count);

/* A list of numbers that come in ascending order; { 0 } is empty. */
struct kvl_log_ranges {
    struct kvl_buf text; /* "3,7-9" */
    size_t stem;         /* without the end of a range that may go on */
    int64_t last;
};
int kvl_log_ranges_add(struct kvl_log_ranges *r, int64_t number);

#endif
