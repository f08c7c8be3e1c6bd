/* filter_roles.h - filter layers of a policy: those that find tokens for the layers behind them (OmniKV).
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
#ifndef KVL_FILTER_ROLES_H
#define KVL_FILTER_ROLES_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVL_FILTER_QUERIES = 32, KVL_FILTER_MAX_LAYERS = 1024 };

/* The options that say it: member `filters` of a policy's, and rows of its table; what is auto is written back. */
struct kvl_filter_options {
    char filter_layers[KVL_OPT_STR_SIZE]; /* "2+8+18", auto or measured */
    int32_t dense_layers,
        num_wait_load_layers;         /* most layers left dense; dense ones after a filter */
    char table_sum[KVL_OPT_STR_SIZE]; /* of the model's tables */
    bool measured, fallback; /* not options, from plan: on the context; for want of tables */
};
/* `on`: the tokens that are measured, as text. */
#define KVL_FILTER_ROWS(tag, on)                                                                   \
    { .name = "filter_layers",                                                                     \
      .type = KVL_OPT_STR,                                                                         \
      .off = offsetof(struct tag, filters.filter_layers),                                          \
      .def = "auto",                                                                               \
      .help = "layers that choose for those behind them, as in 2+8+18 (official: "                 \
              "do_select_layers \"2,8,18\" of 32); auto = by the model's tables (kvlab tables), "  \
              "without them measured; measured = by captured attention on " on },                  \
        { .name = "dense_layers",                                                                  \
          .type = KVL_OPT_INT,                                                                     \
          .off = offsetof(struct tag, filters.dense_layers),                                       \
          .def = "auto",                                                                           \
          .min = 1,                                                                                \
          .max = KVL_FILTER_MAX_LAYERS,                                                            \
          .help = "most layers left dense when filters are not given; auto = of the model's "      \
                  "tables, without them max(2, layers / 4)" },                                     \
    {                                                                                              \
        .name = "num_wait_load_layers", .type = KVL_OPT_INT,                                       \
        .off = offsetof(struct tag, filters.num_wait_load_layers), .def = "auto", .min = 0,        \
        .max = KVL_FILTER_MAX_LAYERS,                                                              \
        .help = "dense layers behind a filter, to hide the load (official: 1); auto = 1 from 16 "  \
                "layers on, else 0"                                                                \
    }
#define KVL_FILTER_SUM_ROW(tag)                                                                    \
    {                                                                                              \
        .name = "table_sum", .type = KVL_OPT_STR, .off = offsetof(struct tag, filters.table_sum),  \
        .def = "",                                                                                 \
        .help = "checksum of the model's tables, written when filter layers come from them"        \
    }
/* In plan.  may_be [n_layers]: non-zero for layers that may be filters; lives until plan returns.  KVL_EINVAL where
 * the options do not fit the model. */
int kvl_plan_filters(struct kvl_plan *plan, struct kvl_filter_options *o, uint8_t **may_be);

/* What a layer does. */
struct kvl_filter_role {
    int32_t filter; /* whose list it reads; its own number: it is a filter; -1: dense */
    int32_t first,
        last; /* of a filter: the layers that read its list; else, or where none does, -1 */
    float capture, own; /* measured: C(filter, layer), C(layer, layer); else 0 */
};
/* role [n_layers] of the filters; not of measured ones. */
int kvl_filter_roles(const struct kvl_pctx *ctx, const struct kvl_filter_options *o,
                     struct kvl_filter_role *role);
/* The same of filters measured on the n_tok tokens that were observed, with lists of k. */
int kvl_filter_measure(const struct kvl_pctx *ctx, const struct kvl_filter_options *o,
                       int32_t n_tok, int32_t k, struct kvl_filter_role *role);
/* In open or prefilled of a policy that offloads: the layers that read no list stay on the device. */
int kvl_filter_offload(const struct kvl_pctx *ctx, const struct kvl_filter_role *role);
/* Over the layers that read a list: their number, sums of capture and own, the least capture. */
struct kvl_filter_sums {
    double n, capture, own, least;
};
struct kvl_filter_sums kvl_filter_sum(const struct kvl_pctx *ctx,
                                      const struct kvl_filter_role *role);
/* Reports the layers that are filters, as filter_0000, filter_0001 ..., and their number; of measured ones also
 * capture_mean, capture_min and capture_own. */
int kvl_filter_report(const struct kvl_pctx *ctx, struct kvl_report *r,
                      const struct kvl_filter_options *o, const struct kvl_filter_role *role);
/* A note of where the filters come from, where nobody said it. */
int kvl_filter_note(const struct kvl_pctx *ctx, struct kvl_report *r,
                    const struct kvl_filter_options *o);

#ifdef __cplusplus
}
#endif

#endif
