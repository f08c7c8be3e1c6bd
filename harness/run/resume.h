/* resume.h - what a log has already of the cells of a sweep.
 *
 * A cell is done when its `cell` or `speed` record is committed, with the reference passes that the
 * sweep wants in it, and failed when an `error` record
 * names it and none of those follows.  Results of other code do not count unless they are accepted, and then
 * only whole cells.
 */
#ifndef KVL_RESUME_H
#define KVL_RESUME_H

#include "record.h"

/* Of cells that the log has nothing of, outcome and quality are one for all of a task (kvl_state_own). */
struct kvl_progress_cell {
    const struct kvl_outcome *outcome; /* [contexts * questions]; NULL for speed cells and texts */
    const struct kvl_quality_means
        *quality; /* [contexts * quality.questions]; NULL where none is wanted */
    json_t *
        text; /* of a cell that reads texts: [contexts] null, or the nll record but its lists of tokens */
    double timed_ns, timed_prefill_ns; /* of a speed cell, warmup included; 0: not known */
    int64_t told;                      /* answers in the latest record of what there is so far */
    bool done, failed;
    bool aggregated; /* its cell record is committed */
    bool stale;      /* other code has answered it */
    bool kept;       /* and its answers are what counts as done */
    bool own;        /* outcome and quality are its own */
};

struct kvl_state {
    const struct kvl_work *work;
    struct kvl_progress_cell *cell; /* [n_cells] */
    bool accept_stale, retry;       /* retry: errors do not count as done */
    char stale_code[64];            /* the build of a stale result */
    json_t *newest_sources;         /* `sources` of the last run of the log; NULL: none */
    /* private */
    size_t *by_id;                   /* cells in the order of their points */
    struct kvl_progress_cell *blank; /* [tasks]: outcome and quality of cells without any record */
};

int kvl_state_create(const struct kvl_work *work, bool accept_stale, bool retry,
                     struct kvl_state *out, struct kvl_err *err);
void kvl_state_free(struct kvl_state *s);
/* Where a cell's outcomes and passes are to be changed; NULL where it has none. */
int kvl_state_own(struct kvl_state *s, size_t cell, struct kvl_outcome **outcome,
                  struct kvl_quality_means **quality, struct kvl_err *err);
/* A kvl_log_fn; user is the state. */
int kvl_state_read(json_t *record, void *user, struct kvl_err *err);
/* Counts a record of this run as if it had been read from the log.  *repeated: it is an error of a cell
 * that had failed before, and tells nothing new. */
int kvl_state_add(struct kvl_state *s, json_t *record, bool *repeated, struct kvl_err *err);
/* Cells that other code alone has answered, kept or to be run again; those of them that are kept. */
size_t kvl_state_n_stale(const struct kvl_state *s);
size_t kvl_state_n_kept(const struct kvl_state *s);
/* Whether the work has a cell of the point of this id. */
bool kvl_state_has(const struct kvl_state *s, const char *id);
/* Keeps an nll record for its cell, as if it had been read from the log. */
int kvl_state_text(struct kvl_state *s, json_t *record, struct kvl_err *err);
/* Answers or texts that a cell has, and how many it will have. */
struct kvl_state_amount {
    int64_t have, planned;
};
struct kvl_state_amount kvl_state_amount(const struct kvl_state *s, size_t cell);
/* Whether every sample of a cell is there, and every reference pass that is wanted. */
bool kvl_state_complete(const struct kvl_state *s, size_t cell);

/* Whether a cell lacks answers of a context, or its time; whether any cell of a group does. */
bool kvl_state_wants(const struct kvl_state *s, int32_t context, size_t cell);
bool kvl_state_wants_any(const struct kvl_state *s, const struct kvl_group *g, int32_t context);
/* Whether a cell lacks the reference pass of a question. */
bool kvl_state_wants_quality(const struct kvl_state *s, size_t cell, int32_t context,
                             int32_t question);
/* Whether a cell that lacks something of this context needs the shared prefill. */
bool kvl_state_shares(const struct kvl_state *s, const struct kvl_group *g, int32_t context);

#endif
