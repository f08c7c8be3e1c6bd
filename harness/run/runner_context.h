/* runner_context.h - one context while its cells are answered: what runner_context.c (questions,
 * prefill), runner_cells.c (sessions, batches) and runner_samples.c (records) share; texts and timed cells.
 */
#ifndef KVL_RUNNER_CONTEXT_H
#define KVL_RUNNER_CONTEXT_H

#include "commit.h"

/* A question of the context, tokenised. */
struct kvl_context_question {
    const struct kvl_question *q;
    struct kvl_tokens tokens;
    struct kvl_watch watch;
    int32_t turn_last; /* the last token of the question where it follows an answer */
    bool joint;
    struct kvl_session *prompt;    /* the context and this question but its last token; or NULL */
    struct kvl_session *reference; /* the same where `reference` of the context is, or NULL */
};

struct kvl_context {
    struct kvl_runner *r;
    const struct kvl_group *g;
    int32_t index;
    uint64_t seed;
    struct kvl_sample sample;
    struct kvl_context_question *question;
    struct kvl_session *session; /* the prefilled context; NULL where no cell starts from it */
    double prefill_ns;           /* NaN: it came from a snapshot */
    /* Prefilled in the runner's reference engine, once a reference pass asks for it */
    struct kvl_session *reference;
    struct kvl_err *err;
};

/* A cell's answers from this context. */
struct kvl_cell_run {
    struct kvl_context *c;
    size_t index; /* of the cell */
    const struct kvl_cell *cell;
    bool own;                   /* the policy reads the context itself */
    struct kvl_session *parent; /* attached context; NULL for a question in the shared prefill */
    int64_t parent_shared;
    uint64_t parent_ns;    /* attaching it */
    double prefill_ns;     /* of this cell's context; NaN: not known */
    struct kvl_err failed; /* the policy's failure on the context: that of all its questions */
    struct kvl_session
        *turn;         /* multi_turn: as far as it was read, up to the last token of a question */
    int32_t n_turns;   /* questions in it */
    int32_t n_waiting; /* questions in the batch at hand */
    bool asked;        /* all its questions were put into batches */
};

/* All that cells of one protocol lack of this context: samples, then reference passes, in the order of
 * the sweep. */
int kvl_cells_answer(struct kvl_context *c, enum kvl_protocol protocol);

/* Records the n answers to a question or their failure, `ask` as they ended; the first one's error is that
 * of all. */
int kvl_sample_append(const struct kvl_cell_run *run, int32_t question, const struct kvl_ask *ask,
                      int32_t n);

/* Runs and records one; `run` as for kvl_quality_measure, its workspace is filled in.  `failed`: the
 * policy's failure before it.  A failure of the pass is a record; KVL_ESTOP is the caller's
 * (runner_quality.c). */
int kvl_runner_quality(struct kvl_runner *r, size_t cell, int32_t context, int32_t question,
                       struct kvl_quality_run *run, const struct kvl_err *failed,
                       struct kvl_err *err);
/* One context of a group: generated, prefilled, answered (runner_context.c). */
int kvl_runner_context(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                       struct kvl_err *err);
/* One text of a group: prefilled as far as its mode says, then read under each policy
 * (runner_text.c). */
int kvl_runner_text(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                    struct kvl_err *err);
/* The speed cells of one length (runner_speed.c). */
int kvl_runner_speed(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err);

#endif
