/* kvl/filters.h - filter layers of a policy: those that find tokens for the layers behind them (OmniKV).
 *
 * Which layers they are is an option: a list, those of the tables beside the model's file, or what is measured on the
 * context at hand.  The best of all sets that leave at most `dense` layers dense is taken (kvl_filter_layers), by
 * what layer m > l keeps with layer l's list:
 *   the model's tables  S(l, m), measured by `kvlab tables` on questions and answers about contexts that were made
 *                       for that; they also say how many layers to leave dense
 *   measured            C(l, m), on the context at hand: its last KVL_FILTER_QUERIES queries (fewer would all stand in
 *                       what happens to end it) pick the top k of every layer (maximum over heads of the weight);
 *                       the share of the weight of layer m, mean over heads and queries, that falls on l's tokens
 *                       and the query's own.  No question is there to be seen: the layers of a model that find what
 *                       is asked for do not show
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_FILTERS_H
#define KVL_FILTERS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVL_FILTER_QUERIES = 32, KVL_FILTER_MAX_LAYERS = 1024 };

/* The options that say it, members of a policy's; what is auto is written back. */
struct kvl_filter_options {
    char *filter_layers,
        *table_sum; /* [KVL_OPT_STR_SIZE]: "2+8+18", auto or measured; of the tables */
    int32_t *wait,
        *dense; /* dense layers behind a filter; most layers left dense; KVL_AUTO is resolved */
    bool *measured,
        *fallback; /* out: on the context, for which plan observes; for want of tables */
};
/* In plan.  may_be [n_layers]: non-zero for layers that may be filters; lives until plan returns.  KVL_EINVAL where
 * the options do not fit the model. */
KVL_API int kvl_plan_filters(struct kvl_plan *plan, const struct kvl_filter_options *o,
                             uint8_t **may_be);

/* What a layer does. */
struct kvl_filter_role {
    int32_t filter; /* whose list it reads; its own number: it is a filter; -1: dense */
    int32_t first,
        last; /* of a filter: the layers that read its list; else, or where none does, -1 */
    float capture, own; /* measured: C(filter, layer), C(layer, layer); else 0 */
};
/* role [n_layers] of the filters "2+8+18", with `wait` dense layers behind each. */
KVL_API int kvl_filter_roles(const struct kvl_pctx *ctx, const char *filter_layers, int32_t wait,
                             struct kvl_filter_role *role);
/* The same of the filters measured on the n_tok tokens that were observed, with lists of k. */
KVL_API int kvl_filter_measure(const struct kvl_pctx *ctx, int32_t n_tok, int32_t k, int32_t wait,
                               int32_t dense, struct kvl_filter_role *role);
/* Over the layers that read a list: their number, sums of capture and own, the least capture. */
struct kvl_filter_sums {
    double n, capture, own, least;
};
KVL_API struct kvl_filter_sums kvl_filter_sum(const struct kvl_pctx *ctx,
                                              const struct kvl_filter_role *role);
/* A note of where the filters come from, where nobody said it. */
KVL_API int kvl_filter_note(const struct kvl_pctx *ctx, struct kvl_report *r,
                            const char *filter_layers, const char *table_sum, bool fallback);

#ifdef __cplusplus
}
#endif

#endif
