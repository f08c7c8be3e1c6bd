/* engine_impl.h - tokens through layers: what the files of this folder share. */
#ifndef KVL_ENGINE_IMPL_H
#define KVL_ENGINE_IMPL_H

#include "policy_impl.h"

/* ---- engine.c ---------------------------------------------------------------------------------- */

enum { KVL_ENGINE_CHUNK = 512 }; /* tokens of a prefill chunk where none are given */

/* Activations of a token, in bytes: what kvl_engine_reserve takes for each. */
size_t kvl_engine_row_bytes(const struct kvl_model *model);
/* Room for the activations of n_rows tokens. */
int kvl_engine_reserve(struct kvl_engine *e, int32_t n_rows, struct kvl_err *err);

/* Adds to a message about memory of the device what was wanted and what there is; returns rc, or KVL_EDEVICE
 * where memory was short because the device is lost. */
int kvl_engine_memory(struct kvl_engine *e, int rc, struct kvl_err *err);

/* ---- repeat.c: the context once more ----------------------------------------------------------- */

struct kvl_repeat;
/* Makes the repetitions that `set` asks for unless they are there; sets the time that they took. */
int kvl_repeat_ready(struct kvl_session *s, const struct kvl_observer_set *set, uint64_t *ns,
                     struct kvl_err *err);
/* Rows first .. first + n - 1 of a repetition have attended in a layer: the engine holds their queries and inputs. */
int kvl_repeat_layer(struct kvl_repeat *r, const struct kvl_session *s, int32_t layer,
                     int32_t first, int32_t n);

/* ---- resolve.c ---------------------------------------------------------------------------------- */

int kvl_resolve(const struct kvl_resolve *r);
/* After attention and its merges: the weights of selections with several segments, then the residuals of
 * those that have one. */
int kvl_resolve_finish(struct kvl_engine *e);

/* ---- session.c: ids of tokens ---------------------------------------------------------------------- */

/* Notes the ids of n tokens that are about to run: positions n_pos and up. */
int kvl_session_note(struct kvl_session *s, const int32_t *id, int32_t n, struct kvl_err *err);

/* ---- attach.c ----------------------------------------------------------------------------------- */

/* The context has come under prefill_mask: replay, prefilled, score, evict, layer by layer. */
int kvl_attach_context(struct kvl_session *s, struct kvl_err *err);
/* Room in the mask oracle's map for positions below n_pos. */
int kvl_session_reserve_dead(struct kvl_session *s, int32_t n_pos, struct kvl_err *err);

#endif
