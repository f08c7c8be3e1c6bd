/* summary.h - results pooled: a row per policy and budget, a column per task and protocol, lengths and depths
 * together.
 *
 * One summary per model and device.  Everything points into the results, which must stay.
 * Thread-safe: no.
 */
#ifndef KVL_SUMMARY_H
#define KVL_SUMMARY_H

#include "results.h"

/* What some cells add up to; n 0: there are none.
 *
 * Cells over the same contexts (other protocols, of files other lengths or tasks) are no new observations: how
 * far off they are together is taken to be the sum of how far off each is, as if they were right and wrong
 * together.  Cells over other contexts are independent, and squares add up.  So cells of n_i questions and
 * n_i,eff independent ones, over groups g that share contexts, n = sum n_i, are as good as
 *     n_eff = n^2 / sum_g (sum_i in g n_i / sqrt(n_i,eff))^2
 * independent questions; or fewer, where the cells that tell least are those of a rate p_i about a half:
 *     n_eff = p (1 - p) n^2 / sum_g (sum_i in g n_i sqrt(p_i (1 - p_i) / n_i,eff))^2. */
struct kvl_pool {
    double n, right, recall, n_recall, best, n_best;
    const struct kvl_result *group; /* the last cell: of the group that is being added to */
    double parts, errors;           /* its sums of the two formulas */
    double parts2, errors2;         /* squared, of the groups before it */
};

struct kvl_summary_row {
    const struct kvl_result *const *cell; /* [n] */
    size_t n;
    struct kvl_pool all, *column; /* [n_columns] of the summary */
    /* The result that speed and bytes are told for: of the longest length, timed if any is; NULL: none. */
    const struct kvl_result *speaker;
    bool stale;
};

struct kvl_summary {
    const struct kvl_result **cell; /* [n] all of this model and device, row by row */
    size_t n;
    const struct kvl_result **column; /* [n_columns] one cell of each task and protocol */
    size_t n_columns;
    struct kvl_summary_row *row; /* [n_rows] */
    size_t n_rows;
    double length_tok; /* the longest of cells, or of speeds where there are none */
};

/* Parts of a block that a column pools; and a summary. */
#define KVL_SUMMARY_POOLED (KVL_BLOCK_LENGTH | KVL_BLOCK_DEPTH)
#define KVL_SUMMARY_BLOCK  (KVL_SUMMARY_POOLED | KVL_BLOCK_TASK | KVL_BLOCK_PROTOCOL)

/* All but texts, in *out [*n], which kvl_summaries_free releases.  KVL_ENOMEM. */
int kvl_summaries(const struct kvl_results *r, struct kvl_summary **out, size_t *n,
                  struct kvl_err *err);
void kvl_summaries_free(struct kvl_summary *s, size_t n);

/* Whether a cell is one of a column's. */
bool kvl_summary_has(const struct kvl_summary *s, size_t column, const struct kvl_result *x);
/* Whether full attention itself fails the task of a column: nothing can be concluded there. */
bool kvl_summary_fails(const struct kvl_summary *s, size_t column);

/* Cells without a score add nothing.  Those over the same contexts (kvl_result_contexts_cmp) follow each other. */
void kvl_pool_add(struct kvl_pool *p, const struct kvl_result *x);
/* Accuracy of a pool with its interval, NaN when it is empty; recall of retrieving lanes and of the best layer, likewise. */
struct kvl_interval kvl_pool_accuracy(const struct kvl_pool *p);
double kvl_pool_recall(const struct kvl_pool *p);
double kvl_pool_recall_best(const struct kvl_pool *p);
/* Order of rows where lengths are pooled or beside each other, 0 when it is the same row: budgets that were
 * written alike are one, since 25% is another number of tokens at every length.  Shares stand behind budgets
 * in tokens. */
int kvl_report_row_cmp(const struct kvl_result *a, const struct kvl_result *b);

#endif
