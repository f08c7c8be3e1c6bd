/* record_analysis.h - analyses as records. */
#ifndef KVL_RECORD_ANALYSIS_H
#define KVL_RECORD_ANALYSIS_H

#include "record.h"

enum { KVL_ANALYSIS_NEXT = 8 };

/* What is analysed, and what of it a record tells beside the numbers; borrowed. */
struct kvl_analysis_info {
    const struct kvl_work *work;
    const struct kvl_group *group;
    const char *what; /* "mass", "similarity" or "drift": what `want` of the analysis has */
    int32_t next[KVL_ANALYSIS_NEXT],
        n_next;                        /* of similarity: layers that its curves average over */
    int32_t dense_layers, wait_layers; /* of similarity: for the filter layers */
    int64_t n_answers;
    double wall_s;
};

/* The record's field `cell`, of one kind of analysis; what was observed plays no part.  KVL_ENOMEM. */
int kvl_analysis_id(const struct kvl_analysis_want *want, const struct kvl_analysis_info *info,
                    char id[KVL_CELL_ID]);
/* A new reference, or NULL when memory is short or no filter layers are possible (`err` tells). */
json_t *kvl_record_analysis(const char *run, const struct kvl_analysis *a,
                            const struct kvl_analysis_info *info, struct kvl_err *err);

#endif
