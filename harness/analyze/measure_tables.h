/* measure_tables.h - the tables of a model, measured: what lies in the file beside it (kvl/model_tables.h).
 *
 * Filter layers.  On contexts with a question and its answer: what layers keep with each other's lists
 * (capture.h), mean over contexts; by that, for every number of dense layers, the best set of filters
 * (kvl_filter_layers).  Then, on the same contexts, answers are fed to omnikv with each of these sets, and
 * the fewest dense layers win whose filters give the tokens that full attention gives.
 *
 * Thread-safe: no.
 */
#ifndef KVL_MEASURE_TABLES_H
#define KVL_MEASURE_TABLES_H

#include "capture.h"

/* A context with one question, its answer behind it. */
struct kvl_table_text {
    const int32_t *id;              /* [n] */
    int32_t n, n_context, n_answer; /* n_answer: of the last tokens */
};

/* One set of filters. */
struct kvl_filter_set {
    int32_t dense;   /* layers that it may leave dense */
    uint8_t *filter; /* [n_layers] */
    double kept;     /* mean S of the layers that read a list */
    int64_t n_same;  /* answer tokens as by full attention */
};

struct kvl_model_tables {
    struct kvl_engine *engine;       /* borrowed */
    const struct kvl_policy *omnikv; /* borrowed */
    double share;                    /* tokens of a list / tokens of the context */
    struct kvl_capture *capture;
    double *kept;               /* [n_layers][n_layers] S */
    struct kvl_filter_set *set; /* [n_sets], by ascending dense layers */
    int32_t n_sets, chosen;
    int64_t n_answer; /* answer tokens that were compared */
    float *logits;    /* [n_vocab] */
};

/* max_tok: of the longest text. */
int kvl_model_tables_create(struct kvl_engine *engine, const struct kvl_policy *omnikv,
                            double share, int32_t max_tok, struct kvl_model_tables **out,
                            struct kvl_err *err);
void kvl_model_tables_destroy(struct kvl_model_tables *t);

/* First all texts here ... */
int kvl_model_tables_capture(struct kvl_model_tables *t, const struct kvl_table_text *text,
                             struct kvl_err *err);
/* ... then the sets of filters ... */
int kvl_model_tables_search(struct kvl_model_tables *t, struct kvl_err *err);
/* ... then the same texts here ... */
int kvl_model_tables_compare(struct kvl_model_tables *t, const struct kvl_table_text *text,
                             struct kvl_err *err);
/* ... then the first set that gives 99 % of the tokens, or the one that gives the most: `chosen`. */
void kvl_model_tables_choose(struct kvl_model_tables *t);

/* "2+8+18" */
int kvl_filter_set_print(const struct kvl_filter_set *set, int32_t n_layers, struct kvl_buf *out);

#endif
