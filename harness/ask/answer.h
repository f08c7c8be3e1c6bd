/* answer.h - the answer to one question under one policy, and the decode loop that makes it. */
#ifndef KVL_ANSWER_H
#define KVL_ANSWER_H

#include "measure.h"
#include "sampler.h"

/* Makes room for the results.  Everything else is filled by the caller before. */
int kvl_ask_begin(struct kvl_ask *a, const struct kvl_shape *shape, struct kvl_err *err);
void kvl_ask_free(struct kvl_ask *a);

/* Room that decoding needs. */
struct kvl_ask_room {
    float *logits; /* [KVL_ASK_MAX][n_vocab] */
    struct kvl_sampler sampler;
    /* Called after every step, the first is 1, of which there are `most` at most; NULL: not. */
    void (*stepped)(void *user, int32_t step, int32_t most);
    void *user;
};
int kvl_ask_room_create(int32_t n_vocab, struct kvl_ask_room *out, struct kvl_err *err);
void kvl_ask_room_free(struct kvl_ask_room *r);

/* Keys, values and index that a session has read. */
int64_t kvl_ask_bytes_read(const struct kvl_session *s);
/* Which part of a step of n sessions, which had read `read` bytes before it, each took: an equal part of the weights and
 * a part of the rest by the bytes that its own session read. */
void kvl_ask_shares(struct kvl_session *const *session, int32_t n, const int64_t *read,
                    const struct kvl_model *model, double *share);

/* Decodes all until each has its answer; weights are read once per step for all.  An error is that
 * of the whole batch: one cannot tell whose it is, all sessions have to be made again. */
int kvl_ask_decode(struct kvl_ask *const *ask, int32_t n, const struct kvl_model *model,
                   struct kvl_ask_room *room, struct kvl_err *err);

#endif
