/* reads.h - what a session read, layer by layer of its last step, as its tap told: queries and positions.
 */
#ifndef KVL_TESTS_READS_H
#define KVL_TESTS_READS_H

#include "golden/record.h"

enum { READS_LAYERS = 8, READS_HEADS = 8, READS_TOK = 320, READS_Q = 256 };

static struct {
    uint8_t read[READS_LAYERS][READS_HEADS][READS_TOK]; /* per query head */
    float q[READS_LAYERS][READS_Q];                     /* [n_heads][head_dim] */
    bool dense[READS_LAYERS];
    int32_t pos;
} reads;

static int reads_take(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    const struct kvl_shape *sh = user;
    (void)err;
    assert_true(r->layer < READS_LAYERS && sh->n_heads <= READS_HEADS && r->pos < READS_TOK);
    memset(reads.read[r->layer], 0, sizeof reads.read[r->layer]);
    for (int32_t h = 0; h < sh->n_heads; h++)
        for (int32_t i = 0; i < r->n_read[h]; i++) reads.read[r->layer][h][r->read[h][i]] = 1;
    memcpy(reads.q[r->layer], r->q,
           (size_t)sh->n_heads * (size_t)sh->head_dim * sizeof reads.q[0][0]);
    reads.dense[r->layer] = r->dense;
    reads.pos = r->pos;
    return KVL_OK;
}

static inline void reads_tap(const struct rig *r, const struct rig_session *rs)
{
    struct kvl_tap tap = { .user = (void *)(uintptr_t)rig_shape(r), .read = reads_take };
    kvl_session_tap(rs->s, &tap);
}

#endif
