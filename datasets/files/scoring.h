/* scoring.h - what the files with scorers share (scorers.h). */
#ifndef KVL_SCORING_H
#define KVL_SCORING_H

#include "scorers.h"
#include "words.h"

#define KVL_SCORE_BLANK " \t\n\v\f\r"

/* One reading of one prediction. */
struct scoring {
    const struct kvl_gold *gold;
    const char *prediction;
    bool strict;
    struct kvl_err *err;
};

/* Without space at both ends, of whatever kind Unicode has. */
struct kvl_word kvl_text_strip(const char *s);
/* A copy without space at both ends in which `marks` are spaces. */
int kvl_text_clean(const char *s, const char *marks, struct kvl_buf *out);
/* Runs of spaces become one. */
void kvl_text_squeeze(struct kvl_buf *b);
bool kvl_text_starts(const char *s, const char *with);
/* Whether `s` holds `word`, as a word of its own if `whole`. */
bool kvl_text_has(const char *s, const char *word, bool whole);
/* The same with upper and lower case alike. */
int kvl_text_has_any_case(const char *s, const char *word, bool whole, bool *out);

/* The best of all answers by a function of two texts. */
int kvl_score_best(const struct scoring *s,
                   int (*one)(const struct scoring *s, const char *gold, double *out), double *out);
int kvl_score_substring_one(const struct scoring *s, const char *gold, double *out);

int kvl_score_exact(const struct scoring *s, double *out);
int kvl_score_substring(const struct scoring *s, double *out);
int kvl_score_in_upper(const struct scoring *s, double *out);
int kvl_score_all_substrings(const struct scoring *s, double *out);
int kvl_score_vt_rounded(const struct scoring *s, double *out);
int kvl_score_kv_in(const struct scoring *s, double *out);
int kvl_score_kv_words(const struct scoring *s, double *out);
int kvl_score_dialogue(const struct scoring *s, double *out);
int kvl_score_first_int(const struct scoring *s, double *out);
int kvl_score_count(const struct scoring *s, double *out);
int kvl_score_retrieval(const struct scoring *s, double *out);
int kvl_score_math_find(const struct scoring *s, double *out);
int kvl_score_math_find_sc(const struct scoring *s, double *out);
int kvl_score_number(const struct scoring *s, double *out);
int kvl_score_code_run(const struct scoring *s, double *out);
int kvl_score_math_calc(const struct scoring *s, double *out);
int kvl_score_substring_em(const struct scoring *s, double *out);
int kvl_score_f1(const struct scoring *s, double *out);
int kvl_score_f1_zh(const struct scoring *s, double *out);
int kvl_score_rouge_l(const struct scoring *s, double *out);
int kvl_score_rouge_l_zh(const struct scoring *s, double *out);
int kvl_score_rouge_lsum(const struct scoring *s, double *out);
int kvl_score_classification(const struct scoring *s, double *out);
int kvl_score_babilong(const struct scoring *s, double *out);
int kvl_score_choice(const struct scoring *s, double *out);
int kvl_score_choice_tag(const struct scoring *s, double *out);
int kvl_score_code_debug(const struct scoring *s, double *out);
int kvl_score_edit(const struct scoring *s, double *out);
int kvl_score_needlebench(const struct scoring *s, double *out);
int kvl_score_code_sim(const struct scoring *s, double *out);
int kvl_score_edit_zh(const struct scoring *s, double *out);
int kvl_score_mrcr(const struct scoring *s, double *out);
int kvl_score_color(const struct scoring *s, double *out);
int kvl_score_set_f1(const struct scoring *s, double *out);
int kvl_score_regex(const struct scoring *s, double *out);

#endif
