/* forward.h - tokens on their way through the layers: calls.c says which, forward.c computes.
 *
 * Three modes.  KVL_PREFILL: many tokens of a context, causal; dense without a policy, else under its
 * prefill_mask.  KVL_EXTEND: a block of tokens
 * under the policy; every token appends, selects and attends before the next one of the block exists
 * for it, and eviction comes at the end of the block - but after every token where the policy does its
 * own prefill, since there a context is a stream of steps.  KVL_DECODE: one token for each of several
 * sessions. */
#ifndef KVL_FORWARD_H
#define KVL_FORWARD_H

#include "model/host.h"

enum kvl_forward_mode { KVL_PREFILL, KVL_EXTEND, KVL_DECODE };

struct kvl_forward {
    struct kvl_engine *e;
    enum kvl_forward_mode mode;
    int32_t n;  /* rows: e->row, e->id, e->pos, e->x */
    bool timed; /* one session, on the host: its parts are timed */
    struct kvl_err *err;
    bool more; /* the block goes on in another chunk: eviction waits for its end */
};

/* Whether a session takes n more tokens: it has not failed, and they fit its context. */
int kvl_session_has_room(const struct kvl_session *s, int32_t n, struct kvl_err *err);
/* Embeds the rows and takes them through all layers: e->x. */
int kvl_forward_rows(const struct kvl_forward *f);
/* Logits of the last n of the rows: out [n][n_vocab]. */
int kvl_forward_logits(const struct kvl_forward *f, int32_t n, float *out);

#endif
