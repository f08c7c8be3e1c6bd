/* forward.h - tokens on their way through the layers: session_tokens.c says which, forward.c computes.
 *
 * Three modes.  KVL_PREFILL: many tokens of a context, causal; dense without a policy, else under its
 * prefill_mask.  KVL_EXTEND: a block of tokens
 * under the policy; every token appends, selects and attends before the next one of the block exists
 * for it, and eviction comes at the end of the block - but after every token where the policy does its
 * own prefill, since there a context is a stream of steps.  KVL_DECODE: one token for each of several
 * sessions. */
#ifndef KVL_FORWARD_H
#define KVL_FORWARD_H

#include "engine_impl.h"

/* Whether a session takes n more tokens: it has not failed, and they fit its context. */
int kvl_session_has_room(const struct kvl_session *s, int32_t n, struct kvl_err *err);
/* The same, and they are tokens of the model. */
int kvl_session_check_tokens(const struct kvl_session *s, const int32_t *id, int32_t n,
                             struct kvl_err *err);
/* Row i is the token `ahead` positions after those that a session has. */
void kvl_row_set(struct kvl_engine *e, int32_t i, struct kvl_session *s, int32_t id, int32_t ahead);
/* The next n rows are of a session, from its n_pos on. */
void kvl_rows_set(struct kvl_session *s, const int32_t *id, int32_t n);
/* n tokens are about to go through all layers, in chunks: the tick of the engine is told how far they are. */
void kvl_forward_begin(struct kvl_engine *e, int32_t n);
/* Embeds the rows and takes them through all layers: e->x. */
int kvl_forward_rows(const struct kvl_forward *f);
/* The three apart: what operators read of the rows; the embedding; e->x goes through layers first .. end - 1. */
int kvl_forward_give(const struct kvl_forward *f);
int kvl_forward_embed(const struct kvl_forward *f);
int kvl_forward_layers(const struct kvl_forward *f, int32_t first, int32_t end);
/* Logits of the last n of the rows: out [n][n_vocab]. */
int kvl_forward_logits(const struct kvl_forward *f, int32_t n, float *out);

/* Rows i .. i + n - 1 of the call to the store.  seen: hooks see keys and values as they are stored, rounded where they
 * lie. */
int kvl_append_rows(const struct kvl_forward *f, struct kvl_session *s, int32_t layer, int32_t i,
                    int32_t n, bool seen);
/* A prefill's rows to the store and their attention: e->att, and what observers keep (attend_prefill.c). */
int kvl_attend_prefill(const struct kvl_forward *f, int32_t layer);

/* A context on its way, in chunks. */
struct kvl_prefill {
    const int32_t *id;
    int32_t n;
    int32_t chunk; /* tokens; kvl_prefill_run fills it in, and `observes` */
    float *logits; /* as kvl_session_prefill has them */
    bool last_only;
    bool observes; /* the session's observers see it */
};
/* All of it, without what a policy makes of the complete context.  An error leaves the session failed. */
int kvl_prefill_run(struct kvl_session *s, const struct kvl_prefill *asked, struct kvl_err *err);
/* Logits that were asked for of the rows, which are the chunk from token `at` on. */
int kvl_prefill_logits(const struct kvl_prefill *p, const struct kvl_forward *f, int32_t at);
/* Layer by layer (layerwise.c): the same keys, values, observers and logits, bit for bit. */
int kvl_prefill_layerwise(struct kvl_session *s, const struct kvl_prefill *p, struct kvl_err *err);

#endif
