/* similar.h - how alike two texts are: edit distance, difflib's ratio, ROUGE.
 *
 * All of them return KVL_OK or KVL_ENOMEM.
 * Thread-safe: yes.
 */
#ifndef KVL_SIMILAR_H
#define KVL_SIMILAR_H

#include "words.h"

/* Insertions, deletions and substitutions that make `b` of `a`, in code points. */
int kvl_edit_distance(const struct kvl_letters *a, const struct kvl_letters *b, int32_t *out);
/* 2 M / (|a| + |b|), M = code points in matching blocks as difflib.SequenceMatcher(None, a, b) finds them,
 * which with 200 code points and more leaves out frequent ones; 1 when both are empty. */
int kvl_difflib_ratio(const struct kvl_letters *a, const struct kvl_letters *b, double *out);
/* The same of the longest common subsequence (python-Levenshtein). */
int kvl_lcs_ratio(const struct kvl_letters *a, const struct kvl_letters *b, double *out);

/* ROUGE-L, F of summary level, as the Python package `rouge` (LongBench): sentences end at a full stop,
 * words at a space, counts are of different words.  Two sentences that take more than `steps` steps to compare make the
 * score 0, as there, where the recursion is then too deep; 0: any number. */
enum { KVL_ROUGE_STEPS = 990 }; /* of Python's 1000 calls in each other */
int kvl_rouge_l(const char *prediction, const char *reference, int32_t steps, double *out);
/* ROUGE-Lsum as the Python package `rouge_score` without stemming (InfiniteBench, SCBench): sentences are
 * lines, words [a-z0-9]+ in lower case. */
int kvl_rouge_lsum(const char *prediction, const char *reference, double *out);

#endif
