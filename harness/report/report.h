/* report.h - results as a table for a terminal: what stands at the end of a sweep.
 *
 * One block per model, task, protocol, length and depth; in it the dense run first, then the
 * methods by name and budget, then random and oracle, which bound them.
 */
#ifndef KVL_REPORT_H
#define KVL_REPORT_H

#include "results.h"
#include "text_table.h"

#include <stdio.h>

/* All blocks and the notes below them.  KVL_ENOMEM. */
int kvl_report_print(const struct kvl_results *r, FILE *out, struct kvl_err *err);
/* How many blocks that prints. */
size_t kvl_report_blocks(const struct kvl_results *r);
/* One table for all of it: accuracy per task and protocol, lengths and depths pooled; recall, speed
 * and bytes.  Notes included.  KVL_ENOMEM. */
int kvl_report_summary(const struct kvl_results *r, enum kvl_table_form form, FILE *out,
                       struct kvl_err *err);
/* Official accuracy with one column per value of `key`; of evidence at random depths, per quarter of the context. */
int kvl_report_by(const struct kvl_results *r, enum kvl_block_key key, enum kvl_table_form form,
                  FILE *out, struct kvl_err *err);
/* One block of texts: perplexity instead of accuracy.  x [n]. */
int kvl_report_texts(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                     struct kvl_err *err);
/* Differences to the policy with that label or name, on the same questions and, where it has one,
 * at the same budget.  KVL_EINVAL when there is no such policy, or no sample at all. */
int kvl_report_vs(const struct kvl_results *r, const char *base, enum kvl_table_form form,
                  FILE *out, struct kvl_err *err);
/* KVL_EINVAL: says that no cell is of that policy, with the nearest label. */
int kvl_report_unknown(const struct kvl_results *r, const char *policy, struct kvl_err *err);
/* Tables beside accuracy, of the cells that have what they show. */
enum kvl_detail { KVL_DETAIL_STAGES, KVL_DETAIL_EVIDENCE, KVL_DETAIL_QUALITY, KVL_DETAIL_METHOD };
bool kvl_report_has(const struct kvl_results *r, enum kvl_detail what);
/* KVL_EINVAL: no cell has it. */
int kvl_report_detail(const struct kvl_results *r, enum kvl_detail what, enum kvl_table_form form,
                      FILE *out, struct kvl_err *err);
/* What the methods of a block count themselves: a table per label, names by budgets.  x [n]. */
int kvl_report_method(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                      struct kvl_err *err);
/* An analysis record as tables.  KVL_ENOMEM. */
int kvl_report_analysis(const json_t *record, FILE *out, struct kvl_err *err);
/* What methods say of themselves: each line once per model and label. */
void kvl_report_method_notes(const struct kvl_results *r, FILE *out);
/* What a star means, where there is one. */
void kvl_report_stale(const struct kvl_results *r, enum kvl_table_form form, FILE *out);
/* What a reader must know: bounds, stale results, what failed, what is damaged. */
int kvl_report_notes(const struct kvl_results *r, enum kvl_table_form form, FILE *out,
                     struct kvl_err *err);

/* Says which bounds a block x [n] lacks. */
/* KL and top-1 beside full attention: two columns. */
void kvl_report_compared(struct kvl_table *t, const struct kvl_result *x);
/* Full attention among the rows of a block; NULL: it was not run. */
const struct kvl_result *kvl_report_dense(const struct kvl_result *x, size_t n);
/* Whether a method reads more bytes a token than full attention, choosing included. */
bool kvl_report_reads_more(const struct kvl_result *x, const struct kvl_result *full);
/* Bytes read to choose, with a mark where they make it so; what the mark means, where a row has it. */
void kvl_report_index(struct kvl_table *t, const struct kvl_result *x,
                      const struct kvl_result *full);
void kvl_report_more(const struct kvl_result *x, size_t n, FILE *out);
void kvl_report_missing(const struct kvl_result *x, size_t n, FILE *out);
/* Cells of a row: the label, with a star where the result is stale; the budget as written and in tokens; live slots and whole blocks. */
void kvl_report_name(struct kvl_table *t, const struct kvl_result *x);
void kvl_report_budget(struct kvl_table *t, const struct kvl_result *x);
void kvl_report_held(struct kvl_table *t, const struct kvl_result *x);

/* What a line beside a table of that form begins with: where it is no table it is a comment. */
const char *kvl_report_mark(enum kvl_table_form form);
/* Lines of `text`, each with that in front. */
void kvl_report_lines(const char *text, enum kvl_table_form form, FILE *out);
/* The headline of the block of `x`; parts in `skip` are left out. */
void kvl_report_block(const struct kvl_result *x, unsigned skip, enum kvl_table_form form,
                      FILE *out);
/* Under a table: the chat template of its prompts, and how answers were drawn; and where full attention itself fails the task, that
 * the table tells nothing of methods. */
void kvl_report_chat(const struct kvl_result *x, FILE *out);
void kvl_report_full(const struct kvl_result *x, size_t n, FILE *out);
/* Of a task of a benchmark's files: why its script gives another number (NULL: it does not), of how many questions the
 * evidence was cut off, and what is right without the context, where that was asked.  x [n]: a block of `r`. */
const char *kvl_report_unofficial(const struct kvl_result *x);
double kvl_report_lost(const struct kvl_result *x, size_t n); /* 0: of none */
/* The cell that asks the questions of `x` without their contexts; NULL: none does. */
const struct kvl_result *kvl_report_no_context(const struct kvl_results *r,
                                               const struct kvl_result *x);
void kvl_report_files(const struct kvl_results *r, const struct kvl_result *x, size_t n, FILE *out);
/* Whether full attention, right with this interval, answers a task: it is more than KVL_FULL_MARGIN above
 * chance (NaN: 0), with 95 % confidence. */
#define KVL_FULL_MARGIN 0.1
bool kvl_report_answers(const struct kvl_interval *full, double chance);
/* One line per stretch of damage. */
void kvl_report_damage(const struct kvl_log_health *h, FILE *out);
/* Errors by status: how often and one message; then why samples failed, by message. */
void kvl_report_errors(const struct kvl_results *r, FILE *out);
/* How many errors are the same as error i; 0 where one before it is. */
size_t kvl_errors_same(const json_t *errors, size_t i);
/* The policy of an error whose message does not begin with its name, else "". */
const char *kvl_error_policy(const json_t *error);

#endif
