/* compare.h - two logs, or two policies of one, cell by cell: what got better, what got worse.
 *
 * Cells are paired that ask the same with the same means: task, protocol, length, depth, policy with the options
 * that were given, budget, prefill.  Two policies are paired at the same budget, or with the one that has none.
 * A pair is comparable when model file, seed, task with its options and version, chat template, sampling and the
 * prompts of all common questions are the same.  Device, KV type, options as resolved and code may differ: they may
 * be what is compared.
 *
 *   accuracy   points of 100 of the official scorer, on the same questions; interval over contexts
 *   ppl        of texts: the ratio of both perplexities, in percent; likewise
 *   recall     of retrieving lanes (lane_recall.h), on the same questions; likewise.  Wants the policy oracle in both logs
 *   bytes      keys, values and metadata read per token, in percent: counted, so that there is no interval
 *   speed      tokens/s of decoding, in percent: from the slowest repeat by the other's fastest to the reverse; of
 *              one machine and number of threads, two repeats at least
 *
 * All are told as B less A, A being the one to beat.  A row is worse (better) when its whole interval is worse
 * (better) by more than the threshold, and the sign-flip test over contexts (stats.h) has p < 0.05: that takes six
 * contexts at least.  A row of speed is faster or slower in the same way, the same where its interval is within the
 * threshold, and unclear otherwise: repeats of one cell, of which nothing differs, are too far apart (A/A).
 */
#ifndef KVL_COMPARE_H
#define KVL_COMPARE_H

#include "results.h"
#include "text_table.h"

#include <stdio.h>

enum kvl_compare_measure {
    KVL_COMPARE_ACCURACY,
    KVL_COMPARE_PPL,
    KVL_COMPARE_RECALL,
    KVL_COMPARE_BYTES,
    KVL_COMPARE_SPEED,
    KVL_COMPARE_MEASURES
};
extern const char *const kvl_compare_names[KVL_COMPARE_MEASURES + 1]; /* NULL-terminated */

struct kvl_compare_side {
    const struct kvl_results *r;
    const char *name;   /* of the log or the policy */
    const char *policy; /* label or name; NULL: each policy with itself */
};

struct kvl_compare {
    struct kvl_compare_side a, b;
    bool want[KVL_COMPARE_MEASURES];
    double threshold[KVL_COMPARE_MEASURES]; /* points, percent; recall 0 .. 1 */
    enum kvl_table_form form;
};

/* No failure, and told apart from all of them: the exit code of the program. */
enum { KVL_COMPARE_WORSE = 1 };

/* Prints the table and what it amounts to.  KVL_COMPARE_WORSE: a row is worse, and the message names the first;
 * KVL_EINVAL: no such policy, nothing to compare, or nothing comparable, with the reason; KVL_ENOMEM. */
int kvl_compare(const struct kvl_compare *c, FILE *out, struct kvl_err *err);

#endif
