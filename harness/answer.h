/* answer.h - the answer to one question under one policy, and the decode loop that makes it. */
#ifndef KVL_ANSWER_H
#define KVL_ANSWER_H

#include "measure.h"

/* One question being answered.  Tokens in `feed` are decoded first, one at a time; the step of the
 * last of them makes the first answer token. */
struct kvl_ask {
    struct kvl_session *session; /* owned */
    const int32_t *feed;         /* [n_feed], n_feed >= 1; borrowed */
    int32_t n_feed, i_feed;
    int32_t max_new;               /* answer tokens at most */
    const struct kvl_watch *watch; /* borrowed */
    int64_t shared_blocks;         /* see kvl_kv_measure */
    /* results */
    int32_t *id; /* [n_id], room for max_new; end token not included */
    int32_t n_id;
    bool end, done;
    struct kvl_recall recall;
    uint64_t wall_ns; /* this question's share: of a step's weights as much as any other's, of the
                             rest by the bytes that its session read */
    struct kvl_err error; /* code != KVL_OK: no answer */
};

/* Makes room for the results.  Everything else is filled by the caller before. */
int kvl_ask_begin(struct kvl_ask *a, const struct kvl_shape *shape, struct kvl_err *err);
void kvl_ask_free(struct kvl_ask *a);

/* Decodes all until each has its answer; weights are read once per step for all.  An error is that
 * of the whole batch: one cannot tell whose it is, all sessions have to be made again.
 *   logits [n][n_vocab] workspace */
int kvl_ask_decode(struct kvl_ask *const *ask, int32_t n, const struct kvl_model *model,
                   float *logits, struct kvl_err *err);

enum { KVL_ASK_MAX = 64 }; /* questions in one batch */

#endif
