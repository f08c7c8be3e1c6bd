/* asked_lists.h - lists of live tokens of every lane, to ask an inner policy about (block, chunk, decode).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_ASKED_LISTS_H
#define KVL_ASKED_LISTS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* asked->pos and n: live tokens first .. first + n - 1 of every lane, in scratch; n < 0: all from `first` on. */
int kvl_ask_live(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                 struct kvl_asked *asked);
/* Those that the inner policy protects score better than any other. */
void kvl_scores_protect(const struct kvl_pctx *ctx, struct kvl_scores *scores);

#ifdef __cplusplus
}
#endif

#endif
